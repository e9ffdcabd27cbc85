"""What a configuration costs wherever it is placed: its compute, and what it sends."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.costs.collectives import (
    RingTraffic,
    embedding_traffic,
    gradient_traffic,
    parameter_traffic,
    tensor_traffic,
)
from pipette_opt.costs.compute import StageCompute, stage_compute, stage_parameters
from pipette_opt.costs.context import context_traffic, hidden_by_attention_s
from pipette_opt.costs.exchange import expert_rings, passes
from pipette_opt.costs.experts import expert_traffic, moe_layers
from pipette_opt.costs.messages import p2p_bytes
from pipette_opt.costs.overlap import hiding_s, num_buckets
from pipette_opt.costs.sharded import ShardedCosts, once_traffic, sharded_costs
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance


class ExpertCosts(NamedTuple):
    """
    What experts send.

    Parameters
    ----------
    layers
        Layers with experts, shape ``(num_chunks, pp)``.
    tensor
        Tensor communication of such a layer, its routed experts apart, forward and backward.
    rings
        Over neighbours that share experts or tokens, forward and backward.
    part_bytes, num_exchanges
        Of an all-to-all, what a rank sends to each other one; how many there are, forward and backward.
    gradient, parameters
        Rings over ranks that hold the same experts, of each stage.
    """

    layers: IntArray
    tensor: tuple[RingTraffic, RingTraffic]
    rings: tuple[RingTraffic, RingTraffic]
    part_bytes: float
    num_exchanges: tuple[int, int]
    gradient: list[RingTraffic]
    parameters: list[RingTraffic]


class Costs(NamedTuple):
    """What a configuration costs wherever it is placed."""

    compute: StageCompute
    message_bytes: float
    tensor: tuple[RingTraffic, RingTraffic]
    context: tuple[RingTraffic, RingTraffic]
    attention: tuple[float, float]
    gradient: list[RingTraffic]
    parameters: list[RingTraffic]
    embedding: RingTraffic
    sharded: ShardedCosts | None
    buckets: IntArray
    least: tuple[FloatArray, FloatArray]
    experts: ExpertCosts | None


def costs_of(instance: Instance, config: ParallelConfig) -> Costs:
    """What a configuration costs wherever it is placed."""
    model, training, stack = instance.model, instance.training, instance.stack
    compute, overlap = stage_compute(instance, config), config.overlap_grad_reduce
    none = np.zeros(config.pipeline_model_parallel_size)
    return Costs(
        compute=compute,
        message_bytes=p2p_bytes(model, training, config),
        tensor=tensor_traffic(model, training, config, stack),
        context=context_traffic(model, training, config),
        attention=hidden_by_attention_s(instance, config) if config.context_parallel_size > 1 else (0.0, 0.0),
        gradient=once_traffic(model, training, config)
        if config.sharding_stage > 1
        else gradient_traffic(model, training, config, stack),
        parameters=parameter_traffic(model, training, config) if config.overlap_param_gather else [],
        sharded=sharded_costs(model, training, config),
        embedding=embedding_traffic(model, training, config),
        buckets=num_buckets(model, config) if overlap else none.astype(np.int64),
        least=hiding_s(instance, config, compute, least=True) if overlap else (none, none),
        experts=None if model.num_experts is None else _expert_costs(instance, config),
    )


def _expert_costs(instance: Instance, config: ParallelConfig) -> ExpertCosts:
    model, training, stack = instance.model, instance.training, instance.stack
    one = expert_traffic(model, training, config)
    forward, backward = passes(config)
    beside = config.overlap_param_gather
    return ExpertCosts(
        layers=moe_layers(model, config),
        tensor=tensor_traffic(model, training, config, stack, has_experts=True),
        rings=expert_rings(model, training, config),
        part_bytes=one.sent_bytes / config.expert_model_parallel_size,
        num_exchanges=(forward * one.num_exchanges, backward * one.num_exchanges),
        gradient=gradient_traffic(model, training, config, stack, experts=True),
        parameters=parameter_traffic(model, training, config, experts=True) if beside else [],
    )


def in_a_vee(instance: Instance, config: ParallelConfig, costs: Costs) -> Costs:
    """The output head and the last norm on the first stage, whose embeddings are then no copies."""
    chunks, layers = config.num_chunks, config.layers_per_stage
    if config.pipeline_model_parallel_size == 1:
        return costs
    if config.counts_embedding or config.counts_loss:
        raise InputError("schedule", f"a V needs equal chunks; {chunks} do not divide layers_per_stage={layers}.")
    if instance.model.num_dense_layers:
        raise InputError("schedule", "a V of two chunks is not known for models whose first layers have no experts.")
    fixed = instance.stack.micro_batch_s / 2.0 / chunks

    def moved(work_s: FloatArray) -> FloatArray:
        of_layers = fixed + (work_s[:, -1, 0] - fixed) * (layers[-1] / layers[0])
        work = work_s.copy()
        work[:, -1, 0] += work_s[:, -1, -1] - of_layers
        work[:, -1, -1] = of_layers
        return work

    model, tp = instance.model, config.tensor_model_parallel_size
    before = stage_parameters(model, config)
    vocabulary = model.padded_vocab_size(tp) / tp * model.hidden_size
    after = before.copy()
    after[-1] -= vocabulary + model.norm_parameters
    after[0] += vocabulary * model.untie_embeddings_and_output_weights + model.norm_parameters

    def scaled(traffic: list[RingTraffic]) -> list[RingTraffic]:
        shares = (after / before).tolist()
        return [one._replace(hop_bytes=one.hop_bytes * by) for one, by in zip(traffic, shares, strict=True)]

    compute = replace(
        costs.compute, forward_s=moved(costs.compute.forward_s), backward_s=moved(costs.compute.backward_s)
    )
    return costs._replace(
        compute=compute,
        gradient=scaled(costs.gradient),
        parameters=scaled(costs.parameters) if costs.parameters else [],
        embedding=costs.embedding._replace(hop_bytes=0.0, num_steps=0, num_calls=0),
    )
