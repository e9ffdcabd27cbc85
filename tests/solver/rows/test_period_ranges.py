"""Bounds from ranges of the slowest column's period, and how many slow hosts a run of rows may have."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.rows import bound as bound_module
from pipette_opt.solver.rows.bound import row_bound
from pipette_opt.solver.rows.classes import host_classes
from pipette_opt.solver.rows.costs import row_costs
from pipette_opt.solver.rows.levels import Levels, range_level
from pipette_opt.solver.rows.ranges import bound_by_ranges
from pipette_opt.solver.rows.runs import slow_classes


def with_rounds(data: ProblemData, num_microbatches: int) -> ProblemData:
    """Another number of micro-batches, and no tied embeddings, of which only the least is counted."""
    none = np.zeros((0, 0), dtype=np.int64)
    candidate = replace(data.candidates[0], num_microbatches=num_microbatches, embedding_ticks=none)
    return replace(data, candidates=(candidate,))


@pytest.fixture(autouse=True, params=[False, True], ids=["levels", "ranges"])
def by_ranges(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few cells are looked at both ways."""
    if request.param:
        monkeypatch.setattr(bound_module, "MOST_BISECTED", 0)
        monkeypatch.setattr(bound_module, "BISECTED_SHARE", 0.0)


@pytest.mark.parametrize("shape", [(4, 1, 1), (5, 1, 1), (3, 2, 1)], ids=str)
def test_a_single_column_of_hosts_is_exact(shape: tuple[int, int, int]) -> None:
    """Enumeration; classes are hosts and periods weigh: no bound is above the optimum, that of one column is it."""
    rng = np.random.default_rng(shape)
    for rounds in (2, 25):
        variant = Variant(p2p="async", directed=bool(rounds % 2))
        data = with_rounds(random_problem(rng, [shape], shape[0] * shape[1], variant, max_block=1), rounds)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate)
        floor = int(0.9 * optimum)
        bound = row_bound(data, candidate, floor, optimum - 1, seconds=60.0, most_classes=(6,))
        assert bound == optimum if shape[1] == 1 else bound <= optimum
        assert row_bound(data, candidate, floor, optimum, seconds=60.0, most_classes=(6,)) <= optimum


def slow_hosts(shape: tuple[int, int], slow: int) -> ProblemData:
    """Equal links but for the first hosts, whose transfers take three times as long, nine times among each other."""
    factor = np.where(np.arange(shape[0] * shape[1]) < slow, 3, 1)
    data = one_candidate_cluster(
        np.random.default_rng(0), "unif", (*shape, 1), p2p="async", num_microbatches=20, compute=500
    )
    ticks = 400 * factor[:, None] * factor[None, :]
    ring = 3_000 * np.maximum(factor[:, None], factor[None, :])
    for one in (ticks, ring):
        np.fill_diagonal(one, UNUSABLE_TICKS)
    candidate = replace(data.candidates[0], p2p_ticks=ticks, ring_ticks=ring[None])
    return replace(data, candidates=(candidate,))


def best_of_patterns(data: ProblemData, candidate: CandidateData, slow: int) -> int:
    """The optimum, by every choice of the slow hosts' cells."""
    cells = candidate.num_cells
    best = UNUSABLE_TICKS
    for chosen in itertools.combinations(range(cells), slow):
        nodes = np.empty(cells, dtype=np.int64)
        nodes[list(chosen)] = np.arange(slow)
        nodes[[cell for cell in range(cells) if cell not in chosen]] = np.arange(slow, cells)
        best = min(best, objective_ticks(data, candidate, nodes.reshape(candidate.grid)))
    return best


