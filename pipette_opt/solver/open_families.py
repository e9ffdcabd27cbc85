"""
Partition families that may contain the fastest plan, with their lower bounds and simulated plans.

A family is bounded, and the layer partition nearest to its bound is simulated. The critical path of that partition
gives a further bound on all families with an equal schedule. A few rounds take hundredths of a second. They raise a
bound to about the simulated time over the best links and yield plans to beat.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.offload import offload_of
from pipette_opt.base.types import IntArray
from pipette_opt.candidates import SearchSpace, overlap_choices, tensor_overlaps
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.costs.placed import placed_times
from pipette_opt.layers.kinds import pattern_of
from pipette_opt.memory.fewest import check_memory
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    tile_placement,
    with_offload,
    with_tensor_overlap,
    without_overlap,
    without_recomputation,
)
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_times import Rings, layer_families, with_rings
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.solver.family_bounds import HALVINGS, FamilyBound, family_bound
from pipette_opt.solver.layer_model import LayerSplit
from pipette_opt.solver.likely_paths import likely_path, listed_hosts_of_kinds, longest_path
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

MAX_TRIES = 6
"""
Number of times that a family is bounded before a model is made. Chosen.

Each time adds the critical path of the last partition near the bound. It takes a hundredth of a second, whereas a
CP-SAT call takes a tenth.
"""

MAX_NODES = 400
"""Node limit of the search over GPU types of rows, for one bound of a partition family. Chosen."""

FEW_HALVINGS = 6
"""
Number of bisection steps of a bound by the search over GPU types. They leave a sixtieth of a partition family's
possible gain. Chosen.
"""

NEARLY_SETTLED = 1e-2
"""Relative difference of model and simulator below which the search for a first plan needs no further paths. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointLimits:
    """
    Time limit, threads and seed of the joint model.

    Parameters
    ----------
    to_beat_s
        Ignore partitions that are not faster than this, seconds, even before a plan is known.
    """

    time_limit_s: float
    workers: int = 2
    seed: int = 0
    to_beat_s: float = float("inf")


def family_key(config: ParallelConfig) -> ParallelConfig | None:
    """
    Return the configuration that represents a family; ``None`` if the configuration belongs to no family.

    It is equal for all partitions, overlaps and numbers of recomputed layers of a family.
    """
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    if pp == 1 or not config.has_equal_chunks:
        return None
    number = 1 if config.recomputation == "block" else config.recompute_num_layers
    base = without_overlap(config)
    layers = (chunks,) * pp
    return replace(base, layers_per_stage=layers, pipeline_model_parallel_layout=None, recompute_num_layers=number)


def _num_savers(config: ParallelConfig) -> int:
    """Return the number of memory-saving options that cost time: recomputation, offload, no tensor overlap."""
    return (config.recomputation is not None) + (config.offload is not None) + (not config.tp_comm_overlap)


def _faster(config: ParallelConfig) -> Iterator[ParallelConfig]:
    """Yield the configuration without recomputation, without offload, and with tensor overlap, in all combinations."""
    for recomputed in (config, without_recomputation(config)):
        for moved in (recomputed, with_offload(recomputed, None)):
            yield from (moved, with_tensor_overlap(moved, True))


