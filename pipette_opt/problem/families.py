"""
Configurations that differ only in how many layers each pipeline stage holds, as one family with linear times.

A stage of ``n`` layers takes ``fixed + n * layer`` on each kind of GPU, and so every path through the schedule is
linear in the layers of the stages; which is what lets a model choose them. Memory of a stage grows with its layers, so
what a kind of GPU has room for is a largest number of layers.

With block recomputation the number of recomputed layers is open, too: a stage of ``n`` layers of which ``r`` are
recomputed takes ``fixed + n * layer + r * recompute``, and has room for ``n`` if ``r`` is as large as its memory asks.

A model whose first layers are not of its pattern has a family for each way in which these fill the first stages
(:mod:`~pipette_opt.problem.layer_patterns`). The first unit of such a stage is all that it holds at least. Of a pattern
with several kinds of layers a unit is their mean, and the line is below every split, not on it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.base.units import ceil_div
from pipette_opt.costs.compute import StageCompute, optimizer_stages_s, stage_compute
from pipette_opt.costs.layer_kinds import layers_of_kinds, pure_configs
from pipette_opt.costs.messages import intra_node_message_s, p2p_bytes
from pipette_opt.costs.overlap import exposed
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.memory.filter import usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import NodeBlock, ParallelConfig, gpus_of_a_host, microbatches_of, node_blocks
from pipette_opt.problem.beside import chunk_seconds, layer_seconds, least_ring_parts_s
from pipette_opt.problem.family_room import RecomputedUnits, most_units
from pipette_opt.problem.layer_patterns import beyond, grown, least_splits, line, probes
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.problem.ticks import embedding_floor, embedding_ticks, tensor_ticks
from pipette_opt.specs import Instance, LayerKind, ModelSpec
from pipette_opt.specs.layer_kinds import pattern_of
from pipette_opt.specs.layer_parameters import expert_parameters, replicated_parameters, sharded_parameters

FINE_TICK_S = 1e-9
"""Seconds in a tick of the matrices that tensor communication over hosts is read from."""

Computed = Sequence[tuple[ParallelConfig, StageCompute]]
"""Configurations with their times."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerFamily:
    """
    Configurations with one packing of the hosts that differ in the layers of their stages only.

    Parameters
    ----------
    config
        The one with the fewest layers on each stage, with what is sent beside compute.
    block
        What one host holds.
    num_microbatches
        ``m``, per replica.
    num_units
        Units to deal to the stages, at least one to each. A unit is one layer in each chunk of a stage; the first one
        is all that ``config`` has there.
    layer_s
        Forward and backward of one layer on each kind of GPU, communication inside the layer over the best links, shape
        ``(2, num_kinds)``.
    fixed_s
        Forward and backward of each chunk beside its units, shape ``(2, num_kinds, num_chunks, pp)``; where the first
        unit is no layer like the others, it may be negative.
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
        The step of what a stage has beside its units, at least, shape ``(pp,)``; negative as ``fixed_s``.
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
    recomputed: RecomputedUnits | None = None

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
        units = ceil_div(self.num_units, self.config.pipeline_model_parallel_size)
        return self.optimizer_s + max(self.step_s * units + min(float(self.fixed_step_s.min()), 0.0), 0.0)

    def with_units(self, units: Sequence[int], recomputed: int = 1) -> ParallelConfig:
        """The configuration whose stages hold so many units, each with so many recomputed in a family where that is."""
        sized = beyond(self.config, units)
        return sized if self.recomputed is None else replace(sized, recompute_num_layers=recomputed)

    def units_of(self, layers: Sequence[int]) -> list[int] | None:
        """Units of each stage of a split of the layers; ``None`` if the family has no such split."""
        chunks, own = self.config.num_chunks, self.config.layers_per_stage
        if len(layers) != len(own) or any(one < least or one % chunks for one, least in zip(layers, own, strict=True)):
            return None
        return [1 + (one - least) // chunks for one, least in zip(layers, own, strict=True)]

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
            np.maximum(self.fixed_s[way][kinds, :, stages].T + units * self.layer_s[way][kinds], 0.0)[..., None]
            for way in range(2)
        )
        links = self.link_s[kind_of_row[rows], kind_of_row[after]]
        sends = np.where(rows == after, self.inside_s, np.where(np.isfinite(links), links, 0.0))[:, None] * (pp > 1)
        reduction = np.maximum(self.fixed_reduction_s + units * self.reduction_s, 0.0)
        gather = (
            np.maximum(self.fixed_gather_s + units * self.gather_s, 0.0) if self.config.overlap_param_gather else None
        )
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
    The families of some configurations, without their reductions: see :func:`with_rings`.

    One for each packing, and for each way in which stages hold layers without experts.

    Parameters
    ----------
    configs
        One with each choice of all but the layers, without anything that is sent beside compute.
    """
    configs = [least for config in configs for least in least_splits(instance.model, config)]
    free = replace(instance, edge_loss_s=None)
    kinds, kind_of_node = len(instance.cluster.gpu_kinds), instance.cluster.kind_of_node
    capacity = usable_bytes(instance.cluster, predictor)
    room = np.array([capacity[kind_of_node == kind].max() for kind in range(kinds)], dtype=np.int64)
    most = most_units(instance, configs, predictor, max_oom_risk, room)
    families = []
    for config, limit in zip(configs, most, strict=True):
        timed = [_timed(free, alike) for alike in pure_configs(config)]
        recomputed = None
        if config.recomputation == "block":
            recomputed = RecomputedUnits(instance, config, predictor, max_oom_risk, room, limit)
        for block in node_blocks(config, instance.cluster.gpus_per_node, instance.launcher):
            family = _family(free, config, block, timed[0], limit)
            if recomputed is not None:
                family = _with_recomputation(free, family, timed[1], recomputed)
            families.append(family)
    return families


