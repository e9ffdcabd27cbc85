"""
Lower bounds of a candidate's integer objective that need no search.

Every hop costs at least the best allowed link of its rows. Beyond that, hops have distinct senders and distinct
receivers: a set of arcs in which no host sends twice or receives twice has a slowest arc that is at least the
*level*, the smallest t for which the links of cost <= t contain that many such arcs. Somewhere in the grid a hop
is that slow; the bound is the minimum over the rows where this may be. The objective never falls when a time
grows, so each such scenario is valued by the objective itself.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from pipette_opt.jit import njit
from pipette_opt.optimistic import has_room, optimistic_ticks
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, PlacedTicks, ProblemData, finish_ticks
from pipette_opt.types import BoolArray, IntArray


def lower_bounds(data: ProblemData, cutoff: int = UNUSABLE_TICKS, ends: float | None = None) -> IntArray:
    """
    Bound of every candidate, ``UNUSABLE_TICKS`` where no placement exists, shape ``(num_candidates,)``.

    The levels are looked at only where the best links alone stay below ``cutoff``, most promising candidates first,
    and until the time ``ends`` (of ``time.perf_counter``).
    """
    bounds = np.array([optimistic_ticks(data, candidate) for candidate in data.candidates], dtype=np.int64)
    for index in np.argsort(bounds, kind="stable").tolist():
        if bounds[index] >= cutoff or (ends is not None and time.perf_counter() >= ends):
            break
        bounds[index] = max(bounds[index], candidate_bound(data, data.candidates[index]))
    return bounds


def candidate_bound(data: ProblemData, candidate: CandidateData) -> int:
    """No placement of the candidate has a smaller integer objective."""
    if not has_room(data, candidate):
        return UNUSABLE_TICKS
    rings = _ring_scenarios(data, candidate)
    if rings is None:
        return UNUSABLE_TICKS
    rings = rings.copy()
    rings[[0, -1]] += _least_embedding(candidate)
    best = 0
    for placed in _path_scenarios(data, candidate):
        if placed is None:
            return UNUSABLE_TICKS
        finish = finish_ticks(data, candidate, placed)  # (pp, scenarios)
        ends = (finish[:, :, None] + rings[:, None, :]).max(axis=0)
        best = max(best, int(ends.min()))
    return best + candidate.optimizer_ticks


def _path_scenarios(data: ProblemData, candidate: CandidateData) -> Iterator[PlacedTicks | None]:
    """
    Sets of scenarios, one per column, of which one must hold; ``None`` if nothing can hold.

    First: the slowest transfer is at one boundary or another. Then: a host of a slower kind is in one row or another.
    """
    allowed = data.allowed(candidate)
    work = _least_work(data, candidate, allowed)
    transfers = _transfers(data, candidate)
    if work is None or transfers is None:
        yield None
        return
    yield _placed(candidate, [one[:, None] for one in work], *transfers.at_level(transfers.level))
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    for slower in _kinds_one_must_be_of(data, candidate):
        there = allowed & np.isin(data.kind_of_node, slower)
        has_slow: BoolArray = np.logical_or.reduce(there, axis=1)
        possible = np.flatnonzero(has_slow)
        slow_work = _least_work(data, candidate, np.where(has_slow[:, None], there, allowed))
        assert slow_work is not None, "links were checked above"
        here = np.equal.outer(rows, possible)  # (pp, scenarios)
        mixed = [np.where(here, high[:, None], low[:, None]) for low, high in zip(work, slow_work, strict=True)]
        yield _placed(candidate, mixed, *(side[:, None] for side in transfers.least))


def _placed(candidate: CandidateData, work: list[IntArray], send: IntArray, send_back: IntArray) -> PlacedTicks:
    """Scenarios as columns; one column stands for all. Rings are added later."""
    number = max(work[0].shape[1], send.shape[1])
    full = [np.broadcast_to(one, (candidate.num_stages, number)) for one in work]
    sends = [np.broadcast_to(one, (candidate.num_stages - 1, number)) for one in (send, send_back)]
    return PlacedTicks(
        forward=full[0],
        backward=full[1],
        first_forward=full[2],
        first_backward=full[3],
        send_forward=sends[0],
        send_backward=sends[1],
        ring=np.zeros(candidate.num_stages, dtype=np.int64),
    )


def _least_work(data: ProblemData, candidate: CandidateData, possible: BoolArray) -> list[IntArray] | None:
    """
    Least forward, backward and first-chunk times of each stage, four arrays ``(pp,)``.

    Parameters
    ----------
    possible
        Hosts of each row, shape ``(P, num_nodes)``, at least one in each.
    """
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    work = [
        np.where(possible[rows], ticks[data.kind_of_node].T, UNUSABLE_TICKS).min(axis=1)
        for ticks in (
            candidate.forward_ticks,
            candidate.backward_ticks,
            candidate.first_forward_ticks,
            candidate.first_backward_ticks,
        )
    ]
    if candidate.grid[2] > 1:
        hops = [int(candidate.tensor_forward_ticks.min()), int(candidate.tensor_backward_ticks.min())]
        if max(hops) >= UNUSABLE_TICKS:
            return None
        layers = np.array(candidate.config.layers_per_stage, dtype=np.int64)
        work[0], work[1] = work[0] + layers * hops[0], work[1] + layers * hops[1]
    return work


def _kinds_one_must_be_of(data: ProblemData, candidate: CandidateData) -> Iterator[IntArray]:
    """Sets of kinds such that the hosts of all other, faster kinds cannot fill the grid."""
    kinds = np.unique(data.kind_of_node)
    total = (candidate.forward_ticks + candidate.backward_ticks).sum(axis=1)[kinds]
    kinds = kinds[np.argsort(total, kind="stable")]
    somewhere = data.allowed(candidate).any(axis=0)
    for count in range(1, len(kinds)):
        if (np.isin(data.kind_of_node, kinds[:count]) & somewhere).sum() < candidate.num_cells:
            yield kinds[count:]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Transfers:
    """
    What transfers cost at least.

    Of the two directions the forward one is taken as fast as any link: of all pairs with that sum (or that maximum,
    which is what counts if sends are blocking) this one ends every stage earliest.

    Parameters
    ----------
    least
        To the next stage and back, at each boundary, two arrays ``(pp - 1,)``.
    between
        The boundaries between hosts.
    blocking
        Whether the slower direction counts, or the sum of both.
    level
        Some transfer costs at least this.
    """

    least: tuple[IntArray, IntArray]
    between: IntArray
    blocking: bool
    level: int

    def at_level(self, level: int) -> tuple[IntArray, IntArray]:
        """Transfers if one that costs ``level`` is at each boundary in turn, two arrays ``(pp - 1, scenarios)``."""
        send, back = self.least
        number = len(self.between)
        if not number:
            return send[:, None], back[:, None]
        raised = np.repeat(back[:, None], number, axis=1)
        home = level - (0 if self.blocking else send[self.between])
        raised[self.between, np.arange(number)] = np.maximum(back[self.between], home)
        return np.repeat(send[:, None], number, axis=1), raised


def transfer_cost(data: ProblemData, candidate: CandidateData) -> IntArray:
    """Of each pair of hosts, the slower direction if sends are blocking, else both together; ``UNUSABLE_TICKS``."""
    there, home = candidate.p2p_ticks, candidate.p2p_ticks.T
    cost = np.maximum(there, home) if candidate.exact and data.p2p == "blocking" else there + home
    cost = np.where(np.maximum(there, home) < UNUSABLE_TICKS, cost, UNUSABLE_TICKS)
    np.fill_diagonal(cost, UNUSABLE_TICKS)
    return cost


def _transfers(data: ProblemData, candidate: CandidateData) -> _Transfers | None:
    """Least transfers of a candidate; ``None`` if there are not enough links."""
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    between = np.flatnonzero(rows[:-1] != rows[1:])
    blocking = candidate.exact and data.p2p == "blocking"
    send = np.full(len(rows) - 1, candidate.intra_p2p_ticks, dtype=np.int64)
    back = send.copy()
    if not len(between):
        return _Transfers(least=(send, back), between=between, blocking=blocking, level=0)
    cost, allowed = transfer_cost(data, candidate), data.allowed(candidate)
    fastest = np.minimum(candidate.p2p_ticks, candidate.p2p_ticks.T)
    for boundary in between:
        pairs = np.ix_(allowed[rows[boundary]], allowed[rows[boundary + 1]])
        if cost[pairs].min() >= UNUSABLE_TICKS:
            return None
        send[boundary] = fastest[pairs].min()
        back[boundary] = cost[pairs].min() - (0 if blocking else send[boundary])
    level = bottleneck_level(cost, (candidate.grid[0] - 1) * candidate.grid[1] * candidate.grid[2])
    level = max(level, _some_host_has(cost.min(axis=1), allowed, candidate.num_cells))
    if level >= UNUSABLE_TICKS:
        return None
    return _Transfers(least=(send, back), between=between, blocking=blocking, level=level)


def _some_host_has(values: IntArray, allowed: BoolArray, num_used: int) -> int:
    """The largest value that some host of any ``num_used`` hosts reaches."""
    possible = np.sort(values[np.logical_or.reduce(allowed, axis=0)])
    return int(possible[num_used - 1])


def _ring_floor(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """Least reduction of each stage on the hosts that its row may have, shape ``(pp,)``; ``None`` without a ring."""
    _, D, K = candidate.grid
    ring = candidate.ring_floor_ticks.copy()
    if D == 1:
        return ring
    allowed, rows = data.allowed(candidate), np.arange(candidate.num_stages) // candidate.block.stages
    same_hosts = bool((allowed == allowed[0]).all())
    known: dict[tuple[int, int], int] = {}
    for stage, row in enumerate(rows.tolist()):
        key = (int(candidate.ring_class[stage]), 0 if same_hosts else row)
        if key not in known:
            inside = np.ix_(allowed[row], allowed[row])
            known[key] = bottleneck_level(candidate.ring_ticks[key[0]][inside], D * K)
        ring[stage] = max(ring[stage], known[key])
    return None if ring.max() >= UNUSABLE_TICKS else ring


def _least_embedding(candidate: CandidateData) -> int:
    """Least all-reduce of tied embeddings: as many pairs of distinct hosts as the grid is wide have one as slow."""
    if not candidate.embedding_ticks.size:
        return candidate.embedding_floor_ticks
    apart = candidate.embedding_ticks.copy()
    np.fill_diagonal(apart, UNUSABLE_TICKS)
    return bottleneck_level(apart, candidate.grid[1] * candidate.grid[2])


def _ring_scenarios(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """
    Reductions with the slowest hop in each row in turn, shape ``(pp, scenarios)``; ``None`` if there is no ring.

    With several classes of stages the slowest hop of each class gives such a set; the one with the largest sum counts.
    """
    P, D, K = candidate.grid
    base = _ring_floor(data, candidate)
    if base is None or D == 1:
        return None if base is None else base[:, None]
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    best: IntArray | None = None
    for which in np.unique(candidate.ring_class):
        level = bottleneck_level(candidate.ring_ticks[which], P * D * K)
        if level >= UNUSABLE_TICKS:
            return None
        slow = candidate.ring_ticks[which] >= level
        at_level = candidate.ring_ticks[:, slow].min(axis=1)[candidate.ring_class]  # (pp,)
        here = np.equal.outer(rows, np.arange(P))
        raised = np.where(here, np.maximum(base, at_level)[:, None], base[:, None])
        if best is None or raised.sum() > best.sum():
            best = raised
    return best


def bottleneck_level(ticks: IntArray, number: int) -> int:
    """
    Smallest t such that ``number`` arcs of cost <= t exist of which no two share a sender or a receiver.

    ``UNUSABLE_TICKS`` if there are not that many usable arcs; 0 if ``number`` is 0.
    """
    if number <= 0:
        return 0
    levels = np.unique(ticks[ticks < UNUSABLE_TICKS])
    if not len(levels) or _matching_size(ticks <= levels[-1]) < number:
        return UNUSABLE_TICKS
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if _matching_size(ticks <= levels[middle]) >= number:
            high = middle
        else:
            low = middle + 1
    return int(levels[low])


@njit(cache=True, nogil=True)
def _matching_size(usable):  # type: ignore[no-untyped-def]
    """Largest number of arcs without a common sender or receiver (augmenting paths, depth first)."""
    n, m = usable.shape
    sender = np.full(m, -1, np.int64)
    stack = np.empty(n + 1, np.int64)
    tried = np.empty(n + 1, np.int64)
    size = 0
    for start in range(n):
        seen = np.zeros(m, np.bool_)
        stack[0] = start
        tried[0] = 0
        depth = 0
        while depth >= 0:
            u = stack[depth]
            v = tried[depth]
            if v == m:
                depth -= 1
                continue
            tried[depth] += 1
            if not usable[u, v] or seen[v]:
                continue
            seen[v] = True
            if sender[v] >= 0:
                depth += 1
                stack[depth] = sender[v]
                tried[depth] = 0
                continue
            for level in range(depth, -1, -1):
                receiver = tried[level] - 1
                sender[receiver] = stack[level]
            size += 1
            break
    return size
