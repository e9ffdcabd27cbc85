"""Bounds hold where hosts of a region are near, and regions far apart."""

from dataclasses import replace

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_config, make_job, make_links

from benchmarks.systems import methods
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.work import WorkBounds
from pipette_opt.optimize import optimize
from pipette_opt.parallel import host_tiles, tile_placement
from pipette_opt.problem.beside import least_rings_s
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.specs.levels import Level

pytestmark = pytest.mark.search

SPACE = SearchSpace(
    tensor_parallel=(1,), virtual_pipeline=(1,), context_parallel=(1,), micro_batch_size=(1,), recompute=(None,)
)


def job() -> Instance:
    """Two regions of two hosts: 20 GB/s and 12 us inside, 0.2 GB/s and 30 ms between."""
    region = np.array([0, 0, 1, 1])
    spec = replace(
        make_cluster(4, 20.0, gpus=2),
        link_matrices=(make_links(np.where(region[:, None] == region, np.nan, 0.2), 4),),
        inter_node_latency_s=30e-3,
        levels=(Level(name="region", group_of_node=region, bytes_per_s=20e9, latency_s=12e-6),),
    )
    return make_job(spec, model=replace(LLAMA_8B, num_layers=4), global_batch_size=16, seq_length=512)


def test_least_rings_are_those_inside_a_region() -> None:
    """A stage on the two hosts of a region reduces as fast as the bound says, and no faster."""
    given = job()
    split = make_config(pp=2, dp=4, num_layers=4, use_distributed_optimizer=True, overlap_grad_reduce=True)
    (tile,) = [one for one in host_tiles(split, 2, given.launcher) if one.stages == 1 and one.replicas == 2]
    placed = placed_times(given, split, tile_placement(split, tile, np.arange(4).reshape(2, 2, 1)))
    least = least_rings_s(given, split, tile)
    assert least is not None
    assert (least[0] <= placed.reduction_s * (1 + 1e-9)).all()
    assert least[0].max() >= 0.99 * placed.reduction_s.max()
    seconds = estimate(given, split, tile_placement(split, tile, np.arange(4).reshape(2, 2, 1))).iteration_time_s
    assert WorkBounds(given)(split) <= seconds


def test_no_bound_counts_the_latency_between_regions_inside_one(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Rings inside a region are fast: the bound is at most the fastest of all placements, and the plan is as fast."""
    monkeypatch.setattr(methods, "SearchSpace", lambda: SPACE)
    best = methods.exhaustive(job(), 60.0)
    plan = optimize(job(), SPACE, OptimizeParams(time_limit_s=30.0, workers=1))
    assert best is not None
    assert plan.certificate.lower_bound_s <= best.seconds * (1 + 1e-9)
    assert plan.estimate.iteration_time_s <= best.seconds * (1 + 1e-6)
    assert plan.config.pipeline_model_parallel_size > 1
