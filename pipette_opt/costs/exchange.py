"""
Tokens on their way to experts and back: all-to-alls of the expert-parallel groups, and rings of their neighbours.

In an all-to-all every rank sends an equal part to every other rank of its group, all at once. Inside a host a rank's
parts follow one another over the fabric. Between hosts the parts of all groups that run at once share the hosts' NICs:
a host sends to each other host in turn, with all its ranks, and likewise receives; its whole load decides, not one
link (``_flows.exchange_loads``). Both go on together, so the longer counts. What is not sent twice by the ``flex``
dispatcher is in ``costs/experts.py``, what its kernels attain in ``costs/token_kernels.py``.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.costs.collectives import NO_TRAFFIC, OWN_PART, RingTraffic, inter_node_ring_s, intra_node_ring_s
from pipette_opt.costs.compute import layer_and_idle_s
from pipette_opt.costs.experts import ExpertTraffic, distinct_shares, expert_block, expert_replicas, expert_traffic
from pipette_opt.costs.token_kernels import most_sent_bytes_per_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, Instance, LayerKind, ModelSpec, StackSpec, TrainingSpec


def passes(config: ParallelConfig) -> tuple[int, int]:
    """How often the forward and the backward pass send what the forward pass sends: that of experts does it again."""
    return 1, 1 + config.recomputes("moe")


def expert_rings(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> tuple[RingTraffic, RingTraffic]:
    """Rings over neighbours of a layer with experts and a micro-batch, forward and backward."""
    one = expert_traffic(model, training, config)
    if not one.num_rings:
        return NO_TRAFFIC, NO_TRAFFIC
    steps = one.ring_size - 1
    whole = RingTraffic(
        one.num_rings * steps / one.ring_size * one.gathered_bytes, one.num_rings * steps, one.num_rings
    )
    forward, backward = (
        RingTraffic(times * whole.hop_bytes, times * whole.num_steps, times * whole.num_calls)
        for times in passes(config)
    )
    return forward, backward


def exchange_s(
    cluster: ClusterSpec,
    stack: StackSpec,
    part_bytes: FloatArray | float,
    port_s_per_byte: FloatArray | float,
    spans: BoolArray | bool,
    load_s_per_byte: FloatArray | float,
    latency_s: FloatArray | float,
    most_bytes_per_s: tuple[float, float] = (float("inf"), float("inf")),
) -> FloatArray:
    """
    One all-to-all, seconds; all arguments broadcast. A rank's part for itself costs ``OWN_PART`` of one that is sent.

    Parameters
    ----------
    part_bytes
        What each rank sends to each other.
    port_s_per_byte
        What the busiest rank takes to send one byte to each other one of its host, or of its NVLink domain.
    spans
        Whether the group is on several hosts that share no NVLink domain.
    load_s_per_byte
        What the busiest host of the group takes if each part is one byte; unused unless it spans hosts.
    latency_s
        Of a message between the two hosts of the group that are farthest from each other; unused likewise.
    most_bytes_per_s
        What the kernels of a rank send at most inside the host or domain, of a group that does not span, and of one
        that does.
    """
    link = float(cluster.inside_bytes_per_s(1))
    by_link = (port_s_per_byte + OWN_PART / link) / stack.intra_node
    by_kernels = port_s_per_byte * (link / np.where(spans, most_bytes_per_s[1], most_bytes_per_s[0]))
    fabric = np.asarray(part_bytes) * np.maximum(by_link, by_kernels)
    across = np.where(spans, np.asarray(part_bytes) * load_s_per_byte / stack.inter_node, 0.0)
    inside_s = cluster.intra_node_latency_s
    latency = np.where(spans, np.maximum(inside_s, latency_s), inside_s)
    time: FloatArray = stack.collective_s + latency + np.maximum(fabric, across)
    return time


class Beside(NamedTuple):
    """
    Time of one layer in which tokens travel without being waited for, forward and backward, seconds.

    Parameters
    ----------
    idle_s
        The device waits for the host anyway. With tensor parallelism that time hides its collectives, and no tokens.
    compute_s
        Compute that goes on, and is slowed down by what is sent: none unless the job overlaps them. Megatron-Core puts
        the forward pass of one micro-batch beside the backward pass of another, so each way has the mean of both.
    """

    idle_s: tuple[float, float]
    compute_s: float


def beside_exchange(instance: Instance, config: ParallelConfig, kind: LayerKind) -> Beside:
    """Of a layer with experts of that kind, on the kind of GPU that has least of each."""
    rates, kinds = instance.stack, instance.cluster.gpu_kinds
    layers = [layer_and_idle_s(instance, config, gpu, rates, kind) for gpu in kinds]
    alone = config.tensor_model_parallel_size == 1
    idle = tuple(min(waits[way] for _, waits in layers) if alone else 0.0 for way in (0, 1))
    overlaps = instance.training.overlap_moe_expert_parallel_comm
    return Beside(idle, min(sum(times) for times, _ in layers) / 2.0 if overlaps else 0.0)  # type: ignore[arg-type]


def shown_exchange_s(
    exchange_s: FloatArray | float, idle_s: FloatArray | float, compute_s: FloatArray | float, stack: StackSpec
) -> FloatArray:
    """What tokens on their way add to a layer one way, seconds; the others as of :class:`Beside`."""
    left = np.maximum(np.asarray(exchange_s) - idle_s, 0.0)
    hidden = np.minimum(left, compute_s)
    shown: FloatArray = left - hidden + stack.overlap_slowdown * hidden
    return shown


def expert_layer_s(
    instance: Instance, config: ParallelConfig, kind: LayerKind, ranks: int, gpus: int, beside: Beside | None = None
) -> tuple[float, float]:
    """
    What the tokens of one layer with experts take at least on their way, for one micro-batch, forward and backward.

    Exactly, if no block of experts spans hosts; otherwise over the best links that so many hosts can have, and nothing
    where hosts do not hold blocks, or blocks hosts, as a whole.

    Parameters
    ----------
    ranks
        Of one stage on each host that has it.
    gpus
        All that are used of a host.
    beside
        Of :func:`beside_exchange`, where it is known.
    """
    model, training = instance.model, instance.training
    one = expert_traffic(model, training, config)
    rings = expert_rings(model, training, config)
    found = [0.0, 0.0]
    if one.num_exchanges:
        beside = beside or beside_exchange(instance, config, kind)
    for way, times in enumerate(passes(config)):
        if one.num_rings:
            found[way] += _ring_floor_s(instance, rings[way], one.ring_size, ranks, gpus)
        if one.num_exchanges and beside is not None:
            whole = times * one.num_exchanges * _exchange_floor_s(instance, config, one, ranks, gpus)
            found[way] += float(shown_exchange_s(whole, beside.idle_s[way], beside.compute_s, instance.stack))
    return found[0], found[1]


def _ring_floor_s(instance: Instance, ring: RingTraffic, size: int, ranks: int, gpus: int) -> float:
    """A ring over neighbours, at the best link if it spans hosts."""
    if ranks % size == 0:
        return intra_node_ring_s(instance.cluster, ring, size, instance.stack)
    if size % ranks:
        return 0.0
    hosts = size // ranks
    across = inter_node_ring_s(
        instance.cluster, ring, group_flows=ranks, num_flows=gpus, num_hosts=hosts, stack=instance.stack
    )
    return float(np.nanmin(across, initial=np.inf)) if not np.isnan(across).all() else 0.0


def _exchange_floor_s(instance: Instance, config: ParallelConfig, one: ExpertTraffic, ranks: int, gpus: int) -> float:
    """An all-to-all, at the best link if it spans hosts; with as many of them in an NVLink domain as is best."""
    ep, etp = config.expert_model_parallel_size, config.expert_tensor_size
    part, block, most = one.sent_bytes / ep, ep * etp, most_sent_bytes_per_s(instance.training)
    shares = distinct_shares(instance.model, instance.training, config)
    if ranks % block == 0:
        return least_exchange_s(instance, part, ep, 1, gpus, shares, most_bytes_per_s=most)
    if ranks % etp or block % ranks:
        return 0.0
    hands_on = instance.training.moe_token_dispatcher_type == "flex"
    hosts = block // ranks
    return least_exchange_s(instance, part, ranks // etp, hosts, gpus, shares, hands_on=hands_on, most_bytes_per_s=most)


def least_exchange_s(
    instance: Instance,
    part_bytes: float,
    here: int,
    hosts: int,
    gpus: int,
    shares: FloatArray,
    *,
    hands_on: bool = False,
    most_bytes_per_s: tuple[float, float] = (float("inf"), float("inf")),
) -> float:
    """
    No all-to-all of groups with so many members on each of so many hosts takes less, seconds; 0 without a link.

    Parameters
    ----------
    part_bytes
        What a rank sends to each other.
    gpus
        All ranks of a host that send at once.
    shares, hands_on
        As of ``_flows.exchange_loads``.
    most_bytes_per_s
        As of :func:`exchange_s`.
    """
    cluster, stack = instance.cluster, instance.stack
    port = shares[1] / float(cluster.inside_bytes_per_s(1))
    if hosts == 1:
        return float(exchange_s(cluster, stack, part_bytes, (here - 1) * port, False, 0.0, 0.0, most_bytes_per_s))
    domain, most, found = cluster.domain_of_node, cluster.most_in_domain, []
    apart = np.where(domain[:, None] != domain, cluster.pair_bytes_per_s(gpus), np.nan)
    near = port if most == 1 else min(port, shares[1] / cluster.fastest_pair_bytes_per_s(1))
    for together in range(1, min(most, hosts) + 1):
        # The more members a domain has, the fewer of their copies are sent.
        sent = here * shares[min(here * most, len(shares) - 1)]
        load = gpus * sent * _least_load_s_per_byte(apart, hosts - together + 1)
        ports = (here - 1) * port + here * (together - 1) * near
        ports *= hosts / together if hands_on else 1.0
        latency_s = cluster.least_latency_s
        ways = ports, together < hosts, load, latency_s
        found.append(float(exchange_s(cluster, stack, part_bytes, *ways, most_bytes_per_s)))
    return min(found) if np.isfinite(min(found)) else 0.0


def _least_load_s_per_byte(pair_bytes_per_s: FloatArray, num_hosts: int) -> float:
    """
    What the busiest of ``num_hosts`` hosts takes at least to send a byte to each other of them, or to receive one.

    Each takes at least as long as over its own best links, and all of them are different hosts.
    """
    seconds = np.where(np.isnan(pair_bytes_per_s), np.inf, 1.0 / pair_bytes_per_s)
    least = [np.sort(way, axis=1)[:, : num_hosts - 1].sum(axis=1) for way in (seconds, seconds.T)]
    return float(np.sort(np.maximum(*least))[num_hosts - 1])


def expert_ring_s(instance: Instance, config: ParallelConfig, traffic: RingTraffic, ranks: int, gpus: int) -> float:
    """
    Gradients (or parameters) of experts of one stage, at least; arguments as of :func:`expert_layer_s`.

    Hosts that hold whole blocks: the part inside a host. Otherwise the ring of the ranks that hold the same experts has
    at most one of them on a host, and no hop is faster than the best link.
    """
    block, replicas = expert_block(config), expert_replicas(config)
    if replicas == 1 or not traffic.num_steps:
        return 0.0
    if ranks % block == 0:
        members = ranks // block
        return intra_node_ring_s(instance.cluster, traffic, members, instance.stack) if members > 1 else 0.0
    if block % ranks:
        return 0.0
    across = inter_node_ring_s(
        instance.cluster,
        traffic,
        group_flows=1,
        num_flows=gpus,
        num_hosts=replicas,
        stack=instance.stack,
        algorithm=instance.allreduce,
    )
    return float(np.nanmin(across)) if not np.isnan(across).all() else 0.0
