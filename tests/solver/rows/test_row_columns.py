"""Columns of classes as paths through states, and what the slowest of them takes, against enumeration."""

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, random_problem
from ortools.sat.python import cp_model

from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData, period_ticks, place
from pipette_opt.solver.rows import columns as columns_module
from pipette_opt.solver.rows.bound import RangedRows
from pipette_opt.solver.rows.classes import HostClasses
from pipette_opt.solver.rows.columns import Columns, columns_within
from pipette_opt.solver.rows.costs import NEVER, RowCosts, row_costs
from pipette_opt.solver.rows.flows import Flow
from pipette_opt.solver.rows.slowest import least_path
from pipette_opt.types import IntArray

VARIANTS = [
    Variant(p2p="async", directed=directed, missing_share=missing, num_kinds=kinds, num_capacities=kinds, levels=levels)
    for directed in (False, True)
    for missing, kinds, levels in ((0.0, 1, 0), (0.2, 2, 2), (0.0, 2, 3), (0.4, 1, 1))
]


def a_problem(rng: np.random.Generator, variant: Variant) -> tuple[ProblemData, CandidateData, HostClasses, RowCosts]:
    """Up to three hosts of each of three classes, up to five rows of up to three stages."""
    shape = (int(rng.integers(2, 6)), int(rng.integers(1, 3)), 1)
    data = random_problem(rng, [shape], 7 if shape[1] == 1 else 10, variant, max_block=3)
    alike = np.unique(np.stack([data.kind_of_node, data.capacity_mib]), axis=1, return_inverse=True)[1].ravel()
    part = alike * 2 + rng.integers(2, size=data.num_nodes)
    classes = HostClasses(of_host=np.unique(part, return_inverse=True)[1].ravel(), tolerance=1.0)
    return data, data.candidates[0], classes, row_costs(data, data.candidates[0], classes)


def all_columns(costs: RowCosts) -> Iterator[tuple[int, ...]]:
    """Every column of classes that has room and links."""
    P, C = costs.room.shape
    for column in itertools.product(range(C), repeat=P):
        rooms = all(costs.room[row, one] for row, one in enumerate(column))
        if rooms and all(costs.period_arc[row, a, b] < NEVER for row, (a, b) in enumerate(itertools.pairwise(column))):
            yield column


