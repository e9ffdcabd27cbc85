"""
Before anything expensive: configurations that cannot win, by bounds that look at no reduction and no pair of hosts.

A plan that is simulated on the hosts as they are listed gives the time to beat, or annealing finds a faster one if very
many configurations are left. A first bound is the work of a configuration alone, and costs microseconds
(:mod:`pipette_opt.costs.work`). Where that is less than the time to beat, packings are built for a second one, a lower
form over the best links without reductions of gradients. Both hold for every placement, and for every choice of what is
sent beside compute, so configurations that differ only in that share them.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import chain

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import IntArray
from pipette_opt.costs.work import WorkBounds
from pipette_opt.parallel import NodeBlock, ParallelConfig, block_placement, without_overlap
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import FittingCandidate, build_problem_data, shared_links
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.solver.listed_hosts import hosts_together, next_hosts
from pipette_opt.specs import ClusterSpec, Instance

MAX_FIRST_PLANS = 24
"""
Configurations simulated on the listed hosts to find a time to beat, those with the least bounds; equally many of each
number of GPUs, as bounds over the best links do not see which stages fit into NVLink domains.
"""

KEPT = 12
"""Configurations kept in any case, those with the least bounds: the next best plans are among them."""

MAX_KEPT = 600
"""Largest number of configurations that are kept if time is over: to build them takes ten seconds or so. Chosen."""

MANY = 100
"""
Number of configurations above which annealing looks for a better time to beat. Where hosts are many, their order costs
a few percent, and hundreds of configurations lie between. Chosen.
"""

ANNEALED = 8
"""Number of the most promising configurations that are annealed for it. Chosen."""

UNUSABLY_SLOW = 100.0
"""Of its own bound; a plan slower than this uses links that no search would use, and is no time to beat."""

CONFIGURATIONS_AT_ONCE = 64
"""Configurations whose packings are built together, as they share the times of links; a tenth of a second. Chosen."""

FLOAT_MARGIN = 1e-9
"""Relative; given back from bounds that are computed in doubles, and allowed where form and simulate are compared."""


SLOTS_SLACK = 1.05
"""Of a time on relaxed hosts, up to which configurations are kept where links of single GPUs are known. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstPlan:
    """A configuration on some hosts, by default as they are listed, and its simulated time."""

    config: ParallelConfig
    block: NodeBlock
    nodes: IntArray
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pruned:
    """
    What the bound leaves.

    Parameters
    ----------
    kept
        Configurations that may win, and the next best ones.
    bounds_s
        No plan of any choice of overlap is faster; by configuration without overlap; infinite if none can be placed.
    by_work, by_family
        The configurations without overlap whose bound is that of their work alone, or that of their family.
    ruled_out
        Configurations that are not kept.
    bound_s
        No plan of those is faster; infinite if there is none.
    first
        The time to beat; ``None`` if nothing was simulated.
    """

    kept: tuple[FittingCandidate, ...]
    bounds_s: Mapping[ParallelConfig, float]
    by_work: frozenset[ParallelConfig]
    by_family: frozenset[ParallelConfig]
    ruled_out: int
    bound_s: float
    first: FirstPlan | None

    def joined(self, other: "Pruned") -> "Pruned":
        """With what was bounded later, of other configurations, against a plan that is no slower."""
        return Pruned(
            kept=(*self.kept, *other.kept),
            bounds_s={**self.bounds_s, **other.bounds_s},
            by_work=self.by_work | other.by_work,
            by_family=self.by_family | other.by_family,
            ruled_out=self.ruled_out + other.ruled_out,
            bound_s=min(self.bound_s, other.bound_s),
            first=other.first,
        )


