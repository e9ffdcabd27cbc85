"""
Context parallelism: attention over a sequence that is spread over ranks, by three kinds of exchange.

``p2p``, Transformer Engine's default, is ring attention with point-to-point messages (Liu et al., arXiv 2310.01889). In
``cp - 1`` steps, the keys and values of each rank go around the ring while a rank works on the block that it has. In
the backward pass, their gradients travel with them. Attention has a kernel for each block and merges the results
(``ring_steps``). The layer's time includes the part of the ring that all blocks but the last do not hide. Megatron-Core
gives each rank an early and a late piece of the sequence, so that causal blocks are equal.

``a2a`` (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509) exchanges queries, keys and values for some heads of the
whole sequence, and the output back; in the backward pass, the output's gradient and then the three others. It supports
windows and sinks. ``all_gather`` (Llama 3, arXiv 2407.21783) gathers keys and values of all ranks before attention, and
again in the backward pass, after which their gradients are scattered. Neither overlaps with attention.

Over several hosts messages of a ring go from the last rank of a host to the next host, in one flow for each group;
gathers are NCCL's rings, and all-to-alls send from every rank to every other, like those of experts.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import (
    RingTraffic,
    inter_node_ring_s,
    intra_node_ring_s,
    least_ring_s,
    tensor_traffic,
)
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.exchange import least_exchange_s
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.parallel import NodeBlock, ParallelConfig, gpus_of_a_host
from pipette_opt.specs import Instance, LayerKind, ModelSpec, TrainingSpec

_NOTHING = RingTraffic(0.0, 0, 0)
"""Traffic of a ring that does not run."""


def key_value_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """Bytes of a layer's keys and values on a rank; with fewer query groups than tensor ranks, groups are repeated."""
    tokens = config.micro_batch_size * training.seq_length / config.context_parallel_size
    groups = max(model.num_query_groups / config.tensor_model_parallel_size, 1.0)
    return 2.0 * tokens * groups * model.kv_head_size * training.parameter_bytes


def context_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> tuple[RingTraffic, RingTraffic]:
    """
    Traffic of a rank in context parallelism per layer and micro-batch: forward and backward.
    Full recomputation repeats the forward's traffic, and so does recomputation of the attention core. An all-to-all is
    one step, in which a rank sends every other rank its part; a call for each tensor.
    """
    steps = config.context_parallel_size - 1
    again = config.recomputes("core_attn")
    if training.cp_comm_type == "a2a":
        tokens = config.micro_batch_size * training.seq_length / config.context_parallel_size
        width = (model.query_projection_size + model.attention_output_size) / config.tensor_model_parallel_size
        held = key_value_bytes(model, training, config) + tokens * width * training.parameter_bytes
        sent = steps / config.context_parallel_size * held
        calls = 4 if steps else 0
        return RingTraffic(sent, calls, calls), RingTraffic(
            (1 + again) * sent, (1 + again) * calls, (1 + again) * calls
        )
    gathered = steps * key_value_bytes(model, training, config)
    if training.cp_comm_type == "all_gather":
        return (
            RingTraffic(gathered, 2 * steps, 2),
            RingTraffic((2 + again) * gathered, (4 + 2 * again) * steps, 4 + 2 * again),
        )
    return (
        RingTraffic(hop_bytes=gathered, num_steps=steps),
        RingTraffic(hop_bytes=(2 + again) * gathered, num_steps=(1 + again) * steps),
    )


def hidden_by_attention_s(instance: Instance, config: ParallelConfig, kind: LayerKind) -> tuple[float, float]:
    """
    Attention time of one layer that overlaps with the ring, forward and backward, on the fastest GPU kind, seconds.
    That is all blocks but the last, during which nothing is sent; 0 for other kinds of exchange.
    """
    if instance.training.cp_comm_type != "p2p":
        return 0.0, 0.0
    share = 1.0 - 1.0 / config.context_parallel_size
    times = [
        attention_times_s(instance.model, instance.training, config, gpu, instance.stack, kind)
        for gpu in instance.cluster.gpu_kinds
    ]
    forward, backward = (share * min(seconds[way] for seconds in times) for way in (0, 1))
    return forward, backward + (forward if config.recomputes("core_attn") else 0.0)


