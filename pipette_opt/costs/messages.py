"""Messages between adjacent pipeline stages."""

from pipette_opt.base.types import FloatArray
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, ModelSpec, TrainingSpec
from pipette_opt.specs.activations import tokens_of_rank


def p2p_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """
    Return the bytes that one tensor rank sends to the next stage for one micro-batch.

    With sequence parallelism, each tensor rank holds and sends its part of the sequence. Without it, each rank sends
    the whole activation.
    """
    return float(tokens_of_rank(training, config) * model.hidden_size * training.parameter_bytes)


def inter_node_message_s(cluster: ClusterSpec, message_bytes: float, num_flows: int) -> FloatArray:
    """
    Return the time of one of ``num_flows`` equal concurrent messages from host i to j, seconds, ``(num_nodes,
    num_nodes)``.

    Latency plus size over an equal share of the aggregate bandwidth; NaN if unmeasured.
    """
    return cluster.pair_latency_s + message_bytes * num_flows / cluster.pair_bytes_per_s(num_flows)


def intra_node_message_s(cluster: ClusterSpec, message_bytes: float) -> float:
    """Return the time of one message between the two GPUs of a host with the fastest link, seconds."""
    return cluster.intra_node_latency_s + message_bytes / float(cluster.inside_bytes_per_s(1))
