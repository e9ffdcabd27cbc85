"""
Context parallelism: attention over a sequence that is spread over ranks, by three kinds of exchange.

Ring attention with point-to-point messages, Transformer Engine's default (``cp_comm_type="p2p"``): in ``cp - 1`` steps
the keys and values of each rank go round the ring while the block that is there is worked on; in the backward pass
their gradients travel with them (Liu et al., arXiv 2310.01889). Attention has a kernel for each block and merges what
they give (``ring_steps``); what of the ring all blocks but the last do not hide is added to the layer. Megatron-Core
gives each rank an early and a late piece of the sequence, so that causal blocks are equal.

``a2a`` (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509): queries, keys and values are exchanged for some heads of
the whole sequence, and the output back; backward the output's gradient there and the three others back. Windows and
sinks go with it. ``all_gather`` (Llama 3, arXiv 2407.21783): keys and values of all ranks are gathered before, and again
in the backward pass, after which their gradients are scattered. Nothing of either runs beside attention.
"""

from collections.abc import Callable

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.collectives import RingTraffic, intra_node_ring_s, tensor_traffic
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import Instance, LayerKind, ModelSpec, TrainingSpec


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


def inside_stages_s(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    experts_s: Callable[[ParallelConfig, LayerKind], tuple[float, float]] = lambda config, kind: (0.0, 0.0),
) -> FloatArray:
    """
    Communication inside the layers of each chunk for one micro-batch, shape ``(2, num_chunks, pp)``.

    Forward and backward, if tensor- and context-parallel groups stay inside hosts; ``experts_s``: what a layer of a
    kind with experts has beside that, in a configuration that treats all layers alike.
    """
    found = np.zeros((2, config.num_chunks, config.pipeline_model_parallel_size))
    for one in counted_layers(instance.model, config):
        idle = compute.idle_s(one.is_recomputed)
        seconds = inside_layer_s(instance, one.config, idle, one.kind)
        sent = experts_s(one.config, one.kind) if one.kind.has_experts else (0.0, 0.0)
        for way in (0, 1):
            found[way] += one.layers * (seconds[way] + sent[way])
    return found


def inside_layer_s(
    instance: Instance, config: ParallelConfig, idle_s: tuple[float, float], kind: LayerKind
) -> tuple[float, float]:
    """
    Tensor- and context-parallel communication of one layer and micro-batch, if both stay inside hosts, seconds.

    Forward and backward; what a layer hides is left out, and what experts send.

    Parameters
    ----------
    idle_s
        Time of one layer in which the device waits for the host, forward and backward, and tensor communication hides.
    """
    found = [0.0, 0.0]
    model, training, cluster, stack = instance.model, instance.training, instance.cluster, instance.stack
    if config.tensor_model_parallel_size > 1:
        members = config.tensor_model_parallel_size
        for way, ring in enumerate(tensor_traffic(model, training, config, kind)):
            found[way] += max(intra_node_ring_s(cluster, ring, members, stack) - idle_s[way], 0.0)
    if config.context_parallel_size > 1 and kind.has_attention:
        hidden = hidden_by_attention_s(instance, config, kind)
        for way, ring in enumerate(context_traffic(model, training, config)):
            shown_s = intra_node_ring_s(cluster, ring, config.context_parallel_size, stack) - hidden[way]
            found[way] += max(shown_s, 0.0)
    return found[0], found[1]
