"""
Exchange of tokens with experts: all-to-alls of expert-parallel groups, and rings of neighbours that share experts.

In an all-to-all, every rank sends an equal part to every other rank of its group, all concurrently. Inside a host, a
rank's parts follow one another over the fabric. Between hosts, the parts of all concurrent groups share the hosts'
NICs: a host sends to each other host in turn, with all its ranks, and likewise receives. Its whole load decides, not a
single link (``_flows.exchange_loads``). Fabric and NICs run concurrently, so the longer time counts.
``costs/experts.py`` counts the copies that the ``flex`` dispatcher saves; ``costs/token_kernels.py`` has the rates of
its kernels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.costs.collectives import NO_TRAFFIC, OWN_PART, RingArrays, RingTraffic, shown_beside_s
from pipette_opt.costs.compute import layer_and_idle_s
from pipette_opt.costs.experts import ExpertTraffic, distinct_shares, expert_traffic
from pipette_opt.costs.links import BestLinks, RingShape
from pipette_opt.costs.token_kernels import most_sent_bytes_per_s
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ClusterSpec, Instance, LayerKind, ModelSpec, StackSpec, TrainingSpec


def passes(config: ParallelConfig) -> tuple[int, int]:
    """Return how often forward and backward pass exchange the forward's tokens; recomputed experts do so again."""
    return 1, 1 + config.recomputes("moe")