def period_of(costs: RowCosts, column: tuple[int, ...], arcs: IntArray) -> int:
    """By the definition: the largest mean of a run of stages, rounded up."""
    work: list[int] = []
    after: list[int] = []
    for row, one in enumerate(column):
        for stage in costs.stage_work[row, :, one].tolist():
            work.append(stage)
            after.append(costs.inside)
        if row + 1 < len(column):
            after[-1] = int(arcs[row, one, column[row + 1]])
    runs = itertools.combinations(range(len(work) + 1), 2)
    return max(-(-(sum(work[low:high]) + sum(after[low : high - 1])) // (high - low)) for low, high in runs)


def paths_of(columns: Columns) -> set[tuple[int, ...]]:
    """Every path through the states."""
    found = [[(state,) for state in range(len(columns.of_class[0]))]]
    for tails, heads in zip(columns.tails, columns.heads, strict=True):
        onward = list(zip(tails.tolist(), heads.tolist(), strict=True))
        found.append([(*path, head) for path in found[-1] for tail, head in onward if tail == path[-1]])
    return {tuple(int(columns.of_class[row][state]) for row, state in enumerate(path)) for path in found[-1]}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_paths_are_the_columns_of_short_periods(variant: Variant) -> None:
    """Every column of classes is enumerated, at every period that one of them has and just below."""
    rng = np.random.default_rng(VARIANTS.index(variant))
    for _ in range(4):
        costs = a_problem(rng, variant)[-1]
        periods = {column: period_of(costs, column, costs.period_arc) for column in all_columns(costs)}
        for value in sorted(set(periods.values()))[:: max(1, len(periods) // 8)]:
            for period in (value - 1, value):
                columns = columns_within(costs, period)
                assert columns is not None
                assert paths_of(columns) == {column for column, own in periods.items() if own <= period}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_shortest_path_of_a_slow_column(variant: Variant) -> None:
    """Enumeration: of the columns not too slow with their fastest links, nor too fast with their slowest."""
    rng = np.random.default_rng([1, VARIANTS.index(variant)])
    for _ in range(4):
        costs = a_problem(rng, variant)[-1]
        fastest = {column: period_of(costs, column, costs.period_arc) for column in all_columns(costs)}
        slowest = {column: period_of(costs, column, costs.period_most) for column in fastest}
        for shortest, longest in itertools.combinations(sorted({*fastest.values(), *slowest.values()})[::5], 2):
            columns = columns_within(costs, longest)
            assert columns is not None
            for watched in range(len(costs.watched)):
                expected = min(
                    (
                        path_of(costs, column, watched)
                        for column in fastest
                        if fastest[column] <= longest and slowest[column] >= shortest
                    ),
                    default=None,
                )
                assert least_path(costs, columns, shortest, watched) == expected


def path_of(costs: RowCosts, column: tuple[int, ...], watched: int) -> int:
    """Until the watched stage ends, without the periods."""
    hosts = sum(int(costs.end_node[watched, row, one]) for row, one in enumerate(column))
    arcs = (int(costs.end_arc[watched, row, a, b]) for row, (a, b) in enumerate(itertools.pairwise(column)))
    return hosts + sum(arcs)


def test_placements_are_what_their_classes_allow() -> None:
    """Random placements: periods are between those of the fastest and the slowest links of their classes."""
    rng = np.random.default_rng(5)
    seen = 0
    for variant in VARIANTS * 3:
        data, candidate, classes, costs = a_problem(rng, variant)
        for _ in range(20):
            nodes = rng.permutation(data.num_nodes)[: candidate.num_cells].reshape(candidate.grid)
            placed = place(data, candidate, nodes)
            if max(int(placed.send_forward.max()), int(placed.send_backward.max())) >= UNUSABLE_TICKS:
                continue
            for period, column in zip(period_ticks(placed, "async"), classes.of_host[nodes[:, :, 0]].T, strict=True):
                seen += 1
                own = tuple(column.tolist())
                assert period_of(costs, own, costs.period_arc) <= period <= period_of(costs, own, costs.period_most)
    assert seen > 100


def test_too_many_excesses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then there are no states, and windows are counted."""
    costs = a_problem(np.random.default_rng(0), VARIANTS[0])[-1]
    monkeypatch.setattr(columns_module, "MOST_EXCESSES", 1)
    assert columns_within(costs, 10**6) is None


def test_a_flow_is_columns() -> None:
    """A flow is read as columns that are paths, with as many hosts of each class in each row as counted."""
    rng = np.random.default_rng(7)
    for variant in VARIANTS[:3]:
        costs = a_problem(rng, variant)[-1]
        P, C = costs.room.shape
        columns = columns_within(costs, int(np.median(costs.window[costs.window < NEVER])))
        assert columns is not None
        model = cp_model.CpModel()
        hosts = [[model.new_int_var(0, 6, "") for _ in range(C)] for _ in range(P)]
        flow = Flow(model, columns, hosts, 6)
        for row in hosts:
            model.add(cp_model.LinearExpr.sum(row) == 6)
        solver = cp_model.CpSolver()
        allowed = paths_of(columns)
        if solver.solve(model) == cp_model.INFEASIBLE:
            assert not allowed
            continue
        pattern = flow.pattern(solver)
        assert {tuple(column) for column in pattern.T.tolist()} <= allowed
        for row, counts in enumerate(hosts):
            assert np.bincount(pattern[row], minlength=C).tolist() == [solver.value(one) for one in counts]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_ranges_that_are_gone_on_with(variant: Variant) -> None:
    """Enumeration, in slices of time, the ceiling falling: no bound is above the optimum."""
    rng = np.random.default_rng([2, VARIANTS.index(variant)])
    for shape in ((4, 1, 1), (2, 2, 1), (3, 2, 1)):
        data = random_problem(rng, [shape], shape[0] * shape[1] + int(rng.integers(2)), variant)
        optimum = best_by_enumeration(data, data.candidates[0])
        if optimum >= UNUSABLE_TICKS:
            continue
        ranged = RangedRows(data, data.candidates[0])
        bound, told = optimum // 2, list[int]()
        for ceiling in (optimum + optimum // 10, optimum, optimum - 1):
            bound = ranged.run(bound, ceiling, seconds=0.5, on_bound=told.append)
            assert bound <= optimum
        assert all(one <= optimum for one in told)


def test_blocking_sends_have_no_ranges() -> None:
    """Nor has a single row: then there is nothing to go on with."""
    rng = np.random.default_rng(3)
    for shape, p2p in (((3, 2, 1), "blocking"), ((1, 4, 1), "async")):
        data = random_problem(rng, [shape], 6, Variant(p2p=p2p))  # type: ignore[arg-type]
        ranged = RangedRows(data, data.candidates[0])
        assert ranged.ended
        assert ranged.run(17, 10**6, seconds=1.0) == 17
