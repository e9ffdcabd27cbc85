"""
Construction of the partition families of a job, and of linear lower bounds on the times of their stages.

The first unit (layer in each chunk) of a stage with layers outside the model's pattern is everything that the stage
holds at least. In a pattern with several types of layers, a unit takes their mean time. The linear bound is then below
the time of every partition, but not equal to it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.costs.best_rings import far_bytes_per_s
from pipette_opt.costs.compute import StageCompute, forced_kinds, optimizer_stages_s, stage_compute
from pipette_opt.costs.layer_kinds import layers_of_kinds, pure_configs
from pipette_opt.costs.links import BestLinks, EachLink
from pipette_opt.costs.messages import intra_node_message_s, p2p_bytes
from pipette_opt.costs.stage import parts_on_rank
from pipette_opt.layers.kinds import pattern_of
from pipette_opt.memory.filter import usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    gpus_of_a_host,
    host_tiles,
    microbatches_of,
    without_recomputation,
)
from pipette_opt.problem.beside import chunk_seconds, layer_seconds, least_ring_parts_s
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_groups import far_families, groups_of
from pipette_opt.problem.family_room import RecomputedUnits, has_room, most_units, num_units
from pipette_opt.problem.layer_patterns import grown, least_splits, line, probes
from pipette_opt.problem.ticks import embedding_floor, embedding_ticks, tensor_ticks
from pipette_opt.specs import Instance, LayerKind, ModelSpec

FINE_TICK_S = 1e-9
"""Seconds of a tick in the matrices of communication between hosts that this module reads. Chosen: one nanosecond."""

Computed = Sequence[tuple[ParallelConfig, StageCompute]]
"""Configurations with their compute times."""


def layer_families(
    instance: Instance,
    configs: Sequence[ParallelConfig],
    predictor: MemoryPredictor,
    max_oom_risk: float,
) -> list[LayerFamily]:
    """
    Return the partition families of the configurations, without gradient rings (:func:`with_rings` adds them).

    A configuration has a family for each host tile (part of the model on one host). It has one more for each way in
    which its rows can cross groups of near hosts (:mod:`~pipette_opt.problem.family_groups`). It also has one more for
    each way in which stages hold the first dense layers. It has no family if no partition fits into memory.

    Parameters
    ----------
    configs
        One configuration for each choice of everything except the layers per stage, without overlap.
    """
    configs = [least for config in configs for least in least_splits(instance.model, config)]
    kinds, kind_of_node = len(instance.cluster.gpu_kinds), instance.cluster.kind_of_node
    capacity = usable_bytes(instance.cluster, predictor)
    room = np.array([capacity[kind_of_node == kind].max() for kind in range(kinds)], dtype=np.int64)
    most = most_units(instance, configs, predictor, max_oom_risk, room)
    families = []
    for config, limit in zip(configs, most, strict=True):
        if not has_room(limit, num_units(instance.model, config)):
            continue
        timed, recomputed = [_timed(instance, pure_configs(config)[0])], None
        if config.recomputation == "block":
            # Unlike uniform recomputation, block recomputation leaves multi-token-prediction layers out.
            timed.append(_timed(instance, replace(config, recompute_num_layers=instance.model.num_layers)))
            recomputed = RecomputedUnits(instance, config, predictor, max_oom_risk, room, limit)
        for tile in host_tiles(config, instance.cluster.gpus_per_node, instance.launcher):
            family = _family(instance, config, tile, timed[0], limit)
            if recomputed is not None:
                family = _with_recomputation(instance, family, timed[1], recomputed)
            families += far_families(instance, family, partial(_slots_cross, instance, family, timed[0]))
    return families


class _Timed(NamedTuple):
    """
    Compute times from which the linear times of a partition family are derived.

    Parameters
    ----------
    sized
        Configurations of :func:`_sized`, with their compute times.
    probes
        Configurations of :func:`probes`, with their compute times; empty if all layers of the pattern are alike.
    """

    sized: Computed
    probes: Mapping[LayerKind, Computed]


def _timed(instance: Instance, config: ParallelConfig) -> _Timed:
    def computed(configs: Iterable[ParallelConfig]) -> Computed:
        return [(each, stage_compute(instance, each)) for each in configs]

    model = instance.model
    if pattern_of(model.layers).period == 1:  # all layers are alike
        return _Timed(computed(_sized(model, config)), {})
    return _Timed(computed([config]), {kind: computed(pair) for kind, pair in probes(model, config).items()})


def _sized(model: ModelSpec, config: ParallelConfig) -> list[ParallelConfig]:
    """
    Return the configuration with one unit (layer in each chunk) on each stage, and one with a further period of layers
    wherever possible.

    If the first has no layer of the pattern, a third is appended with another period.
    """
    sized = [config, grown(model, config)]
    if pattern_of(model.layers).leading >= sum(config.layers_per_stage):
        sized.append(grown(model, sized[1]))
    return sized


def _unit_s(seconds: Sequence[FloatArray], sized: Sequence[ParallelConfig]) -> FloatArray:
    """Return the least seconds that one further period adds to a stage; ``seconds`` of each ``sized``, stages last."""
    grows = np.array(sized[1].layers_per_stage) > np.array(sized[0].layers_per_stage)
    more = [(after - before)[..., grows].min(axis=-1) for before, after in pairwise(seconds)]
    unit: FloatArray = np.maximum(np.min(more, axis=0), 0.0)
    return unit


def _of_layers(
    model: ModelSpec, timed: _Timed, seconds: Callable[[ParallelConfig, StageCompute], FloatArray]
) -> dict[LayerKind, FloatArray]:
    """Return seconds of a layer of each type in a chunk; ``seconds`` returns arrays with last axes chunks, stages."""
    if not timed.probes:
        held = [seconds(*computed) for computed in timed.sized]
        kind = model.layers[pattern_of(model.layers).leading]
        return {kind: _unit_s(held, [sized for sized, _ in timed.sized]).min(axis=-1)}
    pairs = {kind: [seconds(*probe)[..., 0, 0] for probe in pair] for kind, pair in timed.probes.items()}
    return {kind: np.maximum(after - before, 0.0) for kind, (before, after) in pairs.items()}


def _with_recomputation(
    instance: Instance, family: LayerFamily, timed: _Timed, recomputed: RecomputedUnits
) -> LayerFamily:
    """
    Return the partition family with recomputation of the first layers of each stage; ``family`` recomputes none.

    The first layer of a chunk may lack experts where later layers have them, so its time is separate. In a pattern with
    several types of layers, each layer counts as the type for which recomputation adds least.
    """
    layer_s, fixed_s = _layer_and_fixed_s(instance, timed, family.tile)
    if timed.probes:
        further_s = _least_again_s(instance, family.config, family.tile)
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


def _least_again_s(instance: Instance, config: ParallelConfig, tile: HostTile) -> FloatArray:
    """Return the least seconds that recomputing a layer of any type adds, for each GPU type: ``(num_kinds,)``."""
    kept, again = (
        [layer_seconds(instance, alike, tile, kind)[1] for kind in dict.fromkeys(instance.model.layers)]
        for alike in pure_configs(config)
    )
    least: FloatArray = np.maximum(np.min(np.subtract(again, kept), axis=0), 0.0)
    return least


def _layer_and_fixed_s(instance: Instance, timed: _Timed, tile: HostTile) -> tuple[FloatArray, FloatArray]:
    """Return the fields ``layer_s`` and ``fixed_s`` of a partition family."""

    def seconds(config: ParallelConfig, compute: StageCompute) -> FloatArray:
        return np.stack(chunk_seconds(instance, config, compute, tile))

    least = timed.sized[0]
    layer_s, more_s = line(instance.model, least[0], _of_layers(instance.model, timed, seconds))
    fixed_s = seconds(*least) + more_s
    if tile.nodes_per_slot > 1:
        best = BestLinks(instance.cluster, instance.stack)
        for way, ticks in enumerate(tensor_ticks(instance, *least, tile, best, FINE_TICK_S)):
            layer_s[way] += ticks.min() * FINE_TICK_S
    return layer_s, fixed_s


def _family(
    instance: Instance,
    config: ParallelConfig,
    tile: HostTile,
    timed: _Timed,
    most_units: IntArray,
) -> LayerFamily:
    """Return a partition family with zero times for gradient reduction and parameter gather."""
    model, cluster, pp = instance.model, instance.cluster, config.pipeline_model_parallel_size
    layer_s, fixed_s = _layer_and_fixed_s(instance, timed, tile)
    message = p2p_bytes(instance.model, instance.training, config)
    steps = _of_layers(model, timed, lambda each, compute: optimizer_stages_s(instance, each)[:, None])
    chunks = 1 if timed.probes else config.num_chunks
    of_layer, more_s = line(model, config, {kind: step_s / chunks for kind, step_s in steps.items()})
    fixed_step_s = optimizer_stages_s(instance, config) + more_s.sum(axis=1)
    forced = forced_kinds(cluster, int(np.prod(tile.node_grid(config))), of_layer)
    nothing = np.zeros(pp)
    return LayerFamily(
        config=config,
        tile=tile,
        num_microbatches=microbatches_of(instance.training, config),
        num_units=num_units(model, config),
        layer_s=layer_s,
        fixed_s=fixed_s,
        link_s=_best_links_s(instance, message, gpus_of_a_host(config, tile) // tile.stages),
        inside_s=intra_node_message_s(cluster, message),
        reduction_s=0.0,
        fixed_reduction_s=nothing,
        gather_s=0.0,
        fixed_gather_s=nothing,
        embedding_s=_embedding_s(instance, config, tile),
        slowdown=instance.stack.overlap_slowdown,
        step_s=float(of_layer[forced].min()) * config.num_chunks,
        fixed_step_s=fixed_step_s[forced].min(axis=0),
        optimizer_s=instance.stack.iteration_s,
        most_units=most_units,
        recompute_s=np.zeros(len(cluster.gpu_kinds)),
    )


def _slots_cross(instance: Instance, family: LayerFamily, timed: _Timed, far: BoolArray) -> LayerFamily:
    """Return the family whose slots span several groups of hosts; ``far`` masks pairs in different groups."""
    best, each = (
        tensor_ticks(instance, *timed.sized[0], family.tile, links, FINE_TICK_S)
        for links in (BestLinks(instance.cluster, instance.stack), EachLink(instance.cluster, instance.stack))
    )
    added = np.array([max(int(hop[far].min()) - int(least.min()), 0) for least, hop in zip(best, each, strict=True)])
    return replace(family, layer_s=family.layer_s + added[:, None] * FINE_TICK_S)


Rings = dict[str, Any]
"""Fields of a partition family that depend on its gradient reduction and parameter gather."""


def with_rings(
    instance: Instance,
    family: LayerFamily,
    config: ParallelConfig,
    known: dict[tuple[ParallelConfig, HostTile, bool], Rings] | None = None,
) -> LayerFamily:
    """
    Return the partition family with overlap, gradient reduction and parameter gather of ``config``.

    Parameters
    ----------
    known
        Cache of the rings of other families of the instance, extended here. Rings do not depend on micro-batch size or
        recomputation.
    """
    alike = replace(without_recomputation(config), micro_batch_size=1)
    known, key = {} if known is None else known, (alike, family.tile, family.has_far_rings)
    if key not in known:
        rate = np.inf
        if family.has_far_rings:
            rate = far_bytes_per_s(instance.cluster, groups_of(instance, family), gpus_of_a_host(config, family.tile))
        known[key] = _rings(instance, alike, family.tile, rate)
    return replace(family, config=config, **known[key])


def _rings(instance: Instance, config: ParallelConfig, tile: HostTile, most_bytes_per_s: float) -> Rings:
    """Return linear lower bounds on reduction and gather; ring times are convex in their bytes."""
    rings: Rings = {}
    model, chunks = instance.model, config.num_chunks
    sized = _sized(model, config)
    found = [least_ring_parts_s(instance, each, tile, most_bytes_per_s) for each in sized]
    for way, name in enumerate(("reduction_s", "gather_s")):
        of_rates = [seconds for parts in found if (seconds := parts[way]) is not None]
        if len(of_rates) == len(sized):
            fastest = of_rates[0].sum(axis=(0, 2)).argmin()
            held = of_rates[0][:, fastest].copy()
            periods = _unit_s([seconds[:, fastest] for seconds in of_rates], sized)
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
    """Return the fraction of a period's dense, and of its expert, parameters in one layer of each type."""
    leading, period = pattern_of(model.layers)
    kinds, parts = model.layers[leading : leading + period], parts_on_rank(model, config, trained=True)

    def shares(sizes: Mapping[LayerKind, float]) -> dict[LayerKind, float]:
        whole = max(sum(sizes[kind] for kind in kinds), 1.0)
        return {kind: sizes[kind] / whole for kind in kinds}

    return shares(parts.layers), shares(parts.experts)


def _embedding_s(instance: Instance, config: ParallelConfig, tile: HostTile) -> float:
    """Return the seconds of the all-reduce of tied word embeddings over the best link; 0 without tied embeddings."""
    between = embedding_ticks(instance, config, tile, gpus_of_a_host(config, tile), FINE_TICK_S)
    if between.size:
        return float(between.min()) * FINE_TICK_S
    return embedding_floor(instance, config, tile, FINE_TICK_S) * FINE_TICK_S


def _best_links_s(instance: Instance, message_bytes: float, num_flows: int) -> FloatArray:
    """Return the least seconds of a transfer between each pair of GPU types, shape ``(num_kinds, num_kinds)``."""
    cluster = instance.cluster
    fastest = cluster.fastest_bytes_per_s_of_kinds(num_flows)
    with np.errstate(divide="ignore"):
        seconds: FloatArray = cluster.least_latency_s + message_bytes * num_flows / fastest
    return seconds