def prune(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    keep: Callable[[ParallelConfig], bool] = lambda config: False,
    is_over: Callable[[], bool] = lambda: False,
    loading: Callable[[], AbstractContextManager[None]] = nullcontext,
    known: FirstPlan | None = None,
    annealing_s: float = 0.0,
    work: WorkBounds | None = None,
    given: Instance | None = None,
    family_bound_s: Callable[[ParallelConfig], float] = lambda config: 0.0,
) -> Pruned:
    """
    Leave out what cannot be faster than a plan on the listed hosts.

    Parameters
    ----------
    keep
        Says which configurations are kept whatever their bound.
    is_over
        Whether time is over: then a few of the most promising ones that were bounded are kept, and the bound on the
        others may be below the time to beat.
    loading
        Entered where a kind of schedule is simulated for the first time, as that may compile kernels.
    known
        A plan that was simulated before; it stays the time to beat unless a faster one is found.
    annealing_s
        Seconds that may go into a better time to beat where many configurations are left.
    work
        Bounds by work that were computed before, to be looked up and added to.
    given
        The job with the links of single GPUs, where ``instance`` is on relaxed hosts: then the time to beat is that of
        a plan which no order of GPUs may reach, so somewhat more is kept.
    family_bound_s
        A bound by the layers and kinds of GPU of all stages together, 0 if there is none.
    """
    variants: dict[ParallelConfig, list[FittingCandidate]] = {}
    for one in fitting:
        variants.setdefault(without_overlap(one.config), []).append(one)
    alone = [FittingCandidate(config=base, need_bytes=members[0].need_bytes) for base, members in variants.items()]
    bounded = BoundedPackings(
        instance,
        alone,
        capacity_bytes,
        lower_form=True,
        reductions=False,
        is_over=is_over,
        work=work,
        family_bound_s=family_bound_s,
        enough_s=float("inf") if known is None else known.seconds,
    )
    first = _first_plan(instance, bounded, variants, loading, known)
    promising = bounded.most_promising(KEPT, _to_beat_s(given, first, loading))
    if len(promising) > MANY and first is not None and annealing_s > 0:
        bases = [without_overlap(first.config), *sorted(promising, key=lambda base: bounded.bounds_s[base])]
        some = [one for base in list(dict.fromkeys(bases))[:ANNEALED] for one in variants.get(base, ())]
        first = _annealed(instance, some, capacity_bytes, loading, first, annealing_s)
        promising = bounded.most_promising(KEPT, _to_beat_s(given, first, loading))
    if first is not None:
        promising.add(without_overlap(first.config))
    kept: list[FittingCandidate] = []
    ruled_out, bound_s = 0, float("inf")
    for base, members in variants.items():
        chosen = members if base in promising else [one for one in members if keep(one.config)]
        kept += chosen
        if len(chosen) < len(members):
            ruled_out += len(members) - len(chosen)
            bound_s = min(bound_s, bounded.bounds_s[base])
    by_family = frozenset(
        base for base, bound_s in bounded.of_families_s.items() if 0 < bounded.bounds_s[base] <= bound_s
    )
    return Pruned(
        kept=tuple(kept),
        bounds_s=bounded.bounds_s,
        by_work=frozenset(bounded.waiting) - by_family,
        by_family=by_family,
        ruled_out=ruled_out,
        bound_s=bound_s,
        first=first,
    )


def _to_beat_s(
    given: Instance | None, first: FirstPlan | None, loading: Callable[[], AbstractContextManager[None]]
) -> float:
    """Time from which on a configuration is left out, seconds; with single links at most that of GPUs in turn."""
    if first is None or given is None:
        return float("inf") if first is None else first.seconds
    placement = block_placement(first.config, first.block, first.nodes)
    with loading():
        in_turn_s = estimate(given, first.config, placement).iteration_time_s
    return min(max(in_turn_s, first.seconds), SLOTS_SLACK * first.seconds)


@dataclass(frozen=True, slots=True, order=True)
class BoundedPacking:
    """
    One packing of a configuration; in the order of bounds, and of equal bounds of configurations.

    Parameters
    ----------
    number
        Of the configuration as it was given, and of its packing.
    """

    bound_s: float
    number: tuple[int, int]
    data: ProblemData = field(compare=False)
    candidate: CandidateData = field(compare=False)