@dataclass(slots=True, kw_only=True, eq=False)
class OpenFamilies:
    """Partition families with their bounds, the fastest simulated plan, and the known critical paths."""

    instance: Instance
    space: SearchSpace
    predictor: MemoryPredictor
    max_oom_risk: float
    limits: JointLimits
    clock: Clock
    first: FirstPlan | None = None
    learned: dict[tuple[int, int, int], list[PathCounts]] = field(default_factory=dict)
    """Critical paths found by the simulator, by schedule; constraints of every later model."""
    known: dict[tuple[int, int, int], tuple[int, PathCounts]] = field(default_factory=dict)
    """All paths of each schedule, and the number of path sets from which they were merged."""
    rings: dict[tuple[ParallelConfig, HostTile, bool], Rings] = field(default_factory=dict)
    """Cached gradient reductions and parameter gathers, by configuration, host tile and crossing of host groups."""
    loaded: set[tuple[str, bool]] = field(default_factory=set)
    """Operations already run, each with whether the schedule was interleaved; their kernels are compiled."""
    seen: set[tuple[tuple[int, int, int], bytes]] = field(default_factory=set)
    """Schedules and paths learned from partitions near a bound."""
    tried: set[tuple[LayerFamily, tuple[int, ...], bytes]] = field(default_factory=set)
    """Partitions near a bound that were simulated."""
    bounds_s: dict[LayerFamily, float] = field(default_factory=dict)
    """
    Lower bound on the partitions of each family that the search does not cover otherwise, seconds.

    It comes from the family alone, and later from the models that contain the family.
    """
    roomy: set[ParallelConfig] = field(default_factory=set)
    """Configurations for which every layer partition fits into memory on every GPU type."""
    slower: dict[ParallelConfig, ParallelConfig] = field(default_factory=dict)
    """Faster configuration, by that with memory-saving options; families of the faster one bound both."""
    least_s: dict[LayerFamily, float] = field(default_factory=dict)
    """Lower bound on all partitions of each family, including the usual ones, seconds."""

    @property
    def to_beat_s(self) -> float:
        """Time that a partition has to beat, seconds: the limit given, or the fastest simulated plan."""
        return min(self.limits.to_beat_s, float("inf") if self.first is None else self.first.seconds)

    def _families(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        """
        Bound the families of ``bases``, and return the families that may beat the fastest plan.

        Recomputation, offload and missing tensor overlap never make a plan faster. If all partitions fit without such
        options, the families of the configuration without them suffice.
        """
        families: list[LayerFamily] = []
        for number in range(4):  # of these three memory savers
            same_savers = [base for base in bases if _num_savers(base) == number]
            for base in same_savers:
                faster = (config for config in _faster(base) if config != base and config in self.roomy)
                self.slower.update((base, config) for config in faster)
            families += self._families_of([base for base in same_savers if base not in self.slower])
        return families

    def _families_of(self, bases: Sequence[ParallelConfig]) -> list[LayerFamily]:
        plain = layer_families(self.instance, bases, self.predictor, self.max_oom_risk)
        roomy: dict[ParallelConfig | None, bool] = {}
        for family in plain:
            key, has_all = family_key(family.config), family.most_units.min() > family.num_units - family.schedule[0]
            roomy[key] = bool(has_all) and roomy.get(key, True)
        self.roomy.update(base for base in bases if roomy.get(family_key(base), False))
        able = []
        for family in plain:
            # The number of recomputed layers takes memory predictions: bound the family without recomputation first.
            bound_s = self._bound(replace(family, recomputed=None), halvings=0).seconds
            if bound_s < self.to_beat_s < float("inf") and family.recomputed is not None:
                bound_s = self._bound(family, halvings=0).seconds
            if bound_s < self.to_beat_s:
                able.append(family)
            else:
                self.least_s[family] = bound_s
        more = [
            with_rings(self.instance, family, config, self.rings)
            for family in able
            for config in overlap_choices(self.space, family.config)
        ]
        for family in more:
            self.bounds_s[family] = self.least_s[family] = self._bound(family).seconds
        return more

    def _bound(self, family: LayerFamily, halvings: int = HALVINGS, nodes: int = 0) -> FamilyBound:
        """Return a bound of a partition family by all known paths of its schedule."""
        paths, least_s = self._known_paths(family.schedule), self.least_s.get(family, 0.0)
        return family_bound(family, self._hosts_of_kind(), self.to_beat_s, paths, halvings, nodes, least_s)

    def _known_paths(self, schedule: tuple[int, int, int]) -> PathCounts:
        path_sets = [plain_counts(*schedule), *self.learned.get(schedule, [])]
        number, paths = self.known.get(schedule, (0, path_sets[0]))
        if number != len(path_sets):
            paths = PathCounts.joined(path_sets)
            self.known[schedule] = len(path_sets), paths
        return paths

    def _bound_again(self, families: Sequence[LayerFamily]) -> list[LayerFamily]:
        """Bound families again by all paths known now. Return those that may still beat the fastest plan."""
        able = []
        for family in families:
            if self.clock.is_over:
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
        """
        Bound partition families by a search over the GPU types of their rows.

        Return the families that may still beat the fastest plan, smallest bounds first.
        """
        if len(self._hosts_of_kind()) > 1:
            for family in families:
                if self.clock.is_over:
                    break
                if self.bounds_s[family] < self.to_beat_s:
                    self._bound_with_tries(family, FEW_HALVINGS, MAX_NODES)
        return self._able(families)

    def _bound_with_tries(self, family: LayerFamily, halvings: int, nodes: int = 0) -> None:
        """Bound a family repeatedly, adding the critical path of its partition near the bound, until no path is new."""
        for _ in range(MAX_TRIES):
            found = self._bound(family, halvings, nodes)
            self.bounds_s[family] = max(found.seconds, self.bounds_s[family])
            self.least_s[family] = max(found.seconds, self.least_s[family])
            if found.split is None or not self._try(family, found.split):
                return

    def _able(self, families: Iterable[LayerFamily]) -> list[LayerFamily]:
        """Return the partition families that may beat the fastest plan, smallest bounds first."""
        able = [family for family in families if self.bounds_s[family] < self.to_beat_s]
        return sorted(able, key=lambda family: self.bounds_s[family])

    def _hosts_of_kind(self) -> IntArray:
        cluster = self.instance.cluster
        return np.bincount(cluster.kind_of_node, minlength=len(cluster.gpu_kinds)).astype(np.int64)

    def _learn_likely(self, families: Sequence[LayerFamily]) -> None:
        """Add the critical path of a likely partition to schedules that have no learned paths."""
        for family in families:
            if family.schedule not in self.learned:
                with self._loaded("paths", family):
                    self.learned[family.schedule] = [likely_path(family, self._hosts_of_kind(), self.instance.p2p)]

    @contextmanager
    def _loaded(self, operation: str, family: LayerFamily) -> Iterator[None]:
        """Exclude from the time limit an operation that may compile kernels for a new type of schedule."""
        sort = operation, family.config.num_chunks > 1
        if sort in self.loaded:
            yield
            return
        with self.clock.loading():
            yield
        self.loaded.add(sort)

    def _try(self, family: LayerFamily, split: LayerSplit) -> bool:
        """
        Simulate a partition near a family's bound, unless done before; it is often a good plan.

        Returns
        -------
        bool
            Whether its critical path is new.
        """
        key = family, split.units, split.kinds.tobytes()
        if key in self.tried:
            return False
        self.tried.add(key)
        seconds, counts = self._simulated(family, split)
        if counts is None or split.bound_s >= (1 - NEARLY_SETTLED) * seconds:
            return False
        # Take the path over the best links, as the bound does.
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
        """
        Return the simulated seconds of a partition on hosts in listed order, and its critical paths; keep the fastest
        plan.

        Infinity and ``None`` if a link was not measured.
        """
        nodes = listed_hosts_of_kinds(self.instance, family, split.kinds)
        config = family.with_units(split.units, split.recomputed)
        placement = tile_placement(config, family.tile, nodes)
        try:
            with self._loaded("simulate", family):
                times = placed_times(self.instance, config, placement)
                seconds = simulate_times(times, family.num_microbatches, self.instance.p2p).iteration_time_s
                counts = critical_counts(times, family.num_microbatches, self.instance.p2p)
        except MissingLinkError:
            return float("inf"), None
        if seconds < self.to_beat_s and self._is_searched(config):
            self.first = FirstPlan(config=config, tile=family.tile, nodes=nodes, seconds=seconds)
        return seconds, counts

    def _is_searched(self, config: ParallelConfig) -> bool:
        """
        Return whether a configuration fits, and the search keeps it beside faster configurations that save less memory.

        If all layers of the model are alike, families contain only partitions that fit.
        """
        is_block, words, overlaps = config.recomputation == "block", self._no_more_than(config), self._overlaps(config)
        is_alone = not is_block and len(words) == len(overlaps) == 1
        if is_alone and config.offload is None and pattern_of(self.instance.model.layers).period == 1:
            return True
        pure = (
            [other for other in pure_configs(config) if other.recomputation in self.space.recompute] if is_block else []
        )
        variants = [
            with_tensor_overlap(with_offload(variant, word), overlap)
            for overlap in overlaps
            for word in words
            for variant in (*pure, config)
        ]
        memory = check_memory(self.instance, variants, self.predictor, self.max_oom_risk)
        return any(fitting.config == config for fitting in memory.fitting)

    def _no_more_than(self, config: ParallelConfig) -> list[str | None]:
        """Return the space's offload choices that move a subset of what the configuration offloads."""
        most = offload_of(config.offload)
        return [word for word in self.space.offload or (None,) if most.has_all_of(offload_of(word))]

    def _overlaps(self, config: ParallelConfig) -> list[bool]:
        """Return the space's choices of tensor overlap that include at least the configuration's overlap."""
        tp, sequence_parallel = config.tensor_model_parallel_size, config.sequence_parallel
        choices = tensor_overlaps(self.instance, self.space, tp, sequence_parallel)
        return [overlap for overlap in choices if overlap or not config.tp_comm_overlap]

    def _split_bounds(self) -> Callable[[ParallelConfig], float]:
        """
        Return a function from a configuration to a lower bound on its time under every choice of overlap, seconds.

        It takes the bound of the configuration's partition families, or bounds its own layers if that is below the time
        to beat.
        """
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
            bounds = [self._bound_of_split(family, config, to_beat_s) for family in families]
            return min((bound for bound in bounds if bound is not None), default=0.0)

        return bound_s

    def _bound_of_split(self, family: LayerFamily, config: ParallelConfig, to_beat_s: float) -> float | None:
        """
        Return a lower bound on plans of a partition family with the configuration's layers, seconds.

        ``None`` if the family does not contain these layers.
        """
        least_s, units = self.least_s[family], family.units_of(config.layers_per_stage)
        if units is None or least_s >= to_beat_s:
            return None if units is None else least_s
        only = replace(family, most_units=np.minimum(family.most_units, units))
        paths = self._known_paths(family.schedule)
        found = family_bound(only, self._hosts_of_kind(), to_beat_s, paths, FEW_HALVINGS, MAX_NODES, least_s)
        return max(found.seconds, least_s)
