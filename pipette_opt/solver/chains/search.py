"""
Bounds for a single column of hosts, by the best chain through each link.

Given a largest objective of interest, a link is of no interest if for some row of the objective even the best chain
over it costs more. What remains is searched again, for the next row with fewer links, until nothing remains or nothing
more falls away; then the position with the fewest hosts is split. All sums are of integers, so what is refuted does not
exist.
"""

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.chains.kernel import NOTHING, best_through
from pipette_opt.solver.chains.rows import MOST_ROWS, ChainRows, chain_rows, num_rows

logger = logging.getLogger(__name__)

MOST_HOSTS = 17
"""Hosts listed, above which sets of hosts are too many."""

FIRST_SPLITS = 16
"""Splits before a nearer ceiling is tried."""

WORTHWHILE = 0.98
"""Once around the rows must leave at most this share of the links, or it is not repeated."""

MOST_IDLE = 8
"""Rows one after the other that made no link fall away, after which the rest of the rows is left out."""

MOST_WORKERS = 8
"""Threads; each needs memory for all sets of hosts."""

OnBound = Callable[[int], None]
"""Called with each better bound."""

OnPlacement = Callable[[IntArray], int]
"""Called with the hosts of each cell, shape ``(P, 1)``; gives back the largest objective still of interest."""


def searches_chain(data: ProblemData, candidate: CandidateData) -> bool:
    """Whether a candidate is a single column of a few hosts with tensor groups inside them."""
    rows, columns, parts = candidate.grid
    few = data.num_nodes <= MOST_HOSTS and num_rows(data, candidate) <= MOST_ROWS
    return rows > 1 and columns == parts == 1 and few


