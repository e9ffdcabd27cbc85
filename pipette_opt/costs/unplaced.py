"""Costs of a configuration that do not depend on its placement: compute times, and traffic."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.beside_products import BesideProduct, beside_head, beside_products, most_beside
from pipette_opt.costs.collectives import (
    NO_TRAFFIC,
    EndTraffic,
    RingTraffic,
    embedding_traffic,
    end_traffic,
    gradient_traffic,
    parameter_traffic,
    tensor_traffic,
)
from pipette_opt.costs.compute import StageCompute, stage_compute
from pipette_opt.costs.context import context_traffic, exchanged_traffic, hidden_by_attention_s
from pipette_opt.costs.exchange import Beside, beside_exchange, expert_rings, passes
from pipette_opt.costs.experts import expert_traffic
from pipette_opt.costs.layer_kinds import CountedLayers, counted_layers
from pipette_opt.costs.messages import p2p_bytes
from pipette_opt.costs.overlap import num_buckets
from pipette_opt.costs.sharded import ShardedCosts, once_traffic, outer_traffic, sharded_costs
from pipette_opt.costs.stage import stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, LayerKind

Kinds = tuple[int, ...]
"""GPU types of hosts in use, as ascending indices into ``ClusterSpec.gpu_kinds``."""


class LayerCosts(NamedTuple):
    """
    Traffic of one layer of a type for one micro-batch, forward and backward.

    Parameters
    ----------
    layers
        Number of layers of the type, shape ``(num_chunks, pp)``.
    tensor, context, exchange
        Exposed tensor-parallel traffic, without routed experts; context-parallel traffic of rings, and of all-to-alls.
    idle, attention
        Seconds that hide the tensor and the context traffic.
    beside_products
        Tensor-parallel messages beside products of the backward pass.
    rings
        Traffic of a layer with experts over rings of neighbours that share experts or tokens.
    part_bytes, num_exchanges
        Bytes that a rank sends to each other rank in an all-to-all; number of all-to-alls.
    beside
        Time that hides all-to-alls.
    """

    layers: IntArray
    tensor: tuple[RingTraffic, RingTraffic]
    context: tuple[RingTraffic, RingTraffic]
    exchange: tuple[RingTraffic, RingTraffic]
    idle: tuple[float, float]
    attention: tuple[float, float]
    beside_products: tuple[BesideProduct, ...]
    rings: tuple[RingTraffic, RingTraffic]
    part_bytes: float
    num_exchanges: tuple[int, int]
    beside: Beside


class ExpertCosts(NamedTuple):
    """
    Traffic of rings over ranks that hold equal experts, for each stage.

    Of gradients, of their shards among optimizer instances, and of parameters.
    """

    gradient: list[RingTraffic]
    outer: list[RingTraffic]
    parameters: list[RingTraffic]


class Costs(NamedTuple):
    """Compute and traffic of a configuration, for any placement."""

    compute: StageCompute
    message_bytes: float
    layers: dict[tuple[LayerKind, bool], LayerCosts]
    """Costs by type of layer, and by whether the layer is recomputed entirely."""
    optimizer_s: float
    gradient: list[RingTraffic]
    outer: list[RingTraffic]
    parameters: list[RingTraffic]
    embedding: RingTraffic
    ends: EndTraffic
    beside_head: tuple[BesideProduct, ...]
    sharded: ShardedCosts | None
    buckets: IntArray
    experts: ExpertCosts | None
    head_stage: int = -1
    """Stage with the output head: the last, or the first in a V."""

    def of_kind(self, kind: tuple[LayerKind, bool]) -> LayerCosts:
        """Return the costs of one type of layer; zero layers if only other configurations of equal degrees have it."""
        if kind in self.layers:
            return self.layers[kind]
        other = next(costs for known, costs in self.layers.items() if known[0] == kind[0])
        return other._replace(layers=np.zeros_like(other.layers))


def costs_of(
    instance: Instance, config: ParallelConfig, known: Costs | None = None, kinds: Kinds | None = None
) -> Costs:
    """
    Return the costs of a configuration that do not depend on its placement, but on its GPU types.

    Parameters
    ----------
    known
        Costs of the configuration with another software stack or other GPU types; parts that depend on neither are
        reused.
    kinds
        GPU types of the hosts in use; ``None`` for all types. The slowest decides on the optimizer step; the least
        waits, attention, products and compute of any of them hide communication.
    """
    model, training = instance.model, instance.training
    kinds = tuple(range(len(instance.cluster.gpu_kinds))) if kinds is None else kinds
    compute = stage_compute(instance, config)
    layers = {
        (counted.kind, counted.is_recomputed): _layer_costs(instance, counted, compute, kinds)
        for counted in counted_layers(model, config)
    }
    optimizer_s, head = float(compute.optimizer_s[list(kinds)].max()), beside_head(instance, config, kinds)
    if known is not None:
        return known._replace(compute=compute, layers=layers, optimizer_s=optimizer_s, beside_head=head)
    return Costs(
        compute=compute,
        message_bytes=p2p_bytes(model, training, config),
        layers=layers,
        optimizer_s=optimizer_s,
        gradient=once_traffic(model, training, config)
        if config.sharding_stage > 1
        else gradient_traffic(model, training, config),
        outer=outer_traffic(model, training, config),
        parameters=parameter_traffic(model, training, config) if config.overlap_param_gather else [],
        sharded=sharded_costs(model, training, config),
        embedding=embedding_traffic(model, training, config),
        ends=end_traffic(model, training, config),
        beside_head=head,
        buckets=num_buckets(model, config)
        if config.overlap_grad_reduce
        else np.zeros(config.pipeline_model_parallel_size, dtype=np.int64),
        experts=None if model.num_experts is None else _expert_costs(instance, config),
    )


def _expert_costs(instance: Instance, config: ParallelConfig) -> ExpertCosts:
    model, training = instance.model, instance.training
    beside, traffic = config.overlap_param_gather, once_traffic if config.sharding_stage > 1 else gradient_traffic
    return ExpertCosts(
        gradient=traffic(model, training, config, experts=True),
        outer=outer_traffic(model, training, config, experts=True),
        parameters=parameter_traffic(model, training, config, experts=True) if beside else [],
    )


def _layer_costs(instance: Instance, counted: CountedLayers, compute: StageCompute, kinds: Kinds) -> LayerCosts:
    model, training, config, kind = instance.model, instance.training, counted.config, counted.kind
    forward, backward = passes(config)
    routed = expert_traffic(model, training, config) if kind.has_experts else None
    exchanges, is_split = 0 if routed is None else routed.num_exchanges, config.context_parallel_size > 1
    return LayerCosts(
        layers=counted.layers,
        tensor=tensor_traffic(model, training, config, kind),
        context=context_traffic(model, training, config) if kind.has_attention else (NO_TRAFFIC, NO_TRAFFIC),
        exchange=exchanged_traffic(model, training, config) if kind.has_attention else (NO_TRAFFIC, NO_TRAFFIC),
        idle=compute.idle_s(counted.is_recomputed, kinds),
        attention=hidden_by_attention_s(instance, config, kind, kinds) if is_split else (0.0, 0.0),
        beside_products=beside_products(instance, config, kind, kinds),
        rings=expert_rings(model, training, config) if routed is not None else (NO_TRAFFIC, NO_TRAFFIC),
        part_bytes=0.0 if routed is None else routed.sent_bytes / config.expert_model_parallel_size,
        num_exchanges=(forward * exchanges, backward * exchanges),
        beside=beside_exchange(instance, config, kind, kinds) if exchanges else Beside((0.0, 0.0), 0.0),
    )


def least_costs(instance: Instance, config: ParallelConfig) -> Costs:
    """Return costs that are at most those of any GPU types in use: most is hidden, and the optimizer is fastest."""
    first, *others = (costs_of(instance, config, kinds=(kind,)) for kind in range(len(instance.cluster.gpu_kinds)))
    for other in others:
        layers = {name: _most_hidden(layer, other.layers[name]) for name, layer in first.layers.items()}
        head = most_beside(first.beside_head, other.beside_head)
        first = first._replace(layers=layers, optimizer_s=min(first.optimizer_s, other.optimizer_s), beside_head=head)
    return first


def _most_hidden(first: LayerCosts, second: LayerCosts) -> LayerCosts:
    def larger(both: tuple[float, float], than: tuple[float, float]) -> tuple[float, float]:
        return max(both[0], than[0]), max(both[1], than[1])

    beside = Beside(
        larger(first.beside.idle_s, second.beside.idle_s), max(first.beside.compute_s, second.beside.compute_s)
    )
    return first._replace(
        idle=larger(first.idle, second.idle),
        attention=larger(first.attention, second.attention),
        beside_products=most_beside(first.beside_products, second.beside_products),
        beside=beside,
    )


def in_a_vee(instance: Instance, config: ParallelConfig, costs: Costs) -> Costs:
    """Return the costs with output head and last norm on the first stage, which needs no copy of embeddings."""
    chunks, layers = config.num_chunks, config.layers_per_stage
    if config.pipeline_model_parallel_size == 1:
        return costs
    if config.counts_embedding or config.counts_loss or config.pipeline_model_parallel_layout is not None:
        raise InputError("schedule", f"a V needs equal chunks; {chunks} do not divide layers_per_stage={layers}.")
    if len(set(instance.model.layers)) > 1 or instance.model.mtp_num_layers:
        problem = "models with several kinds of layers, or multi-token prediction"
        raise InputError("schedule", f"a V of two chunks is not known for {problem}.")
    if config.recomputation == "block" and layers[0] != layers[-1]:
        problem = f"a V with block recomputation needs equal first and last stages, got layers_per_stage={layers}."
        raise InputError("schedule", problem)
    fixed = instance.stack.micro_batch_s / 2.0 / chunks

    def moved(work_s: FloatArray) -> FloatArray:
        of_layers = fixed + (work_s[:, -1, 0] - fixed) * (layers[-1] / layers[0])
        work = work_s.copy()
        work[:, -1, 0] += work_s[:, -1, -1] - of_layers
        work[:, -1, -1] = of_layers
        return work

    model, tp = instance.model, config.tensor_model_parallel_size
    before = stage_parameters(model, config).own
    vocabulary = model.padded_vocab_size(tp) / tp * model.hidden_size
    after = before.copy()
    after[-1] -= vocabulary + model.norm_parameters
    after[0] += vocabulary * model.untie_embeddings_and_output_weights + model.norm_parameters

    def scaled(traffic: list[RingTraffic]) -> list[RingTraffic]:
        shares = (after / before).tolist()
        return [ring._replace(hop_bytes=ring.hop_bytes * by) for ring, by in zip(traffic, shares, strict=True)]

    compute = replace(
        costs.compute, forward_s=moved(costs.compute.forward_s), backward_s=moved(costs.compute.backward_s)
    )
    return costs._replace(
        compute=compute,
        gradient=scaled(costs.gradient),
        outer=scaled(costs.outer),
        parameters=scaled(costs.parameters) if costs.parameters else [],
        embedding=costs.embedding._replace(hop_bytes=0.0, num_steps=0, num_calls=0),
        head_stage=0,
    )
