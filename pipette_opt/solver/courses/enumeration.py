"""Which kinds of hosts a column can go through, row by row, within a period and a ceiling."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray, P2PMode
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.rows.costs import NEVER


@dataclass(frozen=True, slots=True)
class Span:
    """
    Rows whose work and transfers a column's period covers: together at most so many periods.

    Parameters
    ----------
    rows
        First and last.
    first, last
        Boundaries that are crossed, ``first`` to ``last - 1``; boundary ``r`` is between the rows ``r`` and ``r + 1``.
    periods
        In which all of it fits.
    """

    rows: tuple[int, int]
    first: int
    last: int
    periods: int

    @property
    def times(self) -> int:
        """How often the work of its rows counts."""
        return self.periods // (self.rows[1] + 1 - self.rows[0])


class Room(NamedTuple):
    """
    What a span has room for.

    Parameters
    ----------
    left
        Of its periods, shape ``(N,)``.
    lacks
        Of its boundaries, those that one column cannot cross from rack to rack besides the others, shape ``(N,)``.
    tells
        Whether these are more than its parts lack together, shape ``(N,)``.
    """

    span: Span
    left: IntArray
    lacks: IntArray
    tells: BoolArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Courses:
    """
    ``N`` courses of ``P`` rows with what they take at least, in ticks; ``W`` watched stages.

    Parameters
    ----------
    kinds
        Kind of host in each row, shape ``(N, P)``.
    spans
        What a period covers.
    work, transfer
        What hosts of each kind take in a period, in each row, shape ``(P, kinds)``, and the cheaper transfer between
        two kinds, shape ``(kinds, kinds)``.
    extra
        What a period has more of if a boundary between two kinds is crossed from rack to rack, shape
        ``(kinds, kinds)``.
    ends
        End of each watched stage without ``m - 1`` periods, with the cheaper transfers, shape ``(N, W)``.
    ends_node, ends_arc
        What hosts of each kind add to these, shape ``(W, P, kinds)``, and transfers, ``(W, P - 1, kinds, kinds)``.
    ends_extra
        What it is later if a boundary between two kinds is crossed so, shape ``(W, P - 1, kinds, kinds)``.
    shortest, longest
        Period of a column at least, and at most so that its ends are not above the ceiling with the least hops of its
        hosts, shape ``(N,)``.
    may_stay, may_cross
        Whether there are links inside a rack, and across, shape ``(N, P - 1)``.
    """

    kinds: IntArray
    spans: tuple[Span, ...]
    work: IntArray
    transfer: IntArray
    extra: IntArray
    ends: IntArray
    ends_node: IntArray
    ends_arc: IntArray
    ends_extra: IntArray
    shortest: IntArray
    longest: IntArray
    may_stay: BoolArray
    may_cross: BoolArray

    @property
    def number(self) -> int:
        """Courses."""
        return len(self.kinds)

    @property
    def own_extra(self) -> IntArray:
        """What a period has more of if a boundary of a course is crossed from rack to rack, shape ``(N, P - 1)``."""
        extra: IntArray = self.extra[self.kinds[:, :-1], self.kinds[:, 1:]]
        return extra

    def taken(self) -> Iterator[tuple[Span, IntArray]]:
        """Each span, shorter ones first, and what it takes with the cheaper transfer of each boundary, ``(N,)``."""
        here, there = self.kinds[:, :-1], self.kinds[:, 1:]
        work = _until(self.work[np.arange(self.kinds.shape[1]), self.kinds])
        sent = _until(self.transfer[here, there])
        for span in sorted(self.spans, key=lambda one: one.last - one.first):
            top, bottom = span.rows
            yield (
                span,
                span.times * (work[:, bottom + 1] - work[:, top]) + sent[:, span.last] - sent[:, span.first],
            )

    def has_room_to_cross(self) -> BoolArray:
        """Whether the longest period has room for crossing a boundary from rack to rack, shape ``(N, P - 1)``."""
        fits, extra = self.may_cross.copy(), self.own_extra
        for span, taken in self.taken():
            inside = slice(span.first, span.last)
            fits[:, inside] &= taken[:, None] + extra[:, inside] <= (span.periods * self.longest)[:, None]
        return fits

    def rooms(self) -> Iterator[Room]:
        """Of spans, shorter ones first, how many crossings they leave no room for, where their parts do not say so."""
        cost = np.where(self.may_cross, self.own_extra, NEVER)
        told: dict[tuple[int, int], IntArray] = {}
        nothing = np.zeros(self.number, dtype=np.int64)
        for span, taken in self.taken():
            first, last = span.first, span.last
            if first == last:
                continue
            left = span.periods * self.longest - taken
            most = (np.sort(cost[:, first:last], axis=1).cumsum(axis=1) <= left[:, None]).sum(axis=1)
            parts = [told.get((first, one), nothing) + told.get((one, last), nothing) for one in range(first, last + 1)]
            known: IntArray = np.max(parts, axis=0)
            lacks = np.maximum(last - first - most, known)
            told[first, last] = lacks
            if (lacks > known).any():
                yield Room(span, left, lacks, lacks > known)


def find_courses(
    candidate: CandidateData,
    p2p: P2PMode,
    racks: Racks,
    ceiling: int,
    longest: int,
    most: int,
    check: Callable[[], None] = lambda: None,
) -> Courses | None:
    """
    All courses of columns with at most a period, in placements that cost at most the ceiling.

    Where slow hosts are more than columns, those with fewer than their share may leave too many for the others: these
    are not listed.

    ``None`` if they are more than ``most``. One stage on a host, two rows at least, more than one micro-batch.

    Parameters
    ----------
    check
        Called now and then; what it raises ends the search.
    """
    costs, P = racks.costs, candidate.grid[0]
    link, work = racks.of_links(costs.period_arc[0]), racks.of_hosts(costs.period_node)
    arc = np.stack([[racks.of_links(one) for one in watched] for watched in costs.end_arc])
    node = np.stack([racks.of_hosts(watched) for watched in costs.end_node])
    hop = _own_hops(racks, P)
    beginnings = _Beginnings(
        p2p=p2p,
        work=work,
        transfer=link.min(axis=2),
        room=racks.of_hosts(np.where(costs.room, 0, NEVER)) == 0,
        node=node + hop,
        arc=arc.min(axis=4),
        left=ceiling - costs.after,
        rounds=candidate.num_microbatches - 1,
        longest=longest,
    )
    found = beginnings.all(most, check)
    if found is None:
        return None
    left = _affordable(found[0], candidate.grid[1], racks.sizes.sum(axis=0))
    kinds, periods, taken = (one[left] for one in found)
    here, there, extra = kinds[:, :-1], kinds[:, 1:], _extra(link)
    return Courses(
        kinds=kinds,
        spans=spans_of(P, p2p),
        work=work,
        transfer=beginnings.transfer,
        extra=extra,
        ends=taken - hop[:, np.arange(P), kinds].sum(axis=2).T,
        ends_node=node,
        ends_arc=beginnings.arc,
        ends_extra=_extra(arc),
        shortest=periods,
        longest=np.minimum(longest, ((beginnings.left - taken) // beginnings.rounds).min(axis=1)),
        may_stay=link[here, there, 0] < NEVER,
        may_cross=link[here, there, 1] < NEVER,
    )


def _affordable(kinds: IntArray, num_columns: int, sizes: IntArray) -> IntArray:
    """
    Courses, by number, that leave enough hosts of each kind for all other columns.

    Parameters
    ----------
    kinds
        Of each course and row, shape ``(N, P)``.
    sizes
        Hosts of each kind.
    """
    used = np.stack([(kinds == kind).sum(axis=1) for kind in range(len(sizes))], axis=1)
    left = np.arange(len(kinds))
    while len(left):
        fits = (used[left] + (num_columns - 1) * used[left].min(axis=0) <= sizes).all(axis=1)
        if fits.all():
            break
        left = left[fits]
    return left


def _own_hops(racks: Racks, num_rows: int) -> IntArray:
    """Of the ring of each watched stage, the least hop of a host of each kind in its row, shape ``(W, P, kinds)``."""
    costs = racks.costs
    least = np.zeros((len(costs.watched), num_rows, racks.num_kinds), dtype=np.int64)
    for watched, row in enumerate(costs.watched.tolist()):
        hop = costs.hop[watched]
        least[watched, row] = racks.of_links(np.minimum(hop, hop.T)).min(axis=(1, 2))
    return least


def spans_of(num_rows: int, p2p: P2PMode) -> tuple[Span, ...]:
    """What a period covers: each stage with both transfers, twice, if sends are blocking; else each run of stages."""
    if p2p == "blocking":
        return tuple(Span((row, row), max(0, row - 1), min(num_rows - 1, row + 1), 2) for row in range(num_rows))
    return tuple(
        Span((first, last), first, last, last + 1 - first)
        for first in range(num_rows)
        for last in range(first, num_rows)
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Beginnings:
    """
    Courses grown row by row; those that cannot be ended within the ceiling are left out at once.

    Parameters
    ----------
    work, transfer, arc
        As ``work``, ``transfer`` and ``ends_arc`` of :class:`Courses`.
    node
        What hosts of each kind add to the watched ends and the reductions behind them, shape ``(W, P, kinds)``.
    room
        Whether hosts of a kind may be in a row, shape ``(P, kinds)``.
    left
        What the ceiling leaves each watched stage for its end, its reduction and the periods, shape ``(W,)``.
    longest
        The longest period.
    """

    p2p: P2PMode
    work: IntArray
    transfer: IntArray
    room: BoolArray
    node: IntArray
    arc: IntArray
    left: IntArray
    rounds: int
    longest: int

    def all(self, most: int, check: Callable[[], None]) -> tuple[IntArray, IntArray, IntArray] | None:
        """
        Kinds ``(N, P)``, least periods ``(N,)`` and what they add ``(N, W)``; ``None`` if a row has more than ``most``.

        With each beginning goes what the next row needs to know of it: the transfer into its last row if sends are
        blocking; else what each run takes that ends there, shape ``(N, rows)``.
        """
        P, W = len(self.work), len(self.left)
        to_go = self._to_go()
        kinds, carried = np.zeros((1, 0), dtype=np.int64), np.zeros((1, 0), dtype=np.int64)
        periods, ends = np.zeros(1, dtype=np.int64), np.zeros((1, W), dtype=np.int64)
        for row in range(P):
            grown = []
            for kind in np.flatnonzero(self.room[row]).tolist():
                check()
                grown.append(self._grow(row, kind, kinds, carried, periods, ends, to_go))
            if not grown:
                return kinds[:0].reshape(0, P), periods[:0], ends[:0]
            kinds, carried, periods, ends = (np.concatenate(one) for one in zip(*grown, strict=True))
            if len(kinds) > most:
                return None
        return kinds, periods, ends

    def _grow(
        self,
        row: int,
        kind: int,
        kinds: IntArray,
        carried: IntArray,
        periods: IntArray,
        ends: IntArray,
        to_go: IntArray,
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Beginnings with one more host."""
        work, ends = int(self.work[row, kind]), ends + self.node[:, row, kind]
        if row:
            before = kinds[:, -1]
            link = self.transfer[before, kind]
            ends = ends + self.arc[:, row - 1, before, kind].T
        else:
            link = np.zeros(len(kinds), dtype=np.int64)
        if self.p2p == "blocking":
            own = -(-(2 * work + link) // 2)
            if row:
                own = np.maximum(own, -(-(2 * self.work[row - 1, before] + carried[:, 0] + link) // 2))
            carried = link[:, None]
        else:
            carried = np.column_stack([carried + (link + work)[:, None], np.full(len(kinds), work)])
            own = (-(-carried // np.arange(row + 1, 0, -1))).max(axis=1)
        periods = np.maximum(periods, own)
        room = ((self.left - ends - to_go[:, row, kind]) // self.rounds).min(axis=1)
        fits = (link < NEVER) & (periods <= np.minimum(room, self.longest))
        grown = np.column_stack([kinds[fits], np.full(int(fits.sum()), kind)])
        return grown, carried[fits], periods[fits], ends[fits]

    def _to_go(self) -> IntArray:
        """What the rows behind each host add to the ends at least, shape ``(W, P, kinds)``."""
        least = np.zeros(self.node.shape, dtype=np.int64)
        for row in range(self.node.shape[1] - 2, -1, -1):
            least[:, row] = (self.arc[:, row] + (self.node[:, row + 1] + least[:, row + 1])[:, None, :]).min(axis=2)
        return np.minimum(least, NEVER)


def _until(parts: IntArray) -> IntArray:
    """Sums of all before each, and of all, shape ``(N, parts + 1)``."""
    whole = np.zeros((parts.shape[0], parts.shape[1] + 1), dtype=np.int64)
    whole[:, 1:] = parts.cumsum(axis=1)
    return whole


def _extra(sorts: IntArray) -> IntArray:
    """What a link across costs above one inside, of sorts ``(..., 2)``; nothing where there is only one."""
    both = (sorts < NEVER).all(axis=-1)
    extra: IntArray = np.where(both, np.maximum(0, sorts[..., 1] - sorts[..., 0]), 0)
    return extra
