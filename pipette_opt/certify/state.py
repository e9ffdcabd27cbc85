"""State of a search: every configuration with its lower bound, who proved it, and its best plan."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import NamedTuple, get_args

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import BoolArray, IntArray, ProofStep
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.preference import Preference
from pipette_opt.costs.placed import placed_times
from pipette_opt.parallel import HostTile, ParallelConfig, tile_placement, without_overlap
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import Step
from pipette_opt.prepare import Prepared
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import with_paths
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.host_tree import HostTree
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.solver.pruning import FLOAT_MARGIN

CLOSE_ENOUGH = 1e-6
"""Relative improvement below which no faster plan is searched, as ticks are not much finer. Chosen."""

FIRST_MOVES = 20_000
"""Number of moves of a candidate's first annealing; doubles after annealing that finds nothing new. Chosen."""

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
    tree
        Branch and bound over its hosts, once begun.
    swapped
        Placement that no swap of hosts makes faster, once tried.
    is_proven
        Whether the provers have nothing left to do for its relaxation.
    """

    index: int
    candidate: CandidateData
    bound_ticks: int
    deciding: BoolArray
    seen: set[bytes] = field(default_factory=set)
    visits: int = 0
    moves: int = FIRST_MOVES
    tree: HostTree | None = None
    swapped: IntArray | None = None
    is_proven: bool = False


class Reason(NamedTuple):
    """
    Reason why no plan is faster than a bound.

    Parameters
    ----------
    step
        Step of the search that proved the bound.
    name
        Name of the bound or engine that proved it in that step.
    bound_s
        Lower bound, seconds; infinite without a placement.
    """

    step: ProofStep
    name: str
    bound_s: float


Part = tuple[ParallelConfig, HostTile | None]
"""Configuration with a host tile (part of the model on one host); ``None``: with any tile."""


class SearchState:
    """
    State of a search: for every configuration its lower bound, who proved it and its best plan; the time to beat.

    Parameters
    ----------
    known
        Plans simulated before.
    before
        Earlier search whose bounds hold here too: of this job on more hosts.

    Attributes
    ----------
    fastest_s
        Time to beat, seconds: that of the fastest plan, or a smaller one that a search is asked to beat.
    plans
        Best simulated plan of each configuration and host tile.
    in_order
        Best simulated plan of each whose consecutive ranks fill the hosts in their usual order.
    bounds
        Bound of each configuration, or of each of its host tiles once these are built.
    open
        Candidates that may be faster than the best plan.
    done
        Work of each step when it ran last.
    why_open
        Sentences that say why the search ended with a gap before its time was over.
    preference
        Value of plans, and the choice among equally good plans: by default the time.
    """

    def __init__(
        self,
        prepared: Prepared,
        known: Sequence[SimulatedSolution],
        params: OptimizeParams,
        clock: Clock,
        to_beat_s: float = float("inf"),
        before: "SearchState | None" = None,
    ) -> None:
        self.params, self.clock, self.fastest_s = params, clock, to_beat_s
        self.plans: dict[Part, SimulatedSolution] = {}
        self.in_order: dict[Part, SimulatedSolution] = {}
        self.bounds: dict[Part, Reason] = {} if before is None else before.bounds
        self.done: dict[Step, object] = {}
        self.why_open: tuple[str, ...] = ()
        self.preference = Preference.by_time(params)
        self.open: list[OpenCandidate] = []
        self._higher_s: dict[Part, float] = {}
        self._least: tuple[Part | None, float] | None = None
        for plan in known:
            self.take(plan)
        self.go_on_with(prepared)

    def go_on_with(self, prepared: Prepared) -> None:
        """
        Search these prepared configurations; bounds, plans and open candidates so far stay.

        The problem's candidates so far come first.
        """
        self.prepared, self.data, self._least = prepared, prepared.problem, None
        self._tiles: dict[ParallelConfig, list[HostTile]] = {}
        for candidate in self.data.candidates:
            self._tiles.setdefault(candidate.config, []).append(candidate.tile)
        pruned, before, self.bounds = prepared.pruned, self.bounds, {}
        fitting = [] if pruned is None else [fits.config for fits in prepared.memory.fitting]
        for config in dict.fromkeys((*fitting, *self._tiles)):
            first = Reason("best links", "best links", 0.0)
            if pruned is not None and (base := without_overlap(config)) in pruned.bounds_s:
                step: ProofStep = "work alone" if base in pruned.by_work else "best links"
                step = "any layers" if base in pruned.by_family else step
                first = Reason(step, step, pruned.bounds_s[base])
            for tile in self._tiles.get(config, [None]):
                known = before.get((config, tile), before.get((config, None), first))
                self.bounds[config, tile] = max(known, first, key=attrgetter("bound_s"))

    @property
    def listed_bound_s(self) -> float:
        """Lower bound on the simulated time of every plan of a listed configuration, seconds."""
        if self._least is None:
            least = min(self.bounds.items(), key=lambda item: item[1].bound_s, default=None)
            self._least = (None, float("inf")) if least is None else (least[0], least[1].bound_s)
        return self._at_most_fastest(self._least[1])

    @property
    def bound_s(self) -> float:
        """Lower bound on the simulated time of every plan, of other layer partitions too, seconds."""
        return min(self.listed_bound_s, self.other_splits_s)

    @property
    def other_splits_s(self) -> float:
        """Lower bound on plans with layer partitions that are not listed, seconds."""
        joined = self.prepared.joined
        return self.prepared.other_splits_s if joined is None else joined.model.bound_s

    def _at_most_fastest(self, bound_s: float) -> float:
        lowest = min(bound_s, self.prepared.other_sizes_s) * (1 - FLOAT_MARGIN)
        return max(0.0, min(lowest, self.fastest_s))

    @property
    def is_over(self) -> bool:
        """Return whether the time limit is reached, the search was stopped, or the gap is closed."""
        return self.clock.is_over or self.is_closed

    @property
    def is_closed(self) -> bool:
        """Return whether the listed configurations' gap is within the limit, or their bound reaches the time."""
        if not np.isfinite(self.fastest_s):
            return False
        if self.listed_bound_s >= self.params.to_beat_s:
            return True
        return self.fastest_s - self.listed_bound_s <= max(self.params.gap_limit, CLOSE_ENOUGH) * self.fastest_s

    def raise_bound(
        self, config: ParallelConfig, seconds: float, by: str, step: ProofStep = "search", tile: HostTile | None = None
    ) -> None:
        """
        Raise the lower bound of a configuration, or of a single host tile of it, if ``seconds`` is larger.

        All bounds come in here. A configuration that is ruled out keeps the reason; a still larger bound only counts
        in :meth:`bound_of`.
        """
        parts = [(config, tile)] if (config, tile) in self.bounds else self._parts(config)
        for part in parts:
            known = self.bounds[part]
            if known.bound_s >= self.fastest_s:
                self._higher_s[part] = max(seconds, self._higher_s.get(part, 0.0))
            elif seconds > known.bound_s:
                self.bounds[part] = Reason(step, by, seconds)
                if self._least is not None and self._least[0] == part:
                    self._least = None

    def bound_of(self, config: ParallelConfig) -> float:
        """Return the largest lower bound known of a configuration, seconds."""
        return min(max(self.bounds[part].bound_s, self._higher_s.get(part, 0.0)) for part in self._parts(config))

    def raise_ticks(self, entry: OpenCandidate, ticks: int, by: str = PATHS) -> None:
        """Raise the lower bound of an open candidate to ``ticks``, if that is larger."""
        if ticks > entry.bound_ticks:
            entry.bound_ticks = ticks
            candidate = entry.candidate
            self.raise_bound(candidate.config, ticks * self.data.tick_s, by, tile=candidate.tile)

    def add_open(self, entry: OpenCandidate) -> None:
        """Add a candidate that may be faster than the best plan; only a search can rule it out."""
        part = entry.candidate.config, entry.candidate.tile
        bound_s = max(self.bounds[part].bound_s, entry.bound_ticks * self.data.tick_s)
        self.bounds[part], self._least = Reason("search", PATHS, bound_s), None
        self.open.append(entry)

    def _parts(self, config: ParallelConfig) -> list[Part]:
        if (config, None) in self.bounds:
            return [(config, None)]
        return [(config, tile) for tile in self._tiles.get(config, [])]

    def reason(self, config: ParallelConfig) -> Reason:
        """
        Return the reason why a configuration is not faster than its bound.

        The step is the latest that one of its host tiles needed, the name that of the tile with the least bound there.
        """
        reasons = [self.bounds[part] for part in self._parts(config)]
        step = max((reason.step for reason in reasons), key=get_args(ProofStep).index)
        named = min((reason for reason in reasons if reason.step == step), key=attrgetter("bound_s"))
        return Reason(step, named.name, min(reason.bound_s for reason in reasons))

    @property
    def listed(self) -> dict[ParallelConfig, None]:
        """Configurations whose bounds make up that of the search."""
        return dict.fromkeys(config for config, _ in self.bounds)

    def reasons(self) -> dict[ParallelConfig, Reason]:
        """Return the reason of each listed configuration."""
        return {config: self.reason(config) for config in self.listed}

    @property
    def simulated(self) -> list[SimulatedSolution]:
        """Best plan of each configuration and host tile, and the best with hosts in their usual order."""
        in_order = (plan for part, plan in self.in_order.items() if plan is not self.plans[part])
        return [*self.plans.values(), *in_order]

    def take(self, plan: SimulatedSolution) -> bool:
        """
        Keep a simulated plan if it is the best of its configuration and host tile, or the best of these in order.

        Return whether it is the best of its configuration and host tile.
        """
        part, seconds = (plan.candidate.config, plan.candidate.tile), plan.estimate.iteration_time_s
        known = self.in_order.get(part)
        if self.preference.is_in_order(plan) and (known is None or seconds < known.estimate.iteration_time_s):
            self.in_order[part] = plan
        known = self.plans.get(part)
        if known is not None and known.estimate.iteration_time_s <= seconds:
            return False
        self.plans[part], self.fastest_s = plan, min(self.fastest_s, seconds)
        return True

    def plan_of(self, entry: OpenCandidate) -> SimulatedSolution | None:
        """Return the best plan of an open candidate; ``None`` without one."""
        return self.plans.get((entry.candidate.config, entry.candidate.tile))

    def report(self, step: str, least_ticks: int = 0) -> None:
        """Report progress; ``least_ticks`` is a bound on all open candidates that a running solve has, ticks."""
        bound_s = self.bound_s
        if least_ticks:
            opened = {(entry.candidate.config, entry.candidate.tile) for entry in self.open}
            others = (reason.bound_s for part, reason in self.bounds.items() if part not in opened)
            listed_s = self._at_most_fastest(min([least_ticks * self.data.tick_s, *others]))
            bound_s = max(bound_s, min(listed_s, self.other_splits_s))
        self.clock.report(step, self.fastest_s if np.isfinite(self.fastest_s) else None, bound_s)

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
        plan = self.plan_of(entry)
        known = [] if plan is None else [Solution(candidate=0, nodes=plan.nodes, objective_ticks=0)]
        found = anneal(
            replace(self.data, candidates=(entry.candidate,)),
            AnnealingParams(
                time_limit_s=max(self.clock.left_s, 0.01),
                max_moves=entry.moves,
                first_moves=FIRST_MOVES,
                seed=self.params.seed + entry.visits,
            ),
            stop=self.clock.stop,
            start=known,
        )
        learned = found.solution is not None and self.look(entry, found.solution.nodes)
        entry.moves *= 1 if learned else 2
        self.raise_ticks(entry, optimistic_ticks(self.data, entry.candidate))

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
                instance, self.data, Solution(candidate=entry.index, nodes=nodes, objective_ticks=0)
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
        better = self.take(simulated)
        found = critical_counts(times, candidate.num_microbatches, self.data.p2p, deciding_starts=True)
        entry.candidate = with_paths(instance, self.data, candidate, [found.ending_at(entry.deciding)])
        return better or objective_ticks(self.data, entry.candidate, nodes) > relaxation
