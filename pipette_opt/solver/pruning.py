"""
Pruning before the search: rule out configurations by bounds that ignore reductions and individual links.

The time to beat is that of a plan simulated on hosts in their listed order; annealing improves it if very many
configurations are left. The first bound is the compute-only bound and costs microseconds
(:mod:`pipette_opt.costs.work`). If it is below the time to beat, each host tile (part of the model on one host) of the
configuration gets a second bound: a relaxation over the best links without gradient reductions. Both bounds hold for
every placement and every choice of overlap, so configurations that differ only in overlap share them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import chain

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import IntArray
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import HostTile, ParallelConfig, tile_placement, without_overlap
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data, shared_links
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.estimate import estimate
from pipette_opt.solver.coarse_plans import coarse_placement
from pipette_opt.solver.listed_hosts import hosts_together, next_hosts
from pipette_opt.specs import ClusterSpec, Instance

MAX_FIRST_PLANS = 24
"""
Number of configurations that are simulated on listed hosts to find a time to beat, smallest bounds first. Chosen.

Each number of GPUs gets equally many, as bounds over the best links do not see which stages fit into NVLink domains.
"""

KEPT = 12
"""Number of configurations with the smallest bounds that are always kept; alternatives to the best plan. Chosen."""

MAX_KEPT = 600
"""Largest number of configurations kept once time is over; building them takes about ten seconds. Chosen."""

MANY = 100
"""
If more configurations than this remain, annealing looks for a better time to beat. Chosen.

