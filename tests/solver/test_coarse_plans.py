"""Coarse placements that the simulator compares."""

import numpy as np
import pytest
from factories import make_cluster, make_config, make_job

from pipette_opt.parallel import tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.data import ProblemData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.solver.coarse_plans import coarse_placement
from pipette_opt.solver.pruning import listed_hosts
from pipette_opt.specs import Instance

pytestmark = pytest.mark.search

CONFIG = make_config(
    tp=2, pp=4, dp=8, overlap_grad_reduce=True, overlap_param_gather=True, use_distributed_optimizer=True,
    virtual_pipeline_model_parallel_size=2, sequence_parallel=True,
)  # fmt: skip
"""Two model chunks; 32 hosts of two GPUs are four rows of eight."""


def racks(*, missing: float = 0.0) -> Instance:
    """Four racks of eight hosts in random order, 24 GB/s inside and 20 across; four hosts have links at 0.6 of that."""
    rng = np.random.default_rng(0)
    rack, slow = rng.permutation(np.arange(32) // 8), rng.permutation(32)[:4]
    rates = np.where(rack[:, None] == rack[None, :], 24.0, 20.0)
    rates[slow] *= 0.6
    rates[:, slow] *= 0.6
    rates[rng.random(rates.shape) < missing] = np.nan
    return make_job(make_cluster(32, rates, gpus=2), global_batch_size=64)


def problem(job: Instance, need_bytes: int = 0) -> ProblemData:
    """The relaxed problem of the configuration; hosts have memory for 100 bytes."""
    fitting = FittingCandidate(config=CONFIG, need_bytes=np.full(4, need_bytes << 20))
    return build_problem_data(job, [fitting], np.full(32, 100 << 20))


def test_slow_hosts_share_a_row() -> None:
    """So three of four rings are fast; the seconds are the simulator's, and fewer than on hosts in listed order."""
    job = racks()
    data = problem(job)
    candidate = data.candidates[0]
    found = coarse_placement(job, data, candidate)
    assert found is not None
    nodes, seconds = found
    assert nodes.shape == candidate.grid
    rates = job.cluster.pair_bytes_per_s(2)
    rings = nodes.reshape(4, 8)
    slowest = np.array([rates[row, np.roll(row, -1)].min() for row in rings]) / 1e9
    assert (np.sort(slowest) >= [11.9, 19.9, 19.9, 19.9]).all()
    assert seconds == estimate(job, CONFIG, tile_placement(CONFIG, candidate.tile, nodes)).iteration_time_s
    listed = listed_hosts(job.cluster, data, candidate)
    assert listed is not None
    assert seconds < estimate(job, CONFIG, tile_placement(CONFIG, candidate.tile, listed)).iteration_time_s


def test_none_without_memory_or_links() -> None:
    """There is none if no host has room, or if each placement uses a link that was not measured."""
    job = racks()
    data = problem(job, need_bytes=101)
    assert coarse_placement(job, data, data.candidates[0]) is None
    job = racks(missing=0.9)
    data = problem(job)
    assert coarse_placement(job, data, data.candidates[0]) is None
