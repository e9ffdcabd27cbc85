"""What filters take out of cells is in no placement within the limits, and what they say of a column holds."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.cells.bits import lowest, number_of, without_lowest
from pipette_opt.solver.cells.data import grid_of
from pipette_opt.solver.cells.filter import hosts_left, keep_column, keep_needed, longest_mean
from pipette_opt.solver.cells.limits import as_bits, part_of

SHAPES = [(2, 2, 1), (3, 2, 1), (2, 3, 1), (4, 1, 1), (1, 4, 1)]


def _problem(seed: int, p2p: P2PMode) -> tuple[ProblemData, CandidateData]:
    rng = np.random.default_rng([5, seed])
    variant = Variant(
        p2p=p2p,
        directed=bool(rng.integers(2)),
        missing_share=float(rng.choice([0, 0.1])),
        num_kinds=2,
        num_capacities=2,
        scale=1000,
    )
    shape = SHAPES[seed % len(SHAPES)]
    data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + 1), variant, max_block=2)
    return data, data.candidates[0]


def _good_placements(data: ProblemData, candidate: CandidateData, ceiling: int) -> list[IntArray]:
    P, D, _ = candidate.grid
    allowed = data.allowed(candidate)
    every = (np.array(hosts).reshape(P, D) for hosts in itertools.permutations(range(data.num_nodes), P * D))
    return [
        nodes
        for nodes in every
        if all(allowed[row, nodes[row]].all() for row in range(P))
        and objective_ticks(data, candidate, nodes.reshape(candidate.grid)) <= ceiling
    ]


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("seed", range(40))
def test_what_an_interval_leaves(seed: int, p2p: P2PMode) -> None:
    """Each placement that is good enough is in the interval of the end of its latest column, cell by cell."""
    data, candidate = _problem(seed, p2p)
    values = [value for value in _values(data, candidate) if value < 1 << 40]
    if not values:
        return  # no placement
    ceiling = int(np.quantile(values, 0.1))
    g, room = grid_of(data, candidate), data.allowed(candidate)
    edges = np.linspace(0, ceiling + 1, 6).astype(np.int64).tolist()
    parts = [part_of(g, room, ceiling, low, high - 1) for low, high in itertools.pairwise(edges)]
    for nodes in _good_placements(data, candidate, ceiling):
        bits = as_bits(np.arange(len(g.wait)) == nodes.reshape(-1, 1))
        assert any(part is not None and (part.state.cells[0] & bits == bits).all() for part in parts)


def _values(data: ProblemData, candidate: CandidateData) -> list[int]:
    P, D, _ = candidate.grid
    every = itertools.permutations(range(data.num_nodes), P * D)
    return [objective_ticks(data, candidate, np.array(hosts).reshape(candidate.grid)) for hosts in every]


def test_bits() -> None:
    """Counted and taken one by one, up to the last of a word."""
    for places in ([0], [63], [0, 5, 63], list(range(64))):
        bits = np.uint64(sum(1 << place for place in places))
        assert number_of(bits) == len(places)
        assert lowest(bits) == places[0]
        assert number_of(np.uint64(without_lowest(bits))) == len(places) - 1
    hosts = np.zeros((2, 70), dtype=np.bool_)
    hosts[0, 69] = hosts[1, [0, 69]] = True
    assert as_bits(hosts).tolist() == [[0, 32], [1, 32]]
    assert hosts_left(as_bits(hosts)) == 2


def test_a_host_with_one_cell_left_gets_it() -> None:
    """Of three hosts for three cells, two without a choice; with one more host nobody is needed."""
    data = random_problem(np.random.default_rng(0), [(3, 1, 1)], 4, Variant(), max_block=1)
    g = grid_of(data, data.candidates[0])
    part = part_of(g, np.ones((3, 4), dtype=np.bool_), 1 << 40, 0, 1 << 40)
    assert part is not None
    cells = as_bits(np.array([[1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0]], dtype=np.bool_))
    assert keep_needed(g, part.work, cells)
    assert cells.ravel().tolist() == [2, 4, 1]
    cells = as_bits(np.array([[1, 1, 0, 0], [1, 0, 1, 1], [1, 0, 0, 0]], dtype=np.bool_))
    assert keep_needed(g, part.work, cells)
    assert cells.ravel().tolist() == [3, 13, 1]
    assert not keep_needed(g, part.work, as_bits(np.array([[1, 1, 0, 0], [1, 1, 0, 0], [1, 0, 0, 0]], dtype=np.bool_)))


def test_longest_mean() -> None:
    """Of stages of 10, 15 and 10 with transfers of 6 and 8 the last two have the largest mean: 33 / 2, rounded up."""
    data = random_problem(np.random.default_rng(0), [(3, 1, 1)], 3, Variant(p2p="async"), max_block=1)
    wait = np.array([[0, 6, 0], [0, 0, 8], [0, 0, 0]])
    work = np.array([[10, 0, 0], [0, 15, 0], [0, 0, 10]])
    g = grid_of(data, data.candidates[0])._replace(wait=wait, work=work)
    assert longest_mean(g, np.arange(3)) == 17


@pytest.mark.parametrize(("end", "left"), [(179, [1, 2]), (180, [1, 6])])
def test_a_column_takes_at_least_its_mean(end: int, left: list[int]) -> None:
    """
    Two stages of 10, then 8 more periods: to the nearer host 24 + 8 * 24 / 2, to the farther 36 + 8 * 36 / 2 = 180.

    The nearer alone would leave 155 / 8 = 19 for a period, the farther takes 18.
    """
    ticks = np.full((3, 3), UNUSABLE_TICKS)
    ticks[0, 1] = ticks[1, 0] = 2
    ticks[0, 2] = ticks[2, 0] = 8
    assert _kept([10, 10], ticks, [[0], [1, 2]], end) == left


@pytest.mark.parametrize(("end", "left"), [(185, [1, 8, 4]), (186, [1, 10, 4])])
def test_what_a_column_takes_shortens_its_period(end: int, left: list[int]) -> None:
    """
    A column takes 26 at least, so 8 more periods of 20 end at 186: the first two stages and the slow link between them.

    The mean over all three is 15 with that link, which ends in time.
    """
    ticks = np.ones((4, 4), dtype=np.int64)
    ticks[0, 1] = ticks[1, 0] = 10
    assert _kept([10, 10, 2], ticks, [[0], [1, 3], [2]], end) == left


def _kept(work: list[int], ticks: IntArray, hosts: list[list[int]], end: int) -> list[int]:
    """Bits of the hosts left of a column with asynchronous sends and nine micro-batches, its end limited."""
    P, N = len(work), len(ticks)
    data = random_problem(np.random.default_rng(0), [(P, 1, 1)], N, Variant(p2p="async"), max_block=1)
    candidate = replace(
        data.candidates[0],
        num_microbatches=9,
        forward_ticks=np.array([work]) // 2,
        backward_ticks=np.array([work]) // 2,
        p2p_ticks=ticks,
    )
    g = grid_of(data, candidate)
    part = part_of(g, np.ones((P, N), dtype=np.bool_), 1 << 40, 0, 1 << 40)
    assert part is not None
    cells = as_bits(np.array([np.isin(np.arange(N), row) for row in hosts]))
    caps = np.full(len(g.node), 1 << 40)
    caps[0] = end
    assert keep_column(g, part.limits, part.work, cells, 0, caps, 0)
    column: list[int] = cells.ravel().tolist()
    return column
