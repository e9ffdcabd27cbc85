"""Bounds of a candidate by its rows: what no counts of classes reach, finer classes and finer steps in turn."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.rows.classes import HostClasses, host_classes
from pipette_opt.solver.rows.costs import RowCosts, row_costs
from pipette_opt.solver.rows.levels import Levels, window_levels
from pipette_opt.solver.rows.model import Window, build_rows
from pipette_opt.solver.rows.placements import placement
from pipette_opt.solver.rows.ranges import bound_by_ranges
from pipette_opt.solver.stoppable import TimeSlice

logger = logging.getLogger(__name__)

MOST_CLASSES = (8, 14, 20)
"""Partitions that are tried in turn."""

STEP = 1 / 512
"""Of what is between bound and ceiling at first; the bound is found to this."""

PROBE_SHARE = 0.3
"""Of the time left that one model may take."""

MOST_BISECTED, BISECTED_SHARE = 64, 0.1
"""Cells above which long periods are looked at range by range, and the part of the time before that."""

MERGED, MERGED_SHARE = 0.002, 0.7
"""Relative difference of costs that is not told apart at first, and the part of the time that this may take."""

OnBound = Callable[[int], None]
"""Called with each better bound."""

OnPlacement = Callable[[IntArray], None]
"""Called with the hosts of each cell, shape ``(P, D)``, of placements that classes promise to be good."""


def applies(candidate: CandidateData) -> bool:
    """Whether a candidate has such bounds: a closed form, tensor groups inside hosts, more than one host."""
    return candidate.exact and candidate.grid[2] == 1 and candidate.num_cells > 1


def row_bound(
    data: ProblemData,
    candidate: CandidateData,
    floor: int,
    ceiling: int,
    *,
    seconds: float,
    most_classes: Sequence[int] = MOST_CLASSES,
    hopeless: bool = True,
    workers: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    on_bound: OnBound = lambda bound: None,
    on_placement: OnPlacement | None = None,
) -> int:
    """
    A bound of the candidate's objective, ``ceiling + 1`` if it is proven to be above the ceiling.

    Parameters
    ----------
    floor
        A known bound.
    ceiling
        The largest objective of interest.
    most_classes
        How many classes of hosts to tell apart, in turn.
    hopeless
        Whether the whole ceiling is likely to be refuted, and therefore tried first.
    on_placement
        Takes what the counts found amount to.
    """
    ends = time.perf_counter() + seconds
    probe = _Probes(
        ends=ends,
        workers=workers,
        seed=seed,
        stop=stop or threading.Event(),
        on_bound=on_bound,
        on_placement=on_placement,
    )
    best, tried = floor, 0
    by_ranges = has_ranges(data, candidate)
    for most in most_classes:
        classes = host_classes(data, candidate, most)
        if classes is None or classes.number <= tried:
            continue
        tried = classes.number
        for merged, share in ((MERGED, MERGED_SHARE), (0.0, 1.0)):
            started = time.perf_counter()
            probe.ends = started + (1.0 if by_ranges else share) * (ends - started)
            if best > ceiling or probe.is_over:
                return best
            counts = _counts(data, candidate, classes, merged)
            best = probe.raise_bound(counts, best, ceiling, hopeless)
            logger.info(
                "rows with %d classes of hosts (links within %g %%, costs within %g %%): bound %d in %.2f s",
                classes.number,
                100 * classes.tolerance,
                100 * merged,
                best,
                time.perf_counter() - started,
            )
    return best


def probe_rows(
    data: ProblemData,
    candidate: CandidateData,
    ceiling: int,
    *,
    seconds: float,
    workers: int = 1,
    seed: int = 0,
    stop: threading.Event | None = None,
    on_placement: OnPlacement,
) -> bool:
    """Whether no counts cost at most the ceiling; if some do, what they amount to, which changes with the seed."""
    classes = host_classes(data, candidate, MOST_CLASSES[0])
    if classes is None:
        return False
    probe = _Probes(
        ends=time.perf_counter() + seconds,
        workers=workers,
        seed=seed,
        stop=stop or threading.Event(),
        on_bound=lambda bound: None,
        on_placement=on_placement,
    )
    counts = _counts(data, candidate, classes, MERGED)
    return probe.refutes(counts, ceiling, seconds)


@dataclass(slots=True, eq=False)
class _Counts:
    """What is counted, whether runs of rows are looked at, and which classes must be joined, as learned so far."""

    candidate: CandidateData
    classes: HostClasses
    costs: RowCosts
    runs: bool
    joined: set[frozenset[int]] = field(default_factory=set)


def _counts(data: ProblemData, candidate: CandidateData, classes: HostClasses, merged: float) -> _Counts:
    return _Counts(candidate, classes, row_costs(data, candidate, classes, merged), _has_runs(data, candidate))


def has_ranges(data: ProblemData, candidate: CandidateData) -> bool:
    """Whether long periods are looked at range by range."""
    return _has_runs(data, candidate) and candidate.num_cells > MOST_BISECTED


def _has_runs(data: ProblemData, candidate: CandidateData) -> bool:
    """Whether a run of rows may have a longer period than any of its windows."""
    return data.p2p == "async" and candidate.num_microbatches > 1


class _Probes:
    """Models with ceilings between a bound and what is of interest."""

    def __init__(
        self,
        *,
        ends: float,
        workers: int,
        seed: int,
        stop: threading.Event,
        on_bound: OnBound,
        on_placement: OnPlacement | None,
    ) -> None:
        self.ends, self.workers, self.seed, self.stop = ends, workers, seed, stop
        self.on_bound, self.on_placement = on_bound, on_placement
        self.random = np.random.default_rng(seed)

    @property
    def is_over(self) -> bool:
        """Whether no more may be begun."""
        return self.stop.is_set() or time.perf_counter() >= self.ends

    def raise_bound(self, counts: _Counts, floor: int, ceiling: int, hopeless: bool) -> int:
        """Look for the least ceiling that has counts; on many hosts then by ranges of periods if these may be long."""
        if not counts.runs or counts.candidate.num_cells <= MOST_BISECTED:
            return self._bisect(counts, floor, ceiling, hopeless, self.ends)
        now = time.perf_counter()
        bound = self._bisect(counts, floor, ceiling, hopeless, now + BISECTED_SHARE * (self.ends - now))
        if bound > ceiling or self.is_over:
            return bound
        return bound_by_ranges(
            counts.candidate,
            counts.costs,
            bound,
            ceiling,
            refutes=lambda levels, seconds: self.refutes_levels(counts, levels, seconds),
            seconds=max(0.0, self.ends - time.perf_counter()),
            is_over=lambda: self.is_over,
            on_bound=self.on_bound,
        )

    def _bisect(self, counts: _Counts, floor: int, ceiling: int, hopeless: bool, ends: float) -> int:
        """Ceilings between the floor and what is of interest."""
        low, high = floor, ceiling + 1  # nothing is below low; high or more was not refuted
        least_step = max(1, int((high - low) * STEP))
        probe = ceiling if hopeless else (low + high) // 2
        while low < high and not self.is_over and time.perf_counter() < ends:
            if self.refutes(counts, probe, PROBE_SHARE * max(0.0, ends - time.perf_counter())):
                low = probe + 1
                self.on_bound(low)
            else:
                high = probe
            near = high - low <= least_step
            if near and high <= ceiling:
                break
            probe = ceiling if near else (low + high) // 2
        return low

    def refutes(self, counts: _Counts, ceiling: int, seconds: float) -> bool:
        """Whether no counts cost at most the ceiling; learns which classes must be joined."""
        levels = window_levels(counts.candidate, counts.costs, ceiling)
        return levels is None or self.refutes_levels(counts, levels, seconds) is True

    def refutes_levels(self, counts: _Counts, levels: Levels, seconds: float) -> bool | None:
        """Whether no counts have a slowest period of these levels; ``None`` if that took too long."""
        given = TimeSlice(ends=time.perf_counter() + seconds, stop=self.stop, workers=self.workers, seed=self.seed)
        built = build_rows(counts.candidate, counts.classes, counts.costs, levels, counts.joined, runs=counts.runs)
        while not self.stop.is_set():
            if time.perf_counter() >= given.ends:
                return None
            solver = cp_model.CpSolver()
            status = given.solve(built.model, solver)
            if status == cp_model.INFEASIBLE:
                return True
            if status != cp_model.OPTIMAL:
                return None
            if not built.separate(solver):
                self._suggest(counts, {window: solver.value(number) for window, number in built.windows.items()})
                return False
            counts.joined |= built.joined
        return None

    def _suggest(self, counts: _Counts, windows: dict[Window, int]) -> None:
        if self.on_placement is not None:
            nodes = placement(windows, counts.candidate, counts.classes, counts.costs, self.random)
            self.on_placement(nodes)
