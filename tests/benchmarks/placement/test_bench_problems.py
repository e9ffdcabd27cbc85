"""Problems of placement instances: how transfers and rings weigh."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.placement.clusters import link_gb_per_s, num_flows
from benchmarks.placement.instances import JOBS
from benchmarks.placement.problems import balanced_problem, cluster_of, job_problem
from benchmarks.placement.run import dependent_ticks
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("shape", [(4, 4), (2, 8), (8, 2), (3, 5)])
def test_balanced_over_equal_links(shape: tuple[int, int], p2p: P2PMode) -> None:
    """Over equal links transfers and the ring take the same time, up to rounding."""
    hosts = shape[0] * shape[1]
    rates = np.full((hosts, hosts), 20.0)
    np.fill_diagonal(rates, np.nan)
    data = balanced_problem(rates, shape, p2p)
    candidate = data.candidates[0]
    nodes = np.arange(hosts).reshape(*shape, 1)
    value = objective_ticks(data, candidate, nodes)
    dependent = dependent_ticks(data, Solution(candidate=0, nodes=nodes, objective_ticks=value))
    free_ring = replace(candidate, ring_ticks=np.zeros_like(candidate.ring_ticks))
    ring = value - objective_ticks(data, free_ring, nodes)
    assert ring / dependent == pytest.approx(0.5, abs=1e-4)


def test_balanced_without_rings_or_transfers() -> None:
    """One replica has no ring, one stage no transfers."""
    rates = link_gb_per_s("unif", 4, 0)
    row = np.arange(4)
    line = balanced_problem(rates, (4, 1), "blocking")
    assert objective_ticks(line, line.candidates[0], row.reshape(4, 1, 1)) < UNUSABLE_TICKS
    ring = balanced_problem(rates, (1, 4), "blocking")
    slowest = objective_ticks(ring, ring.candidates[0], row.reshape(1, 4, 1))
    alone = ring.candidates[0].num_microbatches * 3 * 40_000
    assert slowest - alone == ring.candidates[0].ring_ticks[0][row, np.roll(row, -1)].max()


def test_missing_and_directed_links() -> None:
    """A missing link is unusable; blocking sends wait for the slower direction, asynchronous ones do not."""
    rates = np.array([[np.nan, 10.0, 20.0], [20.0, np.nan, 20.0], [np.nan, 20.0, np.nan]])
    blocking, asynchronous = (balanced_problem(rates, (3, 1), p2p).candidates[0] for p2p in ("blocking", "async"))
    assert blocking.p2p_ticks[0, 1] == blocking.p2p_ticks[1, 0] == 80_000
    assert asynchronous.p2p_ticks[1, 0] == 40_000
    assert asynchronous.p2p_ticks[2, 0] == blocking.p2p_ticks[2, 0] == UNUSABLE_TICKS


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("shape", [(4, 4), (16, 8)])
def test_jobs_use_whole_hosts(job: str, shape: tuple[int, int]) -> None:
    """One host for each cell, every layer somewhere, and both transfers and rings that depend on the link."""
    rates = link_gb_per_s("tree", shape[0] * shape[1], 0)
    data = job_problem(JOBS[job], cluster_of(rates, num_flows("tree"), JOBS[job].gpu), shape, "blocking")
    (candidate,) = data.candidates
    assert candidate.grid == (*shape, 1)
    assert candidate.has_analytical_model
    layers = candidate.config.layers_per_stage
    assert max(layers) - min(layers) <= 1
    usable = candidate.p2p_ticks[candidate.p2p_ticks < UNUSABLE_TICKS]
    assert usable.min() < usable.max()
    assert candidate.num_microbatches >= shape[0]


def test_jobs_weigh_differently() -> None:
    """The time of a ring over that of a transfer differs from job to job."""
    rates = link_gb_per_s("tree", 16, 0)
    ratios = set()
    for job in JOBS.values():
        candidate = job_problem(job, cluster_of(rates, 1, job.gpu), (4, 4), "blocking").candidates[0]
        ratios.add(round(candidate.ring_ticks[0, 0, 1] / candidate.p2p_ticks[0, 1] / candidate.num_microbatches, 1))
    assert len(ratios) == 3
