"""
Families of configurations that may win: bounded, and simulated at the splits that come near to their bounds.

The critical path of such a split is one more bound of all families with its schedule. So a few rounds raise a bound to
about the simulated time over the best links, in hundredths of a second, and give a time to beat on the way.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.offload import offload_of
from pipette_opt.base.types import IntArray
from pipette_opt.candidates import SearchSpace, overlap_choices, tensor_overlaps
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.costs.placed import placed_times
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import (
    NodeBlock,
    ParallelConfig,
    block_placement,
    with_offload,
    with_tensor_overlap,
    without_overlap,
    without_recomputation,
)
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_times import Rings, layer_families, with_rings
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.solver.family_bounds import HALVINGS, FamilyBound, family_bound
from pipette_opt.solver.layer_model import LayerSplit
from pipette_opt.solver.likely_paths import likely_paths, listed_hosts_of_kinds, longest_path
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance
from pipette_opt.specs.layer_kinds import pattern_of

MAX_TRIES = 6
"""
Number of times that a family is bounded before a model is made, each with the critical path of the split near to the
last bound: a hundredth of a second each, where CP-SAT takes a tenth. Chosen.
"""

MAX_NODES = 400
"""Largest number of choices of kinds of GPU for some rows that a bound of a family looks at. Chosen."""

FEW_HALVINGS = 6
"""Halvings of the interval in which a bound by such a search lies: to a sixtieth of what a family may gain. Chosen."""

NEARLY_SETTLED = 1e-2
"""The same where a time to beat is looked for. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLimits:
    """
    How long the joint model may take, and with what.

    Parameters
    ----------
    to_beat_s
        Splits that are not faster are of no interest, even before a plan is known.
    """

    time_limit_s: float
    workers: int = 2
    seed: int = 0
    to_beat_s: float = float("inf")


def family_key(config: ParallelConfig) -> ParallelConfig | None:
    """
    The same for all splits of the layers and all that is sent beside compute; ``None`` for a split of no family.

    Families deal units of one layer in each chunk, and find the number of recomputed layers themselves.
    """
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    if pp == 1 or len(set(config.layers_per_chunk)) > 1:
        return None
    number = 1 if config.recomputation == "block" else config.recompute_num_layers
    base = without_overlap(config)
    layers = (chunks,) * pp
    return replace(base, layers_per_stage=layers, pipeline_model_parallel_layout=None, recompute_num_layers=number)


def _num_savers(config: ParallelConfig) -> int:
    """Number of ways in which a configuration gives up time for memory."""
    return (config.recomputation is not None) + (config.offload is not None) + (not config.tp_comm_overlap)


def _faster(config: ParallelConfig) -> Iterator[ParallelConfig]:
    """Configurations that give up some of these ways, or none."""
    for recomputed in (config, without_recomputation(config)):
        for moved in (recomputed, with_offload(recomputed, None)):
            yield from (moved, with_tensor_overlap(moved, True))