@pytest.mark.parametrize(("shape", "slow"), [((7, 1), 2), ((9, 1), 3), ((6, 2), 3), ((5, 2), 2)])
def test_slow_hosts_that_share_columns(shape: tuple[int, int], slow: int) -> None:
    """Two classes, enumerated; runs longer than three rows decide, and which column has more slow hosts than others."""
    data = slow_hosts(shape, slow)
    candidate = data.candidates[0]
    optimum = best_of_patterns(data, candidate, slow)
    floor = candidate_bound(data, candidate)
    bound = row_bound(data, candidate, floor, optimum + optimum // 20, seconds=60.0, most_classes=(2,))
    assert bound <= optimum
    if shape[1] == 1:
        assert row_bound(data, candidate, floor, optimum - 1, seconds=60.0, most_classes=(2,)) == optimum


def test_slow_classes_by_hand() -> None:
    """A transfer of a slow host takes 3 above the least; two of them share 10, or only 4."""
    assert list(slow_classes(np.array([[2, 5], [5, 12]]), 2)) == [([1], 3)]
    assert list(slow_classes(np.array([[2, 5], [5, 6]]), 2)) == [([1], 2)]
    assert list(slow_classes(np.array([[2, 9, 5], [9, 9, 9], [5, 9, 9]]), 2)) == [([1, 2], 3), ([1], 3)]


def test_slow_classes_count_no_more_than_a_run_takes() -> None:
    """Random costs and columns: so many transfers of slow hosts at so much each are never more than what is there."""
    rng = np.random.default_rng(1)
    for _ in range(200):
        number = int(rng.integers(1, 5))
        transfer: IntArray = rng.integers(1, 20, (number, number))
        least = int(transfer.min())
        column = rng.integers(number, size=int(rng.integers(2, 9)))
        above = int((transfer[column[:-1], column[1:]] - least).sum())
        for slow, extra in slow_classes(transfer, least):
            ends = np.isin(column, slow).astype(int)
            assert extra * (2 * ends[1:-1].sum() + ends[0] + ends[-1]) <= above


def test_ranges_that_are_refuted_from_some_cost_on() -> None:
    """Counts that exist from some cost on, which rises away from a best period: the bound ends just below."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), p2p="async", compute=2_000)
    candidate = data.candidates[0]
    classes = host_classes(data, candidate, 8)
    assert classes is not None
    costs = row_costs(data, candidate, classes)
    floor = int(costs.least_end.min()) + 15 * int(costs.window.min()) + int(costs.hop.min())
    least, middle = int(1.2 * floor), int(1.1 * costs.window.min())
    told: list[int] = []

    def refutes(levels: Levels, seconds: float) -> bool:
        low, high = int(levels.periods[0]), levels.longest
        assert high is not None
        away = max(0, low - middle, middle - high)
        return levels.ceiling < least + 5 * away

    bound = bound_by_ranges(
        candidate,
        costs,
        floor,
        2 * floor,
        refutes=refutes,
        seconds=1.0,
        is_over=lambda: False,
        on_bound=told.append,
    )
    assert least - floor // 100 <= bound <= least
    assert told == sorted(set(told))
    assert all(one <= bound for one in told)


def test_periods_too_long_for_one_ceiling_come_back_at_the_next() -> None:
    """One placement; wide ranges run out of time, so that they are split at ceilings that are too low for it."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (8, 4, 1), p2p="async", compute=2_000)
    candidate = data.candidates[0]
    classes = host_classes(data, candidate, 8)
    assert classes is not None
    costs = row_costs(data, candidate, classes)
    rounds, shortest = candidate.num_microbatches - 1, int(costs.window.min())
    rest = int((costs.hop.min(axis=(1, 2)) + costs.after + costs.least_end.min(axis=(1, 2, 3, 4))).max())
    floor, compared = rest + rounds * shortest, 0
    ceiling = int(1.3 * floor)
    for seed in (83, 130, 562, *range(40)):  # the first three lost it once
        rng = np.random.default_rng(seed)
        period = int(rng.integers(shortest, (ceiling - rest) // rounds))
        cost = int(rest + rounds * period + rng.integers(ceiling - rest - rounds * period) * rng.random() ** 3)
        if range_level(candidate, costs, cost, period, period) is None:
            continue
        compared += 1
        tired = 0.06 * rng.random()
        width = ((ceiling - rest) // rounds - shortest) * rng.random() * 0.06
        left = [400]

        def refutes(levels: Levels, seconds: float) -> bool | None:
            left[0] -= 1  # noqa: B023
            assert levels.longest is not None
            if levels.longest - levels.periods[0] > width or rng.random() < tired:  # noqa: B023
                return None
            return not (levels.periods[0] <= period <= levels.longest and cost <= levels.ceiling)  # noqa: B023

        bound = bound_by_ranges(
            candidate,
            costs,
            floor,
            ceiling,
            refutes=refutes,
            seconds=1.0,
            is_over=lambda: left[0] <= 0,  # noqa: B023
            on_bound=lambda bound: None,
        )
        assert bound <= cost
    assert compared > 10
