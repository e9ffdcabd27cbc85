"""What classes of hosts cost at least, row by row."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import PlacedTicks, period_ticks
from pipette_opt.solver.bounds import least_embedding
from pipette_opt.solver.rows.classes import HostClasses

NEVER = np.int64(UNUSABLE_TICKS)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowCosts:
    """
    A candidate with classes in place of hosts; ``C`` classes, ``P`` rows, ``pp`` stages, all ticks.

    Parameters
    ----------
    room
        Whether hosts of a class may be in a row, shape ``(P, C)``.
    window
        Least period of a column whose row r is of class y between rows of classes x and z, for the rows that have
        both neighbours, shape ``(P - 2, C, C, C)``; with one or two rows the only window, shape ``(1, 1, C, 1)`` and
        ``(1, C, C, 1)``. ``UNUSABLE_TICKS`` where a link is missing.
    watched
        Stages whose end can decide the objective, ascending.
    least_end
        For each watched stage, the least of what a column takes from the first forward to the stage's last backward,
        without the ``m - 1`` periods, if its path has a given window; shape ``(watched, *window.shape)``.
    mean_end
        The same with ``m - 1`` times the mean over its stages for the periods, times ``pp``.
    end_node, end_arc
        What a column takes to the stage's last backward without the ``m - 1`` periods: of its hosts, shape
        ``(watched, P, C)``, and of its transfers, shape ``(watched, P - 1, C, C)``; ``UNUSABLE_TICKS`` where there is
        no link.
    period_node, period_arc
        What the stages of a host, shape ``(P, C)``, and a transfer, shape ``(P - 1, C, C)``, take in a period.
    hop
        For each watched stage, its reduction if a ring hop of its row goes from one class to another, the reduction
        inside hosts at least, shape ``(watched, C, C)``; ``UNUSABLE_TICKS`` where there is no link.
    after
        What follows the reduction of each watched stage.
    """

    room: BoolArray
    window: IntArray
    watched: IntArray
    least_end: IntArray
    mean_end: IntArray
    end_node: IntArray
    end_arc: IntArray
    period_node: IntArray
    period_arc: IntArray
    hop: IntArray
    after: IntArray


def row_costs(data: ProblemData, candidate: CandidateData, classes: HostClasses, merged: float = 0.0) -> RowCosts:
    """
    Costs of a candidate with a closed form and tensor groups inside hosts.

    Parameters
    ----------
    merged
        Relative difference of costs between classes that is not told apart: racks that are equal but for chance are
        then equal, which is soon solved.
    """
    if not candidate.exact or candidate.grid[2] > 1:
        raise ValueError("only closed forms with tensor groups inside hosts have row costs.")
    watched = watched_stages(candidate)
    kinds = np.array([data.kind_of_node[classes.of_host == one][0] for one in range(classes.number)])
    both, period_pair, back = (merge_levels(one, merged) for one in _transfers(data, candidate, classes))
    window = _windows(data, candidate, kinds, period_pair)
    period_node, period_arc = mean_parts(data, candidate, kinds, period_pair)
    pp, rounds = candidate.num_stages, candidate.num_microbatches - 1
    ends, means, nodes, arcs = [], [], [], []
    for stage in watched.tolist():
        node, arc = end_parts(candidate, kinds, both, back, stage)
        ends.append(_through(node, arc, window.shape))
        mean_arc = np.where(arc < NEVER, pp * np.minimum(arc, NEVER) + rounds * period_arc, NEVER)
        means.append(_through(pp * node + rounds * period_node, mean_arc, window.shape))
        nodes.append(node)
        arcs.append(np.minimum(arc, NEVER))
    after = np.full(len(watched), candidate.optimizer_ticks, dtype=np.int64)
    after[(watched == 0) | (watched == candidate.num_stages - 1)] += least_embedding(candidate)
    return RowCosts(
        room=np.array([data.allowed(candidate)[:, classes.of_host == one][:, 0] for one in range(classes.number)]).T,
        window=window,
        watched=watched,
        least_end=np.stack(ends),
        mean_end=np.stack(means),
        end_node=np.stack(nodes),
        end_arc=np.stack(arcs),
        period_node=period_node,
        period_arc=period_arc,
        hop=np.stack([merge_levels(_hops(candidate, classes, stage), merged) for stage in watched.tolist()]),
        after=after,
    )


def watched_stages(candidate: CandidateData) -> IntArray:
    """Of stages of a row with equal rings the first ends last; the last stage may have tied embeddings to reduce."""
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    keys = list(zip(rows.tolist(), candidate.ring_class.tolist(), candidate.ring_floor_ticks.tolist(), strict=True))
    tied = {candidate.num_stages - 1} if candidate.has_tied_stages else set()
    return np.array([stage for stage, key in enumerate(keys) if key not in keys[:stage] or stage in tied])


def block_minima(ticks: IntArray, classes: HostClasses) -> IntArray:
    """Least cost from a host of one class to another host of another, shape ``(C, C)``."""
    apart = np.array(ticks, dtype=np.int64)
    np.fill_diagonal(apart, NEVER)
    order = np.argsort(classes.of_host, kind="stable")
    starts = np.searchsorted(classes.of_host[order], np.arange(classes.number))
    least = np.minimum.reduceat(np.minimum.reduceat(apart[np.ix_(order, order)], starts, axis=0), starts, axis=1)
    return np.minimum(least, NEVER)


def merge_levels(ticks: IntArray, tolerance: float) -> IntArray:
    """Costs that differ by at most so much, relative, are the least of them."""
    values = np.unique(ticks)
    levels, level = np.empty_like(values), -1
    for place, value in enumerate(values.tolist()):
        if level < 0 or value > level * (1 + tolerance):
            level = value
        levels[place] = level
    merged: IntArray = levels[np.searchsorted(values, ticks)]
    return merged


def _transfers(
    data: ProblemData, candidate: CandidateData, classes: HostClasses
) -> tuple[IntArray, IntArray, IntArray]:
    """
    Least transfers from class to class in the next row, three arrays ``(C, C)``.

    There and back; what a period counts (the slower direction if sends are blocking, else both); there alone.
    """
    there, home = candidate.p2p_ticks, candidate.p2p_ticks.T
    missing = np.maximum(there, home) >= NEVER
    both = block_minima(np.where(missing, NEVER, there + home), classes)
    counted = both if data.p2p == "async" else block_minima(np.where(missing, NEVER, np.maximum(there, home)), classes)
    return both, counted, block_minima(np.where(missing, NEVER, there), classes)


def _windows(data: ProblemData, candidate: CandidateData, kinds: IntArray, pair: IntArray) -> IntArray:
    """See :class:`RowCosts`."""
    P, number = candidate.grid[0], len(kinds)
    centers = range(1, P - 1) if P > 2 else range(1)
    shape = (number if P > 1 else 1, number, number if P > 2 else 1)
    return np.stack([_window(data, candidate, kinds, pair, center, shape) for center in centers])


def _window(
    data: ProblemData, candidate: CandidateData, kinds: IntArray, pair: IntArray, center: int, shape: tuple[int, ...]
) -> IntArray:
    """Least period of the stages of up to three rows, for every choice of classes."""
    P, stages = candidate.grid[0], candidate.block.stages
    grids = [one.ravel() for one in np.indices(shape)]
    if P == 1:
        rows, members = [0], [grids[1]]
    elif P == 2:
        rows, members = [0, 1], grids[:2]
    else:
        rows, members = [center - 1, center, center + 1], grids
    forward = np.concatenate(
        [_row_work(candidate.forward_ticks, kinds, row, stages)[:, y] for row, y in _zip(rows, members)]
    )
    backward = np.concatenate(
        [_row_work(candidate.backward_ticks, kinds, row, stages)[:, y] for row, y in _zip(rows, members)]
    )
    inside = candidate.intra_p2p_ticks
    there = np.full((len(forward) - 1, forward.shape[1]), inside, dtype=np.int64)
    home = there.copy()
    for number in range(len(rows) - 1):
        cost = pair[members[number], members[number + 1]]
        there[(number + 1) * stages - 1] = cost
        home[(number + 1) * stages - 1] = cost if data.p2p == "blocking" else 0
    placed = PlacedTicks(
        forward=forward, backward=backward, send_forward=there, send_backward=home, ring=candidate.ring_floor_ticks
    )
    period = period_ticks(placed, data.p2p)
    unusable = (there >= NEVER).any(axis=0) if len(there) else np.zeros(forward.shape[1], dtype=np.bool_)
    return np.where(unusable, NEVER, period).reshape(shape)


def _zip(rows: list[int], members: list[IntArray]) -> list[tuple[int, IntArray]]:
    return list(zip(rows, members, strict=True))


def _row_work(ticks: IntArray, kinds: IntArray, row: int, stages: int) -> IntArray:
    """Work on the stages of a row by class, shape ``(stages, C)``."""
    return ticks[kinds, row * stages : (row + 1) * stages].T


def end_parts(
    candidate: CandidateData, kinds: IntArray, both: IntArray, there: IntArray, stage: int
) -> tuple[IntArray, IntArray]:
    """
    Round trip minus what the stages before ``stage`` still do, by hosts ``(P, C)`` and transfers ``(P - 1, C, C)``.

    Stages from ``stage`` on count forward and backward, transfers from there on both ways; those before only there.
    """
    P, stages = candidate.grid[0], candidate.block.stages
    work = candidate.forward_ticks + candidate.backward_ticks
    work = np.where(np.arange(candidate.num_stages) < stage, candidate.forward_ticks, work)
    node = work[kinds].reshape(len(kinds), P, stages).sum(axis=2).T
    inner = np.arange(candidate.num_stages - 1)
    inner = inner[inner // stages == (inner + 1) // stages]
    node = (
        node
        + np.bincount(
            inner // stages, weights=np.where(inner >= stage, 2, 1) * candidate.intra_p2p_ticks, minlength=P
        ).astype(np.int64)[:, None]
    )
    boundary = (np.arange(P - 1) + 1) * stages - 1
    arc = np.where((boundary >= stage)[:, None, None], both, there).reshape(P - 1, len(kinds), len(kinds))
    return node, arc


def mean_parts(
    data: ProblemData, candidate: CandidateData, kinds: IntArray, pair: IntArray
) -> tuple[IntArray, IntArray]:
    """Sum of what a column's stages take in a period, by hosts ``(P, C)`` and transfers ``(P - 1, C, C)``."""
    P, stages = candidate.grid[0], candidate.block.stages
    work = candidate.forward_ticks + candidate.backward_ticks
    node = work[kinds].reshape(len(kinds), P, stages).sum(axis=2).T + 2 * (stages - 1) * candidate.intra_p2p_ticks
    # A blocking stage waits for both neighbours, so a transfer is in two terms; else both directions are in one.
    counted = 2 * np.minimum(pair, NEVER) if data.p2p == "blocking" else pair
    return node, np.broadcast_to(counted, (P - 1, *pair.shape))


