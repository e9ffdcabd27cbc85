"""
Choice of the host classes to split, for a pattern (host class of each cell) that costs less than any placement.

For each single link of the pattern, bisection finds how slow the link may be before the pattern costs more than the
objective ceiling. Often only a few host pairs of the two classes are that fast. The two classes are then split into
hosts with and without such a partner. Links for which the fewest host pairs are fast enough come first.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.problem.objective import PlacedTicks, placed_objective_ticks
from pipette_opt.solver.class_assignment.problem import Merged, place_classes
from pipette_opt.solver.class_assignment.twins import HostClasses
from pipette_opt.solver.variables import ring_hops

SHARES = (1.0, 0.5, 0.25, 0.125)
"""
Fractions of the distance from pattern cost to objective ceiling that one link may add. Tried in order until one splits.
Chosen.
"""

CLASSES_GROWTH = 1.3
"""Largest factor by which one split may raise the number of classes. Chosen."""

SINGLE = 3
"""Classes with at most this many hosts are split into single hosts. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Hop:
    """
    Link between two cells of a pattern (host class of each cell).

    Parameters
    ----------
    classes
        Host classes of the two cells.
    cost
        Costs that sort host pairs from fast to slow, integer ticks, shape ``(num_nodes, num_nodes)``.
    raised
        Function from a host pair to the times of the pattern if the link has the cost of that pair.
    """

    classes: tuple[int, int]
    cost: IntArray
    raised: Callable[[int, int], PlacedTicks]


def finer(candidate: CandidateData, merged: Merged, pattern: IntArray, ceiling: int) -> HostClasses | None:
    """
    Return a finer partition in which the pattern costs more; ``None`` if all classes of the pattern are single hosts.

    Parameters
    ----------
    pattern
        Host class of each cell, shape ``candidate.grid``; the pattern costs at most the ceiling.
    ceiling
        Largest objective to look for, integer ticks.
    """
    placed = place_classes(merged, pattern)
    value = placed_objective_ticks(merged.candidate, placed)
    hops = list(_hops(candidate, placed, pattern))
    of_host = merged.classes.of_host
    for share in SHARES:
        limit = value + int((ceiling - value) * share)
        lucky = sorted(_lucky(merged, hops, limit), key=lambda vote: (vote[0], vote[1].classes))
        if lucky:
            return _split(merged.classes, [(hop.classes, good) for _, hop, good in lucky])
    sizes = merged.classes.sizes
    largest = max(np.unique(pattern).tolist(), key=lambda host_class: int(sizes[host_class]))
    if sizes[largest] == 1:
        return None
    good = np.zeros((len(of_host), len(of_host)), dtype=np.bool_)
    return _split(merged.classes, [((largest, largest), good)])


def _hops(candidate: CandidateData, placed: PlacedTicks, pattern: IntArray) -> Iterator[_Hop]:
    """Yield all links between cells of a pattern (host class of each cell), with their costs between hosts."""
    P, D, K = pattern.shape
    forth = candidate.p2p_ticks
    both = np.where(np.maximum(forth, forth.T) < UNUSABLE_TICKS, forth + forth.T, UNUSABLE_TICKS)
    stages = candidate.tile.stages
    of_row = [candidate.ring_class[row * stages : (row + 1) * stages] for row in range(P)]
    for row, column, part in np.ndindex(P, D, K):
        here = int(pattern[row, column, part])
        if row + 1 < P or candidate.wraps:
            ends = (here, int(pattern[(row + 1) % P, column, part]))
            yield _Hop(classes=ends, cost=both, raised=_transfer(candidate, placed, (row + 1) * stages - 1, column))
    for row in range(P):
        for tail, head in ring_hops(candidate, row):
            cost = np.minimum(candidate.ring_ticks[np.unique(of_row[row])].sum(axis=0), UNUSABLE_TICKS)
            ends = (int(pattern[tail]), int(pattern[head]))
            yield _Hop(classes=ends, cost=cost, raised=_ring(candidate, placed, row))
    if candidate.embedding_ticks.size:
        for first, last in zip(pattern[0].ravel().tolist(), pattern[-1].ravel().tolist(), strict=True):
            yield _Hop(classes=(first, last), cost=candidate.embedding_ticks, raised=_embedding(candidate, placed))


