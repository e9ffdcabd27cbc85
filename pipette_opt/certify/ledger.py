"""The ledger of a certificate: the fastest plan, and what is proven about each candidate that could be faster."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, get_args

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import BoolArray, IntArray, ProofStep
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import ParallelConfig, block_placement
from pipette_opt.prepare import Prepared
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import with_paths
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.solver.pruning import FLOAT_MARGIN

CLOSE_ENOUGH = 1e-6
"""Relative; what could at most be faster by this is not looked for, as ticks are not much finer."""

FIRST_MOVES = 20_000
"""Moves of a candidate's first restart; they double when nothing was learned."""

PATHS = "critical paths over the best links"
"""Name of the bound that an open candidate begins with."""

Report = Callable[[str, float | None, float | None], None]
"""Told the step, the fastest time so far and the bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifyParams:
    """
    How long and how closely.

    Parameters
    ----------
    gap_limit
        Stop when (fastest - bound) / fastest is proven to be at most this.
    to_beat_s
        Stop, too, when the bound is at least this.
    """

    time_limit_s: float
    gap_limit: float = 0.0
    to_beat_s: float = float("inf")
    workers: int = 1
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCandidate:
    """
    A candidate that may be faster than the best plan.

    Parameters
    ----------
    candidate
        With the paths found so far.
    bound_ticks
        No placement has a smaller lower form.
    deciding
        Stages whose end can decide the iteration, shape ``(pp,)``.
    raised_by
        Name of the bound or engine that raised the bound to where it is.
    """

    index: int
    candidate: CandidateData
    bound_ticks: int
    deciding: BoolArray
    best: SimulatedSolution | None = None
    seen: set[bytes] = field(default_factory=set)
    visits: int = 0
    moves: int = FIRST_MOVES
    raised_by: str = PATHS

    def raise_bound(self, ticks: int, by: str = PATHS) -> None:
        """No placement has a lower form below this either, as a bound or an engine says."""
        if ticks > self.bound_ticks:
            self.bound_ticks, self.raised_by = ticks, by


class Reason(NamedTuple):
    """
    Why a configuration is not faster than a bound.

    Parameters
    ----------
    step
        The last step of the search that one of its packings needed.
    name
        Of the bound or engine that ended it there.
    bound_s
        The least bound of its packings; infinite if it has no placement.
    """

    step: ProofStep
    name: str
    bound_s: float


class Ledger:
    """
    Where a certificate stands.

    Parameters
    ----------
    known
        Plans simulated before.
    """

    def __init__(
        self,
        prepared: Prepared,
        known: Sequence[SimulatedSolution],
        params: CertifyParams,
        report: Report,
        stop: threading.Event,
    ) -> None:
        self.prepared, self.params, self.stop = prepared, params, stop
        self.data: ProblemData = prepared.lower
        self.ends = time.perf_counter() + params.time_limit_s
        self.known = list(known)
        self.fastest_s = float("inf")
        for one in known:
            self.take(one)
        self.closed_s = prepared.ruled_out_s
        self.open: list[OpenCandidate] = []
        self.closed: dict[int, tuple[ProofStep, float]] = {}
        self._report = report

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return self.ends - time.perf_counter()

    @property
    def bound_s(self) -> float:
        """No plan is faster."""
        return self.bound_with_open(min((one.bound_ticks for one in self.open), default=UNUSABLE_TICKS))

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return self.stop.is_set() or self.seconds_left <= 0 or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be faster than the fastest plan by more than the gap limit."""
        if not np.isfinite(self.fastest_s):
            return False
        if self.bound_s >= self.params.to_beat_s:
            return True
        return self.fastest_s - self.bound_s <= max(self.params.gap_limit, CLOSE_ENOUGH) * self.fastest_s

    def bound_with_open(self, ticks: int) -> float:
        """The bound if the open candidates have this one."""
        lowest = min(self.closed_s, ticks * self.data.tick_s) * (1 - FLOAT_MARGIN)
        return max(0.0, min(lowest, self.fastest_s))

    def close(self, bound_s: float, index: int | None = None, by: ProofStep = "best links") -> None:
        """A candidate is ruled out, or several are: none of their plans is faster than this."""
        self.closed_s = min(self.closed_s, bound_s)
        if index is not None:
            self.closed[index] = (by, bound_s)

    def reasons(self) -> dict[ParallelConfig, Reason]:
        """Of each configuration why it is not faster: the last step of its packings, named by that with least bound."""
        packings = {index: Reason(step, step, bound_s) for index, (step, bound_s) in self.closed.items()}
        for one in self.open:
            packings[one.index] = Reason("search", one.raised_by, one.bound_ticks * self.data.tick_s)
        found: dict[ParallelConfig, Reason] = {}
        for index, candidate in enumerate(self.data.candidates):
            packing = packings.get(index, Reason("best links", "best links", float("inf")))
            both = (packing, found.get(candidate.config, packing))
            last = max((one.step for one in both), key=get_args(ProofStep).index)
            named = min((one for one in both if one.step == last), key=lambda one: one.bound_s)
            found[candidate.config] = Reason(last, named.name, min(one.bound_s for one in both))
        return found

    def take(self, simulated: SimulatedSolution) -> None:
        """A plan, which may be the fastest."""
        self.fastest_s = min(self.fastest_s, simulated.estimate.iteration_time_s)

    def report(self, step: str, bound_s: float | None = None) -> None:
        """Tell how far it is; other splits of the layers may be faster than what is proven here."""
        fastest_s, joined = self.fastest_s if np.isfinite(self.fastest_s) else None, self.prepared.joined
        bound_s = self.bound_s if bound_s is None else bound_s
        self._report(step, fastest_s, bound_s if joined is None else min(bound_s, joined.model.bound_s))

    @property
    def simulated(self) -> list[SimulatedSolution]:
        """The best placement of each open candidate that was placed."""
        return [one.best for one in self.open if one.best is not None]

    def may_be_faster(self, one: OpenCandidate) -> bool:
        """Whether no bound rules it out."""
        return one.bound_ticks * self.data.tick_s < self.fastest_s

    def could_win(self) -> list[OpenCandidate]:
        """Candidates that are not ruled out, most promising first."""
        enough = (1 - CLOSE_ENOUGH) * self.fastest_s
        able = [one for one in self.open if one.bound_ticks < min(UNUSABLE_TICKS, enough / self.data.tick_s)]
        return sorted(able, key=lambda one: (one.bound_ticks, one.index))

    def anneal_once(self, one: OpenCandidate) -> None:
        """One annealing for the lower form, simulated."""
        one.visits += 1
        found = anneal(
            replace(self.data, candidates=(one.candidate,)),
            AnnealingParams(
                time_limit_s=max(self.seconds_left, 0.01),
                max_moves=one.moves,
                first_moves=FIRST_MOVES,
                seed=self.params.seed + one.visits,
            ),
            stop=self.stop,
        )
        learned = found.solution is not None and self.look(one, found.solution.nodes)
        one.moves *= 1 if learned else 2
        one.raise_bound(optimistic_ticks(self.data, one.candidate))

    def look(self, one: OpenCandidate, nodes: IntArray) -> bool:
        """Simulate a placement, add its critical paths; say whether it is faster, or the lower form grew there."""
        if nodes.tobytes() in one.seen:
            return False
        one.seen.add(nodes.tobytes())
        instance, candidate = self.prepared.instance, one.candidate
        try:
            simulated = simulate_solution(
                instance, self.prepared.problem, Solution(candidate=one.index, nodes=nodes, objective_ticks=0)
            )
            times = placed_times(instance, candidate.config, block_placement(candidate.config, candidate.block, nodes))
        except MissingLinkError:
            return False
        seconds = simulated.estimate.iteration_time_s
        form = objective_ticks(self.data, candidate, nodes)
        if form * self.data.tick_s > seconds * (1 + FLOAT_MARGIN):
            name = candidate.config.label()
            raise AssertionError(
                f"{name}: lower form {form * self.data.tick_s} s, above the simulated time {seconds} s"
            )
        better = one.best is None or seconds < one.best.estimate.iteration_time_s
        if better:
            one.best = simulated
        self.take(simulated)
        counts = critical_counts(times, candidate.num_microbatches, self.data.p2p).ending_at(one.deciding)
        one.candidate = with_paths(instance, self.data, candidate, [counts])
        return better or objective_ticks(self.data, one.candidate, nodes) > form
