"""Certificates and reasons on problems small enough to enumerate."""

from dataclasses import replace

import numpy as np
import pytest
from factories import A100_40, A100_80, LLAMA_8B, make_cluster, make_config, make_job
from learned import TICKS, learned
from simulated_cases import least_s, placements, small

from pipette_opt.base.types import P2PMode
from pipette_opt.base.units import GIB, percent
from pipette_opt.parallel import tile_placement
from pipette_opt.problem.build import FittingCandidate, build_problem_data
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.best_kinds import best_kinds
from pipette_opt.simulate.estimate import estimate, simulate_times
from pipette_opt.simulate.solutions import (
    best_first,
    best_links_times,
    simulate_solution,
    unused_hosts,
)
from pipette_opt.specs import GpuSpec


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_the_simulator_bound_holds_for_every_plan(seed: int, p2p: str) -> None:
    """No placement of any candidate, interleaved or not, is simulated faster."""
    job, data = small(seed, p2p=p2p)
    fastest = min(
        estimate(job, one.config, tile_placement(one.config, one.tile, nodes)).iteration_time_s
        for index, one in enumerate(data.candidates)
        for nodes in placements(data, index)
    )
    bound = least_s(data)
    assert 0.9 * fastest < bound <= fastest


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("seed", range(3))
def test_the_simulator_at_the_best_links_holds(seed: int, p2p: P2PMode) -> None:
    """No placement of a candidate is simulated faster, and it knows more than the plain paths."""
    job, data = small(seed, p2p=p2p)
    for index, one in enumerate(data.candidates):
        fastest = min(
            estimate(job, one.config, tile_placement(one.config, one.tile, nodes)).iteration_time_s
            for nodes in placements(data, index)
        )
        times = best_links_times(job, one)
        assert times is not None
        bound = simulate_times(times, one.num_microbatches, p2p).iteration_time_s
        assert 0.8 * fastest < bound <= fastest * (1 + 1e-9)
        assert bound > least_s(replace(data, candidates=(one,)))


@pytest.mark.search
@pytest.mark.parametrize("kinds", [(A100_80,), (A100_80, A100_40)])
def test_context_rings_between_hosts_open_fewer_flows_than_gpus(kinds: tuple[GpuSpec, ...]) -> None:
    """Of a NIC that one flow fills, four flows get all: no less than eight, although half as many."""
    job = make_job(make_cluster(4, 20.0, gpus=8, kinds=kinds, nics_per_node=1), LLAMA_8B, 8, 4096)
    config = make_config(tp=4, pp=2, num_layers=32, context_parallel_size=4, use_distributed_optimizer=True)
    fitting = FittingCandidate(config=config, need_bytes=np.zeros(2, dtype=np.int64))
    data = build_problem_data(job, [fitting], np.full(4, 80 * GIB))
    candidate = next(each for each in data.candidates if each.tile.context_nodes == 2 and each.grid == (2, 1, 2))
    nodes = np.array([0, 2, 1, 3]).reshape(candidate.grid)
    seconds = estimate(job, config, tile_placement(config, candidate.tile, nodes)).iteration_time_s
    if len(kinds) > 1:
        assert best_kinds(job, data, candidate).seconds <= seconds * (1 + 1e-9)
        return
    times = best_links_times(job, candidate)
    assert times is not None
    assert simulate_times(times, candidate.num_microbatches, job.p2p).iteration_time_s <= seconds * (1 + 1e-9)


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_relaxations_are_below_the_simulator(p2p: str) -> None:
    """For every placement; with its critical paths, the relaxation is the simulated time."""
    job, data = small(5, p2p=p2p)
    for index, one in enumerate(data.candidates):
        for nodes in placements(data, index):
            simulated = estimate(job, one.config, tile_placement(one.config, one.tile, nodes)).iteration_time_s
            assert objective_ticks(data, one, nodes) * data.tick_s <= simulated * (1 + 1e-9)
            assert 1 - TICKS < learned(job, data, one, nodes) <= 1 + 1e-9


def test_best_first_keeps_each_configuration_once() -> None:
    """Ranked by the simulator; the better placement of a configuration stands for it."""
    job, data = small()
    solutions = [
        Solution(candidate=0, nodes=nodes, objective_ticks=objective_ticks(data, data.candidates[0], nodes))
        for nodes in placements(data, 0)
    ]
    simulated = [simulate_solution(job, data, one) for one in solutions]
    (first,) = best_first(simulated)
    assert first.estimate.iteration_time_s == min(one.estimate.iteration_time_s for one in simulated)


def test_reasons_for_unused_hosts() -> None:
    """The host left out says what its best exchange costs: checked against every exchange."""
    job, data = small(1, num_nodes=5)
    candidate = data.candidates[0]
    best = min(placements(data, 0), key=lambda nodes: objective_ticks(data, candidate, nodes))
    simulated = simulate_solution(job, data, Solution(candidate=0, nodes=best, objective_ticks=0))
    ((host, reason),) = unused_hosts(job, data, simulated).items()
    left_out = int(host.removeprefix("n"))
    costs = []
    for cell in range(4):
        nodes = best.copy()
        nodes.flat[cell] = left_out
        costs.append(simulate_solution(job, data, Solution(candidate=0, nodes=nodes, objective_ticks=0)))
    loss = min(one.estimate.iteration_time_s for one in costs) - simulated.estimate.iteration_time_s
    assert left_out not in best
    assert f"{percent(loss / simulated.estimate.iteration_time_s)} more" in reason
