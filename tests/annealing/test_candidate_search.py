"""Replicas: the same whatever the pieces in which they run, near the optimum where it is known, stopped in time."""

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.candidate_search import CHUNK_MOVES, ROUND_MOVES, CandidateSearch
from pipette_opt.annealing.coarse import coarse_starts
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks

SIXTEEN = ((4, 4, 1), (8, 2, 1), (16, 1, 1))


def candidate_search(data: ProblemData, seed: int = 0) -> CandidateSearch:
    """Of the only candidate, at the usual temperatures."""
    bound = optimistic_ticks(data, data.candidates[0])
    return CandidateSearch(data, 0, bound, seed=seed, hot=0.005, cold=0.0002)


def never() -> bool:
    """Time is not up."""
    return False


@pytest.mark.search
@pytest.mark.parametrize("shape", SIXTEEN)
def test_pieces_make_no_difference(shape: tuple[int, int, int]) -> None:
    """A longer run does what shorter ones do: with the same seed it is never behind."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", shape, num_nodes=18)
    whole, parts, other = candidate_search(data), candidate_search(data), candidate_search(data, seed=1)
    whole.temper(12 * ROUND_MOVES, never)
    other.temper(12 * ROUND_MOVES, never)
    found = []
    for _ in range(12):
        parts.temper(1, never)
        found.append(parts.best)
    assert found == sorted(found, reverse=True)
    assert parts.best == whole.best
    assert (parts.best_nodes == whole.best_nodes).all()
    assert (other.best_nodes != whole.best_nodes).any()


@pytest.mark.search
def test_speed_makes_no_difference() -> None:
    """How fast the machine was does not tell what a restart of so many moves finds."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    slow, fast = candidate_search(data), candidate_search(data)
    slow.moves_per_s, fast.moves_per_s = 1e4, 1e7
    for search in (slow, fast):
        search.restart(3 * CHUNK_MOVES, never)
    assert slow.best == fast.best
    assert (slow.best_nodes == fast.best_nodes).all()


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_finds_the_optimum_of_few_hosts(p2p: P2PMode) -> None:
    """
    What it has is a placement of different hosts that fit, worth what it says, and the best by enumeration.

    Its energy is a soft form of the objective, with which one of the problems has another best placement.
    """
    rng = np.random.default_rng(0)
    looked_at, missed = 0, 0
    for _ in range(40):
        data = random_problem(rng, [(3, 2, 1)], 7, Variant(p2p=p2p, num_capacities=2))
        optimum = best_by_enumeration(data, data.candidates[0])
        search = candidate_search(data)
        if optimum >= UNUSABLE_TICKS or search.simple is None:
            continue
        search.temper(4 * ROUND_MOVES, never)
        nodes = search.cells()
        assert len(np.unique(search.best_nodes)) == data.num_nodes
        assert search.best == objective_ticks(data, data.candidates[0], nodes) >= optimum
        missed += search.best > optimum
        looked_at += 1
    assert looked_at >= 20
    assert missed <= 1


@pytest.mark.search
def test_goes_on_from_what_others_found() -> None:
    """A placement offered between two runs is the coldest replica's next start."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 4, 1))
    ahead, behind = candidate_search(data, seed=1), candidate_search(data)
    behind.temper(ROUND_MOVES, never)
    ahead.temper(30 * ROUND_MOVES, never)
    assert ahead.best < behind.best
    behind.offer(ahead.best_nodes)
    behind.temper(ROUND_MOVES, never)
    assert behind.best <= ahead.best
    assert behind.replicas is not None
    assert all(len(np.unique(nodes)) == data.num_nodes for nodes in behind.replicas.nodes)


@pytest.mark.search
def test_stops_soon_when_time_is_up() -> None:
    """However many moves were asked for."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    search = candidate_search(data)
    search.temper(10**12, lambda: True)
    assert search.replicas is not None
    assert search.replicas.rounds <= 10
    assert search.best < UNUSABLE_TICKS


@pytest.mark.search
def test_all_coarse_starts_are_settled() -> None:
    """What is found is worth what it says, and better than each start; stopped at once, it is the best start."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (16, 16, 1))
    starts = coarse_starts(data, data.candidates[0])
    least = min(objective_ticks(data, data.candidates[0], nodes[:256].reshape(16, 16, 1)) for nodes in starts)
    search, stopped = candidate_search(data), candidate_search(data)
    for one, is_over in ((search, never), (stopped, lambda: True)):
        one.starts = starts
        for nodes in starts:
            one.offer(nodes)
        one.settle(300_000, is_over)
    assert len(np.unique(search.cells())) == 256
    assert objective_ticks(data, data.candidates[0], search.cells()) == search.best < least == stopped.best
    assert not search.starts


def test_the_better_half_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of seven starts three, then one, each round with as many moves; what one was worth at first does not count."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (4, 2, 1))
    search = candidate_search(data)
    search.starts = [np.roll(np.arange(8), number) for number in range(7)]
    search.best, search.best_nodes = 950, np.arange(8)
    annealed: list[tuple[int, int]] = []

    def anneal(moves: int, hot: float, cold: float, softness: float, is_over: object) -> int:
        start = int(search.nodes[0])
        search.best, search.best_nodes = 1000 - 10 * start - len(annealed), search.nodes.copy()
        annealed.append((start, moves))
        return moves

    monkeypatch.setattr(search, "_anneal_grid", anneal)
    search.settle(2_100, never)
    firsts = [int(np.roll(np.arange(8), number)[0]) for number in range(7)]
    best_first = sorted(firsts, reverse=True)
    assert [start for start, _ in annealed] == [*firsts, *best_first[:3], best_first[0]]
    assert [moves for _, moves in annealed] == [100] * 7 + [233] * 3 + [700]
    assert search.best == 1000 - 10 * best_first[0] - 10 < 1000 - 10 * best_first[0]
    assert search.best_nodes[0] == best_first[0]