@dataclass(slots=True, kw_only=True, eq=False)
class OpenFamilies:
    """The families that were bounded, the fastest plan that was simulated, and the paths that are known."""

    instance: Instance
    space: SearchSpace
    predictor: MemoryPredictor
    max_oom_risk: float
    limits: JointLimits
    stop: threading.Event
    loading: Callable[[], AbstractContextManager[None]]
    first: FirstPlan | None = None
    learned: dict[tuple[int, int, int], list[PathCounts]] = field(default_factory=dict)
    """Critical paths of the simulator by schedule, for every model that follows."""
    known: dict[tuple[int, int, int], tuple[int, PathCounts]] = field(default_factory=dict)
    """All paths of a schedule, and from how many pieces they were put together."""
    rings: dict[tuple[ParallelConfig, NodeBlock, bool], Rings] = field(default_factory=dict)
    """Reductions and gathers, by what they depend on."""
    loaded: set[tuple[str, bool]] = field(default_factory=set)
    """What was done before with sorts of schedule (plain, interleaved), so that its kernels are loaded."""
    seen: set[tuple[tuple[int, int, int], bytes]] = field(default_factory=set)
    """Paths that were learned from splits near to bounds."""
    tried: set[tuple[LayerFamily, tuple[int, ...], bytes]] = field(default_factory=set)
    """Splits near to bounds that were simulated."""
    ends: float = 0.0
    bounds_s: dict[LayerFamily, float] = field(default_factory=dict)
    """No other split of the family is faster: at first by its own bound, then by the models it was in."""
    roomy: set[ParallelConfig] = field(default_factory=set)
    """Configurations that have room for all splits on every kind of GPU."""
    slower: dict[ParallelConfig, ParallelConfig] = field(default_factory=dict)
    """Configurations that give up something for memory, and the same without that, whose families tell enough."""
    least_s: dict[LayerFamily, float] = field(default_factory=dict)
    """No split of the family is faster, the usual ones included."""

    @property
    def to_beat_s(self) -> float:
        """Seconds; families that are not faster are of no interest."""
        return min(self.limits.to_beat_s, float("inf") if self.first is None else self.first.seconds)

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        return self.stop.is_set() or self.seconds_left <= 0

    @property
    def seconds_left(self) -> float:
        """Until the time limit."""
        return self.ends - time.perf_counter()

    def _families(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        """
        Families of some configurations that may be faster than the time to beat, bounded.

        Neither recomputation, nor what the host keeps, nor to go without tensor overlap makes anything faster: where
        all splits have room without these, those families tell enough.
        """
        families: list[LayerFamily] = []
        for number in range(4):  # of these three
            some = [base for base in bases if _num_savers(base) == number]
            for base in some:
                self.slower.update((base, one) for one in _faster(base) if one != base and one in self.roomy)
            families += self._families_of([base for base in some if base not in self.slower])
        return families

    def _families_of(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        plain = layer_families(self.instance, bases, self.predictor, self.max_oom_risk)
        roomy: dict[ParallelConfig | None, bool] = {}
        for one in plain:
            key, has_all = family_key(one.config), one.most_units.min() > one.num_units - one.schedule[0]
            roomy[key] = bool(has_all) and roomy.get(key, True)
        self.roomy.update(base for base in bases if roomy.get(family_key(base), False))
        able = []
        for family in plain:
            # How many layers have to be recomputed takes predictions: first as if none had to.
            bound_s = self._bound(replace(family, recomputed=None), halvings=0).seconds
            if bound_s < self.to_beat_s < float("inf") and family.recomputed is not None:
                bound_s = self._bound(family, halvings=0).seconds
            if bound_s < self.to_beat_s:
                able.append(family)
            else:
                self.least_s[family] = bound_s
        choices = ((family, overlap_choices(self.space, family.config)) for family in able)
        more = [with_rings(self.instance, one, config, self.rings) for one, configs in choices for config in configs]
        for family in more:
            self.bounds_s[family] = self.least_s[family] = self._bound(family).seconds
        return more

    def _bound(self, family: LayerFamily, halvings: int = HALVINGS, nodes: int = 0) -> FamilyBound:
        """By the paths that are known of its schedule."""
        paths, least_s = self._known_paths(family.schedule), self.least_s.get(family, 0.0)
        return family_bound(family, self._hosts_of_kind(), self.to_beat_s, paths, halvings, nodes, least_s)

    def _known_paths(self, schedule: tuple[int, int, int]) -> PathCounts:
        some = [plain_counts(*schedule), *self.learned.get(schedule, [])]
        number, paths = self.known.get(schedule, (0, some[0]))
        if number != len(some):
            paths = PathCounts.joined(some)
            self.known[schedule] = len(some), paths
        return paths

    def _bound_again(self, families: Sequence[LayerFamily]) -> list[LayerFamily]:
        """Those that may still be faster than the time to beat, by all paths that are known now."""
        able = []
        for family in families:
            if self.is_over:
                able.append(family)
                continue
            if self.bounds_s[family] >= self.to_beat_s:
                continue
            self._learn_likely([family])
            self._bound_with_tries(family, HALVINGS)
            if self.bounds_s[family] < self.to_beat_s:
                able.append(family)
        return able

    def _narrowed(self, families: Sequence[LayerFamily]) -> list[LayerFamily]:
        """Those that may still be faster by a search over the kinds of GPU of their rows, the least bounds first."""
        if len(self._hosts_of_kind()) > 1:
            for family in families:
                if self.is_over:
                    break
                if self.bounds_s[family] < self.to_beat_s:
                    self._bound_with_tries(family, FEW_HALVINGS, MAX_NODES)
        return self._able(families)

    def _bound_with_tries(self, family: LayerFamily, halvings: int, nodes: int = 0) -> None:
        """Bound a family with the critical paths of splits near to its bounds, until these are known."""
        for _ in range(MAX_TRIES):
            found = self._bound(family, halvings, nodes)
            self.bounds_s[family] = max(found.seconds, self.bounds_s[family])
            self.least_s[family] = max(found.seconds, self.least_s[family])
            if found.split is None or not self._try(family, found.split):
                return

    def _able(self, families: Iterable[LayerFamily]) -> list[LayerFamily]:
        """Those that may be faster than the time to beat, the most promising first."""
        able = [family for family in families if self.bounds_s[family] < self.to_beat_s]
        return sorted(able, key=lambda family: self.bounds_s[family])

    def _hosts_of_kind(self) -> IntArray:
        cluster = self.instance.cluster
        return np.bincount(cluster.kind_of_node, minlength=len(cluster.gpu_kinds)).astype(np.int64)

    def _learn_likely(self, families: Sequence[LayerFamily]) -> None:
        """Paths that are critical somewhere, of schedules that are new."""
        for family in families:
            if family.schedule not in self.learned:
                with self._loaded("paths", family):
                    self.learned[family.schedule] = [likely_paths(family, self._hosts_of_kind(), self.instance.p2p)]

    @contextmanager
    def _loaded(self, what: str, family: LayerFamily) -> Iterator[None]:
        """Where a sort of schedule may be simulated for the first time: compiling is no part of the limit."""
        sort = what, family.config.num_chunks > 1
        if sort in self.loaded:
            yield
            return
        begun = time.perf_counter()
        with self.loading():
            yield
        self.loaded.add(sort)
        self.ends += time.perf_counter() - begun

    def _try(self, family: LayerFamily, split: LayerSplit) -> bool:
        """
        Simulate a split that comes near to the bound of a family, unless it was before: one is often a good plan.

        Returns
        -------
        bool
            Whether its critical path was not known.
        """
        key = family, split.units, split.kinds.tobytes()
        if key in self.tried:
            return False
        self.tried.add(key)
        seconds, counts = self._simulated(family, split)
        if counts is None or split.bound_s >= (1 - NEARLY_SETTLED) * seconds:
            return False
        # Over the best links, as the bound is.
        kinds = np.where(split.kinds > 0, family.layer_s.sum(axis=0), 0.0).argmax(axis=1)
        units = np.array(split.units, dtype=np.float64)
        counts = critical_counts(family.times(units, kinds), family.num_microbatches, self.instance.p2p)
        path = longest_path(family, counts, units, kinds)
        if (row := (family.schedule, path.table()[0].tobytes())) in self.seen:
            return False
        self.seen.add(row)
        self.learned[family.schedule].append(path)
        return True

    def _simulated(self, family: LayerFamily, split: LayerSplit) -> tuple[float, PathCounts | None]:
        """The time of a split on hosts as they are listed, seconds, and its critical paths; the fastest is kept."""
        nodes = listed_hosts_of_kinds(self.instance, family, split.kinds)
        config = family.with_units(split.units, split.recomputed)
        placement = block_placement(config, family.block, nodes)
        try:
            with self._loaded("simulate", family):
                times = placed_times(self.instance, config, placement)
                seconds = simulate_times(times, family.num_microbatches, self.instance.p2p).iteration_time_s
                counts = critical_counts(times, family.num_microbatches, self.instance.p2p)
        except MissingLinkError:
            return float("inf"), None
        if seconds < self.to_beat_s and self._is_searched(config):
            self.first = FirstPlan(config=config, block=family.block, nodes=nodes, seconds=seconds)
        return seconds, counts

    def _is_searched(self, config: ParallelConfig) -> bool:
        """
        Whether a configuration fits, and is searched beside what recomputes or gives up less for memory.

        Where the layers of the model's pattern are alike, families hold no split that does not fit.
        """
        is_block, words, overlaps = config.recomputation == "block", self._no_more_than(config), self._overlaps(config)
        is_alone = not is_block and len(words) == len(overlaps) == 1
        if is_alone and config.offload is None and pattern_of(self.instance.model.layers).period == 1:
            return True
        others = [one for one in pure_configs(config) if one.recomputation in self.space.recompute] if is_block else []
        those = [
            with_tensor_overlap(with_offload(one, word), overlap)
            for overlap in overlaps
            for word in words
            for one in (*others, config)
        ]
        memory = check_memory(self.instance, those, self.predictor, self.max_oom_risk)
        return any(one.config == config for one in memory.fitting)

    def _no_more_than(self, config: ParallelConfig) -> list[str | None]:
        """Choices of the space with no more in the host's memory than a configuration has there."""
        most = offload_of(config.offload)
        return [word for word in self.space.offload or (None,) if most.has_all_of(offload_of(word))]

    def _overlaps(self, config: ParallelConfig) -> list[bool]:
        """Choices of the space with no less tensor overlap than a configuration has."""
        tp, sequence_parallel = config.tensor_model_parallel_size, config.sequence_parallel
        choices = tensor_overlaps(self.instance, self.space, tp, sequence_parallel)
        return [overlap for overlap in choices if overlap or not config.tp_comm_overlap]

    def _split_bounds(self) -> Callable[[ParallelConfig], float]:
        """The bound of single splits: that of their families, or where that is below the time to beat, their own."""
        of_key: dict[ParallelConfig | None, list[LayerFamily]] = {}
        for family in self.least_s:
            of_key.setdefault(family_key(family.config), []).append(family)
        for slower, faster in self.slower.items():
            of_key[family_key(slower)] = of_key.get(family_key(faster), [])
        to_beat_s = self.to_beat_s

        @cache
        def bound_s(config: ParallelConfig) -> float:
            key = family_key(config)
            families = [] if key is None else of_key.get(key, [])
            bounds = [self._bound_of_split(one, config, to_beat_s) for one in families]
            return min((bound for bound in bounds if bound is not None), default=0.0)

        return bound_s

    def _bound_of_split(self, family: LayerFamily, config: ParallelConfig, to_beat_s: float) -> float | None:
        """No plan of a family with the layers of a configuration is faster; ``None`` if it has no such split."""
        least_s, units = self.least_s[family], family.units_of(config.layers_per_stage)
        if units is None or least_s >= to_beat_s:
            return None if units is None else least_s
        only = replace(family, most_units=np.minimum(family.most_units, units))
        paths = self._known_paths(family.schedule)
        found = family_bound(only, self._hosts_of_kind(), to_beat_s, paths, FEW_HALVINGS, MAX_NODES, least_s)
        return max(found.seconds, least_s)