class BoundedPackings:
    """
    Packings by their least time over the best links, each once, built as late as that order allows.

    Parameters
    ----------
    lower_form, reductions
        As of :func:`~pipette_opt.problem.build.build_problem_data`.
    is_over
        Whether time is over: none is built any more then, unless there is none.
    work
        Bounds by work that were computed before.
    family_bound_s
        As of :func:`prune`.
    enough_s
        A configuration whose work takes so long is not bounded by its family.
    of_families_s
        Bounds of families, of all other configurations.
    bounds_s
        What is known so far of each configuration: by its work alone or its family, then over the best links.
    waiting
        Configurations whose links were not looked at, the most promising last.
    """

    def __init__(
        self,
        instance: Instance,
        fitting: Sequence[FittingCandidate],
        capacity_bytes: IntArray,
        *,
        lower_form: bool,
        reductions: bool,
        is_over: Callable[[], bool] = lambda: False,
        work: WorkBounds | None = None,
        family_bound_s: Callable[[ParallelConfig], float] = lambda config: 0.0,
        enough_s: float = float("inf"),
    ) -> None:
        work = work or WorkBounds(instance)
        self.bounds_s = {one.config: work(one.config) for one in fitting}
        able = [config for config, bound_s in self.bounds_s.items() if bound_s < enough_s]
        self.of_families_s = {config: family_bound_s(config) for config in able}
        self.bounds_s.update((config, max(self.bounds_s[config], one)) for config, one in self.of_families_s.items())
        self.waiting = [one.config for one in reversed(fitting) if self.bounds_s[one.config] < float("inf")]
        self.waiting.sort(key=lambda config: self.bounds_s[config], reverse=True)
        self._fitting = {one.config: (number, one) for number, one in enumerate(fitting)}
        self._packings: list[BoundedPacking] = []
        self._passed: list[tuple[float, ParallelConfig]] = []
        # One tick for all, so that equal packings have equal bounds.
        links = shared_links(instance, self.waiting[-CONFIGURATIONS_AT_ONCE:], least_only=True)
        self._build = partial(
            build_problem_data,
            instance,
            capacity_bytes=capacity_bytes,
            lower_form=lower_form,
            reductions=reductions,
            links=links,
        )
        self._is_over = is_over

    def __iter__(self) -> Iterator[BoundedPacking]:
        while True:
            while self.waiting and not (self._packings and self._packings[0].bound_s < self._waiting_s):
                if (self._packings or self._passed) and self._is_over():
                    break
                self._look_at_links()
            if not self._packings:
                return
            one = heappop(self._packings)
            self._passed.append((one.bound_s, one.candidate.config))
            yield one

    @property
    def _waiting_s(self) -> float:
        """The least bound of those whose links were not looked at."""
        return self.bounds_s[self.waiting[-1]] if self.waiting else float("inf")

    def _look_at_links(self) -> None:
        """Of the next ones that wait."""
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
                heappush(self._packings, BoundedPacking(bound_s, number, data, candidate))

    def most_promising(self, least: int, to_beat_s: float = 0.0) -> set[ParallelConfig]:
        """So many configurations and all that may take less than ``to_beat_s``; all there are if few can be placed."""
        found: set[ParallelConfig] = set()
        enough_s = float("inf")
        for bound_s, config in chain(self._passed.copy(), ((one.bound_s, one.candidate.config) for one in self)):
            if (bound_s >= to_beat_s and bound_s > enough_s) or (len(found) >= MAX_KEPT and self._is_over()):
                break
            found.add(config)
            if len(found) == least:
                enough_s = min(enough_s, bound_s)
        return found if self.waiting or self._packings or len(found) >= least else set(self.bounds_s)


def _first_plan(
    instance: Instance,
    bounded: BoundedPackings,
    variants: Mapping[ParallelConfig, Sequence[FittingCandidate]],
    loading: Callable[[], AbstractContextManager[None]],
    best: FirstPlan | None,
) -> FirstPlan | None:
    """The fastest of the most promising packings, each choice of overlap, on the hosts as they are listed."""
    loaded: set[bool] = set()
    sizes = {config.world_size for config in variants}
    simulated: Counter[int] = Counter()
    for one in bounded:
        if simulated.total() >= MAX_FIRST_PLANS or (best is not None and one.bound_s >= best.seconds):
            break
        if simulated[one.candidate.config.world_size] * len(sizes) >= MAX_FIRST_PLANS:
            continue
        simulated[one.candidate.config.world_size] += 1
        nodes = listed_hosts(instance.cluster, one.data, one.candidate)
        if nodes is None:
            continue
        config, block = one.candidate.config, one.candidate.block
        placement = block_placement(config, block, nodes)
        is_interleaved = config.num_chunks > 1
        for variant in variants[config]:
            try:
                with nullcontext() if is_interleaved in loaded else loading():
                    seconds = estimate(instance, variant.config, placement).iteration_time_s
                loaded.add(is_interleaved)
            except MissingLinkError:
                break
            if seconds < min(UNUSABLY_SLOW * one.bound_s, float("inf") if best is None else best.seconds):
                best = FirstPlan(config=variant.config, block=block, nodes=nodes, seconds=seconds)
    return best


def _annealed(
    instance: Instance,
    some: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    loading: Callable[[], AbstractContextManager[None]],
    best: FirstPlan,
    seconds: float,
) -> FirstPlan:
    """The fastest plan that annealing finds for the lower forms of some configurations, or the best before."""
    data = build_problem_data(instance, some, capacity_bytes, lower_form=True)
    with loading():
        anneal(data, AnnealingParams(time_limit_s=None, max_moves=1))
    for one in anneal(data, AnnealingParams(time_limit_s=seconds)).solutions:
        candidate = data.candidates[one.candidate]
        config, block = candidate.config, candidate.block
        try:
            simulated_s = estimate(instance, config, block_placement(config, block, one.nodes)).iteration_time_s
        except MissingLinkError:
            continue
        if simulated_s < best.seconds:
            best = FirstPlan(config=config, block=block, nodes=one.nodes, seconds=simulated_s)
    return best


def listed_hosts(cluster: ClusterSpec, data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """The first hosts listed that have the memory, row by row; ``None`` if that leaves a row without."""
    together = hosts_together(candidate.config, candidate.block)
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
