"""First placements of many hosts."""

from dataclasses import replace

import numpy as np
import pytest
from instances import one_candidate_cluster

from pipette_opt.annealing.coarse import DISTANCES, starts_among
from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.neighbours import find_neighbours
from pipette_opt.problem.objective import objective_ticks

ACROSS, SLOW = 1.2, 1 / 0.6
"""Cost of a link across racks, and of one of a slow host (twice of one between two), over that inside a rack."""


def in_racks(
    shape: tuple[int, int, int], sizes: list[int], slow: list[int], *, across: float = ACROSS
) -> tuple[ProblemData, IntArray, BoolArray]:
    """Racks of so many hosts, so many of them slow, in random order; with the rack of each host, and which are slow."""
    random = np.random.default_rng(0)
    number = sum(sizes)
    order = random.permutation(number)
    rack = np.repeat(np.arange(len(sizes)), sizes)[order]
    is_slow = np.concatenate([np.arange(size) < few for size, few in zip(sizes, slow, strict=True)])[order]
    noise = random.uniform(1, 1.04, (number, number))
    cost = np.where(rack[:, None] == rack[None, :], 1.0, across) * np.maximum(noise, noise.T)
    cost *= np.where(is_slow, SLOW, 1.0)[:, None] * np.where(is_slow, SLOW, 1.0)[None, :]
    return with_links(one_candidate_cluster(random, "unif", shape, num_nodes=number), cost), rack, is_slow


def coarse_starts(data: ProblemData, distances: tuple[int, ...] = DISTANCES[:1]) -> list[IntArray]:
    """Of the only candidate; none if a host has no link."""
    candidate = data.candidates[0]
    rows, columns, _ = candidate.grid
    neighbours = find_neighbours(candidate.ring_ticks[0] if columns > 1 else candidate.p2p_ticks)
    return [] if neighbours is None else starts_among(neighbours, (rows, columns), distances)


def with_links(data: ProblemData, cost: FloatArray) -> ProblemData:
    """The problem with such costs of links; infinite ones are missing."""
    ticks = np.where(np.isinf(cost), 0, np.round(1e4 * np.where(np.isinf(cost), 0, cost))).astype(np.int64)
    ticks[np.isinf(cost)] = UNUSABLE_TICKS
    np.fill_diagonal(ticks, UNUSABLE_TICKS)
    ring = np.where(ticks < UNUSABLE_TICKS, 20 * ticks, UNUSABLE_TICKS)
    return replace(data, candidates=(replace(data.candidates[0], p2p_ticks=ticks, ring_ticks=ring[None]),))


