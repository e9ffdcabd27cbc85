"""
Configurations that differ only in how many layers each pipeline stage holds, as one family with linear times.

A stage of ``n`` layers takes ``fixed + n * layer`` on each kind of GPU, and so every path through the schedule is
linear in the layers of the stages; which is what lets a model choose them. Memory of a stage grows with its layers, so
what a kind of GPU has room for is a largest number of layers.

With block recomputation the number of recomputed layers is open, too: a stage of ``n`` layers of which ``r`` are
recomputed takes ``fixed + n * layer + r * recompute``, and has room for ``n`` if ``r`` is as large as its memory asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.compute import StageCompute, stage_compute, stage_parameters
from pipette_opt.costs.experts import stage_expert_parameters
from pipette_opt.costs.layer_kinds import pure_configs
from pipette_opt.costs.messages import intra_node_message_s, p2p_bytes
from pipette_opt.costs.overlap import exposed
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.memory.filter import usable_bytes
from pipette_opt.memory.predictor import IGNORED_RISK, MemoryPredictor
from pipette_opt.parallel import NodeBlock, ParallelConfig, gpus_of_a_host, microbatches_of, node_blocks
from pipette_opt.problem.beside import chunk_seconds, least_rings_s
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.problem.ticks import embedding_floor, embedding_ticks, tensor_ticks
from pipette_opt.specs import Instance

FINE_TICK_S = 1e-9
"""Seconds in a tick of the matrices that tensor communication over hosts is read from."""

Computed = Sequence[tuple[ParallelConfig, StageCompute]]
"""Configurations of one unit and of two in each stage, with their times."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerFamily:
    """
    Configurations with one packing of the hosts that differ in the layers of their stages only.

    Parameters
    ----------
    config
        One of them, with what is sent beside compute.
    block
        What one host holds.
    num_microbatches
        ``m``, per replica.
    num_units
        Units to deal to the stages. A unit is one layer in each chunk of a stage.
    layer_s
        Forward and backward of one layer on each kind of GPU, communication inside the layer over the best links, shape
        ``(2, num_kinds)``.
    fixed_s
        Forward and backward of each chunk without its layers, shape ``(2, num_kinds, num_chunks, pp)``.
    link_s
        One transfer between stages on different hosts over the best link of each pair of kinds, shape ``(num_kinds,
        num_kinds)``; infinite where there is none.
    inside_s
        One transfer between stages of one host.
    reduction_s
        What a unit adds to the reduction of its stage, over the best ring.
    fixed_reduction_s
        The reduction of what a stage has beside its layers, shape ``(pp,)``.
    gather_s, fixed_gather_s
        The same of the parameter gather, if it runs beside the forwards; else zero.
    embedding_s
        What the first and the last stage take after their reductions for tied word embeddings, over the best link.
    slowdown
        Share by which collectives slow down the compute beside them.
    step_s
        What a unit adds to the optimizer's step of its stage; the largest stage decides.
    fixed_step_s
        The step of what a stage has beside its layers, at least, shape ``(pp,)``.
    optimizer_s
        What the optimizer takes beside its step.
    most_units
        Units that a stage has room for on each kind of GPU, shape ``(num_kinds, pp)``.
    recompute_s
        What a recomputed unit adds to the backward of each chunk on each kind of GPU, shape ``(num_kinds,)``; the first
        one of each stage is in ``fixed_s``. Zero without block recomputation.
    recomputed
        How many units have to be recomputed; ``None`` without block recomputation.
    """

    config: ParallelConfig
    block: NodeBlock
    num_microbatches: int
    num_units: int
    layer_s: FloatArray
    fixed_s: FloatArray
    link_s: FloatArray
    inside_s: float
    reduction_s: float
    fixed_reduction_s: FloatArray
    gather_s: float
    fixed_gather_s: FloatArray
    embedding_s: float
    slowdown: float
    step_s: float
    fixed_step_s: FloatArray
    optimizer_s: float
    most_units: IntArray
    recompute_s: FloatArray
    recomputed: "RecomputedUnits | None" = None

    def __post_init__(self) -> None:
        for name in (
            "layer_s",
            "fixed_s",
            "link_s",
            "fixed_reduction_s",
            "fixed_gather_s",
            "fixed_step_s",
            "recompute_s",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))
        object.__setattr__(self, "most_units", read_only(self.most_units, np.int64))

    @property
    def grid(self) -> tuple[int, int, int]:
        """Hosts of the pipeline, data and tensor dimension."""
        return self.block.node_grid(self.config)

    @property
    def hosts_per_row(self) -> int:
        """Hosts that hold the same stages."""
        _, data, tensor = self.grid
        return data * tensor

    @property
    def schedule(self) -> tuple[int, int, int]:
        """Stages, micro-batches and chunks: families that agree in these have the same paths."""
        return self.config.pipeline_model_parallel_size, self.num_microbatches, self.config.num_chunks

    @property
    def least_optimizer_s(self) -> float:
        """The optimizer of any split, at least: some stage has as many units as the mean."""
        return self.optimizer_s + self.step_s * ceil_div(self.num_units, self.config.pipeline_model_parallel_size)

    def with_units(self, units: Sequence[int], recomputed: int = 1) -> ParallelConfig:
        """The configuration whose stages hold so many units, each with so many recomputed in a family where that is."""
        chunks = self.config.num_chunks
        sized = replace(self.config, layers_per_stage=tuple(chunks * int(one) for one in units))
        return sized if self.recomputed is None else replace(sized, recompute_num_layers=recomputed)

    def times(self, units: FloatArray, kind_of_row: IntArray) -> PlacedTimes:
        """
        What the judge would be given if all links were the best between their kinds, in a single replica.

        Parameters
        ----------
        units
            Of each stage, whole or not, shape ``(pp,)``.
        kind_of_row
            Kind of GPU of each grid row, shape ``(rows,)``.
        """
        pp, stages = self.config.pipeline_model_parallel_size, np.arange(self.config.pipeline_model_parallel_size)
        rows = stages // self.block.stages
        kinds, after = kind_of_row[rows], np.roll(rows, -1)
        forward, backward = (
            (self.fixed_s[way][kinds, :, stages].T + units * self.layer_s[way][kinds])[..., None] for way in range(2)
        )
        links = self.link_s[kind_of_row[rows], kind_of_row[after]]
        sends = np.where(rows == after, self.inside_s, np.where(np.isfinite(links), links, 0.0))[:, None] * (pp > 1)
        reduction = self.fixed_reduction_s + units * self.reduction_s
        gather = self.fixed_gather_s + units * self.gather_s if self.config.overlap_param_gather else None
        beside: dict[str, Any] = {}
        if self.config.overlap_grad_reduce:
            none, one = np.zeros((1, 2, pp)), np.ones((1, pp), dtype=np.int64)
            shown = exposed(
                one, forward[None], backward[None], reduction[None], None if gather is None else gather[None], none,
                self.slowdown,
            )  # fmt: skip
            beside = {name: None if value is None else value[0] for name, value in shown._asdict().items()}
        return PlacedTimes(
            forward_s=forward,
            backward_s=backward,
            tensor_forward_s=np.zeros_like(forward),
            tensor_backward_s=np.zeros_like(backward),
            send_forward_s=sends,
            send_backward_s=sends,
            reduction_s=reduction,
            optimizer_s=self.least_optimizer_s,
            gather_s=gather,
            **beside,
        )

    def path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        Seconds of each path on each kind of GPU and stage: without layers, and for each unit of the stage.

        Both of shape ``(num_paths, num_kinds, pp)``. What runs beside compute counts as ``costs/overlap.py`` says, at
        least, and linear in the layers: of two times of which the smaller counts, the smaller of their parts.
        """
        gathers, chunks = self.config.overlap_param_gather, self.config.num_chunks
        forward = counts.without_begun(counts.forward) if gathers else counts.forward
        passes = (forward, counts.backward)
        fixed = np.asarray(sum(np.einsum("rcs,kcs->rks", one, self.fixed_s[way]) for way, one in enumerate(passes)))
        unit = np.asarray(sum(np.einsum("rcs,k->rks", one, self.layer_s[way]) for way, one in enumerate(passes)))
        if gathers:
            first = counts.without_begun(counts.first)
            if chunks == 1:  # all but the first stage wait for all of their parameters
                waiting = first[:, 0] * (np.arange(first.shape[2]) > 0)
                fixed += (waiting * self.fixed_gather_s)[:, None]
                unit += (waiting * self.gather_s)[:, None]
            else:
                slow_fixed, slow_unit = self._slowed_s(0, self.fixed_gather_s, self.gather_s)
                fixed += (first[:, 1:] * slow_fixed[1:]).sum(axis=1)[:, None]
                unit += (first[:, 1:] * slow_unit).sum(axis=1)[:, None]
                self._add_gathers(counts, fixed, unit)
        if self.config.overlap_grad_reduce and chunks > 1:
            slow_fixed, slow_unit = self._slowed_s(1, self.fixed_reduction_s, self.reduction_s)
            fixed += (counts.last[:, :-1] * slow_fixed[:-1]).sum(axis=1)[:, None]
            unit += (counts.last[:, :-1] * slow_unit).sum(axis=1)[:, None]
        return fixed, unit

    def _slowed_s(self, way: int, fixed_ring_s: FloatArray, ring_s: float) -> tuple[FloatArray, float]:
        """How much longer ``pp`` passes of a chunk take beside a part of a ring: shape ``(chunks, pp)``, and a unit."""
        pp, chunks = self.config.pipeline_model_parallel_size, self.config.num_chunks
        fixed = np.minimum(fixed_ring_s / chunks, pp * self.fixed_s[way].min(axis=0))
        return self.slowdown * fixed, self.slowdown * min(ring_s / chunks, pp * float(self.layer_s[way].min()))

    def _add_gathers(self, counts: PathCounts, fixed: FloatArray, unit: FloatArray) -> None:
        """What paths begin with that wait for parameters: the gathers of all chunks so far, and then the forward."""
        which = np.flatnonzero(counts.begun >= 0)
        chunk, stage = np.divmod(counts.begun[which], fixed.shape[2])
        gathered = (chunk + 1) / self.config.num_chunks
        whole = counts.begun[which] > 0  # the first stage's first chunk comes in buckets
        forward = self.fixed_s[0].min(axis=0)[chunk, stage]
        fixed[which, :, stage] += (gathered * self.fixed_gather_s[stage] + whole * forward)[:, None]
        unit[which, :, stage] += (gathered * self.gather_s + whole * self.layer_s[0].min())[:, None]

    def after_s(self, counts: PathCounts) -> FloatArray:
        """What tied embeddings take after each path's reduction, shape ``(num_paths,)``."""
        tied = (counts.stage == 0) | (counts.stage == self.config.pipeline_model_parallel_size - 1)
        after: FloatArray = self.embedding_s * tied.astype(np.float64)
        return after

    def reduced_path_s(self, counts: PathCounts) -> tuple[FloatArray, FloatArray]:
        """
        The same of each path and then the reduction that it waits for.

        Beside compute and interleaved so many parts of it as the path says; otherwise all of it. Without interleaving
        that of the first stage does not begin before the last backward does.
        """
        overlaps, chunks, paths = self.config.overlap_grad_reduce, self.config.num_chunks, np.arange(len(counts.stage))
        parts = counts.parts / chunks if overlaps and chunks > 1 else np.ones(len(paths))
        fixed, unit = self.path_s(self.before_reduction(counts))
        fixed[paths, :, counts.stage] += (parts * self.fixed_reduction_s[counts.stage] + self.after_s(counts))[:, None]
        unit[paths, :, counts.stage] += (parts * self.reduction_s)[:, None]
        return fixed, unit

    def before_reduction(self, counts: PathCounts) -> PathCounts:
        """The paths up to where the reduction may begin; without interleaving that is beside the last backward."""
        if not self.config.overlap_grad_reduce or self.config.num_chunks > 1:
            return counts
        backward = counts.backward.copy()
        backward[counts.stage == 0, 0, 0] -= 1
        return replace(counts, backward=backward)

    def recompute_path_s(self, counts: PathCounts) -> FloatArray:
        """What each recomputed unit of a stage but its first adds to paths, shape ``(num_paths, num_kinds, pp)``."""
        added: FloatArray = np.einsum("rcs,k->rks", counts.backward, self.recompute_s)
        return added