class SpanningRing(NamedTuple):
    """
    Ring inside a layer that spans hosts, with its traffic and the time that hides it; a slot's slowest ring counts.

    Parameters
    ----------
    traffic
        Traffic forward and backward.
    hidden_s
        Time of the layer that hides it, forward and backward, seconds.
    group_flows, num_flows
        Flows that the ring opens between two of its hosts, and those of all rings of the slot between these.
    num_hosts
        Hosts that a hop's rate depends on, on NVLink domains: 2 for messages, which only depend on their own hop.
    members
        Ranks of the ring on each host; with several, it is no faster than inside a host.
    """

    traffic: tuple[RingTraffic, RingTraffic]
    hidden_s: tuple[float, float]
    group_flows: int
    num_flows: int
    num_hosts: int
    members: int

    def hop_s(self, instance: Instance, way: int) -> FloatArray:
        """Exposed time in a layer by slowest hop, seconds, shape ``(num_nodes, num_nodes)``; NaN without a link."""
        moved = self.traffic[way]
        across = inter_node_ring_s(
            instance.cluster,
            moved,
            group_flows=self.group_flows,
            num_flows=self.num_flows,
            num_hosts=self.num_hosts,
            stack=instance.stack,
        )
        return self._shown_s(instance, across, way)

    def least_s(self, instance: Instance) -> tuple[float, float]:
        """Exposed time in a layer over the best links, forward and backward, seconds."""
        forward, backward = (
            least_ring_s(
                instance.cluster,
                moved,
                group_flows=self.group_flows,
                num_flows=self.num_flows,
                num_hosts=self.num_hosts,
                stack=instance.stack,
            )
            for moved in self.traffic
        )
        return float(self._shown_s(instance, forward, 0)), float(self._shown_s(instance, backward, 1))

    def _shown_s(self, instance: Instance, across_s: FloatArray | float, way: int) -> FloatArray:
        if self.members > self.group_flows:
            inside = intra_node_ring_s(instance.cluster, self.traffic[way], self.members, instance.stack)
            across_s = np.maximum(across_s, inside)
        shown: FloatArray = np.maximum(np.asarray(across_s) - self.hidden_s[way], 0.0)
        return shown


def spanning_ring(
    instance: Instance, config: ParallelConfig, block: NodeBlock, kind: LayerKind, idle_s: tuple[float, float]
) -> SpanningRing:
    """
    Return the ring of a layer whose hops depend on the placement: of tensor groups over hosts, else of context groups.

    Parameters
    ----------
    idle_s
        Device's wait for the host as of :func:`inside_layer_s`.
    """
    if block.tensor_nodes == 1:
        return _context_ring(instance, config, block, kind)
    members = config.tensor_model_parallel_size // block.tensor_nodes
    return SpanningRing(
        traffic=tensor_traffic(instance.model, instance.training, config, kind),
        hidden_s=idle_s,
        group_flows=members,
        num_flows=members,
        num_hosts=block.tensor_nodes,
        members=members,
    )


def has_context_ring(training: TrainingSpec, block: NodeBlock) -> bool:
    """
    Return whether the slowest hop determines the time of context groups over hosts; all-to-alls depend on
    all links.
    """
    return block.context_nodes == 1 or training.cp_comm_type != "a2a"


def _context_ring(instance: Instance, config: ParallelConfig, block: NodeBlock, kind: LayerKind) -> SpanningRing:
    """
    Return the ring of context groups: a message from a group's last rank on a host to the next host, or a collective.

    Without traffic for layers without attention, and for all-to-alls.
    """
    traffic, hidden = (_NOTHING, _NOTHING), (0.0, 0.0)
    if kind.has_attention and has_context_ring(instance.training, block):
        traffic = context_traffic(instance.model, instance.training, config)
        hidden = hidden_by_attention_s(instance, config, kind)
    groups = config.tensor_model_parallel_size // block.tensor_nodes
    members = config.context_parallel_size // block.context_nodes
    sends = instance.training.cp_comm_type == "p2p"
    return SpanningRing(
        traffic=traffic,
        hidden_s=hidden,
        group_flows=1 if sends else members,
        num_flows=groups if sends else groups * members,
        num_hosts=2 if sends else block.context_nodes,
        members=members,
    )


