"""
Context parallelism: attention over a sequence that is divided among ranks, by three types of exchange.

``p2p``, Transformer Engine's default, is ring attention with point-to-point messages (Liu et al., arXiv 2310.01889). In
``cp - 1`` steps, the keys and values of each rank go around the ring while a rank works on the block that it has. In
the backward pass, their gradients travel with them. Attention has a kernel for each block and merges the results
(``ring_steps``). The layer's time includes the part of the ring that all blocks but the last do not hide. Megatron-Core
gives each rank an early and a late part of the sequence, so that causal blocks are equal.

``a2a`` (Jacobs et al., DeepSpeed-Ulysses, arXiv 2309.14509) exchanges queries, keys and values, and exchanges the
output back. In between, a rank has a few heads of the whole sequence. In the backward pass, it exchanges the output's
gradient and then the gradients of the other three. It supports windows and sinks. ``all_gather`` (Llama 3, arXiv
2407.21783) gathers keys and values of all ranks before attention, and again in the backward pass. Then it scatters
their gradients. ``a2a`` and ``all_gather`` do not overlap with attention.

``a2a+p2p`` (USP, arXiv 2405.07719) exchanges heads among consecutive ranks of a group, and sends keys and values around
rings of the ranks at equal places of these parts.

Over several hosts, messages of a ring go from the last rank of a host to the next host, in one flow for each group.
Gathers are NCCL's rings. All-to-alls send from every rank to every other, like those of experts.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial, reduce
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.attention import attention_times_s
from pipette_opt.costs.beside_products import (
    BesideProduct,
    beside_head,
    beside_products,
    most_beside,
    shown_beside_products_s,
)
from pipette_opt.costs.collectives import NO_TRAFFIC, RingTraffic, end_traffic, tensor_traffic
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.exchange import least_exchange_s, part_bytes
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.costs.links import BestLinks, Links, NoLinks, RingShape
from pipette_opt.layers.attention import AttentionBranch
from pipette_opt.parallel import HostTile, ParallelConfig, gpus_of_a_host
from pipette_opt.specs import Instance, LayerKind, ModelSpec, TrainingSpec
from pipette_opt.specs.activations import exchange_ranks, micro_batch_tokens


def key_value_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """
    Return the bytes of a layer's keys and values on a rank, which ranks of context parallelism send.

    With fewer query groups than tensor ranks, groups are repeated.
    """
    mixers, tp = (model.mixer(kind) for kind in model.layers), config.tensor_model_parallel_size
    widths = (mixer.keys_width(tp) for mixer in mixers if isinstance(mixer, AttentionBranch))
    return micro_batch_tokens(training, config) * next(widths, 0.0) * training.parameter_bytes


def context_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> tuple[RingTraffic, RingTraffic]:
    """
    Return a rank's traffic of keys and values around their ring, per layer and micro-batch: forward and backward.

    Full recomputation and recomputation of the attention core repeat the forward's traffic.
    """
    steps = config.context_parallel_size // exchange_ranks(training, config) - 1
    again = config.recomputes("core_attn")
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


def exchanged_traffic(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig
) -> tuple[RingTraffic, RingTraffic]:
    """
    Return a rank's traffic of the exchange of heads per layer and micro-batch: forward and backward.

    An all-to-all is one step, in which a rank sends every other rank its part, with one call for each tensor;
    :func:`~pipette_opt.costs.exchange.exchange_s` prices it, inside hosts and over them. It is repeated like the
    traffic of :func:`context_traffic`.
    """
    ranks, times = exchange_ranks(training, config), 1 + config.recomputes("core_attn")
    if ranks == 1:
        return NO_TRAFFIC, NO_TRAFFIC
    tokens = micro_batch_tokens(training, config)
    width = (model.query_projection_size + model.attention_output_size) / config.tensor_model_parallel_size
    held = key_value_bytes(model, training, config) + tokens * width * training.parameter_bytes
    sent, calls = (ranks - 1) / ranks * held, 4
    return RingTraffic(sent, calls, calls), RingTraffic(times * sent, times * calls, times * calls)


def hidden_by_attention_s(
    instance: Instance, config: ParallelConfig, kind: LayerKind, kinds: Sequence[int]
) -> tuple[float, float]:
    """
    Return the attention time of one layer that overlaps with the ring, forward and backward, seconds.

    The fastest of the GPU types ``kinds`` counts. All blocks but the last overlap, since nothing is sent during the
    last one. The time is 0 for all-to-alls and gathers.
    """
    share = 1.0 - exchange_ranks(instance.training, config) / config.context_parallel_size
    if share == 0.0 or instance.training.cp_comm_type == "all_gather":
        return 0.0, 0.0
    gpus = [instance.cluster.gpu_kinds[gpu] for gpu in kinds]
    times = [attention_times_s(instance.model, instance.training, config, gpu, instance.stack, kind) for gpu in gpus]
    forward, backward = (share * min(seconds[way] for seconds in times) for way in (0, 1))
    return forward, backward + (forward if config.recomputes("core_attn") else 0.0)


class SpanningRing(NamedTuple):
    """
    Ring of one layer that spans hosts, with its traffic and the time that hides it; the slowest ring of a slot counts.

    Parameters
    ----------
    traffic
        Traffic of the forward and of the backward pass.
    hidden_s
        Seconds of the layer that hide the ring, forward and backward.
    shape
        Ranks and hosts of the ring; two hosts for messages, which depend on their own hop only.
    beside
        Messages beside products of the backward pass.
    slowdown
        Relative additional time of compute during collectives.
    """

    traffic: tuple[RingTraffic, RingTraffic]
    hidden_s: tuple[float, float]
    shape: RingShape
    beside: tuple[BesideProduct, ...] = ()
    slowdown: float = 0.0

    def shown_s(self, links: Links, way: int) -> FloatArray:
        """Return the exposed time in a layer over links, seconds; ``way``: 0 forward, 1 backward."""
        ring_s = cache(partial(links.ring_s, self.shape))
        sent = ring_s(self.traffic[way]) + shown_beside_products_s(ring_s, self.beside if way else (), self.slowdown)
        shown: FloatArray = np.maximum(sent - self.hidden_s[way], 0.0)
        return shown

    def least_s(self, instance: Instance) -> tuple[float, float]:
        """Return a lower bound on the exposed time in a layer over any links, forward and backward, seconds."""
        links = BestLinks(instance.cluster, instance.stack)
        return float(self.shown_s(links, 0)[0]), float(self.shown_s(links, 1)[0])


def spanning_ring(
    instance: Instance, config: ParallelConfig, tile: HostTile, kind: LayerKind, idle_s: tuple[float, float]
) -> SpanningRing:
    """
    Return the ring of a layer whose hops depend on the placement.

    It is the ring of the tensor groups if these span hosts, otherwise of the context groups.

    Parameters
    ----------
    idle_s
        Seconds during which the GPU waits for the host, as in :func:`inside_layer_s`.
    """
    if tile.tensor_nodes == 1:
        return _context_ring(instance, config, tile, kind)
    members, kinds = config.tensor_model_parallel_size // tile.tensor_nodes, range(len(instance.cluster.gpu_kinds))
    return SpanningRing(
        traffic=tensor_traffic(instance.model, instance.training, config, kind),
        hidden_s=idle_s,
        shape=RingShape(members, tile.tensor_nodes, members),
        beside=reduce(most_beside, [beside_products(instance, config, kind, [gpu]) for gpu in kinds]),
        slowdown=instance.stack.overlap_slowdown,
    )


def exchange_stays_inside(training: TrainingSpec, config: ParallelConfig, tile: HostTile) -> bool:
    """
    Return whether ranks that exchange heads share a host, so that the slowest hop determines the time of context
    groups over hosts; all-to-alls over hosts depend on all links.
    """
    return config.context_parallel_size // tile.context_nodes % exchange_ranks(training, config) == 0


def _context_ring(instance: Instance, config: ParallelConfig, tile: HostTile, kind: LayerKind) -> SpanningRing:
    """
    Return the ring of context groups: a message from a group's last rank on a host to the next host, or a collective.

    It has no traffic for layers without attention. The GPU type whose attention hides most counts.
    """
    traffic, hidden = (NO_TRAFFIC, NO_TRAFFIC), (0.0, 0.0)
    if kind.has_attention:
        traffic = context_traffic(instance.model, instance.training, config)
        alone = [hidden_by_attention_s(instance, config, kind, [gpu]) for gpu in range(len(instance.cluster.gpu_kinds))]
        hidden = max(forward for forward, _ in alone), max(backward for _, backward in alone)
    exchanging = exchange_ranks(instance.training, config)
    groups = config.tensor_model_parallel_size // tile.tensor_nodes * exchanging
    members = max(config.context_parallel_size // tile.context_nodes // exchanging, 1)
    shape = RingShape(members, 2, groups, messages=True)
    if instance.training.cp_comm_type == "all_gather":
        shape = RingShape(members, tile.context_nodes, groups * members)
    return SpanningRing(traffic, hidden, shape)


def _exchange_s(instance: Instance, config: ParallelConfig, tile: HostTile | None) -> tuple[float, float]:
    """
    Return seconds of the exchange of heads in a layer, both passes.

    Over the best links if it leaves hosts. Where hosts do not divide a group evenly, its ranks on the first host count.
    """
    ranks, hosts, gpus = exchange_ranks(instance.training, config), 1, 1
    here = config.context_parallel_size // (1 if tile is None else tile.context_nodes)
    if tile is not None and ranks >= 2 * here:
        hosts, gpus = ranks // here, gpus_of_a_host(config, tile)
    forward, backward = (
        moved.num_calls
        * least_exchange_s(instance, part_bytes(moved, ranks), min(here, ranks), hosts, gpus, np.ones(ranks + 1))
        for moved in exchanged_traffic(instance.model, instance.training, config)
    )
    return forward, backward


def inside_stages_s(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    kinds: Sequence[int],
    tile: HostTile | None = None,
    experts_s: Callable[[ParallelConfig, LayerKind], tuple[float, float]] = lambda config, kind: (0.0, 0.0),
) -> FloatArray:
    """
    Return the exposed communication inside each chunk per micro-batch, seconds, ``(2, num_chunks, pp)``.

    Forward and backward, as in :func:`inside_layer_s`, with that of embeddings and head.

    Parameters
    ----------
    kinds
        GPU types of the stages; their least waits, attention and products hide communication.
    experts_s
        Function to the additional time of a layer with experts, in a configuration that recomputes all layers or none.
    """
    found = np.zeros((2, config.num_chunks, config.pipeline_model_parallel_size))
    found[:, 0, 0], head_s = ends_s(instance, config, kinds, tile)
    found[:, -1, -1] += head_s
    for counted in counted_layers(instance.model, config):
        idle = compute.idle_s(counted.is_recomputed, kinds)
        seconds = inside_layer_s(instance, counted.config, idle, counted.kind, kinds, tile)
        sent = experts_s(counted.config, counted.kind) if counted.kind.has_experts else (0.0, 0.0)
        for way in (0, 1):
            found[way] += counted.layers * (seconds[way] + sent[way])
    return found


def ends_s(
    instance: Instance, config: ParallelConfig, kinds: Sequence[int], tile: HostTile | None = None
) -> FloatArray:
    """
    Return the exposed tensor communication of embeddings and of the head for one micro-batch, seconds, ``(2, 2)``.

    Forward and backward of each; over the best links if tensor groups span hosts. The fastest of the GPU types
    ``kinds`` counts for messages beside the head's products.
    """
    found = np.zeros((2, 2))
    tp, hosts = config.tensor_model_parallel_size, 1 if tile is None else tile.tensor_nodes
    if tp == 1:
        return found
    shape = RingShape(tp // hosts, hosts, tp // hosts)
    ring_s = partial(BestLinks(instance.cluster, instance.stack).ring_s, shape)
    for place, end in enumerate(end_traffic(instance.model, instance.training, config)):
        for ways in end:
            found[place] += [float(ring_s(ring)[0]) for ring in ways]
    head = beside_head(instance, config, kinds)
    found[1, 1] += np.min(shown_beside_products_s(ring_s, head, instance.stack.overlap_slowdown))
    return found


def inside_layer_s(
    instance: Instance,
    config: ParallelConfig,
    idle_s: tuple[float, float],
    kind: LayerKind,
    kinds: Sequence[int],
    tile: HostTile | None = None,
) -> tuple[float, float]:
    """
    Return the exposed tensor and context communication of one layer and micro-batch, forward and backward, seconds.

    The ring of :func:`spanning_ring` and the traffic of experts are not included. Context groups over hosts count over
    the best links if tensor groups are the spanning ring, and so do all-to-alls over hosts.

    Parameters
    ----------
    idle_s
        Seconds during which the GPU waits for the host in one layer, forward and backward; they hide tensor
        communication.
    kinds
        GPU types whose attention hides the ring of keys and values, and whose products hide messages of tensor ranks;
        the fastest counts.
    tile
        Host tile (part of the model on one host); ``None``: all groups are inside a host.
    """
    found = [0.0, 0.0]
    model, training, inside = instance.model, instance.training, NoLinks(instance.cluster, instance.stack)
    parts = (1, 1) if tile is None else (tile.tensor_nodes, tile.context_nodes)
    if kind.has_attention and exchange_ranks(training, config) > 1:
        found = list(_exchange_s(instance, config, tile))
    if tile is not None and min(parts) > 1:
        for way, seconds in enumerate(_context_ring(instance, config, tile, kind).least_s(instance)):
            found[way] += seconds
    if config.tensor_model_parallel_size > 1 and parts[0] == 1:
        ring_s = cache(partial(inside.ring_s, RingShape(config.tensor_model_parallel_size)))
        beside = beside_products(instance, config, kind, kinds)
        shown = 0.0, shown_beside_products_s(ring_s, beside, instance.stack.overlap_slowdown)
        for way, ring in enumerate(tensor_traffic(model, training, config, kind)):
            found[way] += max(float((ring_s(ring) + shown[way])[0]) - idle_s[way], 0.0)
    if config.context_parallel_size > 1 and kind.has_attention and parts[1] == 1:
        hidden = hidden_by_attention_s(instance, config, kind, kinds)
        shape = RingShape(config.context_parallel_size // exchange_ranks(training, config))
        for way, ring in enumerate(context_traffic(model, training, config)):
            found[way] += max(float(inside.ring_s(shape, ring)[0]) - hidden[way], 0.0)
    return found[0], found[1]