class _Timed(NamedTuple):
    """
    What the times of a family are read from.

    Parameters
    ----------
    sized
        Of :func:`_sized`, with their times.
    probes
        Of :func:`probes`, with their times; none where all layers of the pattern are alike.
    """

    sized: Computed
    probes: Mapping[LayerKind, Computed]


def _timed(instance: Instance, config: ParallelConfig) -> _Timed:
    def computed(some: Iterable[ParallelConfig]) -> Computed:
        return [(one, stage_compute(instance, one)) for one in some]

    model = instance.model
    if _is_uniform(model):
        return _Timed(computed(_sized(model, config)), {})
    return _Timed(computed([config]), {kind: computed(pair) for kind, pair in probes(model, config).items()})


def _is_uniform(model: ModelSpec) -> bool:
    """Whether all layers of the model's pattern are alike."""
    return pattern_of(model.layers).period == 1


def _sized(model: ModelSpec, config: ParallelConfig) -> list[ParallelConfig]:
    """
    With one unit in each stage, and with a period more wherever there may be more.

    And with another, if the first has no layer of the pattern: with the second such layers come in for the first time.
    """
    sized = [config, grown(model, config)]
    if pattern_of(model.layers).leading >= sum(config.layers_per_stage):
        sized.append(grown(model, sized[1]))
    return sized


def _unit_s(seconds: Sequence[FloatArray], sized: Sequence[ParallelConfig]) -> FloatArray:
    """What a period more takes on a stage at least; ``seconds`` of each of :func:`_sized`, stages last."""
    grows = np.array(sized[1].layers_per_stage) > np.array(sized[0].layers_per_stage)
    more = [(after - before)[..., grows].min(axis=-1) for before, after in pairwise(seconds)]
    unit: FloatArray = np.maximum(np.min(more, axis=0), 0.0)
    return unit


def _of_layers(
    model: ModelSpec, timed: _Timed, seconds: Callable[[ParallelConfig, StageCompute], FloatArray]
) -> dict[LayerKind, FloatArray]:
    """What a layer of each kind of the pattern takes in a chunk; ``seconds`` has chunks and stages as last axes."""
    if not timed.probes:
        held = [seconds(*one) for one in timed.sized]
        kind = model.layers[pattern_of(model.layers).leading]
        return {kind: _unit_s(held, [sized for sized, _ in timed.sized]).min(axis=-1)}
    pairs = {kind: [seconds(*one)[..., 0, 0] for one in pair] for kind, pair in timed.probes.items()}
    return {kind: np.maximum(after - before, 0.0) for kind, (before, after) in pairs.items()}


def _with_recomputation(
    instance: Instance, family: LayerFamily, timed: _Timed, recomputed: RecomputedUnits
) -> LayerFamily:
    """
    A family whose layers all keep their activations, as one in which the first of each stage are recomputed.

    The first layer of a chunk may have no experts where its other layers do, so it counts for itself. Of a pattern with
    several kinds of layers each counts as the kind for which recomputation adds least.
    """
    layer_s, fixed_s = _layer_and_fixed_s(instance, timed, family.block)
    if timed.probes:
        further_s = _least_again_s(instance, family.config, family.block)
        first_s = np.broadcast_to(further_s[:, None, None], family.fixed_s.shape[1:])
    else:
        further_s = np.maximum(layer_s - family.layer_s, 0.0)[1]
        units = np.array(family.config.layers_per_stage) // family.config.num_chunks
        first_s = np.maximum((fixed_s - family.fixed_s)[1] + further_s[:, None, None], 0.0) / units
        if units.max() > 1:  # and so may its second
            further_s = np.minimum(further_s, first_s[..., units > 1].min(axis=(1, 2)))
    kept_s = family.fixed_s.copy()
    kept_s[1] += first_s
    return replace(family, fixed_s=kept_s, recompute_s=further_s, recomputed=recomputed)