def layer_families(
    instance: Instance,
    configs: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
) -> list[LayerFamily]:
    """
    The families of some configurations, one for each packing, without their reductions: see :func:`with_rings`.

    Parameters
    ----------
    configs
        One of each family, without anything that is sent beside compute.
    """
    free = replace(instance, edge_loss_s=None)
    kinds, kind_of_node = len(instance.cluster.gpu_kinds), instance.cluster.kind_of_node
    capacity = usable_bytes(instance.cluster, predictor)
    room = np.array([capacity[kind_of_node == kind].max() for kind in range(kinds)], dtype=np.int64)
    most = _most_units(instance, configs, predictor, max_oom_risk, room)
    families = []
    for config, limit in zip(configs, most, strict=True):
        computed = [[(one, stage_compute(free, one)) for one in _sized(alike)] for alike in pure_configs(config)]
        recomputed = None
        if config.recomputation == "block":
            recomputed = RecomputedUnits(instance, config, predictor, max_oom_risk, room, limit)
        for block in node_blocks(config, instance.cluster.gpus_per_node, instance.launcher):
            family = _family(free, config, block, computed[0], limit)
            if recomputed is not None:
                family = _with_recomputation(free, family, computed[1], recomputed)
            families.append(family)
    return families


def _sized(config: ParallelConfig) -> list[ParallelConfig]:
    """With one unit in each stage, and with two."""
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    return [replace(config, layers_per_stage=(chunks * units,) * pp) for units in (1, 2)]