def expert_rings(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> tuple[RingTraffic, RingTraffic]:
    """Return the traffic of rings over neighbouring ranks, for a layer with experts and a micro-batch, both passes."""
    traffic = expert_traffic(model, training, config)
    if not traffic.num_rings:
        return NO_TRAFFIC, NO_TRAFFIC
    steps = traffic.ring_size - 1
    whole = RingTraffic(
        traffic.num_rings * steps / traffic.ring_size * traffic.gathered_bytes,
        traffic.num_rings * steps,
        traffic.num_rings,
    )
    forward, backward = (
        RingTraffic(times * whole.hop_bytes, times * whole.num_steps, times * whole.num_calls)
        for times in passes(config)
    )
    return forward, backward


def part_bytes(traffic: RingTraffic | RingArrays, ranks: int) -> Any:
    """Return the bytes from a rank to each other rank in one of the all-to-alls of this traffic, among ``ranks``."""
    return traffic.hop_bytes / (ranks - 1) / np.maximum(traffic.num_calls, 1)


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
    Return the time of an all-to-all, seconds; all arguments broadcast.

    The part that a rank keeps costs ``OWN_PART`` of a part that it sends.

    Parameters
    ----------
    part_bytes
        Bytes that each rank sends to each other rank.
    port_s_per_byte
        Seconds of the busiest rank to send one byte to each other rank of its host, or of its NVLink domain.
    spans
        Whether the group is on several hosts that share no NVLink domain.
    load_s_per_byte
        Seconds of the busiest host of the group if each part is one byte; unused unless the group spans hosts.
    latency_s
        Latency between the two hosts of the group that are farthest apart, seconds; unused unless it spans hosts.
    most_bytes_per_s
        Largest rate of a rank's kernels inside the host or domain, bytes per second: for a group inside one domain, and
        for a group over several.
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
    Time of one layer that hides the exchange of tokens, forward and backward, seconds (overlapped communication).

    Parameters
    ----------
    idle_s
        Seconds during which the GPU waits for the host. With tensor parallelism, this time hides tensor collectives,
        and no tokens.
    compute_s
        Seconds of compute that continue, slowed down, during the exchange; 0 unless the job overlaps both.
        Megatron-Core overlaps the forward pass of one micro-batch with the backward pass of another, so each gets the
        mean of both.
    """

    idle_s: tuple[float, float]
    compute_s: float


def beside_exchange(instance: Instance, config: ParallelConfig, kind: LayerKind, kinds: Sequence[int]) -> Beside:
    """Return the time that hides the exchange of a layer with experts; each field is the least over the GPU types."""
    gpus = [instance.cluster.gpu_kinds[gpu] for gpu in kinds]
    layers = [layer_and_idle_s(instance, config, gpu, instance.stack, kind) for gpu in gpus]
    alone = config.tensor_model_parallel_size == 1
    idle = tuple(min(waits[way] for _, waits in layers) if alone else 0.0 for way in (0, 1))
    overlaps = instance.training.overlap_moe_expert_parallel_comm
    return Beside(idle, min(sum(times) for times, _ in layers) / 2.0 if overlaps else 0.0)  # type: ignore[arg-type]


def most_beside(instance: Instance, config: ParallelConfig, kind: LayerKind) -> Beside:
    """Return the time that hides the exchange of a layer with experts; each field is the most of any GPU type."""
    alone = [beside_exchange(instance, config, kind, [gpu]) for gpu in range(len(instance.cluster.gpu_kinds))]
    forward, backward = (max(beside.idle_s[way] for beside in alone) for way in (0, 1))
    return Beside((forward, backward), max(beside.compute_s for beside in alone))


def shown_exchange_s(
    exchange_s: FloatArray | float, idle_s: FloatArray | float, compute_s: FloatArray | float, stack: StackSpec
) -> FloatArray:
    """Return exposed seconds of the exchange in one pass of a layer; other arguments as in :class:`Beside`."""
    return shown_beside_s(np.maximum(np.asarray(exchange_s) - idle_s, 0.0), compute_s, stack.overlap_slowdown)


def expert_layer_s(
    instance: Instance, config: ParallelConfig, kind: LayerKind, ranks: int, gpus: int, beside: Beside | None = None
) -> tuple[float, float]:
    """
    Return a lower bound on the exposed exchange of one expert layer per micro-batch, forward and backward, seconds.

    A block is the ranks that hold every expert once. The bound is exact if no block spans hosts. Otherwise it counts
    the best possible links; it is 0 if hosts hold no whole blocks and blocks no whole hosts.

    Parameters
    ----------
    ranks
        Number of ranks of one stage on each of its hosts.
    gpus
        Number of GPUs used in a host.
    beside
        Result of :func:`most_beside`, if known.
    """
    model, training = instance.model, instance.training
    traffic = expert_traffic(model, training, config)
    rings = expert_rings(model, training, config)
    found = [0.0, 0.0]
    if traffic.num_exchanges:
        beside = beside or most_beside(instance, config, kind)
    for way, times in enumerate(passes(config)):
        if traffic.num_rings:
            found[way] += _ring_floor_s(instance, rings[way], traffic.ring_size, ranks, gpus)
        if traffic.num_exchanges and beside is not None:
            whole = times * traffic.num_exchanges * _exchange_floor_s(instance, config, traffic, ranks, gpus)
            found[way] += float(shown_exchange_s(whole, beside.idle_s[way], beside.compute_s, instance.stack))
    return found[0], found[1]


def _ring_floor_s(instance: Instance, ring: RingTraffic, size: int, ranks: int, gpus: int) -> float:
    """Return the time of a ring over neighbouring ranks, at the best link if it spans hosts, seconds."""
    if ranks % size and size % ranks:
        return 0.0
    shape = RingShape(size) if ranks % size == 0 else RingShape(ranks, size // ranks, gpus)
    return float(BestLinks(instance.cluster, instance.stack).ring_s(shape, ring)[0])


def _exchange_floor_s(
    instance: Instance, config: ParallelConfig, traffic: ExpertTraffic, ranks: int, gpus: int
) -> float:
    """Return seconds of an all-to-all over the best links, with the best number of hosts in an NVLink domain."""
    ep, etp = config.expert_model_parallel_size, config.expert_tensor_size
    part, block, most = traffic.sent_bytes / ep, ep * etp, most_sent_bytes_per_s(instance.training)
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
    Return a lower bound on an all-to-all with ``here`` members on each of ``hosts`` hosts, seconds; 0 without a link.

    Parameters
    ----------
    part_bytes
        Bytes that a rank sends to each other rank.
    gpus
        Number of ranks of a host that send concurrently.
    shares, hands_on
        Arguments of ``_flows.exchange_loads``.
    most_bytes_per_s
        Largest rate of kernels, as in :func:`exchange_s`.
    """
    cluster, stack = instance.cluster, instance.stack
    port = shares[1] / float(cluster.inside_bytes_per_s(1))
    if hosts == 1:
        return float(exchange_s(cluster, stack, part_bytes, (here - 1) * port, False, 0.0, 0.0, most_bytes_per_s))
    domain, most, found = cluster.domain_of_node, cluster.most_in_domain, []
    apart = np.where(domain[:, None] != domain, cluster.pair_bytes_per_s(gpus), np.nan)
    near = port if most == 1 else min(port, shares[1] / cluster.fastest_pair_bytes_per_s(1))
    for together in range(1, min(most, hosts) + 1):
        # The more members a domain has, the fewer copies are sent to them.
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
    Return a lower bound on the busiest of ``num_hosts`` hosts that exchange one byte with each other host, seconds.

    Each host takes at least as long as over its own best links, and all hosts are different.
    """
    seconds = np.where(np.isnan(pair_bytes_per_s), np.inf, 1.0 / pair_bytes_per_s)
    least = [np.sort(way, axis=1)[:, : num_hosts - 1].sum(axis=1) for way in (seconds, seconds.T)]
    return float(np.sort(np.maximum(*least))[num_hosts - 1])
