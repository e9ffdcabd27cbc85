"""The tree search finds every enumerated optimum, and what they refute does not exist."""

import numpy as np
import pytest
from instances import SMALL_SHAPES, Incumbent, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import largest_ticks
from pipette_opt.solver.tree_search.costs import is_grid
from pipette_opt.solver.tree_search.search import CellSearch

SHAPES = [shape for shape in SMALL_SHAPES if shape[2] == 1 and shape[0] * shape[1] > 1] + [(3, 2, 1), (2, 3, 1)]

VARIANTS = [
    Variant(
        p2p=p2p,
        directed=directed,
        missing_share=missing,
        num_kinds=kinds,
        num_capacities=kinds,
        levels=levels,
        scale=scale,
    )
    for p2p in ("blocking", "async")
    for directed in (False, True)
    for missing, kinds, levels, scale in (
        (0.0, 1, 0, 100),
        (0.2, 1, 2, 100_000),
        (0.0, 2, 3, 1000),
        (0.2, 2, 0, 100_000),
    )
]


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_search_is_exact(variant: Variant, workers: int) -> None:
    """
    Enumeration of every placement, with as many hosts as cells or a few more, with stages and replicas in blocks.

    From the optimum on the ceiling lets it be found and proven, below it the ceiling is refuted.
    """
    rng = np.random.default_rng([VARIANTS.index(variant), workers])
    for shape in SHAPES:
        cells = shape[0] * shape[1]
        data = random_problem(rng, [shape], min(6, cells + int(rng.integers(3))), variant, max_block=3)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        ceilings = [largest_ticks(candidate)]
        if optimum < UNUSABLE_TICKS:
            ceilings += [max(1, optimum - 1), optimum, optimum + optimum // 50]
        for ceiling in ceilings:
            incumbent = Incumbent(data, candidate, ceiling)
            bound = CellSearch(data, candidate, 0, ceiling).run(60.0, workers=workers, on_placement=incumbent.take)
            assert bound == (optimum if optimum <= ceiling else ceiling + 1)
            assert incumbent.best >= optimum


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_bounds_on_the_way_hold(p2p: str) -> None:
    """In slices too short to finish, with intervals split, no bound is ever above what a finished search finds."""
    data = one_candidate_cluster(np.random.default_rng(3), "unif", (4, 3, 1), p2p=p2p, compute=100)  # type: ignore[arg-type]
    candidate = data.candidates[0]
    bounds: list[int] = []
    incumbent = Incumbent(data, candidate, largest_ticks(candidate))
    search = CellSearch(data, candidate, 0, incumbent.ceiling)
    for one in search.heap:
        one.budget = 500
    for _ in range(200):
        if search.run(0.05, on_bound=bounds.append, on_placement=incumbent.take) > search.ceiling:
            break
    assert search.bound == incumbent.best
    assert bounds == sorted(bounds)
    assert bounds[-1] <= incumbent.best


def test_without_anyone_to_hand_to() -> None:
    """A full grid ends the search of an interval, and the bound stays below it."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), compute=10)
    candidate = data.candidates[0]
    optimum = best_by_enumeration(data, candidate)
    assert CellSearch(data, candidate, 0, optimum - 1).run(10.0) == optimum
    assert CellSearch(data, candidate, 0, 2 * optimum).run(0.5) <= optimum


def test_what_becomes_known_elsewhere_narrows_it() -> None:
    """A bound from elsewhere is kept, and a lower ceiling asks less."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), compute=10)
    candidate = data.candidates[0]
    optimum = best_by_enumeration(data, candidate)
    search = CellSearch(data, candidate, 0, 10 * optimum)
    search.narrow(optimum - 1, optimum - 1)
    assert search.bound == optimum - 1
    assert search.run(10.0) == optimum


def test_what_can_be_searched() -> None:
    """Closed forms, tensor groups inside hosts, more than one host."""
    rng = np.random.default_rng(1)
    for shape in SMALL_SHAPES:
        closed = random_problem(rng, [shape], 5, Variant()).candidates[0]
        assert is_grid(closed) is (shape[2] == 1 and shape != (1, 1, 1))
        assert not is_grid(random_problem(rng, [shape], 5, Variant(exact_share=0.0)).candidates[0])