def _with_recomputation(
    instance: Instance, family: LayerFamily, computed: Computed, recomputed: "RecomputedUnits"
) -> LayerFamily:
    """A family whose layers all keep their activations, as one in which the first of each stage are recomputed."""
    layer_s, _ = _layer_and_fixed_s(instance, computed, family.block)
    recompute_s = np.maximum(layer_s - family.layer_s, 0.0)[1]
    fixed_s = family.fixed_s.copy()
    fixed_s[1] += recompute_s[:, None, None]
    return replace(family, fixed_s=fixed_s, recompute_s=recompute_s, recomputed=recomputed)


def _layer_and_fixed_s(instance: Instance, computed: Computed, block: NodeBlock) -> tuple[FloatArray, FloatArray]:
    """``layer_s`` and ``fixed_s`` of a family, from the times of a unit and of two in each stage."""
    held = [np.stack(chunk_seconds(instance, sized, compute, block)) for sized, compute in computed]
    layer_s = (held[1] - held[0]).min(axis=(2, 3))
    fixed_s = np.maximum(held[0] - layer_s[:, :, None, None], 0.0)
    if block.nodes_per_slot > 1:
        fastest = replace(instance, cluster=instance.cluster.fastest_pair())
        for way, ticks in enumerate(tensor_ticks(fastest, *computed[0], block, FINE_TICK_S, np.floor)):
            layer_s[way] += ticks.min() * FINE_TICK_S
    return layer_s, fixed_s