def _through(node: IntArray, arc: IntArray, shape: tuple[int, ...]) -> IntArray:
    """Least sum over a column whose path has each window."""
    P = len(node)
    before = [node[0]]  # of the rows up to this one, its class given
    for row in range(1, P):
        before.append((before[-1][:, None] + arc[row - 1]).min(axis=0) + node[row])
    behind = [node[P - 1]]
    for row in range(P - 2, -1, -1):
        behind.append((arc[row] + behind[-1][None, :]).min(axis=1) + node[row])
    behind.reverse()
    if P == 1:
        total = node[0].reshape(shape)
    elif P == 2:
        total = (before[0][:, None] + arc[0] + behind[1][None, :]).reshape(shape)
    else:
        total = np.stack(
            [
                (before[row - 1][:, None] + arc[row - 1])[:, :, None]
                + node[row][None, :, None]
                + (arc[row] + behind[row + 1][None, :])[None, :, :]
                for row in range(1, P - 1)
            ]
        ).reshape(shape)
    least: IntArray = np.minimum(total, NEVER)
    return least


def _hops(candidate: CandidateData, classes: HostClasses, stage: int) -> IntArray:
    floor = int(candidate.ring_floor_ticks[stage])
    if candidate.grid[1] == 1:
        return np.full((classes.number, classes.number), floor, dtype=np.int64)
    least = block_minima(candidate.ring_ticks[candidate.ring_class[stage]], classes)
    return np.where(least < NEVER, np.maximum(least, floor), NEVER)
