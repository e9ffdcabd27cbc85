"""
State of a certificate: the fastest plan, and the proven bound of each candidate configuration that could be
faster.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, get_args

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import BoolArray, IntArray, ProofStep
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import ParallelConfig, tile_placement
from pipette_opt.plans.clock import Clock
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
"""Relative improvement below which no faster plan is searched, as ticks are not much finer. Chosen."""

FIRST_MOVES = 20_000
"""
Number of moves of a candidate configuration's first annealing; doubles after annealing that finds nothing new.
Chosen.
"""

PATHS = "critical paths over the best links"
"""Name of the first bound of a candidate configuration that is not ruled out."""


@dataclass(slots=True, kw_only=True, eq=False)
class OpenCandidate:
    """
    Candidate (configuration with a host tile) that may be faster than the best plan.

    Parameters
    ----------
    candidate
        Candidate with the paths found so far.
    bound_ticks
        Lower bound on the relaxation of every placement, ticks (integer time units).
    deciding
        Mask of the stages whose end can decide the iteration time, shape ``(pp,)``.
    raised_by
        Name of the step or engine that last raised the bound.
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
        """
        Raise the lower bound to ``ticks`` if that is larger, and keep the name of the step or engine that
        proved it.
        """
        if ticks > self.bound_ticks:
            self.bound_ticks, self.raised_by = ticks, by


class Reason(NamedTuple):
    """
    Reason why a configuration is not faster than a bound.

    Parameters
    ----------
    step
        Latest step of the search that one of its host tiles (parts of the model on one host) needed.
    name
        Name of the bound or engine that ruled it out in that step.
    bound_s
        Least bound of its host tiles, seconds; infinite without a placement.
    """

    step: ProofStep
    name: str
    bound_s: float