def _family(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    computed: Computed,
    most_units: IntArray,
) -> LayerFamily:
    """One family without its rings, from the times of a unit and of two in each stage."""
    cluster, chunks = instance.cluster, config.num_chunks
    layer_s, fixed_s = _layer_and_fixed_s(instance, computed, block)
    message = p2p_bytes(instance.model, instance.training, config)
    (sized, one), (_, two) = computed
    step_s = two.optimizer_s - one.optimizer_s
    largest = int((stage_parameters(instance.model, sized) + stage_expert_parameters(instance.model, sized)).argmax())
    fixed_step_s = np.zeros(config.pipeline_model_parallel_size)
    fixed_step_s[largest] = max(one.optimizer_s - instance.stack.iteration_s - step_s, 0.0)
    nothing = np.zeros(config.pipeline_model_parallel_size)
    return LayerFamily(
        config=config,
        block=block,
        num_microbatches=microbatches_of(instance.training, config),
        num_units=instance.model.num_layers // chunks,
        layer_s=layer_s,
        fixed_s=fixed_s,
        link_s=_best_links_s(instance, message, gpus_of_a_host(config, block) // block.stages),
        inside_s=intra_node_message_s(cluster, message),
        reduction_s=0.0,
        fixed_reduction_s=nothing,
        gather_s=0.0,
        fixed_gather_s=nothing,
        embedding_s=_embedding_s(instance, config, block),
        slowdown=instance.stack.overlap_slowdown,
        step_s=step_s,
        fixed_step_s=fixed_step_s,
        optimizer_s=instance.stack.iteration_s,
        most_units=most_units,
        recompute_s=np.zeros(len(cluster.gpu_kinds)),
    )


Rings = dict[str, Any]
"""Fields of a family that its reduction and gather decide."""


def with_rings(
    instance: Instance,
    family: LayerFamily,
    config: ParallelConfig,
    known: dict[tuple[ParallelConfig, NodeBlock], Rings] | None = None,
) -> LayerFamily:
    """
    A family with what it sends beside compute, and its reduction and gather.

    Parameters
    ----------
    known
        Rings of other families of the instance, to be looked up and added to: micro-batches and recomputation are no
        matter to them.
    """
    alike = replace(
        config, micro_batch_size=1, recompute_granularity=None, recompute_method="uniform", recompute_num_layers=1
    )
    known, key = {} if known is None else known, (alike, family.block)
    if key not in known:
        known[key] = _rings(instance, *key)
    return replace(family, config=config, **known[key])


def _rings(instance: Instance, config: ParallelConfig, block: NodeBlock) -> Rings:
    """From one unit and two: times of rings are convex in what they move, so no split has less than their line."""
    rings: Rings = {}
    both = [least_rings_s(instance, sized, block) for sized in _sized(config)]
    for way, name in enumerate(("reduction_s", "gather_s")):
        one, two = (None if found is None else found[way] for found in both)
        if one is not None and two is not None:
            fastest = one.sum(axis=1).argmin()
            unit = max(0.0, float((two[fastest] - one[fastest]).min()))
            rings |= {name: unit, f"fixed_{name}": np.maximum(one[fastest] - unit, 0.0)}
    return rings


def _embedding_s(instance: Instance, config: ParallelConfig, block: NodeBlock) -> float:
    """The all-reduce of tied word embeddings over the best link; 0 if none are tied."""
    between = embedding_ticks(instance, config, block, gpus_of_a_host(config, block), FINE_TICK_S, np.floor)
    if between.size:
        return float(between.min()) * FINE_TICK_S
    return embedding_floor(instance, config, block, FINE_TICK_S, np.floor) * FINE_TICK_S


def _best_links_s(instance: Instance, message_bytes: float, num_flows: int) -> FloatArray:
    """The fastest transfer between hosts of each pair of kinds, shape ``(num_kinds, num_kinds)``."""
    cluster = instance.cluster
    fastest = cluster.fastest_bytes_per_s_of_kinds(num_flows)
    with np.errstate(divide="ignore"):
        seconds: FloatArray = cluster.inter_node_latency_s + message_bytes * num_flows / fastest
    return seconds


def _most_units(
    instance: Instance,
    configs: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
    room_bytes: IntArray,
) -> list[IntArray]:
    """
    Units that each stage has room for, by bisection, as memory grows with the layers; ``(num_kinds, pp)`` for each.

    Parameters
    ----------
    room_bytes
        What a stage may take on each kind of GPU, shape ``(num_kinds,)``.
    """
    configs = [pure_configs(one)[-1] for one in configs]  # the one that recomputes most has room for most
    layers = instance.model.num_layers
    units = [layers // config.num_chunks for config in configs]
    shape = [(len(room_bytes), config.pipeline_model_parallel_size) for config in configs]
    low = [np.zeros(one, dtype=np.int64) for one in shape]
    high = [np.full(one, most, dtype=np.int64) for one, most in zip(shape, units, strict=True)]
    if max_oom_risk >= IGNORED_RISK:
        return high
    while True:
        tries = [(one + two + 1) // 2 for one, two in zip(low, high, strict=True)]
        open_ones = [index for index, (one, two) in enumerate(zip(low, high, strict=True)) if (one < two).any()]
        if not open_ones:
            return low
        for kind, room in enumerate(room_bytes.tolist()):
            sized = [
                replace(
                    configs[index],
                    layers_per_stage=tuple(
                        int(configs[index].num_chunks * max(one, 1)) for one in tries[index][kind].tolist()
                    ),
                )
                for index in open_ones
            ]
            found = predictor.predict(
                instance.model,
                instance.training,
                sized,
                gpus_per_node=instance.cluster.gpus_per_node,
                intra_node_bytes_per_s=instance.cluster.intra_node_bytes_per_s,
                max_oom_risk=max_oom_risk,
            )
            for index, prediction in zip(open_ones, found, strict=True):
                fits = prediction.upper_bytes <= room
                ahead = low[index][kind] < high[index][kind]
                low[index][kind] = np.where(fits & ahead, tries[index][kind], low[index][kind])
                high[index][kind] = np.where(~fits & ahead, tries[index][kind] - 1, high[index][kind])


@dataclass(slots=True, eq=False)
class RecomputedUnits:
    """
    How many units of a stage have to be recomputed, of one configuration with block recomputation.

    Parameters
    ----------
    room_bytes
        What a stage may take on each kind of GPU, shape ``(num_kinds,)``.
    most_units
        Units that a stage has room for if all are recomputed, shape ``(num_kinds, pp)``.
    """

    instance: Instance
    config: ParallelConfig
    predictor: MemoryPredictor
    max_oom_risk: float
    room_bytes: IntArray
    most_units: IntArray
    _fewest: IntArray | None = None

    def fewest(self) -> IntArray:
        """
        The fewest of each number of units a stage may hold, shape ``(num_kinds, pp, 1 + largest)``; computed once.

        By bisection, as memory falls with the number of recomputed units. All of them where the stage has no room.
        """
        if self._fewest is None:
            shape = (*self.most_units.shape, 1 + int(self.most_units.max(initial=0)))
            units = np.arange(shape[2])
            low, high = np.full(shape, -1, dtype=np.int64), np.broadcast_to(units, shape).copy()
            low[:, :, 0] = high[:, :, 0] = 0
            if self.max_oom_risk >= IGNORED_RISK:
                high[:] = 0
            while (unknown := (high - low > 1) & (units <= self.most_units[:, :, None])).any():
                middle = (low + high) // 2
                asked = sorted({(int(n), int(r)) for _, _, n, r in _where(unknown, middle)})
                need = dict(zip(asked, self._need_bytes(asked), strict=True))
                for kind, stage, n, r in _where(unknown, middle):
                    fits = need[n, r][stage] <= self.room_bytes[kind]
                    (high if fits else low)[kind, stage, n] = r
            self._fewest = high
        return self._fewest

    def _need_bytes(self, asked: Sequence[tuple[int, int]]) -> list[IntArray]:
        """What each stage needs with so many units, of which so many are recomputed; shape ``(pp,)`` each."""
        kept, _ = pure_configs(self.config)
        pp, chunks = self.config.pipeline_model_parallel_size, self.config.num_chunks
        sized = [
            replace(
                replace(self.config, recompute_num_layers=number) if number else kept,
                layers_per_stage=(chunks * units,) * pp,
            )
            for units, number in asked
        ]
        found = self.predictor.predict(
            self.instance.model,
            self.instance.training,
            sized,
            gpus_per_node=self.instance.cluster.gpus_per_node,
            intra_node_bytes_per_s=self.instance.cluster.intra_node_bytes_per_s,
            max_oom_risk=self.max_oom_risk,
        )
        return [one.upper_bytes for one in found]


def _where(mask: BoolArray, values: IntArray) -> list[tuple[int, int, int, int]]:
    """Kind, stage and units of the true entries, each with its value."""
    return [(kind, stage, n, int(values[kind, stage, n])) for kind, stage, n in np.argwhere(mask).tolist()]
