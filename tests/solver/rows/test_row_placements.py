"""Counts of classes become placements that use each window as often as it is counted."""

import numpy as np
import pytest
from instances import Variant, one_candidate_cluster, random_problem

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.rows.bound import probe_rows, row_bound
from pipette_opt.solver.rows.classes import host_classes
from pipette_opt.solver.rows.costs import merge_levels, row_costs
from pipette_opt.solver.rows.placements import placement


@pytest.mark.parametrize("shape", [(1, 4), (2, 3), (3, 2), (5, 1), (6, 3)])
def test_every_window_is_used_as_often_as_counted(shape: tuple[int, int]) -> None:
    """Counts taken from a random placement: the new one has the same classes in each row and the same windows."""
    P, D = shape
    rng = np.random.default_rng(shape)
    data = one_candidate_cluster(rng, "tree", (P, D, 1))
    candidate = data.candidates[0]
    classes = host_classes(data, candidate, 3)
    assert classes is not None
    given = classes.of_host[rng.permutation(P * D).reshape(P, D)]
    windows = counted(given)
    nodes = placement(windows, candidate, classes, row_costs(data, candidate, classes), rng)
    assert sorted(nodes.ravel()) == list(range(P * D))
    assert counted(classes.of_host[nodes]) == windows


def counted(pattern: IntArray) -> dict[tuple[int, int, int, int], int]:
    """How many columns go through each window of classes, as ``RowCosts.window`` is indexed."""
    P = len(pattern)
    windows: dict[tuple[int, int, int, int], int] = {}
    for column in pattern.T.tolist():
        if P == 1:
            found = [(0, 0, column[0], 0)]
        elif P == 2:
            found = [(0, column[0], column[1], 0)]
        else:
            found = [(row, *column[row : row + 3]) for row in range(P - 2)]
        for window in found:
            windows[window] = windows.get(window, 0) + 1
    return windows


def test_what_is_promised_is_a_placement() -> None:
    """Every placement handed over has different hosts, and costs no less than what is proven."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    candidate = data.candidates[0]
    floor = candidate_bound(data, candidate)
    handed: list[IntArray] = []
    bound = row_bound(data, candidate, floor, int(floor * 1.3), seconds=3.0, hopeless=False, on_placement=handed.append)
    assert handed
    for nodes in handed:
        assert len(np.unique(nodes)) == 32
        assert bound <= objective_ticks(data, candidate, nodes[:, :, None]) < UNUSABLE_TICKS


def test_merged_costs_are_never_above() -> None:
    """Levels are the least of those that they take the place of, and within the tolerance."""
    ticks = np.random.default_rng(0).integers(1000, 2000, (9, 9))
    merged = merge_levels(ticks, 0.05)
    assert (merged <= ticks).all()
    assert (ticks <= merged * 1.05).all()
    assert len(np.unique(merged)) < 20 < len(np.unique(ticks))
    assert (merge_levels(ticks, 0.0) == ticks).all()


def test_merged_costs_bound_the_exact_ones() -> None:
    """Every cost of a candidate with merged classes is at most the cost without."""
    data = random_problem(np.random.default_rng(5), [(3, 2, 1)], 7, Variant(directed=True, num_kinds=2))
    candidate = data.candidates[0]
    classes = host_classes(data, candidate, 7)
    assert classes is not None
    merged, exact = (row_costs(data, candidate, classes, tolerance) for tolerance in (0.3, 0.0))
    for name in ("window", "least_end", "mean_end", "end_arc", "period_arc", "hop"):
        assert (getattr(merged, name) <= getattr(exact, name)).all()
    assert (merged.window < exact.window).any()


def test_counts_are_looked_for_at_a_ceiling() -> None:
    """Far above the bound there are counts and they are handed over; below it there are none."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), compute=2_000)
    candidate = data.candidates[0]
    floor = candidate_bound(data, candidate)
    handed: list[IntArray] = []
    assert probe_rows(data, candidate, floor - 1, seconds=60.0, on_placement=handed.append)
    assert not handed
    assert not probe_rows(data, candidate, 2 * floor, seconds=60.0, on_placement=handed.append)
    assert len(handed) == 1
    assert len(np.unique(handed[0])) == 32
