"""All costs of a configuration on given GPUs, in seconds."""

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
from pipette_opt.errors import MissingLinkError
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid
from pipette_opt.specs import ClusterSpec, Instance
from pipette_opt.types import FloatArray, IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlacedTimes:
    """
    Times of every stage of every replica, in seconds.

    Parameters
    ----------
    forward_s, backward_s
        One micro-batch through one model chunk, tensor communication and recomputation included, shape
        ``(num_chunks, pp, dp)``; one chunk without interleaving.
    tensor_forward_s, tensor_backward_s
        The part of them that is tensor communication, same shape.
    send_forward_s
        Transfer of one micro-batch from stage ``s`` to stage ``(s + 1) % pp``, shape ``(pp, dp)``; the last
        row is used by interleaved schedules only. Zero if ``pp`` is 1.
    send_backward_s
        Transfer from stage ``(s + 1) % pp`` to stage ``s``, same shape.
    reduction_s
        Gradient reduction of each stage (and the parameter gather of the distributed optimizer), shape ``(pp,)``.
    optimizer_s
        Optimizer step.
    embedding_s
        All-reduce of the word embedding's gradient between the first and the last stage, where both hold it.
    weight_s
        The part of ``backward_s`` that makes gradients of weights, for schedules that split the backward, shape of
        ``backward_s``; ``None``: half of the backward without tensor communication.
    reduction_buckets
        Pieces in which each stage's reduction runs beside its last backwards; 0: after them, as one.
    gather_s
        Parameter gather of each stage, shape ``(pp,)``, if it is not a part of ``reduction_s``.
    gather_buckets
        Pieces in which the gather runs beside the first forwards; 0: before them, as one.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    tensor_forward_s: FloatArray
    tensor_backward_s: FloatArray
    send_forward_s: FloatArray
    send_backward_s: FloatArray
    reduction_s: FloatArray
    optimizer_s: float
    embedding_s: float = 0.0
    weight_s: FloatArray | None = None
    reduction_buckets: int = 0
    gather_s: FloatArray | None = None
    gather_buckets: int = 0

    def __post_init__(self) -> None:
        for name in (
            "forward_s",
            "backward_s",
            "tensor_forward_s",
            "tensor_backward_s",
            "send_forward_s",
            "send_backward_s",
            "reduction_s",
        ):
            object.__setattr__(self, name, read_only(getattr(self, name), np.float64))
        for name in ("weight_s", "gather_s"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, read_only(getattr(self, name), np.float64))


def placed_times(instance: Instance, config: ParallelConfig, placement: Placement) -> PlacedTimes:
    """
    Times of any placement, regular or not.

    Flows that run at once and share a host pair: the messages of one stage boundary in one direction; the
    gradient rings of all stages; the tensor-parallel rings of all stages. Raises ``MissingLinkError`` if the
    placement uses a link that was not measured.
    """
    ranks = RankGrid.of(config, placement.order).ranks()
    pp, dp = ranks.shape[:2]
    hosts = placement.node[ranks].reshape(pp, dp, -1)  # (pp, dp, slot)
    compute = stage_compute(instance, config)
    kinds = instance.cluster.kind_of_node[hosts]
    stage = np.arange(pp)[:, None, None]
    forward = compute.forward_s[kinds, :, stage].max(axis=2).transpose(2, 0, 1)  # (chunks, pp, dp)
    backward = compute.backward_s[kinds, :, stage].max(axis=2).transpose(2, 0, 1)
    tensor_forward, tensor_backward = _tensor_times(instance, config, hosts, compute)
    send_forward, send_backward = _send_times(instance, config, hosts)
    return PlacedTimes(
        forward_s=forward + tensor_forward,
        backward_s=backward + tensor_backward,
        tensor_forward_s=tensor_forward,
        tensor_backward_s=tensor_backward,
        send_forward_s=send_forward,
        send_backward_s=send_backward,
        reduction_s=_reduction_times(instance, config, hosts),
        optimizer_s=compute.optimizer_s,
        embedding_s=_embedding_time(instance, config, hosts),
    )


def _embedding_time(instance: Instance, config: ParallelConfig, hosts: IntArray) -> float:
    """
    All-reduce of tied word embeddings, the slowest pair of first and last stage.

    A link that was not measured counts as the slowest one that was: these few bytes are no reason to refuse a plan.
    """
    if not has_tied_stages(instance.model, config):
        return 0.0
    traffic = embedding_traffic(instance.model, instance.training, config)
    pairs, flows = np.unique(np.stack([hosts[0].ravel(), hosts[-1].ravel()]), axis=1, return_counts=True)
    slowest = 0.0
    for (first, last), num_flows in zip(pairs.T, flows, strict=True):
        if first == last:
            slowest = max(slowest, intra_node_ring_s(instance.cluster, traffic, instance.stack))
            continue
        time = inter_node_ring_s(
            instance.cluster, traffic, group_flows=1, num_flows=int(num_flows), stack=instance.stack
        )
        both = np.array([time[first, last], time[last, first]])
        slowest = max(slowest, float(np.nanmax(time) if np.isnan(both).any() else both.max()))
    return slowest


def _send_times(instance: Instance, config: ParallelConfig, hosts: IntArray) -> tuple[FloatArray, FloatArray]:
    """Transfers of every boundary, forward and backward, the one from the last to the first stage included."""
    if len(hosts) == 1:
        nothing = np.zeros((1, hosts.shape[1]))
        return nothing, nothing
    size = p2p_bytes(instance.model, instance.training, config)
    forward, backward = np.zeros(hosts.shape[:2]), np.zeros(hosts.shape[:2])
    used = len(hosts) if config.num_chunks > 1 else len(hosts) - 1
    here, there = hosts[:used], np.roll(hosts, -1, axis=0)[:used]
    forward[:used] = _message_times(instance.cluster, size, here, there)
    backward[:used] = _message_times(instance.cluster, size, there, here)
    return forward, backward


def _message_times(cluster: ClusterSpec, size: float, here: IntArray, there: IntArray) -> FloatArray:
    """
    Messages from ``here`` to ``there``, shape ``(boundaries, dp, slot)``; the slowest of each replica.

    Those of one boundary go at once and share the links.
    """
    boundary, num_nodes = np.arange(len(here))[:, None, None], cluster.num_nodes
    keys, which, flows = np.unique(
        (boundary * num_nodes + here) * num_nodes + there, return_inverse=True, return_counts=True
    )
    source, target = keys // num_nodes % num_nodes, keys % num_nodes
    times = np.full(len(keys), intra_node_message_s(cluster, size))
    for num_flows in np.unique(flows[source != target]):
        these = (flows == num_flows) & (source != target)
        times[these] = inter_node_message_s(cluster, size, int(num_flows))[source[these], target[these]]
    for missing in np.flatnonzero(np.isnan(times)):
        _check_measured(cluster, float(times[missing]), int(source[missing]), int(target[missing]), "the pipeline")
    slowest: FloatArray = times[which.reshape(here.shape)].max(axis=2)
    return slowest


def _tensor_times(
    instance: Instance, config: ParallelConfig, hosts: IntArray, compute: StageCompute
) -> tuple[FloatArray, FloatArray]:
    """Tensor-parallel communication of every chunk, shape ``(num_chunks, pp, dp)`` each, forward and backward."""
    pp, dp, _ = hosts.shape
    layers = np.repeat(np.array(config.layers_per_stage)[None, :] / config.num_chunks, config.num_chunks, axis=0)
    if config.tensor_model_parallel_size == 1:
        nothing = np.zeros((*layers.shape, dp))
        return nothing, nothing
    groups = hosts.reshape(pp * dp * config.context_parallel_size, config.tensor_model_parallel_size)
    passes = []
    idle = (compute.idle_forward_s, compute.idle_backward_s)
    traffics = tensor_traffic(instance.model, instance.training, config, instance.stack)
    for traffic, hidden in zip(traffics, idle, strict=True):
        times = _ring_times(instance, groups, [traffic] * len(groups), "a tensor-parallel group")
        per_layer = times.reshape(pp, dp, -1).max(axis=2)
        passes.append(layers[:, :, None] * np.maximum(per_layer - hidden, 0.0)[None])
    return passes[0], passes[1]


def _reduction_times(instance: Instance, config: ParallelConfig, hosts: IntArray) -> FloatArray:
    """Gradient reduction of each stage: the slowest of its rings, shape ``(pp,)``."""
    pp, dp, slot = hosts.shape
    tp = config.tensor_model_parallel_size
    if dp * config.context_parallel_size == 1:
        return np.zeros(pp)
    by_rank = hosts.reshape(pp, dp, slot // tp, tp)
    groups = by_rank.transpose(0, 3, 1, 2).reshape(pp * tp, -1)
    moved = gradient_traffic(instance.model, instance.training, config, instance.stack)
    traffic = [one for one in moved for _ in range(tp)]
    times = _ring_times(instance, groups, traffic, "a data-parallel group")
    slowest: FloatArray = times.reshape(pp, tp).max(axis=1)
    return slowest


def _ring_times(instance: Instance, groups: IntArray, traffic: list[RingTraffic], who: str) -> FloatArray:
    """Rings that run at once, one per row of ``groups`` (hosts of the members in rank order), in seconds."""
    if (groups == groups[:, :1]).all():  # no hop between hosts, so nothing to share
        inside = {moved: _ring_time(instance, (), groups.shape[1], moved, {}, who) for moved in set(traffic)}
        return np.array([inside[moved] for moved in traffic])
    rings = [_ring_of(row) for row in groups.tolist()]
    flows: dict[tuple[int, int], int] = {}
    for hops, members in rings:
        for hop in hops:
            flows[hop] = flows.get(hop, 0) + members
    known: dict[tuple[object, ...], float] = {}
    times = np.empty(len(rings))
    for index, ((hops, members), moved) in enumerate(zip(rings, traffic, strict=True)):
        key = (hops, members, moved)
        if key not in known:
            known[key] = _ring_time(instance, hops, members, moved, flows, who)
        times[index] = known[key]
    return times


def _ring_of(members: list[int]) -> tuple[tuple[tuple[int, int], ...], int]:
    """Hops between hosts, in order of first appearance, and how many flows the group opens on each."""
    counts: dict[int, int] = {}
    for host in members:
        counts[host] = counts.get(host, 0) + 1
    order = list(counts)
    if len(order) == 1:
        return (), counts[order[0]]
    return tuple(zip(order, [*order[1:], order[0]], strict=True)), min(counts.values())


def _ring_time(
    instance: Instance,
    hops: tuple[tuple[int, int], ...],
    members: int,
    traffic: RingTraffic,
    flows: dict[tuple[int, int], int],
    who: str,
) -> float:
    cluster, stack = instance.cluster, instance.stack
    time = intra_node_ring_s(cluster, traffic, stack) if members > 1 else 0.0
    for source, target in hops:
        shared = flows[source, target]
        hop = inter_node_ring_s(
            cluster, traffic, group_flows=members, num_flows=shared, num_hosts=len(hops), stack=stack
        )[source, target]
        _check_measured(cluster, float(hop), source, target, who)
        time = max(time, float(hop))
    return time


def _check_measured(cluster: ClusterSpec, time: float, source: int, target: int, who: str) -> None:
    if np.isnan(time):
        raise MissingLinkError(
            f"cluster {cluster.name}",
            f"{who} uses the link from {cluster.hosts[source]} to {cluster.hosts[target]}, which was not measured; "
            "choose other hosts, or import the links again with a fill value.",
        )
