"""
Search for plans beside the fastest: those of the best value, plainer or less risky plans, and the next best.

The proof of the fastest plan rules most configurations out without placing them. This search places those whose bounds
admit an answer. Each question asks for the fastest plan of a group of configurations. The configuration with the least
bound is bounded by the simulator over the best links, then placed. This repeats until no bound of the group is below
the best plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from itertools import count, groupby
from operator import itemgetter

from pipette_opt.base.risk import SMALLEST_RISK
from pipette_opt.base.types import IntArray
from pipette_opt.certify.compared import placements_in_order
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.opening import open_candidates
from pipette_opt.certify.preference import risks_of
from pipette_opt.certify.rounds import PLACE
from pipette_opt.certify.state import CLOSE_ENOUGH, SearchState
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import oom_probability
from pipette_opt.parallel import HostTile, ParallelConfig, tile_placement, with_whole_layers
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plainness import RISK_SHARE, WITHIN, kind_of, risk_levels
from pipette_opt.plans.steps import NEXT_BEST, ONE_BESIDE, PLAINER, SAFER, SAME_PLAINNESS
from pipette_opt.prepare import Prepared
from pipette_opt.problem.build import FittingCandidate, build_relaxations
from pipette_opt.problem.solution import Solution
from pipette_opt.problem.ticks import SharedLinks
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, simulate_solution
from pipette_opt.simulate.swap_search import has_room

IN_ORDER_AT_ONCE = 64
"""Number of configurations that are simulated together on hosts in their usual order. Chosen."""

Kind = tuple[object, ...]
"""Degrees, micro-batch size and type of recomputation (:func:`~pipette_opt.plans.plainness.kind_of`)."""


def look_beside(state: SearchState, clock: Clock) -> None:
    """Search for plainer, less risky and next best plans; a plan must be known."""
    clock.report("looking for plainer and safer plans, and the next best")
    finder = _Finder(state, clock)
    for step, look in LOOKS:
        look(finder, clock.step(step))


def look_for_best_value(state: SearchState, clock: Clock) -> None:
    """Search for plans of a better value, if that is not the time; a plan must be known."""
    clock.report("placing plans of the best value")
    _Finder(state, clock).look_for_best_value(clock)


class _Finder:
    """
    Searches for single configurations, each with a state of its own.

    Attributes
    ----------
    checked
        Configurations that fit the cluster with the accepted risk.
    clock
        Time limit of the present search.
    """

    def __init__(self, state: SearchState, clock: Clock) -> None:
        self.state, self.prepared, self.preference, self.clock = state, state.prepared, state.preference, clock
        self.params = replace(state.params, gap_limit=0.0, to_beat_s=float("inf"))
        self._risk_of = risks_of(self.prepared, self.preference.max_oom_risk)
        self._searches: dict[ParallelConfig, SearchState] = {}
        self._links = SharedLinks(self.prepared.problem.tick_s)
        self._loaded: set[bool] = set()
        self._best: dict[ParallelConfig, SimulatedSolution] = {}
        for plan in state.simulated:
            self._take(plan)
        self._bounds_s = {config: reason.bound_s for config, reason in state.reasons().items()}
        self.checked = {fits.config: fits for fits in self.prepared.memory.fitting if fits.config in self._bounds_s}

    @property
    def simulated(self) -> list[SimulatedSolution]:
        """Best plan of each configuration, fastest first."""
        return best_first(list(self._best.values()))

    def kinds(self) -> list[tuple[Kind, list[ParallelConfig]]]:
        """Return the configurations that fit, grouped by degrees, micro-batch size and type of recomputation."""
        groups: dict[Kind, list[ParallelConfig]] = {}
        for config in self.checked:
            groups.setdefault(kind_of(config), []).append(config)
        return list(groups.items())

    def bound_s(self, config: ParallelConfig) -> float:
        """Return a lower bound on all plans of a configuration, seconds."""
        known = self._best.get(config)
        return min(self._bounds_s[config], float("inf") if known is None else known.estimate.iteration_time_s)

    def least_s(self, configs: Iterable[ParallelConfig]) -> float:
        """Return a lower bound on all plans of several configurations, seconds; infinite without any."""
        return min(map(self.bound_s, configs), default=float("inf"))

    def look_for_plainest(self, clock: Clock) -> None:
        """
        Place configurations that may be within 1 % of the fastest plan, plainest first, until none is plainer than the
        best; nothing if the fastest plan is preferred.

        Hosts in their usual order come first, as they need no search: those of the fastest plan's kind, then all.
        """
        preference, (fastest, *_) = self.preference, self.simulated
        if preference.prefer == "fastest":
            return
        limit = (1 + WITHIN) * preference.value(fastest)

        def near(configs: Iterable[ParallelConfig]) -> list[ParallelConfig]:
            return [config for config in configs if preference.factor(config) * self.bound_s(config) <= limit]

        def ranks_of(configs: Iterable[ParallelConfig], *, in_order: bool) -> dict[ParallelConfig, tuple[int, ...]]:
            ranks = {config: preference.rank(config, self._least_risk(config), in_order=in_order) for config in configs}
            return dict(sorted(ranks.items(), key=itemgetter(1)))

        configs = near(self.checked)
        if (level := RISK_SHARE * preference.max_oom_risk) < RISK_SHARE:
            configs += near(self._with_less_risk(configs, max(level, SMALLEST_RISK)))
        self.clock, ranks = clock, ranks_of(sorted(configs, key=self.bound_s), in_order=True)
        kind = kind_of(fastest.candidate.config)
        self._place_in_order({config: rank for config, rank in ranks.items() if kind_of(config) == kind}, limit)
        self._place_in_order(ranks, limit)
        ranks = ranks_of(configs, in_order=False)
        for rank, group in groupby(ranks, ranks.__getitem__):
            self.clock = clock
            if self.clock.is_over or rank > self._shown_rank():
                return
            members, self.clock = list(group), clock.step(SAME_PLAINNESS)
            below_s = limit / min(map(preference.factor, members))
            self._place_fastest(members, below_s * (1 + CLOSE_ENOUGH))

    def _shown_rank(self) -> tuple[int, ...]:
        """Return the sort key of plainness of the plan that would be shown."""
        shown = self.preference.choose(self.state.simulated, self._risk_of)
        return self.preference.rank_of(shown, self._risk_of)

    def _place_in_order(self, ranks: Mapping[ParallelConfig, tuple[int, ...]], limit: float) -> None:
        """
        Place configurations on hosts in their usual order, plainest first, until none is plainer than the best.

        The hosts are the first of the cluster, and those of the fastest plan with equally many.

        Parameters
        ----------
        ranks
            Sort keys of plainness of the configurations, ascending.
        limit
            Largest value of a plan that may be shown.
        """
        preference, instance, configs = self.preference, self.prepared.instance, list(ranks)
        like = {plan.nodes.size: plan.nodes for plan in reversed(self.simulated)}
        for start in range(0, len(configs), IN_ORDER_AT_ONCE):
            if self.clock.is_over or ranks[configs[start]] > self._shown_rank():
                return
            placed = [
                (config, tile, nodes)
                for config in configs[start : start + IN_ORDER_AT_ONCE]
                for tile, nodes in placements_in_order(instance, config, preference.host_order, like)
            ]
            times_s = estimate_many(
                instance, [(config, tile_placement(config, tile, nodes)) for config, tile, nodes in placed]
            )
            values = [
                preference.factor(config) * preference.hosts_factor(nodes) * seconds
                for (config, _, nodes), seconds in zip(placed, times_s.tolist(), strict=True)
            ]
            for number in sorted(range(len(placed)), key=lambda number: (ranks[placed[number][0]], values[number])):
                plan = self._simulated(*placed[number]) if values[number] <= limit else None
                if plan is None:
                    continue
                self._take(plan)
                self.state.take(plan)
                if preference.rank_of(plan, self._risk_of) <= ranks[plan.candidate.config]:
                    break

    def _simulated(self, config: ParallelConfig, tile: HostTile, nodes: IntArray) -> SimulatedSolution | None:
        """Return the plan of a configuration on these hosts; ``None`` if one of them has too little memory."""
        data = self._problem_of(config).problem
        index = [candidate.tile for candidate in data.candidates].index(tile)
        if not has_room(data, data.candidates[index], nodes):
            return None
        solution = Solution(candidate=index, nodes=nodes, objective_ticks=0)
        return simulate_solution(self.prepared.instance, data, solution)

    def look_for_best_value(self, clock: Clock) -> None:
        """
        Place the configurations whose factor may make them better than the best plan, the best bounds first.

        It ends once none may be better by more than the accepted gap of the search.
        """
        self.clock, value, within = clock, self.preference.value, max(self.state.params.gap_limit, CLOSE_ENOUGH)
        waiting = {config: self.preference.factor(config) for config in self.checked}
        while waiting and not clock.is_over:
            config = min(waiting, key=lambda config: waiting[config] * self._bounds_s[config])
            best = min(map(value, self.simulated))
            if waiting[config] * self._bounds_s[config] >= (1 - within) * best:
                return
            to_beat_s = best / waiting[config]
            if config not in self._searches:
                self._open(config, to_beat_s)
            else:
                self._place(config, to_beat_s)
                del waiting[config]

    def look_for_safer(self, clock: Clock) -> None:
        """Place the fastest configurations for each level of out-of-memory risk."""
        self.clock = clock
        for level in risk_levels(self.preference.max_oom_risk)[1:]:
            safe_s = (plan.estimate.iteration_time_s for plan in self.simulated if self._risk_of(plan) <= level)
            below_s = next(safe_s, float("inf"))
            promising = [config for config in self.checked if self.bound_s(config) < below_s]
            promising += self._with_less_risk(promising, level)
            self._place_fastest([config for config in dict.fromkeys(promising) if self._least_risk(config) <= level])

    def look_for_next_best(self, clock: Clock) -> None:
        """Place the fastest configurations of further choices of degrees, micro-batch size and recomputation."""
        self.clock, number = clock, self.params.num_alternatives
        shown = self.preference.choose(self.state.simulated, self._risk_of)
        groups = {kind: group for kind, group in self.kinds() if kind != kind_of(shown.candidate.config)}
        times_s: list[float] = []
        for kind in sorted(groups, key=lambda kind: self.least_s(groups[kind])):
            to_beat_s = sorted(times_s)[number - 1] if 0 < number <= len(times_s) else float("inf")
            if number < 1 or self.clock.is_over or self.least_s(groups[kind]) >= to_beat_s:
                return
            best = self._place_fastest(groups[kind], to_beat_s)
            times_s += [] if best is None else [best.estimate.iteration_time_s]

    def _with_less_risk(self, configs: Iterable[ParallelConfig], level: float) -> list[ParallelConfig]:
        """
        Return variants with block recomputation of more layers, as many as the smaller risk ``level`` requires.

        They are no faster than with fewer layers (:mod:`pipette_opt.memory.fewest`), so the bound for fewer layers
        holds.
        """
        risky = {
            with_whole_layers(config, "block", 1): config
            for config in configs
            if config.recomputation == "block" and self._least_risk(config) > level
        }
        if not risky:
            return []
        memory = check_memory(self.prepared.instance, list(risky), self.prepared.predictor, level)
        for fits in memory.fitting:
            self.checked.setdefault(fits.config, fits)
            fewer = risky[with_whole_layers(fits.config, "block", 1)]
            self._bounds_s.setdefault(fits.config, self._bounds_s[fewer])
        return [fits.config for fits in memory.fitting]

    def _least_risk(self, config: ParallelConfig) -> float:
        """Return the out-of-memory probability on the hosts with the most memory."""
        predicted, room = self.checked[config].prediction, self.prepared.memory.capacity_bytes.max()
        return float(oom_probability(predicted, int(room)).max())

    def _place_fastest(
        self, configs: Sequence[ParallelConfig], below_s: float = float("inf")
    ) -> SimulatedSolution | None:
        """Return the fastest plan of the configurations below ``below_s`` seconds; ``None`` if none is in time."""
        numbers = count()
        waiting = [(self._bounds_s[config], next(numbers), config) for config in configs]
        heapify(waiting)
        best: SimulatedSolution | None = None
        for config in configs:
            best = self._better(best, config, below_s)
        while waiting and not self.clock.is_over:
            to_beat_s = below_s if best is None else best.estimate.iteration_time_s
            bound_s, _, config = heappop(waiting)
            if bound_s >= (1 - CLOSE_ENOUGH) * to_beat_s:
                break
            if config not in self._searches:
                self._open(config, to_beat_s)
                heappush(waiting, (self._bounds_s[config], next(numbers), config))
            else:
                self._place(config, to_beat_s)
            best = self._better(best, config, below_s)
        return best

    def _better(
        self, best: SimulatedSolution | None, config: ParallelConfig, below_s: float
    ) -> SimulatedSolution | None:
        """Return the faster of ``best`` and the configuration's best plan below ``below_s`` seconds."""
        known = self._best.get(config)
        if known is None or known.estimate.iteration_time_s >= below_s:
            return best
        if best is None or known.estimate.iteration_time_s < best.estimate.iteration_time_s:
            return known
        return best

    def _open(self, config: ParallelConfig, to_beat_s: float) -> None:
        """Build the problem of a configuration, and bound it by the simulator over the best links."""
        alone = self._problem_of(config)
        self._load(alone)
        known = [self._best[config]] if config in self._best else []
        search = SearchState(alone, known, self.params, replace(self.clock, is_quiet=True), to_beat_s)
        open_candidates(search, search.clock)
        self._searches[config] = search
        self._learn(config, search)

    def _problem_of(self, config: ParallelConfig) -> Prepared:
        """Return the problem of a single configuration."""
        prepared, checked = self.prepared, self.checked[config]
        fitting = [FittingCandidate(config=config, need_bytes=checked.need_bytes)]
        built = build_relaxations(prepared.instance, fitting, prepared.memory.capacity_bytes, links=self._links)
        return replace(prepared, problem=built.problem, pruned=None, other_sizes_s=float("inf"))

    def _place(self, config: ParallelConfig, to_beat_s: float) -> None:
        """Place a configuration, as the certificate places candidates that may be the fastest."""
        search = self._searches[config]
        search.clock = replace(self.clock.step(ONE_BESIDE), is_quiet=True)
        before_s, own_s = search.fastest_s, (plan.estimate.iteration_time_s for plan in search.simulated)
        search.fastest_s = min([to_beat_s, *own_s])
        if search.fastest_s > before_s:  # an earlier question had less time to beat
            open_candidates(search, search.clock)
        for move in PLACE:
            move(search)
        self._learn(config, search)

    def _learn(self, config: ParallelConfig, search: SearchState) -> None:
        """Keep the bound and the plans that the search of a configuration found."""
        self._bounds_s[config] = max(self._bounds_s[config], search.listed_bound_s)
        if config in self.state.listed:
            reason = search.reason(config)
            self.state.raise_bound(config, search.listed_bound_s, reason.name, reason.step)
        for plan in search.simulated:
            self._take(plan)
            self.state.take(plan)

    def _take(self, plan: SimulatedSolution) -> None:
        """Keep a plan if it is the best of its configuration."""
        known = self._best.get(plan.candidate.config)
        if known is None or plan.estimate.iteration_time_s < known.estimate.iteration_time_s:
            self._best[plan.candidate.config] = plan

    def _load(self, alone: Prepared) -> None:
        """Compile the kernels for types of schedule that were not used before."""
        candidates = alone.problem.candidates
        kinds = {candidate.config.num_chunks > 1 for candidate in candidates}
        if not kinds <= self._loaded:
            self._loaded |= kinds
            with self.clock.loading():
                compile_kernels(alone, self.clock)


LOOKS = (
    (PLAINER, _Finder.look_for_plainest),
    (SAFER, _Finder.look_for_safer),
    (NEXT_BEST, _Finder.look_for_next_best),
)
"""Steps of :func:`look_beside` in their order."""
