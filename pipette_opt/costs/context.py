"""
Context parallelism: attention over a sequence that is spread over ranks, by three kinds of exchange.

Ring attention with point-to-point messages, Transformer Engine's default (``cp_comm_type="p2p"``): in ``cp - 1`` steps
the keys and values of each rank go round the ring while the block that is there is worked on; in the backward pass
their gradients travel with them (Liu et al., arXiv 2310.01889). Attention has a kernel for each block and merges what
they give (``ring_steps``); what of the ring all blocks but the last do not hide is added to the layer. Megatron-Core
gives each rank an early and a late piece of the sequence, so that causal blocks are equal.

``a2a`` (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509): queries, keys and values are exchanged for some heads of
the whole sequence, and the output back; backward the output's gradient there and the three others back. Windows and
sinks go with it. ``all_gather`` (Llama 3, arXiv 2407.21783): keys and values of all ranks are gathered before, and
again in the backward pass, after which their gradients are scattered. Nothing of either runs beside attention.

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
"""Of a ring that does not run."""


def key_value_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """Keys and values of one layer that a rank holds; fewer query groups than tensor ranks are repeated."""
    tokens = config.micro_batch_size * training.seq_length / config.context_parallel_size
    groups = max(model.num_query_groups / config.tensor_model_parallel_size, 1.0)
    return 2.0 * tokens * groups * model.kv_head_size * training.parameter_bytes


def context_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> tuple[RingTraffic, RingTraffic]:
    """
    What a rank sends in context parallelism per layer and micro-batch: forward and backward.

    Full recomputation repeats the forward's, and so does that of the attention core. An all-to-all is one step, in
    which a rank sends every other one its part; a call for each tensor.
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
    one = steps * key_value_bytes(model, training, config)
    if training.cp_comm_type == "all_gather":
        return (
            RingTraffic(one, 2 * steps, 2),
            RingTraffic((2 + again) * one, (4 + 2 * again) * steps, 4 + 2 * again),
        )
    return (
        RingTraffic(hop_bytes=one, num_steps=steps),
        RingTraffic(hop_bytes=(2 + again) * one, num_steps=(1 + again) * steps),
    )


def hidden_by_attention_s(instance: Instance, config: ParallelConfig, kind: LayerKind) -> tuple[float, float]:
    """
    Attention of one layer that runs beside the ring, forward and backward, on the fastest kind of GPU, seconds.

    All blocks but the last one, beside which nothing is sent any more; nothing with other kinds of exchange.
    """
    if instance.training.cp_comm_type != "p2p":
        return 0.0, 0.0
    share = 1.0 - 1.0 / config.context_parallel_size
    times = [
        attention_times_s(instance.model, instance.training, config, gpu, instance.stack, kind)
        for gpu in instance.cluster.gpu_kinds
    ]
    forward, backward = (share * min(one[way] for one in times) for way in (0, 1))
    return forward, backward + (forward if config.recomputes("core_attn") else 0.0)


class SpanningRing(NamedTuple):
    """
    A ring inside a layer that spans hosts; of a slot's the slowest counts. Its traffic and what hides it, each way.

    Parameters
    ----------
    traffic
        Forward and backward.
    hidden_s
        Time of the layer beside which it runs, seconds, likewise.
    group_flows, num_flows
        Flows that it opens between two of its hosts, and of all rings of the slot between these.
    num_hosts
        Of which one hop depends, on NVLink domains: 2 for messages, which know their own hop only.
    members
        Ranks that it has on each host; with several of them it is no faster than inside a host.
    """

    traffic: tuple[RingTraffic, RingTraffic]
    hidden_s: tuple[float, float]
    group_flows: int
    num_flows: int
    num_hosts: int
    members: int

    def hop_s(self, instance: Instance, way: int) -> FloatArray:
        """What it adds to a layer by slowest hop, seconds, shape ``(num_nodes, num_nodes)``; NaN without a link."""
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
        """What it adds to a layer over the best links, forward and backward, seconds."""
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
    The ring of a layer whose hops a placement decides: of tensor groups that span hosts, else of context groups.

    Parameters
    ----------
    idle_s
        As of :func:`inside_layer_s`.
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
    """Whether the slowest hop says what context groups over hosts take: of an all-to-all all links do, together."""
    return block.context_nodes == 1 or training.cp_comm_type != "a2a"


def _context_ring(instance: Instance, config: ParallelConfig, block: NodeBlock, kind: LayerKind) -> SpanningRing:
    """
    Of messages the last of a group's ranks on a host sends to the next host, all groups at once; or of a collective.

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
    """What context groups over hosts add to a layer over the best links, forward and backward, seconds."""
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
    Communication inside the layers of each chunk for one micro-batch, shape ``(2, num_chunks, pp)``.

    Forward and backward, as of :func:`inside_layer_s`; ``experts_s``: what a layer of a kind with experts has beside
    that, in a configuration that treats all layers alike.
    """
    found = np.zeros((2, config.num_chunks, config.pipeline_model_parallel_size))
    for one in counted_layers(instance.model, config):
        idle = compute.idle_s(one.is_recomputed)
        seconds = inside_layer_s(instance, one.config, idle, one.kind, block)
        sent = experts_s(one.config, one.kind) if one.kind.has_experts else (0.0, 0.0)
        for way in (0, 1):
            found[way] += one.layers * (seconds[way] + sent[way])
    return found


def inside_layer_s(
    instance: Instance,
    config: ParallelConfig,
    idle_s: tuple[float, float],
    kind: LayerKind,
    block: NodeBlock | None = None,
) -> tuple[float, float]:
    """
    Tensor- and context-parallel communication of one layer and micro-batch, but for :func:`spanning_ring`, seconds.

    Forward and backward; what a layer hides is left out, and what experts send. Context groups over hosts count over
    the best links, where they are not the spanning ring: tensor groups are, or they exchange all with all.

    Parameters
    ----------
    idle_s
        Time of one layer in which the device waits for the host, forward and backward, and tensor communication hides.
    block
        How hosts hold the slots; without it whole groups are inside a host.
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
