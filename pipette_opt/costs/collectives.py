"""
Collectives: NCCL's flat ring through the hosts, in rank order.

A group with ``q`` members on each of its hosts opens ``q`` flows between two of them (NCCL lays its channels
through different NICs), so its share of a host pair is ``q`` out of all the flows that cross it at once.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pipette_opt.costs.compute import stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import DEFAULT_STACK, ClusterSpec, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.types import FloatArray, IntArray


class RingTraffic(NamedTuple):
    """What collectives move over each hop of a ring: bytes, messages one after the other, and how many calls."""

    hop_bytes: float
    num_steps: int
    num_calls: int = 1


class RingArrays(NamedTuple):
    """:class:`RingTraffic` of several groups, arrays of one shape."""

    hop_bytes: FloatArray
    num_steps: FloatArray
    num_calls: FloatArray


def all_reduce_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """Ring all-reduce: ``2 (n - 1) / n`` of the message in ``2 (n - 1)`` steps (Patarasuk and Yuan, 2009)."""
    steps = 2 * (group_size - 1)
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gather_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """Ring all-gather or reduce-scatter: ``(n - 1) / n`` of the whole message in ``n - 1`` steps."""
    steps = group_size - 1
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gradient_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stack: StackSpec = DEFAULT_STACK
) -> list[RingTraffic]:
    """
    What one ring of each stage moves per iteration, length ``pp``.

    Without the distributed optimizer an all-reduce of the gradients; with it a reduce-scatter of the gradients and
    later an all-gather of the parameters, unless that runs beside the forwards (:func:`parameter_traffic`). What hides
    behind the backward pass by the stack's constant is left out; with ``overlap_grad_reduce`` nothing is.
    """
    exposed = 1.0 if config.overlap_grad_reduce else 1.0 - stack.gradient_overlap
    size = config.data_parallel_size * config.context_parallel_size
    scatter, gather = gather_traffic(training.gradient_bytes, size), gather_traffic(training.parameter_bytes, size)
    if not config.use_distributed_optimizer:
        one = all_reduce_traffic(training.gradient_bytes, size)
    elif config.overlap_param_gather:
        one = scatter
    else:
        one = RingTraffic(scatter.hop_bytes + gather.hop_bytes, scatter.num_steps + gather.num_steps, 2)
    counts = stage_parameters(model, config).tolist()
    return [RingTraffic(exposed * one.hop_bytes * count, one.num_steps, one.num_calls) for count in counts]


def parameter_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> list[RingTraffic]:
    """All-gather of each stage's parameters by the distributed optimizer, length ``pp``."""
    one = gather_traffic(training.parameter_bytes, config.data_parallel_size * config.context_parallel_size)
    return [RingTraffic(one.hop_bytes * count, one.num_steps) for count in stage_parameters(model, config).tolist()]


def has_tied_stages(model: ModelSpec, config: ParallelConfig) -> bool:
    """Whether the first and the last stage hold copies of the same word embeddings."""
    return config.pipeline_model_parallel_size > 1 and not model.untie_embeddings_and_output_weights


def embedding_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> RingTraffic:
    """All-reduce of the gradients of tied word embeddings, between one rank of the first and one of the last stage."""
    tp = config.tensor_model_parallel_size
    return all_reduce_traffic(model.padded_vocab_size(tp) / tp * model.hidden_size * training.gradient_bytes, 2)


def tensor_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stack: StackSpec = DEFAULT_STACK
) -> tuple[RingTraffic, RingTraffic]:
    """
    What one tensor-parallel ring moves per layer and micro-batch: forward and backward.

    Two all-reduces each way, or, with sequence parallelism, an all-gather and a reduce-scatter in place of each,
    which move the same (Korthikanti et al., arXiv 2205.05198). Full recomputation repeats the forward's.
    """
    tokens = config.micro_batch_size * training.seq_length // config.context_parallel_size
    message = tokens * model.hidden_size * training.parameter_bytes
    one = all_reduce_traffic(message, config.tensor_model_parallel_size)
    calls = 4 if config.sequence_parallel else 2
    repeated = config.recompute_granularity == "full"
    backward_bytes = 2 * one.hop_bytes * (1.0 - stack.tensor_overlap + repeated)
    return (
        RingTraffic(2 * one.hop_bytes, 2 * one.num_steps, calls),
        RingTraffic(backward_bytes, (1 + repeated) * 2 * one.num_steps, (1 + repeated) * calls),
    )


def intra_node_ring_s(cluster: ClusterSpec, traffic: RingTraffic, stack: StackSpec = DEFAULT_STACK) -> float:
    """A ring that stays inside one host."""
    return float(inside_s(cluster, stacked([traffic]), stack)[0])


def inter_node_ring_s(
    cluster: ClusterSpec,
    traffic: RingTraffic,
    *,
    group_flows: int,
    num_flows: int,
    num_hosts: int = 2,
    stack: StackSpec = DEFAULT_STACK,
) -> FloatArray:
    """
    A ring whose slowest hop goes from host i to host j, shape ``(num_nodes, num_nodes)``; NaN without a link.

    Parameters
    ----------
    group_flows
        Flows that the group itself opens between the two hosts.
    num_flows
        All flows that cross the hop at once, at least ``group_flows``.
    num_hosts
        Hosts of the ring; with many of them it crosses more of the network.
    """
    flow = cluster.pair_bytes_per_s(num_flows) / num_flows
    return across_s(cluster, stacked([traffic]), flow, np.array(group_flows), np.array(num_hosts), stack)


def stacked(traffic: Sequence[RingTraffic]) -> RingArrays:
    """Traffic of several groups."""
    return RingArrays(*(np.array(values, dtype=np.float64) for values in zip(*traffic, strict=True)))


def inside_s(cluster: ClusterSpec, traffic: RingArrays, stack: StackSpec) -> FloatArray:
    """Rings that stay inside their hosts, seconds, shape of ``traffic``."""
    rate = cluster.intra_node_bytes_per_s * stack.intra_node
    time: FloatArray = _start_s(traffic, cluster.intra_node_latency_s, stack) + traffic.hop_bytes / rate
    return time


def across_s(
    cluster: ClusterSpec,
    traffic: RingArrays,
    flow_bytes_per_s: FloatArray,
    group_flows: IntArray,
    num_hosts: IntArray,
    stack: StackSpec,
) -> FloatArray:
    """
    Rings over several hosts, in seconds; all arguments broadcast.

    Parameters
    ----------
    flow_bytes_per_s
        What one flow gets over the slowest hop; NaN if that was not measured.
    group_flows
        Flows that the group opens between two hosts.
    num_hosts
        Hosts of the ring.
    """
    several = group_flows > 1  # then the ring also has hops inside the hosts
    share = flow_bytes_per_s * group_flows * (stack.inter_node * (2.0 / num_hosts) ** stack.congestion)
    share = np.where(several, np.minimum(share, cluster.intra_node_bytes_per_s * stack.intra_node), share)
    latency = np.where(several, cluster.intra_node_latency_s, 0.0)
    start = _start_s(traffic, np.maximum(latency, cluster.inter_node_latency_s), stack)
    time: FloatArray = start + traffic.hop_bytes / share
    return time


def _start_s(traffic: RingArrays, latency_s: FloatArray | float, stack: StackSpec) -> FloatArray:
    start: FloatArray = traffic.num_calls * stack.collective_s + traffic.num_steps * stack.ring_step * latency_s
    return start