def _least_context_s(
    instance: Instance, config: ParallelConfig, block: NodeBlock, kind: LayerKind
) -> tuple[float, float]:
    """Exposed time of context groups over hosts in a layer, over the best links, forward and backward, seconds."""
    if has_context_ring(instance.training, block) or not kind.has_attention:
        return _context_ring(instance, config, block, kind).least_s(instance)
    cp = config.context_parallel_size
    here, gpus = cp // block.context_nodes, gpus_of_a_host(config, block)
    forward, backward = (
        moved.num_calls
        * least_exchange_s(
            instance,
            moved.hop_bytes / (cp - 1) / moved.num_calls,
            here,
            block.context_nodes,
            gpus,
            np.ones(cp + 1),
        )
        for moved in context_traffic(instance.model, instance.training, config)
    )
    return forward, backward


def inside_stages_s(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    block: NodeBlock | None = None,
    experts_s: Callable[[ParallelConfig, LayerKind], tuple[float, float]] = lambda config, kind: (0.0, 0.0),
) -> FloatArray:
    """
    Exposed communication inside the layers of each chunk per micro-batch, seconds, shape ``(2, num_chunks, pp)``.
    Forward and backward, as of :func:`inside_layer_s`. ``experts_s``: additional time of a layer with experts, in a
    configuration that treats all layers alike.
    """
    found = np.zeros((2, config.num_chunks, config.pipeline_model_parallel_size))
    for counted in counted_layers(instance.model, config):
        idle = compute.idle_s(counted.is_recomputed)
        seconds = inside_layer_s(instance, counted.config, idle, counted.kind, block)
        sent = experts_s(counted.config, counted.kind) if counted.kind.has_experts else (0.0, 0.0)
        for way in (0, 1):
            found[way] += counted.layers * (seconds[way] + sent[way])
    return found


def inside_layer_s(
    instance: Instance,
    config: ParallelConfig,
    idle_s: tuple[float, float],
    kind: LayerKind,
    block: NodeBlock | None = None,
) -> tuple[float, float]:
    """
    Exposed tensor- and context-parallel communication of one layer and micro-batch, forward and backward, seconds.
    The ring of :func:`spanning_ring` and the traffic of experts are not included. Context groups over hosts that are
    not the spanning ring count over the best links: tensor groups are the spanning ring, or they use all-to-alls.

    Parameters
    ----------
    idle_s
        Device's wait for the host in one layer, forward and backward, which hides tensor communication, seconds.
    block
        Host tile; ``None``: whole groups are inside a host.
    """
    found = [0.0, 0.0]
    model, training, cluster, stack = instance.model, instance.training, instance.cluster, instance.stack
    parts = (1, 1) if block is None else (block.tensor_nodes, block.context_nodes)
    if block is not None and parts[1] > 1 and (parts[0] > 1 or not has_context_ring(training, block)):
        found = list(_least_context_s(instance, config, block, kind))
    if config.tensor_model_parallel_size > 1 and parts[0] == 1:
        members = config.tensor_model_parallel_size
        for way, ring in enumerate(tensor_traffic(model, training, config, kind)):
            found[way] += max(intra_node_ring_s(cluster, ring, members, stack) - idle_s[way], 0.0)
    if config.context_parallel_size > 1 and kind.has_attention and parts[1] == 1:
        hidden = hidden_by_attention_s(instance, config, kind)
        for way, ring in enumerate(context_traffic(model, training, config)):
            shown_s = intra_node_ring_s(cluster, ring, config.context_parallel_size, stack) - hidden[way]
            found[way] += max(shown_s, 0.0)
    return found[0], found[1]