class ChainSearch:
    """
    The search of one candidate, which can go on where it was.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.

    Attributes
    ----------
    bound, ceiling
        No placement costs less; what costs more is of no interest.
    links
        Those of interest below the ceiling, shape ``(P, M, M)``.
    goal, stack
        What is to be refuted: parts of the links that may hold a chain that costs at most the goal.
    """

    def __init__(self, data: ProblemData, candidate: CandidateData, floor: int, ceiling: int) -> None:
        self.data, self.candidate = data, candidate
        self.rows: ChainRows = chain_rows(data, candidate)
        self._costs = self.rows.node[:, :, :, None] + self.rows.link
        self.bound, self.ceiling = floor, ceiling
        self.links = self.rows.usable
        self.share, self.most_splits = 1.0, FIRST_SPLITS
        self.goal, self.splits = floor, 0
        self.stack: list[BoolArray] = []
        sets = np.arange(1 << data.num_nodes, dtype=np.int64)
        self._sizes = ((sets[:, None] >> np.arange(data.num_nodes)) & 1).sum(axis=1).astype(np.int8)
        self._ends, self._stop = 0.0, threading.Event()
        self._on_placement: OnPlacement | None = None

    def narrow(self, floor: int, ceiling: int) -> None:
        """What has become known elsewhere."""
        self.bound, self.ceiling = max(self.bound, floor), min(self.ceiling, ceiling)

    def run(
        self,
        seconds: float,
        *,
        workers: int = 1,
        stop: threading.Event | None = None,
        on_bound: OnBound = lambda bound: None,
        on_placement: OnPlacement | None = None,
    ) -> int:
        """
        Go on for some time; no placement has a smaller objective than what is returned.

        Parameters
        ----------
        on_placement
            Takes placements that may cost at most the ceiling.
        """
        started, workers = time.perf_counter(), min(workers, MOST_WORKERS)
        self._ends, self._stop, self._on_placement = started + seconds, stop or threading.Event(), on_placement
        memory: IntArray = np.empty((workers, 2, len(self._sizes), self.data.num_nodes), dtype=np.int64)
        with ThreadPoolExecutor(workers) as pool:
            while self.bound <= self.ceiling and not self._is_over:
                if not self.stack or self.goal < self.bound:
                    self._begin()
                self._empty_stack(pool, memory)
                if not self.stack:
                    self.bound = max(self.bound, min(self.goal, self.ceiling) + 1)
                    self.share = min(1.0, 2 * self.share)
                    on_bound(self.bound)
                elif not self._is_over:
                    self.share, self.most_splits = self.share / 2, 2 * self.most_splits
                    self.stack = []
        logger.info(
            "search of a chain of %d hosts: bound %d, ceiling %d in %.2f s",
            self.candidate.grid[0],
            self.bound,
            self.ceiling,
            time.perf_counter() - started,
        )
        return self.bound

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or time.perf_counter() >= self._ends

    def _begin(self) -> None:
        """A goal between bound and ceiling, and everything still to be refuted."""
        self.goal = self.bound + int((self.ceiling - self.bound) * self.share)
        self.stack, self.splits = [self.links], 0

    def _empty_stack(self, pool: ThreadPoolExecutor, memory: IntArray) -> None:
        """Refute parts until none is left, splits or time are used up."""
        while self.stack and self.splits <= self.most_splits:
            is_all = self.splits == 0 and self.goal >= self.ceiling
            links = self._narrowed(pool, memory, self.stack.pop())
            if is_all and links is not None:
                self.links = links
            if self._is_over:
                self.stack += [] if links is None else [links]
                return
            if links is not None:
                self.splits += 1
                self.stack += _split(links)

    def _narrowed(self, pool: ThreadPoolExecutor, memory: IntArray, links: BoolArray) -> BoolArray | None:
        """Links of interest for the goal; ``None`` if no chain is left."""
        left = self._once_narrowed(pool, memory, links, exactly=False)
        if left is not None and self.rows.closed:
            left = self._once_narrowed(pool, memory, left, exactly=True)
        return left

    def _once_narrowed(
        self, pool: ThreadPoolExecutor, memory: IntArray, links: BoolArray, *, exactly: bool
    ) -> BoolArray | None:
        """Row after row, as long as it is worth while."""
        target, workers = min(self.goal, self.ceiling), len(memory)
        left = self._by_position(links, target)
        known = np.zeros(len(self.rows.const), dtype=np.int64)  # what each row costs at least
        while left is not None and not self._is_over:
            by_position = (self._least_by_position(left).sum(axis=1) + self.rows.const) // self.rows.scale
            known = np.maximum(known, by_position)
            links, idle, order = left, 0, np.argsort(-known, kind="stable").tolist()
            for start in range(0, len(order), workers):
                batch, before = order[start : start + workers], left
                parts = list(pool.map(partial(self._by_chain, left, target, exactly), batch, memory))
                for row, (least, through, chain) in zip(batch, parts, strict=False):
                    known[row] = least // self.rows.scale[row]
                    if chain is not None:
                        target = min(target, self._offer(chain))
                    if least > target * self.rows.scale[row]:
                        return None
                    left = left & (through <= target * self.rows.scale[row])
                left = self._by_position(left, target)
                if left is None or self._is_over:
                    return left
                idle = idle + workers if left.sum() == before.sum() else 0
                if idle >= MOST_IDLE:
                    break
            if int(left.sum()) > WORTHWHILE * int(links.sum()):
                return left
        return left

    def _by_position(self, links: BoolArray, target: int) -> BoolArray | None:
        """Drop links that are too long for a row even if all other positions have their best, until none is."""
        rows = self.rows
        while True:
            least = self._least_by_position(links)
            spare = target * rows.scale - rows.const - least.sum(axis=1)
            if spare.min() < 0:
                return None
            fewer = links & ((self._costs - least[:, :, None, None]) <= spare[:, None, None, None]).all(axis=0)
            fewer = _connected(fewer)
            if not fewer.any(axis=(1, 2)).all():
                return None
            if fewer.sum() == links.sum():
                return fewer
            links = fewer

    def _least_by_position(self, links: BoolArray) -> IntArray:
        """The best host and link on at each position, shape ``(R, P)``."""
        least: IntArray = np.where(links, self._costs, NOTHING >> 6).min(axis=(2, 3))
        return least

    def _by_chain(
        self, links: BoolArray, target: int, exactly: bool, row: int, memory: IntArray
    ) -> tuple[int, IntArray, IntArray | None]:
        """The best chain of a row, its cost, and that of the best through each link."""
        rows, (positions, hosts) = self.rows, self.rows.node.shape[1:]
        node, link = rows.node[row], rows.link[row]
        const = int(rows.const[row])
        bits = np.int64(1) << np.arange(hosts, dtype=np.int64)
        follows = (links * bits).sum(axis=2)
        firsts = int(bits[links[0].any(axis=1)].sum())
        steps = np.where(links[:-1], link[:-1] + node[1:, None, :], NOTHING >> 4).min(axis=(1, 2))
        back = int(np.where(links[-1], link[-1], NOTHING >> 4).min())
        rest = np.append(np.cumsum(steps[::-1])[::-1], 0) + back
        through = np.full((positions, hosts, hosts), NOTHING, dtype=np.int64)
        chain = np.zeros(positions, dtype=np.int64)
        budget = target * int(rows.scale[row]) - const
        best = best_through(node, link, follows, firsts, exactly, rest, budget, self._sizes, *memory, through, chain)
        return min(int(best), budget + 1) + const, through + const, chain if best < NOTHING else None

    def _offer(self, chain: IntArray) -> int:
        """Hand over a placement that may be of interest; the largest objective that still is."""
        nodes = chain.reshape(self.candidate.grid)
        cost = objective_ticks(self.data, self.candidate, nodes)
        if cost <= min(self.ceiling, UNUSABLE_TICKS - 1):
            self.ceiling = cost - 1
            if self._on_placement is not None:
                self.ceiling = min(self.ceiling, self._on_placement(chain[:, None].copy()))
        return self.ceiling


