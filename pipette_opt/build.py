"""The integer problem of an instance: every candidate with every packing of the hosts, in ticks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.costs.collectives import (
    RingTraffic,
    embedding_traffic,
    gradient_traffic,
    has_tied_stages,
    inter_node_ring_s,
    intra_node_ring_s,
    tensor_traffic,
)
from pipette_opt.costs.compute import StageCompute, stage_compute
from pipette_opt.costs.messages import inter_node_message_s, intra_node_message_s, p2p_bytes
from pipette_opt.errors import InputError
from pipette_opt.parallel import NodeBlock, ParallelConfig, node_blocks
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.specs import Instance
from pipette_opt.types import FloatArray, IntArray
from pipette_opt.units import MIB

TICKS_PER_ROUND_TRIP = 10_000_000
"""Ticks of the shortest stage round trip of all candidates."""

LONGEST_TICKS = 1 << 40
"""
Time from which a link is not used: products with layers and micro-batches would leave 64 bits.

It is some 100,000 of the shortest round trips.
"""

NO_TICKS = np.zeros((0, 0), dtype=np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FittingCandidate:
    """
    A configuration that fits somewhere.

    Parameters
    ----------
    need_bytes
        Upper bound of the peak memory of one GPU of each stage, shape ``(pp,)``.
    """

    config: ParallelConfig
    need_bytes: IntArray


def build_problem_data(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    *,
    lower_form: bool = False,
) -> ProblemData:
    """
    Turn seconds into ticks and bytes into MiB.

    With blocking sends, two stages exchange an activation and a gradient together and wait for the slower one, so
    the closed form uses the slower direction of each link both ways.

    Parameters
    ----------
    capacity_bytes
        Memory of one GPU of each host that a stage may use, shape ``(num_nodes,)``.
    lower_form
        Give every candidate the lower form, which no schedule and no send mode undercuts.

    Returns
    -------
    ProblemData
        One candidate per configuration and packing; configurations without a packing are left out.
    """
    compute = [stage_compute(instance, candidate.config) for candidate in fitting]
    shortest = min(
        (float((times.forward_s + times.backward_s).sum(axis=(1, 2)).min()) for times in compute), default=1.0
    )
    tick_s = shortest / TICKS_PER_ROUND_TRIP
    candidates = [
        _candidate(instance, candidate, times, block, tick_s, exact=candidate.config.num_chunks == 1 and not lower_form)
        for candidate, times in zip(fitting, compute, strict=True)
        for block in node_blocks(candidate.config, instance.cluster.gpus_per_node, instance.launcher)
    ]
    return ProblemData(
        candidates=tuple(candidates),
        p2p=instance.p2p,
        tick_s=tick_s,
        kind_of_node=instance.cluster.kind_of_node,
        capacity_mib=np.asarray(capacity_bytes) // MIB,
    )


def _candidate(
    instance: Instance,
    fitting: FittingCandidate,
    compute: StageCompute,
    block: NodeBlock,
    tick_s: float,
    *,
    exact: bool,
) -> CandidateData:
    config, cluster = fitting.config, instance.cluster
    gpus, members = _gpus_of_a_host(config, block), block.replicas * config.context_parallel_size
    num_hosts = max(2, config.data_parallel_size * config.context_parallel_size // members)
    message = p2p_bytes(instance.model, instance.training, config)
    link_s = inter_node_message_s(cluster, message, gpus // block.stages)
    if exact and instance.p2p == "blocking":
        link_s = np.maximum(link_s, link_s.T)
    gradient = gradient_traffic(instance.model, instance.training, config, instance.stack)
    distinct = sorted(set(gradient))
    num_microbatches = config.num_microbatches(instance.training.global_batch_size)
    forward, backward, first_forward, first_backward = _stage_ticks(instance, config, compute, block, tick_s)
    tensor_forward, tensor_backward = _tensor_ticks(instance, config, compute, block, tick_s)
    several_hosts = config.data_parallel_size > block.replicas
    return CandidateData(
        config=config,
        block=block,
        grid=block.node_grid(config),
        exact=exact,
        num_microbatches=num_microbatches,
        forward_ticks=forward,
        backward_ticks=backward,
        first_forward_ticks=first_forward,
        first_backward_ticks=first_backward,
        intra_p2p_ticks=int(_up(intra_node_message_s(cluster, message), tick_s)),
        p2p_ticks=_link_ticks(link_s, tick_s),
        ring_class=np.array([distinct.index(traffic) for traffic in gradient]),
        ring_ticks=np.array([_ring_ticks(instance, traffic, members, gpus, num_hosts, tick_s) for traffic in distinct])
        if several_hosts
        else np.zeros((len(distinct), 0, 0), dtype=np.int64),
        ring_floor_ticks=np.array([_ring_floor(instance, traffic, members, tick_s) for traffic in gradient]),
        tensor_forward_ticks=tensor_forward,
        tensor_backward_ticks=tensor_backward,
        embedding_ticks=_embedding_ticks(instance, config, block, gpus, tick_s),
        embedding_floor_ticks=_embedding_floor(instance, config, block, tick_s),
        optimizer_ticks=int(_up(compute.optimizer_s, tick_s)),
        memory_need_mib=-(-np.asarray(fitting.need_bytes) // MIB),
        rounding_ticks=_rounding_ticks(config, block, num_microbatches),
    )


def _gpus_of_a_host(config: ParallelConfig, block: NodeBlock) -> int:
    """GPUs used on each host."""
    slot = config.tensor_model_parallel_size * config.context_parallel_size // block.nodes_per_slot
    return slot * block.stages * block.replicas


def _stage_ticks(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock, tick_s: float
) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Forward, backward, first chunk's forward and backward, tensor communication inside a host included."""
    layers = np.array(config.layers_per_stage, dtype=np.float64)
    tensor_forward = tensor_backward = np.zeros_like(layers)
    if config.tensor_model_parallel_size > 1 and block.nodes_per_slot == 1:
        forward, backward = tensor_traffic(instance.model, instance.training, config, instance.stack)
        forward_s = intra_node_ring_s(instance.cluster, forward, instance.stack) - compute.idle_forward_s
        backward_s = intra_node_ring_s(instance.cluster, backward, instance.stack) - compute.idle_backward_s
        tensor_forward, tensor_backward = layers * max(forward_s, 0.0), layers * max(backward_s, 0.0)
    chunks = config.num_chunks
    return (
        _up(compute.forward_s.sum(axis=1) + tensor_forward, tick_s),
        _up(compute.backward_s.sum(axis=1) + tensor_backward, tick_s),
        _down(compute.forward_s[:, 0] + tensor_forward / chunks, tick_s),
        _down(compute.backward_s[:, 0] + tensor_backward / chunks, tick_s),
    )


