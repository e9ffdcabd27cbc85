"""Bounds from counts of classes are below every enumerated optimum, and near it where classes are hosts."""

import threading

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import largest_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.rows.bound import applies, row_bound

SHAPES = [shape for shape in SMALL_SHAPES if shape[2] == 1 and shape[0] * shape[1] > 1] + [(3, 2, 1), (2, 3, 1)]

VARIANTS = [
    Variant(p2p=p2p, directed=directed, missing_share=missing, num_kinds=kinds, num_capacities=kinds, levels=levels)
    for p2p in ("blocking", "async")
    for directed in (False, True)
    for missing, kinds, levels in ((0.0, 1, 0), (0.2, 1, 2), (0.0, 2, 3), (0.2, 2, 0))
]


@pytest.mark.parametrize("most", [(1,), (3,), (6,)], ids=["one class", "few classes", "hosts"])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_bound_is_below_the_optimum(variant: Variant, most: tuple[int, ...]) -> None:
    """
    Enumeration of every placement, with as many hosts as cells or one more, with stages and replicas in blocks.

    The ceiling is anywhere: what is refuted is refuted, also a candidate that has no placement at all.
    """
    rng = np.random.default_rng([VARIANTS.index(variant), *most])
    for shape in SHAPES:
        cells = shape[0] * shape[1]
        data = random_problem(rng, [shape], min(6, cells + int(rng.integers(2))), variant)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        ceiling = largest_ticks(candidate)
        if optimum < UNUSABLE_TICKS and rng.random() < 0.6:
            ceiling = max(1, optimum + int(rng.integers(-2, 4)) * (1 + optimum // 20))
        bound = row_bound(data, candidate, 0, ceiling, seconds=60.0, most_classes=most)
        assert bound <= optimum
        assert bound <= ceiling + 1


def test_it_closes_what_classes_decide() -> None:
    """Racks without noise and slow hosts: the least cost of counts is the optimum, to the step it is found to."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), compute=10)
    candidate = data.candidates[0]
    optimum = best_by_enumeration(data, candidate)
    assert row_bound(data, candidate, 0, optimum - 1, seconds=60.0) == optimum
    assert row_bound(data, candidate, 0, optimum, seconds=60.0) <= optimum


def test_it_bounds_a_tree_far_above_single_links() -> None:
    """Slow hosts have to be somewhere: the bound of 32 hosts in racks is near what annealing finds."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    candidate = data.candidates[0]
    before = candidate_bound(data, candidate)
    after = row_bound(data, candidate, before, int(before * 1.3), seconds=5.0, workers=2)
    assert after > 1.03 * before


def test_it_stops() -> None:
    """When told to, with the bound it has."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (8, 4, 1))
    stop = threading.Event()
    stop.set()
    assert row_bound(data, data.candidates[0], 17, 10**9, seconds=60.0, stop=stop) == 17
    assert row_bound(data, data.candidates[0], 17, 10**9, seconds=0.0) == 17


def test_where_it_applies() -> None:
    """Closed forms, tensor groups inside hosts, more than one host."""
    rng = np.random.default_rng(1)
    for shape in SMALL_SHAPES:
        closed = random_problem(rng, [shape], 5, Variant()).candidates[0]
        assert applies(closed) is (shape[2] == 1 and shape != (1, 1, 1))
        paths = random_problem(rng, [shape], 5, Variant(exact_share=0.0)).candidates[0]
        assert not applies(paths)