def _connected(links: BoolArray) -> BoolArray:
    """Without links from hosts that none leads to, and to hosts from which none leads on."""
    links = links.copy()
    count = len(links)
    for position in range(1, count):
        links[position] &= links[position - 1].any(axis=0)[:, None]
    for position in range(count - 1, 0, -1):
        links[position - 1] &= links[position].any(axis=1)[None, :]
    links[-1] &= links[0].any(axis=1)[None, :]
    links[0] &= links[-1].any(axis=0)[:, None]
    return links


def _split(links: BoolArray) -> list[BoolArray]:
    """
    One part for each host of a position, or for each position of a host: of what has the fewest, if more than one.

    None if all hosts are fixed. A host that no chain needs also has a part without it; among hosts with equally many
    positions the one with the fewest links is split.
    """
    positions, hosts = links.shape[:2]
    able: BoolArray = np.asarray(links.any(axis=2))
    needed = able[able.sum(axis=1) == 1].any(axis=0)
    spare: BoolArray = (int(able.any(axis=0).sum()) > positions) & able.any(axis=0) & ~needed
    ways = np.concatenate([able.sum(axis=1), able.sum(axis=0) + spare])
    degree = np.concatenate([links.sum(axis=(1, 2)) * hosts, links.sum(axis=(0, 2)) * positions])
    open_ones = np.flatnonzero(ways > 1)
    if open_ones.size == 0 or able.sum() == positions:
        return []
    chosen = int(open_ones[np.lexsort((degree[open_ones], ways[open_ones]))[0]])
    if chosen < positions:
        return [_fixed(links, chosen, host) for host in np.flatnonzero(able[chosen]).tolist()]
    host = chosen - positions
    parts = [_fixed(links, position, host) for position in np.flatnonzero(able[:, host]).tolist()]
    return [*parts, _without(links, slice(None), host)] if spare[host] else parts


def _fixed(links: BoolArray, position: int, host: int) -> BoolArray:
    """With the host at this position and no other."""
    part = links.copy()
    part[position, np.arange(links.shape[1]) != host] = False
    part = _without(part, slice(0, position), host)
    return _without(part, slice(position + 1, None), host)


def _without(links: BoolArray, positions: slice, host: int) -> BoolArray:
    """With the host at none of these positions."""
    part = links.copy()
    part[positions, host] = False
    return part