def _least_again_s(instance: Instance, config: ParallelConfig, block: NodeBlock) -> FloatArray:
    """What recomputation adds to a layer on each kind of GPU, shape ``(num_kinds,)``, the least of all kinds."""
    kept, again = (
        [layer_seconds(instance, one, block, kind)[1] for kind in dict.fromkeys(instance.model.layers)]
        for one in pure_configs(config)
    )
    least: FloatArray = np.maximum(np.min(np.subtract(again, kept), axis=0), 0.0)
    return least


def _layer_and_fixed_s(instance: Instance, timed: _Timed, block: NodeBlock) -> tuple[FloatArray, FloatArray]:
    """``layer_s`` and ``fixed_s`` of a family."""

    def seconds(config: ParallelConfig, compute: StageCompute) -> FloatArray:
        return np.stack(chunk_seconds(instance, config, compute, block))

    least = timed.sized[0]
    layer_s, more_s = line(instance.model, least[0], _of_layers(instance.model, timed, seconds))
    fixed_s = seconds(*least) + more_s
    if block.nodes_per_slot > 1:
        fastest = replace(instance, cluster=instance.cluster.fastest_pair())
        for way, ticks in enumerate(tensor_ticks(fastest, *least, block, FINE_TICK_S, np.floor)):
            layer_s[way] += ticks.min() * FINE_TICK_S
    return layer_s, fixed_s


def _family(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    timed: _Timed,
    most_units: IntArray,
) -> LayerFamily:
    """One family without its rings."""
    model, cluster, pp = instance.model, instance.cluster, config.pipeline_model_parallel_size
    layer_s, fixed_s = _layer_and_fixed_s(instance, timed, block)
    message = p2p_bytes(instance.model, instance.training, config)
    steps = _of_layers(model, timed, lambda one, compute: optimizer_stages_s(instance, one)[None])
    chunks = 1 if timed.probes else config.num_chunks
    of_layer, more_s = line(model, config, {kind: one / chunks for kind, one in steps.items()})
    nothing = np.zeros(pp)
    return LayerFamily(
        config=config,
        block=block,
        num_microbatches=microbatches_of(instance.training, config),
        num_units=pp + (instance.model.num_layers - sum(config.layers_per_stage)) // config.num_chunks,
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
        step_s=float(of_layer) * config.num_chunks,
        fixed_step_s=optimizer_stages_s(instance, config) + more_s.sum(axis=0),
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
    """From one unit and more: times of rings are convex in what they move, so no split has less than their line."""
    rings: Rings = {}
    model, chunks = instance.model, config.num_chunks
    sized = _sized(model, config)
    found = [least_ring_parts_s(instance, one, block) for one in sized]
    for way, name in enumerate(("reduction_s", "gather_s")):
        known = [one[way] for one in found if one is not None]
        of_rates = [one for one in known if one is not None]
        if len(of_rates) == len(sized):
            fastest = of_rates[0].sum(axis=(0, 2)).argmin()
            held = of_rates[0][:, fastest].copy()
            periods = _unit_s([one[:, fastest] for one in of_rates], sized)
            own, experts = _shares(model, config)
            shares = {kind: periods[0] * own[kind] + periods[1] * experts[kind] for kind in own}
            of_layer = {kind: share / chunks for kind, share in shares.items()}
            if any(experts.values()) and not all(experts.values()):
                # A stage may have no experts, and then no such ring.
                counts = layers_of_kinds(model, config)
                line_s = [counts[kind].sum(axis=0) * periods[1] * experts[kind] / chunks for kind in own]
                held[1] = np.minimum(held[1], np.sum(line_s, axis=0))
            mean, more = line(model, config, of_layer)
            rings |= {name: float(mean) * chunks, f"fixed_{name}": held.sum(axis=0) + more.sum(axis=0)}
    return rings


def _shares(model: ModelSpec, config: ParallelConfig) -> tuple[dict[LayerKind, float], dict[LayerKind, float]]:
    """Part of its own parameters, and of its experts', that a layer of each kind has of a period of the pattern."""
    leading, period = pattern_of(model.layers)
    kinds, tp = model.layers[leading : leading + period], config.tensor_model_parallel_size
    own = {kind: sharded_parameters(model, kind) / tp + replicated_parameters(model, kind) for kind in kinds}
    experts = {kind: float(expert_parameters(model, kind)) for kind in kinds}
    wholes = [max(sum(sizes[kind] for kind in kinds), 1.0) for sizes in (own, experts)]
    return tuple(
        {kind: size / whole for kind, size in sizes.items()}
        for sizes, whole in zip((own, experts), wholes, strict=True)
    )  # type: ignore[return-value]


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
        seconds: FloatArray = cluster.pair_latency_s.min() + message_bytes * num_flows / fastest
    return seconds
