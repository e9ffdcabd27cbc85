"""What bounds by racks and by courses are tried on alike: random problems to enumerate, racks without noise, trees."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.types import P2PMode
from pipette_opt.lab.placement_bench.problems import balanced_problem
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import largest_ticks, objective_ticks, period_ticks, place
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.racks.refuting import OnPlacement, Refuter
from pipette_opt.solver.racks.search import RackSearch, has_racks
from pipette_opt.solver.racks.structure import Racks, find_racks
from pipette_opt.solver.stoppable import TimeSlice

SHAPES = [(2, 2, 1), (3, 2, 1), (2, 3, 1)]

VARIANTS = [
    Variant(p2p=p2p, directed=directed, missing_share=missing, num_kinds=kinds, num_capacities=kinds, levels=levels)
    for p2p in ("blocking", "async")
    for directed in (False, True)
    for missing, kinds, levels in ((0.0, 1, 0), (0.2, 1, 2), (0.0, 2, 3), (0.2, 2, 0))
]


def in_racks(p2p: P2PMode, shape: tuple[int, int], slow: int, spare: int, racks: int = 2) -> ProblemData:
    """Racks without noise; the first hosts are slow."""
    number = shape[0] * shape[1] + spare
    rack, pace = np.arange(number) % racks, np.where(np.arange(number) < slow, 0.5, 1.0)
    rate = np.where(rack[:, None] == rack[None, :], 24.0, 16.0) * np.minimum(pace[:, None], pace[None, :])
    np.fill_diagonal(rate, np.nan)
    return balanced_problem(rate, shape, p2p)


def in_rails(rng: np.random.Generator, p2p: P2PMode, shape: tuple[int, int], units: int, slow: int) -> ProblemData:
    """Units of hosts in their order, 0.8 between them; slow hosts, the first of each unit, and all links by chance."""
    number = shape[0] * shape[1]
    unit = np.arange(number) * units // number
    first = np.argsort(np.arange(number) % (number // units), kind="stable")[:slow]
    pace = 1 - 0.02 * rng.random(number)
    pace[first] *= rng.uniform(0.55, 0.9, slow)
    rate = 24 * np.minimum(pace[:, None], pace[None, :]) * np.where(unit[:, None] == unit[None, :], 1.0, 0.8)
    rate *= 1 - 0.01 * rng.random(rate.shape)
    np.fill_diagonal(rate, np.nan)
    return balanced_problem(rate, shape, p2p)


def search_by(
    refuter_of: Callable[[ProblemData, CandidateData, Racks, OnPlacement], Refuter],
    data: ProblemData,
    floor: int,
    ceiling: int,
    most_lost: float = np.inf,
    on_placement: OnPlacement = lambda nodes: None,
) -> RackSearch:
    """The search of the only candidate, however little racks tell."""
    candidate = data.candidates[0]
    racks = find_racks(data, candidate, most_lost)
    assert racks is not None
    return RackSearch(candidate, racks, refuter_of(data, candidate, racks, on_placement), floor, ceiling)


class Searched(Protocol):
    """The search of the only candidate, with racks that lose at most so much of what links differ by."""

    def __call__(self, data: ProblemData, floor: int, ceiling: int, most_lost: float = np.inf) -> RackSearch:
        """Not yet run."""


def check_below_the_optimum(searched: Searched, variant: Variant, number: int = 12) -> None:
    """
    Enumeration of every placement of so many problems, with as many hosts as cells or one more.

    The ceiling is anywhere: what is refuted is refuted, also a candidate that has no placement at all.
    """
    rng = np.random.default_rng(VARIANTS.index(variant))
    compared = 0
    for tried in range(60):
        if tried >= number and compared >= 2:
            break
        shape = SHAPES[tried % len(SHAPES)]
        data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + int(rng.integers(2))), variant)
        candidate = data.candidates[0]
        if not has_racks(candidate):
            continue
        optimum = best_by_enumeration(data, candidate)
        ceiling = largest_ticks(candidate)
        if optimum < UNUSABLE_TICKS and rng.random() < 0.6:
            ceiling = max(1, optimum + int(rng.integers(-2, 4)) * (1 + optimum // 20))
        search = searched(data, 0, ceiling)
        bound = search.run(60.0)
        assert search.ended
        assert bound <= optimum
        assert bound <= ceiling + 1
        compared += 1
    assert compared >= 2


def check_closes(searched: Searched, data: ProblemData) -> None:
    """The optimum is the bound from below, and is not refuted."""
    optimum = best_by_enumeration(data, data.candidates[0])
    assert searched(data, 0, optimum - 1, 0.0).run(60.0) == optimum
    assert searched(data, 0, optimum, 0.0).run(60.0) <= optimum


def check_bounds_a_tree(searched: Searched, grid: tuple[int, int, int], seconds: float) -> None:
    """The bound is far above that of single links, and rises; what becomes known elsewhere is taken."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", grid, compute=2_000)
    before = candidate_bound(data, data.candidates[0])
    search = searched(data, before, int(before * 1.3))
    told: list[int] = []
    after = search.run(seconds, on_bound=told.append)
    assert after > 1.03 * before
    assert told == sorted(told)
    search.narrow(after + 5, after + 4)
    assert search.bound == after + 5
    assert search.run(seconds) == after + 5


def check_stops(searched: Searched, grid: tuple[int, int, int]) -> None:
    """When told to, with the bound it has."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", grid)
    stop = threading.Event()
    stop.set()
    assert searched(data, 17, 10**9).run(60.0, stop=stop) == 17
    assert searched(data, 17, 10**9).run(0.0) == 17


def check_no_placement_is_refuted(
    refuter_of: Callable[[ProblemData, CandidateData, Racks], Refuter],
    p2p: P2PMode,
    grids: Sequence[tuple[int, int, int]],
    *,
    rails: bool = False,
) -> None:
    """
    Links of a sort differ by chance; in rails also by how slow their hosts are, which kinds do not tell.

    Annealed placements and shuffled ones, each with its own cost as the ceiling and its own slowest period as range.
    """
    rng = np.random.default_rng(3)
    for number, grid in enumerate(grids):
        if rails:
            data = in_rails(rng, p2p, grid[:2], 2, 3)
        else:
            hosts = grid[0] * grid[1] + number % 2
            data = one_candidate_cluster(rng, "tree", grid, num_nodes=hosts, p2p=p2p, compute=500)
        candidate = data.candidates[0]
        racks = find_racks(data, candidate, np.inf)
        assert racks is not None
        refuter = refuter_of(data, candidate, racks)
        given = TimeSlice(ends=time.perf_counter() + 3600.0, stop=threading.Event())
        best = anneal(data, AnnealingParams(time_limit_s=None, max_moves=20_000, seed=number)).solution
        assert best is not None
        shuffled = [rng.permutation(data.num_nodes)[: candidate.num_cells].reshape(grid) for _ in range(2)]
        for nodes in (best.nodes, *shuffled):
            cost = objective_ticks(data, candidate, nodes)
            period = int(period_ticks(place(data, candidate, nodes), p2p).max())
            for width in (0, period // 100):
                assert refuter(cost, period - width, period + width, given) is not True
