"""Searches of one candidate by intervals, each with its own bound, which go on where they were."""

import heapq
import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData

logger = logging.getLogger(__name__)

OnBound = Callable[[int], None]
"""Called with each better bound, from any thread."""

OnPlacement = Callable[[IntArray], int]
"""Called with the hosts of each cell, shape ``(P, D)``; gives back the largest objective still of interest."""


@dataclass(order=True, slots=True)
class Interval:
    """
    Placements of which something is in ``[low, high]``; their objective is at least ``bound``.

    Parameters
    ----------
    budget
        Hosts that may be tried.
    """

    bound: int
    low: int
    high: int
    budget: int = field(compare=False)


class IntervalSearch(ABC):
    """
    The search of one candidate, which can go on where it was.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.
    """

    def __init__(self, candidate: CandidateData, floor: int, ceiling: int) -> None:
        self.candidate, self.floor, self.ceiling = candidate, floor, ceiling
        self.heap: list[Interval] = []
        self.at_work: list[Interval] = []
        self.tried = 0
        self._ends, self._stop, self._workers = 0.0, threading.Event(), 1
        self._on_bound: OnBound = lambda bound: None
        self._on_placement: OnPlacement | None = None
        self._lock = threading.Condition()
        self._reported = floor

    @abstractmethod
    def _raise(self, interval: Interval) -> list[Interval]:
        """Raise the bound of an interval, or split it: what takes its place."""

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
        Go on for some time; returns :attr:`bound`.

        Parameters
        ----------
        on_placement
            Takes placements that may cost at most the ceiling; without it they only end the search of an interval.
        """
        started, before = time.perf_counter(), self.tried
        self._ends, self._stop, self._workers = started + seconds, stop or threading.Event(), workers
        self._on_bound, self._on_placement = on_bound, on_placement
        with ThreadPoolExecutor(workers) as pool:
            for done in [pool.submit(self._work) for _ in range(workers)]:
                done.result()
        bound = self.bound
        logger.info(
            "%s of %s cells: bound %d, ceiling %d, %d hosts tried in %.2f s, %d intervals open",
            type(self).__name__,
            "x".join(map(str, self.candidate.grid[:2])),
            bound,
            self.ceiling,
            self.tried - before,
            time.perf_counter() - started,
            sum(one.bound <= self.ceiling for one in self.heap),
        )
        return bound

    def narrow(self, floor: int, ceiling: int) -> None:
        """What has become known elsewhere."""
        self.floor, self.ceiling = max(self.floor, floor), min(self.ceiling, ceiling)
        for one in self.heap:
            one.bound = max(one.bound, self.floor)
        heapq.heapify(self.heap)

    @property
    def bound(self) -> int:
        """No placement has a smaller objective; above the ceiling if there is nothing of interest."""
        known = [one.bound for one in (*self.heap, *self.at_work)]
        return max(self.floor, min([self.ceiling + 1, *known]))

    def _work(self) -> None:
        """Raise the least bound until all are above the ceiling, or time is up."""
        while True:
            with self._lock:
                while not self.heap and self.at_work and not self._is_over:
                    self._lock.wait(0.05)
                if self._is_over or not self.heap or self.heap[0].bound > self.ceiling:
                    self._lock.notify_all()
                    if not self.at_work or self._is_over:
                        return
                    self._lock.wait(0.05)
                    continue
                interval = heapq.heappop(self.heap)
                self.at_work.append(interval)
            parts = self._raise(interval)
            with self._lock:
                self.at_work.remove(interval)
                for part in parts:
                    heapq.heappush(self.heap, part)
                bound = self.bound
                self._lock.notify_all()
                if bound > self._reported:
                    self._reported = bound
                    self._on_bound(bound)

    def _has_idle(self) -> bool:
        """Whether there are fewer intervals of interest than workers."""
        with self._lock:
            waiting = sum(one.bound <= self.ceiling for one in self.heap[: self._workers])
            return waiting + len(self.at_work) < self._workers

    @property
    def _is_over(self) -> bool:
        return self._stop.is_set() or time.perf_counter() >= self._ends