@pytest.mark.parametrize(("shape", "listed"), [((16, 16, 1), 256), ((8, 4, 1), 40), ((1, 12, 1), 12), ((12, 1, 1), 13)])
def test_every_host_once(shape: tuple[int, int, int], listed: int) -> None:
    """The grid first, then the spare hosts."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", shape, num_nodes=listed)
    starts = coarse_starts(data)
    assert starts
    for nodes in starts:
        assert sorted(nodes.tolist()) == list(range(listed))


def test_far_better_than_random_on_racks() -> None:
    """The best of them on four racks with slow hosts; spare hosts are the slow ones."""
    data = one_candidate_cluster(np.random.default_rng(1), "tree", (16, 16, 1))
    candidate = data.candidates[0]
    values = [objective_ticks(data, candidate, nodes[:256].reshape(16, 16, 1)) for nodes in coarse_starts(data)]
    random = [
        objective_ticks(data, candidate, np.random.default_rng(seed).permutation(256).reshape(16, 16, 1))
        for seed in range(20)
    ]
    assert min(values) < 0.8 * min(random)
    spare = one_candidate_cluster(np.random.default_rng(1), "tree", (8, 7, 1), num_nodes=64)
    usual = np.median(spare.candidates[0].p2p_ticks, axis=1)
    for nodes in coarse_starts(spare):
        assert set(nodes[56:].tolist()) == set(np.argsort(usual, kind="stable")[56:].tolist())


@pytest.mark.search
@pytest.mark.parametrize("every", DISTANCES)
@pytest.mark.parametrize("across", [1.1, 1.2, 2.0])
@pytest.mark.parametrize(("sizes", "few"), [([144] * 4, [10, 14, 12, 16]), ([240, 192, 144], [20, 14, 10])])
def test_slow_hosts_are_apart_and_inside_their_racks(
    every: int, across: float, sizes: list[int], few: list[int]
) -> None:
    """In one start every column is in one rack; no link of it or of a ring costs what two slow hosts, or racks, do."""
    P, D = 24, 24
    data, rack, is_slow = in_racks((P, D, 1), sizes, few, across=across)
    grids = [nodes[: P * D].reshape(P, D) for nodes in coarse_starts(data, (every,))]
    assert any(_is_apart(grid, rack, is_slow, every) for grid in grids)


def _is_apart(grid: IntArray, rack: IntArray, is_slow: BoolArray, every: int) -> bool:
    slow, ring = is_slow[grid], np.roll(grid, -1, axis=1)
    crosses = rack[grid] != rack[ring]
    in_one_rack = (rack[grid] == rack[grid][0]).all()
    evenly = all((np.diff(np.flatnonzero(column)) == every).all() for column in slow.T)
    last = slow.any(axis=1)[-every:].all()
    near = (slow & is_slow[ring]).any() or (crosses & (slow | is_slow[ring])).any()
    return bool(in_one_rack and evenly and last and not near)


def test_racks_fill_whole_rows_where_hosts_are_spare() -> None:
    """Slow hosts and what is left of each rack are spare, as long as there are whole rows enough."""
    data, rack, is_slow = in_racks((16, 16, 1), [100, 104, 92, 88], [12, 12, 12, 12])
    starts = coarse_starts(data)
    assert any((rack[nodes[:256:16]] == rack[nodes[:256].reshape(16, 16)].T).all() for nodes in starts)
    for nodes in starts:
        assert not is_slow[nodes[:256]].any()


def test_no_more_slow_hosts_than_needed() -> None:
    """Where some are, the fastest fill the grid."""
    data, _, is_slow = in_racks((16, 16, 1), [72] * 4, [12] * 4)
    for nodes in coarse_starts(data):
        assert is_slow[nodes[:256]].sum() == 256 - 4 * 60


def test_slow_racks_have_the_last_rows() -> None:
    """A late row's reduction has the most time."""
    data, rack, _ = in_racks((16, 16, 1), [64] * 4, [12, 0, 16, 4])
    grids = [nodes.reshape(16, 16) for nodes in coarse_starts(data)]
    assert any(rack[grid][:, 0].tolist() == [1] * 4 + [3] * 4 + [0] * 4 + [2] * 4 for grid in grids)


def test_racks_smaller_than_a_row_stay_together() -> None:
    """Each is a run of hosts, row by row."""
    data, rack, _ = in_racks((8, 32, 1), [8] * 32, [0] * 32)
    runs = [np.count_nonzero(np.diff(rack[nodes])) for nodes in coarse_starts(data)]
    assert min(runs) == 31


def test_links_that_are_missing() -> None:
    """Count as the slowest; without any link of a host there is no start."""
    data, _, _ = in_racks((16, 16, 1), [64] * 4, [8] * 4)
    cost = data.candidates[0].p2p_ticks / 1e4
    lost = np.random.default_rng(1).random(cost.shape) < 0.02
    some = with_links(data, np.where(lost, np.inf, cost))
    assert len(coarse_starts(some)) > 4
    cost[5] = np.inf
    none = with_links(data, cost)
    assert coarse_starts(none) == []


def test_they_differ() -> None:
    """Whole columns one after the other and whole rows at once are the same placement."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (16, 16, 1))
    starts = coarse_starts(data)
    assert len({nodes.tobytes() for nodes in starts}) == len(starts) > 5
    plain = one_candidate_cluster(np.random.default_rng(0), "unif", (16, 16, 1))
    assert len(coarse_starts(plain)) == 2
