"""Layers and recomputed layers chosen together: against every split, number of recomputed layers and placement."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, LLAMA_8B, make_cluster, make_job, make_links

from pipette_opt.base.units import GIB
from pipette_opt.candidates import RECOMPUTATIONS, SearchSpace, enumerate_candidates
from pipette_opt.memory.filter import keep_fitting
from pipette_opt.optimize import OptimizeParams, optimize
from pipette_opt.parallel import ParallelConfig, host_tiles, tile_placement
from pipette_opt.plans.plan import Plan
from pipette_opt.prepare import load_predictor
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import Instance
from pipette_opt.verify import verify

LAYERS = 9
"""Layers of the model of the test: few enough for every split."""

SPACE = SearchSpace(
    tensor_parallel=(2,),
    pipeline_parallel=(2,),
    data_parallel=(1,),
    context_parallel=(1,),
    micro_batch_size=(1,),
    virtual_pipeline=(1,),
    overlap_grad_reduce=False,
)
"""Two stages on two hosts."""


@pytest.fixture(scope="module")
def job() -> Instance:
    """Two hosts of two GPUs whose memory is too small without recomputation."""
    small = replace(A100_40, name="a100-20gb", memory_bytes=20 * GIB)
    values = np.random.default_rng(0).uniform(6.0, 25.0, (2, 2))
    hosts = make_cluster(2, gpus=2, kinds=(small,), link_matrices=(make_links(values, 2),))
    return make_job(hosts, replace(LLAMA_8B, num_layers=LAYERS), 24, 4096)


@pytest.fixture(scope="module")
def every(job: Instance) -> dict[ParallelConfig, float]:
    """The simulator's least time of every split and number of recomputed layers that fits, over all placements."""
    predictor, found = load_predictor(0.01, job), {}
    splits = tuple((units, LAYERS - units) for units in range(1, LAYERS))
    listed = enumerate_candidates(job, replace(SPACE, layers_per_stage=splits))
    numbers = [
        replace(one, recompute_num_layers=number)
        for one in listed
        for number in (range(1, max(one.layers_per_stage) + 1) if one.recomputation == "block" else (1,))
    ]
    for one in keep_fitting(job, numbers, predictor, 0.01).fitting:
        for block in host_tiles(one.config, 2, job.launcher):
            grid = block.node_grid(one.config)
            for hosts in itertools.permutations(range(2), int(np.prod(grid))):
                placement = tile_placement(one.config, block, np.array(hosts).reshape(grid))
                seconds = estimate(job, one.config, placement).iteration_time_s
                found[one.config] = min(seconds, found.get(one.config, np.inf))
    return found


@pytest.fixture(scope="module")
def plan(job: Instance) -> Plan:
    """The plan of the search."""
    return optimize(job, SPACE, OptimizeParams(time_limit_s=20, workers=2, max_oom_risk=0.01))


@pytest.mark.search
def test_the_plan_is_the_optimum_of_all_numbers(job: Instance, every: dict[ParallelConfig, float], plan: Plan) -> None:
    """Proven; verified; some layers are recomputed, and with one less of them the plan would not fit."""
    assert plan.estimate.iteration_time_s == pytest.approx(min(every.values()), rel=1e-4)
    assert plan.certificate.status == "OPTIMAL"
    assert plan.config.recomputation == "block"
    number = plan.config.recompute_num_layers
    assert number == 1 or replace(plan.config, recompute_num_layers=number - 1) not in every
    verify(job, plan)


def test_block_beats_all_others(every: dict[ParallelConfig, float]) -> None:
    """Nothing, the attention core and everything are slower, or do not fit."""
    least = {
        choice: min((seconds for one, seconds in every.items() if one.recomputation == choice), default=np.inf)
        for choice in RECOMPUTATIONS
    }
    assert least["block"] < min(least[None], least["selective"], least["full"])


def test_time_never_falls_with_the_number(every: dict[ParallelConfig, float]) -> None:
    """Of every split; which is why the smallest number that fits is enough."""
    for one, seconds in every.items():
        less = replace(one, recompute_num_layers=max(one.recompute_num_layers - 1, 1))
        assert every.get(less, 0.0) <= seconds * (1 + 1e-12)


@pytest.mark.search
def test_the_scope_says_that_blocks_were_searched(plan: Plan) -> None:
    """And no longer that some layers of a stage were not."""
    assert "block" in plan.certificate.searched["recompute"]
    assert not any("recomputed layers" in text for text in plan.certificate.not_searched)
    assert sum(part.configurations for part in plan.certificate.proof) > 0