With many hosts, their order changes the time by a few percent, and hundreds of configurations differ by less.
"""

ANNEALED = 8
"""Number of most promising configurations that annealing places for a better time to beat. Chosen."""

UNUSABLY_SLOW = 100.0
"""A plan slower than this multiple of its own bound is ignored: it uses links that no search would use. Chosen."""

CONFIGURATIONS_AT_ONCE = 64
"""Number of configurations that are built together, as they share link times; takes 0.1 s. Chosen."""

FLOAT_MARGIN = 1e-9
"""Relative margin subtracted from bounds in doubles, and tolerance of a relaxation against the simulator. Chosen."""


SLOTS_SLACK = 1.05
"""Configurations are kept up to this multiple of the best time without single-GPU links, where these exist. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstPlan:
    """Configuration placed on hosts, by default in listed order, with simulated seconds; a warm start."""

    config: ParallelConfig
    tile: HostTile
    nodes: IntArray
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pruned:
    """
    Configurations left by pruning, and the bounds of all.

    Parameters
    ----------
    kept
        Configurations that may be the fastest, and the next best ones.
    bounds_s
        Lower bound under every choice of overlap, seconds, by configuration without overlap; infinite without a
        placement.
    by_work, by_family
        Configurations without overlap whose bound is the compute-only bound, or the bound of their partition family.
    first
        Plan that gives the time to beat; ``None`` if no plan was simulated.
    """

    kept: tuple[FittingCandidate, ...]
    bounds_s: Mapping[ParallelConfig, float]
    by_work: frozenset[ParallelConfig]
    by_family: frozenset[ParallelConfig]
    first: FirstPlan | None

    def joined(self, other: "Pruned") -> "Pruned":
        """Return the merged result with that of configurations that were bounded later, against a plan no slower."""
        return Pruned(
            kept=(*self.kept, *other.kept),
            bounds_s={**self.bounds_s, **other.bounds_s},
            by_work=(self.by_work - other.bounds_s.keys()) | other.by_work,
            by_family=(self.by_family - other.bounds_s.keys()) | other.by_family,
            first=other.first,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruning:
    """
    Settings of :func:`prune`.

    Parameters
    ----------
    keep
        Predicate of configurations that are kept whatever their bound.
    known
        Warm start: a simulated plan whose time has to be beaten.
    annealing_s
        Seconds for annealing a better time to beat, if many configurations are left.
    given
        Job with the links of single GPUs, if the bounds are of relaxed hosts. The time to beat may then be out of reach
        for every order of GPUs, so more configurations are kept.
    family_bound_s
        Function to the bound of a configuration's partition family, seconds; 0 if none is known.
    """

    keep: Callable[[ParallelConfig], bool] = lambda config: False
    known: FirstPlan | None = None
    annealing_s: float = 0.0
    given: Instance | None = None
    family_bound_s: Callable[[ParallelConfig], float] = lambda config: 0.0


def prune(
    work: WorkBounds,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    clock: Clock | None = None,
    pruning: Pruning | None = None,
) -> Pruned:
    """
    Rule out configurations that cannot be faster than a plan on the listed hosts.

    Parameters
    ----------
    work
        Compute-only bounds of the job, extended by this call.
    clock
        Time limit; once it is over, only a few of the most promising bounded configurations are kept, and the bound on
        the others may be below the time to beat.
    """
    instance, pruning = work.instance, pruning or Pruning()
    given, annealing_s = pruning.given, pruning.annealing_s
    clock, variants = clock or Clock(), dict[ParallelConfig, list[FittingCandidate]]()
    for candidate in fitting:
        variants.setdefault(without_overlap(candidate.config), []).append(candidate)
    alone = [FittingCandidate(config=base, need_bytes=members[0].need_bytes) for base, members in variants.items()]
    bounded = BoundedCandidates(work, alone, capacity_bytes, clock, pruning)
    first = _first_plan(instance, bounded, variants, clock, pruning.known)
    promising = bounded.most_promising(KEPT, _to_beat_s(given, first, clock))
    if len(promising) > MANY and first is not None and annealing_s > 0:
        bases = [without_overlap(first.config), *sorted(promising, key=lambda base: bounded.bounds_s[base])]
        annealed = [variant for base in list(dict.fromkeys(bases))[:ANNEALED] for variant in variants.get(base, ())]
        first = _annealed(instance, annealed, capacity_bytes, clock, first, annealing_s)
        promising = bounded.most_promising(KEPT, _to_beat_s(given, first, clock))
    if first is not None:
        promising.add(without_overlap(first.config))
    kept = [
        member
        for base, members in variants.items()
        for member in members
        if base in promising or pruning.keep(member.config)
    ]
    by_family = frozenset(
        base for base, bound_s in bounded.of_families_s.items() if 0 < bounded.bounds_s[base] <= bound_s
    )
    return Pruned(
        kept=tuple(kept),
        bounds_s=bounded.bounds_s,
        by_work=frozenset(bounded.waiting) - by_family,
        by_family=by_family,
        first=first,
    )


def _to_beat_s(given: Instance | None, first: FirstPlan | None, clock: Clock) -> float:
    """
    Return the time above which configurations are ruled out, seconds; infinite without a plan.

    With links of single GPUs, it is at most the time of the first plan with GPUs in listed order.
    """
    if first is None or given is None:
        return float("inf") if first is None else first.seconds
    placement = tile_placement(first.config, first.tile, first.nodes)
    with clock.loading():
        in_turn_s = estimate(given, first.config, placement).iteration_time_s
    return min(max(in_turn_s, first.seconds), SLOTS_SLACK * first.seconds)


@dataclass(frozen=True, slots=True, order=True)
class BoundedCandidate:
    """
    Lower bound of a configuration with one host tile, ordered by bound, then by configuration.

    Parameters
    ----------
    number
        Index of the configuration as given, and index of its tile.
    """

    bound_s: float
    number: tuple[int, int]
    data: ProblemData = field(compare=False)
    candidate: CandidateData = field(compare=False)


class BoundedCandidates:
    """
    Iterator over configurations with a host tile, by their least time over the best links; built as late as possible.

    Parameters
    ----------
    work
        Compute-only bounds of the job.
    clock
        Time limit; once it is over, no further tile is built, unless none has been built.
    pruning
        Bounds of families, only asked for configurations whose compute-only bound is below the known plan.

    Attributes
    ----------
    of_families_s
        Bounds by partition families of all other configurations, seconds.
    bounds_s
        Best bound so far of each configuration, seconds: compute-only or of its family, then over the best links.
    waiting
        Configurations not yet bounded over the best links, the most promising last.
    """

    def __init__(
        self,
        work: WorkBounds,
        fitting: Sequence[FittingCandidate],
        capacity_bytes: IntArray,
        clock: Clock | None = None,
        pruning: Pruning | None = None,
    ) -> None:
        instance, pruning = work.instance, pruning or Pruning()
        enough_s = float("inf") if pruning.known is None else pruning.known.seconds
        self.bounds_s = {candidate.config: work(candidate.config) for candidate in fitting}
        able = [config for config, bound_s in self.bounds_s.items() if bound_s < enough_s]
        self.of_families_s = {config: pruning.family_bound_s(config) for config in able}
        self.bounds_s.update(
            (config, max(self.bounds_s[config], bound_s)) for config, bound_s in self.of_families_s.items()
        )
        configs = [candidate.config for candidate in reversed(fitting)]
        self.waiting = [config for config in configs if self.bounds_s[config] < float("inf")]
        self.waiting.sort(key=lambda config: self.bounds_s[config], reverse=True)
        self._fitting = {candidate.config: (number, candidate) for number, candidate in enumerate(fitting)}
        self._entries: list[BoundedCandidate] = []
        self._passed: list[tuple[float, ParallelConfig]] = []
        # All tilings share one tick length, so that equal tilings have equal bounds.
        links = shared_links(instance, self.waiting[-CONFIGURATIONS_AT_ONCE:], least_only=True)
        self._build = partial(
            build_problem_data,
            instance,
            capacity_bytes=capacity_bytes,
            reductions=False,
            links=links,
        )
        self._clock = clock or Clock()

    def __iter__(self) -> Iterator[BoundedCandidate]:
        while True:
            while self.waiting and not (self._entries and self._entries[0].bound_s < self._waiting_s):
                if (self._entries or self._passed) and self._clock.is_over:
                    break
                self._look_at_links()
            if not self._entries:
                return
            entry = heappop(self._entries)
            self._passed.append((entry.bound_s, entry.candidate.config))
            yield entry

    @property
    def _waiting_s(self) -> float:
        """Least bound of the configurations not yet bounded over the best links, seconds."""
        return self.bounds_s[self.waiting[-1]] if self.waiting else float("inf")

    def _look_at_links(self) -> None:
        """Bound the next waiting configurations over the best links, and build their problem data."""
        configs = [self.waiting.pop() for _ in range(min(CONFIGURATIONS_AT_ONCE, len(self.waiting)))]
        data = self._build([self._fitting[config][1] for config in configs])
        before = {config: self.bounds_s[config] for config in configs}
        self.bounds_s.update(dict.fromkeys(configs, float("inf")))
        for index, candidate in enumerate(data.candidates):
            ticks = optimistic_ticks(data, candidate)
            if ticks < UNUSABLE_TICKS:
                config = candidate.config
                number = self._fitting[config][0], index
                bound_s = max(ticks * data.tick_s * (1 - FLOAT_MARGIN), before[config])
                self.bounds_s[config] = min(self.bounds_s[config], bound_s)
                heappush(self._entries, BoundedCandidate(bound_s, number, data, candidate))

    def most_promising(self, least: int, to_beat_s: float = 0.0) -> set[ParallelConfig]:
        """
        Return the ``least`` configurations with the smallest bounds, and every configuration with a bound below
        ``to_beat_s``.

        Return all configurations if fewer than ``least`` have a placement.
        """
        found: set[ParallelConfig] = set()
        enough_s = float("inf")
        rest = ((entry.bound_s, entry.candidate.config) for entry in self)
        for bound_s, config in chain(self._passed.copy(), rest):
            if (bound_s >= to_beat_s and bound_s > enough_s) or (len(found) >= MAX_KEPT and self._clock.is_over):
                break
            found.add(config)
            if len(found) == least:
                enough_s = min(enough_s, bound_s)
        return found if self.waiting or self._entries or len(found) >= least else set(self.bounds_s)


def _first_plan(
    instance: Instance,
    bounded: BoundedCandidates,
    variants: Mapping[ParallelConfig, Sequence[FittingCandidate]],
    clock: Clock,
    best: FirstPlan | None,
) -> FirstPlan | None:
    """Return the fastest plan of the best configurations, with each choice of overlap, on hosts in listed order."""
    loaded: set[bool] = set()
    sizes = {config.world_size for config in variants}
    simulated: Counter[int] = Counter()
    for entry in bounded:
        if simulated.total() >= MAX_FIRST_PLANS or (best is not None and entry.bound_s >= best.seconds):
            break
        if simulated[entry.candidate.config.world_size] * len(sizes) >= MAX_FIRST_PLANS:
            continue
        simulated[entry.candidate.config.world_size] += 1
        nodes = listed_hosts(instance.cluster, entry.data, entry.candidate)
        if nodes is None:
            continue
        config, tile = entry.candidate.config, entry.candidate.tile
        placement = tile_placement(config, tile, nodes)
        is_interleaved = config.num_chunks > 1
        for variant in variants[config]:
            try:
                with nullcontext() if is_interleaved in loaded else clock.loading():
                    seconds = estimate(instance, variant.config, placement).iteration_time_s
                loaded.add(is_interleaved)
            except MissingLinkError:
                break
            if seconds < min(UNUSABLY_SLOW * entry.bound_s, float("inf") if best is None else best.seconds):
                best = FirstPlan(config=variant.config, tile=tile, nodes=nodes, seconds=seconds)
    return best


def _annealed(
    instance: Instance,
    candidates: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    clock: Clock,
    best: FirstPlan,
    seconds: float,
) -> FirstPlan:
    """
    Return the fastest coarse plan of the candidates, or the fastest that annealing from these finds for the
    candidates' relaxations; ``best`` if it is faster.
    """
    data, begun = build_problem_data(instance, candidates, capacity_bytes), clock.after(seconds)
    with clock.loading():
        anneal(data, AnnealingParams(time_limit_s=None, max_moves=1))
    coarse: list[Solution] = []
    for index, candidate in enumerate(data.candidates):
        found = None if begun.is_over else coarse_placement(instance, data, candidate)
        if found is None:
            continue
        coarse.append(Solution(candidate=index, nodes=found[0], objective_ticks=0))
        if found[1] < best.seconds:
            best = FirstPlan(config=candidate.config, tile=candidate.tile, nodes=found[0], seconds=found[1])
    for solution in anneal(data, AnnealingParams(time_limit_s=begun.left_s), start=coarse).solutions:
        candidate = data.candidates[solution.candidate]
        config, tile = candidate.config, candidate.tile
        try:
            simulated_s = estimate(instance, config, tile_placement(config, tile, solution.nodes)).iteration_time_s
        except MissingLinkError:
            continue
        if simulated_s < best.seconds:
            best = FirstPlan(config=config, tile=tile, nodes=solution.nodes, seconds=simulated_s)
    return best


def listed_hosts(cluster: ClusterSpec, data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """
    Return the first hosts in the cluster's order that have enough memory for each row of the candidate's grid of hosts.

    ``None`` if a row finds too few.
    """
    together = hosts_together(candidate.config, candidate.tile)
    allowed, free = data.allowed(candidate), np.ones(data.num_nodes, dtype=np.bool_)
    rows, width = candidate.grid[0], candidate.num_cells // candidate.grid[0]
    nodes = np.empty((rows, width), dtype=np.int64)
    for row in np.argsort(allowed.sum(axis=1), kind="stable").tolist():
        able = next_hosts(cluster, allowed[row] & free, width, together)
        if able is None:
            return None
        nodes[row] = able
        free[able] = False
    return nodes.reshape(candidate.grid)
