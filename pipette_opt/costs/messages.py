"""Messages between adjacent pipeline stages."""

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec


def p2p_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """
    Bytes that one tensor rank sends to the next stage for one micro-batch.

    With sequence parallelism, each tensor rank holds, and sends, its share of the sequence; without it, every one sends
    the whole activation.
    """
    whole = training.seq_length * config.micro_batch_size * model.hidden_size * training.parameter_bytes
    shards = config.context_parallel_size * (config.tensor_model_parallel_size if config.sequence_parallel else 1)
    return whole / shards


def inter_node_message_s(cluster: ClusterSpec, message_bytes: float, num_flows: int) -> FloatArray:
    """
    Time of one of ``num_flows`` equal messages from host i to j at once, seconds, shape ``(num_nodes, num_nodes)``.

    Latency plus size over an equal share of the aggregate bandwidth; NaN where nothing was measured.
    """
    return cluster.pair_latency_s + message_bytes * num_flows / cluster.pair_bytes_per_s(num_flows)


def intra_node_message_s(cluster: ClusterSpec, message_bytes: float) -> float:
    """Time of one message between the two GPUs of a host with the fastest link, seconds."""
    return cluster.intra_node_latency_s + message_bytes / float(cluster.inside_bytes_per_s(1))


def slowest(times: FloatArray) -> float:
    """Largest entry, NaN (no link) counting as infinite; zero if there is none."""
    return float(np.nan_to_num(times, nan=np.inf).max()) if times.size else 0.0


def slowest_pair(times: FloatArray) -> float:
    """Largest entry between two different hosts, NaN counting as infinite; zero for a single host."""
    return slowest(times[~np.eye(len(times), dtype=np.bool_)])