def _tensor_ticks(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock, tick_s: float
) -> tuple[IntArray, IntArray]:
    """Tensor communication of one layer by slowest hop, for groups that span hosts."""
    if block.nodes_per_slot == 1:
        return NO_TICKS, NO_TICKS
    members = config.tensor_model_parallel_size // block.nodes_per_slot
    ticks = []
    idle = (compute.idle_forward_s, compute.idle_backward_s)
    traffics = tensor_traffic(instance.model, instance.training, config, instance.stack)
    for traffic, hidden in zip(traffics, idle, strict=True):
        times = inter_node_ring_s(
            instance.cluster,
            traffic,
            group_flows=members,
            num_flows=members,
            num_hosts=block.nodes_per_slot,
            stack=instance.stack,
        )
        ticks.append(_link_ticks(np.maximum(times - hidden, 0.0), tick_s))
    return ticks[0], ticks[1]


def _ring_ticks(
    instance: Instance, traffic: RingTraffic, members: int, gpus: int, num_hosts: int, tick_s: float
) -> IntArray:
    times = inter_node_ring_s(
        instance.cluster,
        traffic,
        group_flows=members,
        num_flows=gpus,
        num_hosts=num_hosts,
        stack=instance.stack,
    )
    return _link_ticks(times, tick_s)


def _ring_floor(instance: Instance, traffic: RingTraffic, members: int, tick_s: float) -> int:
    if members == 1:
        return 0
    return int(_up(intra_node_ring_s(instance.cluster, traffic, instance.stack), tick_s))


def _embedding_ticks(
    instance: Instance, config: ParallelConfig, block: NodeBlock, gpus: int, tick_s: float
) -> IntArray:
    """Tied embeddings between hosts of the first and of the last stage; an unmeasured link as the slowest measured."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == block.stages:
        return NO_TICKS
    flows = gpus // block.stages
    time = inter_node_ring_s(
        instance.cluster,
        embedding_traffic(instance.model, instance.training, config),
        group_flows=1,
        num_flows=flows,
        stack=instance.stack,
    )
    both = np.maximum(time, time.T)
    if np.isnan(both).all():
        return np.zeros(both.shape, dtype=np.int64)
    known = np.where(np.isnan(both), np.nanmax(time), both)
    return _up(np.minimum(known, (LONGEST_TICKS - 1) * tick_s), tick_s)


def _embedding_floor(instance: Instance, config: ParallelConfig, block: NodeBlock, tick_s: float) -> int:
    """Tied embeddings if one host has all stages."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size > block.stages:
        return 0
    traffic = embedding_traffic(instance.model, instance.training, config)
    return int(_up(intra_node_ring_s(instance.cluster, traffic, instance.stack), tick_s))


def _rounding_ticks(config: ParallelConfig, block: NodeBlock, num_microbatches: int) -> int:
    """
    Largest excess of the integer objective over the real one.

    Every rounded term adds less than one tick. Round trip: four terms per stage. A period: at most four terms per
    stage it averages over, and its own rounding. Tensor rings over hosts add two terms per layer. One each for the
    reduction, tied embeddings and the optimizer.
    """
    stages, layers = config.pipeline_model_parallel_size, config.layers_per_stage
    tensor = 2 if block.nodes_per_slot > 1 else 0
    round_trip = 4 * stages + tensor * sum(layers)
    period = 5 + tensor * max(layers)
    return round_trip + num_microbatches * period + 3


def _up(seconds: FloatArray | float, tick_s: float) -> IntArray:
    ticks = np.ceil(np.asarray(seconds) / tick_s)
    if not (ticks < LONGEST_TICKS).all():
        raise InputError(
            "intra_node (or the profile)",
            f"makes a step inside one host last {ticks.max() * tick_s:.3g} s, {ticks.max() / TICKS_PER_ROUND_TRIP:.1g} "
            "times a round trip through the model; check its bandwidth and latency.",
        )
    return ticks.astype(np.int64)


def _down(seconds: FloatArray, tick_s: float) -> IntArray:
    return np.floor(seconds / tick_s).astype(np.int64)


def _link_ticks(seconds: FloatArray, tick_s: float) -> IntArray:
    """Ticks of a link matrix; ``UNUSABLE_TICKS`` without a measurement, from a host to itself, or too slow."""
    ticks = np.full(seconds.shape, UNUSABLE_TICKS, dtype=np.int64)
    known = np.ceil(seconds / tick_s) < LONGEST_TICKS  # false for NaN
    ticks[known] = _up(seconds[known], tick_s)
    return ticks