class Ledger:
    """
    State of a certificate: fastest plan, open candidate configurations with their bounds, and bounds of ruled-out
    candidates.

    Parameters
    ----------
    known
        Plans simulated before.
    """

    def __init__(
        self,
        prepared: Prepared,
        known: Sequence[SimulatedSolution],
        params: OptimizeParams,
        clock: Clock,
    ) -> None:
        self.prepared, self.params, self.clock = prepared, params, clock
        self.data: ProblemData = prepared.lower
        self.known = list(known)
        self.fastest_s = float("inf")
        for plan in known:
            self.take(plan)
        self.closed_s = prepared.ruled_out_s
        self.open: list[OpenCandidate] = []
        self.closed: dict[int, tuple[ProofStep, float]] = {}

    @property
    def bound_s(self) -> float:
        """Lower bound on the simulated time of every plan, seconds."""
        return self.bound_with_open(min((entry.bound_ticks for entry in self.open), default=UNUSABLE_TICKS))

    @property
    def is_over(self) -> bool:
        """Return whether the time limit is reached, the search was stopped, or the gap is closed."""
        return self.clock.is_over or self.is_closed

    @property
    def is_closed(self) -> bool:
        """
        Return whether the gap between bound and fastest plan is at most the gap limit, or the bound reaches the time to
        beat.
        """
        if not np.isfinite(self.fastest_s):
            return False
        if self.bound_s >= self.params.to_beat_s:
            return True
        return self.fastest_s - self.bound_s <= max(self.params.gap_limit, CLOSE_ENOUGH) * self.fastest_s

    def bound_with_open(self, ticks: int) -> float:
        """
        Return the lower bound on every plan, seconds, for a bound of ``ticks`` on the open candidate
        configurations.
        """
        lowest = min(self.closed_s, ticks * self.data.tick_s) * (1 - FLOAT_MARGIN)
        return max(0.0, min(lowest, self.fastest_s))

    def close(self, bound_s: float, index: int | None = None, by: ProofStep = "best links") -> None:
        """
        Rule out a candidate configuration, or several without ``index``, as no plan of theirs is faster than
        ``bound_s``.
        """
        self.closed_s = min(self.closed_s, bound_s)
        if index is not None:
            self.closed[index] = (by, bound_s)

    def reasons(self) -> dict[ParallelConfig, Reason]:
        """
        Return for each configuration the reason why it is not faster.

        The reason has the latest step of the configuration's host tiles (parts of the model on one host). Its name is
        from the tile with the least bound there.
        """
        of_candidate = {index: Reason(step, step, bound_s) for index, (step, bound_s) in self.closed.items()}
        for entry in self.open:
            of_candidate[entry.index] = Reason("search", entry.raised_by, entry.bound_ticks * self.data.tick_s)
        found: dict[ParallelConfig, Reason] = {}
        for index, candidate in enumerate(self.data.candidates):
            own = of_candidate.get(index, Reason("best links", "best links", float("inf")))
            both = (own, found.get(candidate.config, own))
            last = max((reason.step for reason in both), key=get_args(ProofStep).index)
            named = min((reason for reason in both if reason.step == last), key=attrgetter("bound_s"))
            found[candidate.config] = Reason(last, named.name, min(reason.bound_s for reason in both))
        return found

    def take(self, simulated: SimulatedSolution) -> None:
        """Record a simulated plan: lower the fastest time if the plan is faster."""
        self.fastest_s = min(self.fastest_s, simulated.estimate.iteration_time_s)

    def report(self, step: str, bound_s: float | None = None) -> None:
        """Call the progress callback; the bound includes the joint model's bound on other layer partitions."""
        fastest_s, joined = self.fastest_s if np.isfinite(self.fastest_s) else None, self.prepared.joined
        bound_s = self.bound_s if bound_s is None else bound_s
        self.clock.report(step, fastest_s, bound_s if joined is None else min(bound_s, joined.model.bound_s))

    @property
    def simulated(self) -> list[SimulatedSolution]:
        """Best placement of each open candidate configuration that was placed."""
        return [entry.best for entry in self.open if entry.best is not None]

    def may_be_faster(self, entry: OpenCandidate) -> bool:
        """Return whether the candidate configuration's bound is below the time of the fastest plan."""
        return entry.bound_ticks * self.data.tick_s < self.fastest_s

    def could_win(self) -> list[OpenCandidate]:
        """Return the candidate configurations that may be faster than the fastest plan, smallest bounds first."""
        enough = (1 - CLOSE_ENOUGH) * self.fastest_s
        able = [entry for entry in self.open if entry.bound_ticks < min(UNUSABLE_TICKS, enough / self.data.tick_s)]
        return sorted(able, key=attrgetter("bound_ticks", "index"))

    def anneal_once(self, entry: OpenCandidate) -> None:
        """Anneal a placement of a candidate configuration for its relaxation, and simulate the placement."""
        entry.visits += 1
        found = anneal(
            replace(self.data, candidates=(entry.candidate,)),
            AnnealingParams(
                time_limit_s=max(self.clock.left_s, 0.01),
                max_moves=entry.moves,
                first_moves=FIRST_MOVES,
                seed=self.params.seed + entry.visits,
            ),
            stop=self.clock.stop,
        )
        learned = found.solution is not None and self.look(entry, found.solution.nodes)
        entry.moves *= 1 if learned else 2
        entry.raise_bound(optimistic_ticks(self.data, entry.candidate))

    def look(self, entry: OpenCandidate, nodes: IntArray) -> bool:
        """
        Simulate a placement and add its critical paths to the relaxation.

        Return whether the placement is the candidate configuration's fastest so far, or the relaxation rose at it.
        """
        if nodes.tobytes() in entry.seen:
            return False
        entry.seen.add(nodes.tobytes())
        instance, candidate = self.prepared.instance, entry.candidate
        try:
            simulated = simulate_solution(
                instance, self.prepared.problem, Solution(candidate=entry.index, nodes=nodes, objective_ticks=0)
            )
            times = placed_times(instance, candidate.config, tile_placement(candidate.config, candidate.tile, nodes))
        except MissingLinkError:
            return False
        seconds = simulated.estimate.iteration_time_s
        relaxation = objective_ticks(self.data, candidate, nodes)
        if relaxation * self.data.tick_s > seconds * (1 + FLOAT_MARGIN):
            name = candidate.config.label()
            raise AssertionError(
                f"{name}: the relaxation is {relaxation * self.data.tick_s} s, above the simulated time {seconds} s"
            )
        better = entry.best is None or seconds < entry.best.estimate.iteration_time_s
        if better:
            entry.best = simulated
        self.take(simulated)
        counts = critical_counts(times, candidate.num_microbatches, self.data.p2p).ending_at(entry.deciding)
        entry.candidate = with_paths(instance, self.data, candidate, [counts])
        return better or objective_ticks(self.data, entry.candidate, nodes) > relaxation