def _transfer(
    candidate: CandidateData, placed: PlacedTicks, stage: int, column: int
) -> Callable[[int, int], PlacedTicks]:
    def raised(i: int, j: int) -> PlacedTicks:
        send, back = placed.send_forward.copy(), placed.send_backward.copy()
        send[stage, column] = max(send[stage, column], candidate.p2p_ticks[i, j])
        back[stage, column] = max(back[stage, column], candidate.p2p_ticks[j, i])
        return replace(placed, send_forward=send, send_backward=back)

    return raised


def _ring(candidate: CandidateData, placed: PlacedTicks, row: int) -> Callable[[int, int], PlacedTicks]:
    here = slice(row * candidate.tile.stages, (row + 1) * candidate.tile.stages)

    def raised(i: int, j: int) -> PlacedTicks:
        ring = placed.ring.copy()
        ring[here] = np.maximum(ring[here], candidate.ring_ticks[candidate.ring_class[here], i, j])
        return replace(placed, ring=ring)

    return raised


def _embedding(candidate: CandidateData, placed: PlacedTicks) -> Callable[[int, int], PlacedTicks]:
    def raised(i: int, j: int) -> PlacedTicks:
        return replace(placed, embedding=max(placed.embedding, int(candidate.embedding_ticks[i, j])))

    return raised


def _lucky(merged: Merged, hops: Sequence[_Hop], limit: int) -> Iterator[tuple[float, _Hop, BoolArray]]:
    """Yield the links for which not all host pairs are fast: fraction of fast pairs, link, mask of fast pairs."""
    of_host = merged.classes.of_host
    for hop in hops:
        a, b = hop.classes
        pairs = np.argwhere((of_host[:, None] == a) & (of_host[None, :] == b) & ~np.eye(len(of_host), dtype=np.bool_))
        if len(pairs) < 2:
            continue
        pairs = pairs[np.argsort(hop.cost[tuple(pairs.T)], kind="stable")]
        usable = int((hop.cost[tuple(pairs.T)] < UNUSABLE_TICKS).sum())

        def is_low(number: int, hop: _Hop = hop, pairs: IntArray = pairs) -> bool:
            placed = hop.raised(*pairs[number].tolist())
            return placed_objective_ticks(merged.candidate, placed) <= limit

        low, high = 0, usable  # pairs below low are fast enough, those from high on are not
        if usable and is_low(usable - 1):
            low = usable
        while low < high:
            middle = (low + high) // 2
            if is_low(middle):
                low = middle + 1
            else:
                high = middle
        if low < len(pairs):
            good = np.zeros((len(of_host), len(of_host)), dtype=np.bool_)
            good[tuple(pairs[:low].T)] = True
            yield low / len(pairs), hop, good


def _split(classes: HostClasses, votes: Sequence[tuple[tuple[int, int], BoolArray]]) -> HostClasses | None:
    """
    Return classes split into hosts with and without a partner, first votes first, up to a limit on their number.

    ``None`` if no class can be split. A vote is a pair of classes with the mask of its fast host pairs.
    """
    of_host, number = classes.of_host.copy(), classes.number
    most = math.ceil(number * CLASSES_GROWTH) + 1
    done: set[int] = set()
    for by_count in (False, True):
        for (a, b), good in votes:
            for own, other, partners in ((a, b, good), (b, a, good.T)):
                members = np.flatnonzero(classes.of_host == own)
                if number >= most or own in done or len(members) == 1:
                    continue
                count = partners[np.ix_(members, np.flatnonzero(classes.of_host == other))].sum(axis=1)
                part = np.arange(len(members)) if len(members) <= SINGLE else _parts(count, by_count)
                if part.max():
                    done.add(own)
                    of_host[members[part > 0]] = number + part[part > 0] - 1
                    number += int(part.max())
        if done:
            break
    if not done:
        return None
    return HostClasses(of_host=np.unique(of_host, return_inverse=True)[1].ravel(), tolerance=classes.tolerance)


def _parts(count: IntArray, by_count: bool) -> IntArray:
    """
    Return 0 or 1 for each host of a class, which splits it in two by the number of partners.

    Hosts with any partner get 1. With ``by_count``, hosts above the median get 1, or the second half if all are equal.
    """
    if not by_count:
        return (count > 0).astype(np.int64) if 0 < (count > 0).sum() < len(count) else np.zeros_like(count)
    many: IntArray = (count > np.median(count)).astype(np.int64)
    if not many.any():
        many = (count >= np.median(count)).astype(np.int64)
    return many if 0 < many.sum() < len(many) else (np.arange(len(many)) >= len(many) // 2).astype(np.int64)
