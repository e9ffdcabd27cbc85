"""
Collectives: NCCL's flat ring through the hosts, in rank order.

A group with ``q`` members on each of its hosts opens ``q`` flows between two of them (NCCL lays its channels
through different NICs), so its share of a host pair is ``q`` out of all the flows that cross it at once.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.costs.compute import stage_parameters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.types import FloatArray


class RingTraffic(NamedTuple):
    """What a collective moves over each hop of a ring: bytes, and messages one after the other."""

    hop_bytes: float
    num_steps: int


def all_reduce_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """Ring all-reduce: ``2 (n - 1) / n`` of the message in ``2 (n - 1)`` steps (Patarasuk and Yuan, 2009)."""
    steps = 2 * (group_size - 1)
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gather_traffic(message_bytes: float, group_size: int) -> RingTraffic:
    """Ring all-gather or reduce-scatter: ``(n - 1) / n`` of the whole message in ``n - 1`` steps."""
    steps = group_size - 1
    return RingTraffic(hop_bytes=steps / group_size * message_bytes, num_steps=steps)


def gradient_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> list[RingTraffic]:
    """
    What one ring of each stage moves per iteration, length ``pp``.

    Without the distributed optimizer an all-reduce of the gradients; with it a reduce-scatter of the gradients and
    later an all-gather of the parameters.
    """
    size = config.data_parallel_size * config.context_parallel_size
    traffic = []
    for parameters in stage_parameters(model, config):
        if config.use_distributed_optimizer:
            scatter = gather_traffic(parameters * training.gradient_bytes, size)
            gather = gather_traffic(parameters * training.parameter_bytes, size)
            traffic.append(RingTraffic(scatter.hop_bytes + gather.hop_bytes, scatter.num_steps + gather.num_steps))
        else:
            traffic.append(all_reduce_traffic(parameters * training.gradient_bytes, size))
    return traffic


def tensor_traffic(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> tuple[RingTraffic, RingTraffic]:
    """
    What one tensor-parallel ring moves per layer and micro-batch: forward and backward.

    Two all-reduces each way, or, with sequence parallelism, an all-gather and a reduce-scatter in place of each,
    which move the same (Korthikanti et al., arXiv 2205.05198). Full recomputation repeats the forward's.
    """
    tokens = config.micro_batch_size * training.seq_length // config.context_parallel_size
    message = tokens * model.hidden_size * training.parameter_bytes
    one = all_reduce_traffic(message, config.tensor_model_parallel_size)
    forward = RingTraffic(2 * one.hop_bytes, 2 * one.num_steps)
    repeats = 2 if config.recompute_granularity == "full" else 1
    return forward, RingTraffic(repeats * forward.hop_bytes, repeats * forward.num_steps)


def intra_node_ring_s(cluster: ClusterSpec, traffic: RingTraffic) -> float:
    """A ring that stays inside one host."""
    return traffic.num_steps * cluster.intra_node_latency_s + traffic.hop_bytes / cluster.intra_node_bytes_per_s


def inter_node_ring_s(cluster: ClusterSpec, traffic: RingTraffic, *, group_flows: int, num_flows: int) -> FloatArray:
    """
    A ring whose slowest hop goes from host i to host j, shape ``(num_nodes, num_nodes)``; NaN without a link.

    Parameters
    ----------
    group_flows
        Flows that the group itself opens between the two hosts.
    num_flows
        All flows that cross the hop at once, at least ``group_flows``.
    """
    share = cluster.pair_bytes_per_s(num_flows) * (group_flows / num_flows)
    if group_flows > 1:  # the ring also has hops inside the hosts
        share = np.minimum(share, cluster.intra_node_bytes_per_s)
    latency = max(cluster.inter_node_latency_s, cluster.intra_node_latency_s if group_flows > 1 else 0.0)
    return traffic.num_steps * latency + traffic.hop_bytes / share
