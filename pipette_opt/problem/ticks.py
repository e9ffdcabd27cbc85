"""Conversion of seconds to ticks: links, gradient rings, tied embeddings and tensor groups between hosts."""

from collections.abc import Callable, Hashable
from dataclasses import replace
from functools import reduce

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.costs.collectives import (
    RingTraffic,
    embedding_traffic,
    has_tied_stages,
    inter_node_ring_s,
    intra_node_ring_s,
)
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.context import SpanningRing, spanning_ring
from pipette_opt.costs.exchange import expert_ring_s
from pipette_opt.costs.experts import expert_block
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.costs.overlap import StageRing
from pipette_opt.parallel import NodeBlock, ParallelConfig, gpus_of_a_host, ranks_of_a_host
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.specs import Instance

TICKS_PER_ROUND_TRIP = 10_000_000
"""Number of ticks of the shortest stage round trip of all candidates."""

LONGEST_TICKS = 1 << 40
"""
Time from which a link is not used: products with layers and micro-batches would exceed 64 bits.

It is about 100,000 of the shortest round trips.
"""

NO_TICKS = np.zeros((0, 0), dtype=np.int64)

Rounding = Callable[[FloatArray], FloatArray]
"""``np.ceil`` for analytical models, ``np.floor`` for relaxations."""


class SharedLinks:
    """
    Link matrices of one problem, in ticks: candidates with equal transfers share one array.

    Parameters
    ----------
    least_only
        Keep only the least entry of each matrix, or that of the fastest pair of hosts, as a matrix of one host: enough
        for bounds over the best links.
    num_bytes
        Bytes of all matrices.
    """

    def __init__(self, tick_s: float, *, least_only: bool = False) -> None:
        self.tick_s, self.num_bytes = tick_s, 0
        self._least_only = least_only
        self._known: dict[tuple[Hashable, ...], IntArray] = {}

    def of(self, instance: Instance) -> Instance:
        """Return the job on the hosts whose links are needed."""
        return replace(instance, cluster=instance.cluster.fastest_pair()) if self._least_only else instance

    def shared(self, key: tuple[Hashable, ...], make: Callable[[], IntArray]) -> IntArray:
        """
        Return the array of a key, made once, with hosts as last two axes; the key names everything that it
        depends on.
        """
        if key not in self._known:
            made = make()
            if self._least_only and made.size:
                made = made.min(axis=(-2, -1), keepdims=True)
            self._known[key] = read_only(made, np.int64)
            self.num_bytes += self._known[key].nbytes
        return self._known[key]


def expert_key(instance: Instance, config: ParallelConfig, block: NodeBlock) -> tuple[Hashable, ...]:
    """Key of the additional inputs of rings of experts."""
    if instance.model.num_experts is None:
        return ()
    return expert_block(config), ranks_of_a_host(config, block)


def tensor_key(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock
) -> tuple[Hashable, ...]:
    """Key of the inputs of :func:`tensor_ticks`."""
    if block.nodes_per_slot == 1:
        return (None,)
    return tuple(_spanning_rings(instance, config, compute, block))


def _spanning_rings(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock
) -> list[SpanningRing]:
    """Return the ring of one layer that spans hosts, for each kind of layer."""
    return [
        spanning_ring(instance, counted.config, block, counted.kind, compute.idle_s(counted.is_recomputed))
        for counted in counted_layers(instance.model, config)
    ]


def tensor_ticks(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    block: NodeBlock,
    tick_s: float,
    rounding: Rounding,
) -> tuple[IntArray, IntArray]:
    """
    Communication of one layer by the slowest hop of its tensor, or context, groups, where these span hosts, ticks.

    Where layers differ, each hop has the least of them.
    """
    if block.nodes_per_slot == 1:
        return NO_TICKS, NO_TICKS
    rings = _spanning_rings(instance, config, compute, block)
    forward, backward = (
        reduce(np.minimum, [link_ticks(ring.hop_s(instance, way), tick_s, rounding) for ring in rings])
        for way in (0, 1)
    )
    return forward, backward


def ring_ticks(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    ring: StageRing,
    members: int,
    gpus: int,
    num_hosts: int,
    tick_s: float,
    rounding: Rounding,
) -> IntArray:
    """
    Time of one ring by its slowest hop, ticks.

    With experts, two rings follow one another over the same hosts, each at the rate of the same hop, or of the fabric
    if that is slower.
    """

    def time_s(traffic: RingTraffic, flows: int = members) -> FloatArray:
        across = inter_node_ring_s(
            instance.cluster,
            traffic,
            group_flows=flows,
            num_flows=gpus,
            num_hosts=num_hosts,
            stack=instance.stack,
            algorithm=instance.allreduce,
        )
        if ring.experts is None or flows == 1 or instance.allreduce != "ring":
            return across
        return np.maximum(across, intra_node_ring_s(instance.cluster, traffic, flows, instance.stack))

    ranks, size = ranks_of_a_host(config, block), expert_block(config)

    def experts_s(traffic: RingTraffic) -> FloatArray | float:
        if ranks % size == 0 and traffic.num_steps:
            return time_s(traffic, ranks // size)
        return expert_ring_s(instance, config, traffic, ranks, gpus)

    return link_ticks(ring.shown_s(time_s, experts_s), tick_s, rounding)


def ring_floor(
    instance: Instance,
    config: ParallelConfig,
    block: NodeBlock,
    ring: StageRing,
    members: int,
    tick_s: float,
    rounding: Rounding,
) -> int:
    """Time of the rings of one stage if all their hops stay inside hosts, with the least time of experts, ticks."""
    if members == 1 and ring.experts is None:
        return 0

    def time_s(traffic: RingTraffic) -> FloatArray:
        return np.array(intra_node_ring_s(instance.cluster, traffic, members, instance.stack) if members > 1 else 0.0)

    def experts_s(traffic: RingTraffic) -> float:
        return expert_ring_s(instance, config, traffic, ranks_of_a_host(config, block), gpus_of_a_host(config, block))

    return int(ticks_of(ring.shown_s(time_s, experts_s), tick_s, rounding))


def embedding_key(instance: Instance, config: ParallelConfig, block: NodeBlock, gpus: int) -> tuple[Hashable, ...]:
    """Key of the inputs of :func:`embedding_ticks`."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == block.stages:
        return (None,)
    return embedding_traffic(instance.model, instance.training, config), gpus // block.stages


def embedding_ticks(
    instance: Instance, config: ParallelConfig, block: NodeBlock, gpus: int, tick_s: float, rounding: Rounding
) -> IntArray:
    """
    Reduction of tied embeddings between hosts of the first and of the last stage, ticks.

    An unmeasured link counts as the slowest measured one.
    """
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == block.stages:
        return NO_TICKS
    flows = gpus // block.stages
    time = inter_node_ring_s(
        instance.cluster,
        embedding_traffic(instance.model, instance.training, config),
        group_flows=1,
        num_flows=flows,
        stack=instance.stack,
    )
    both = np.maximum(time, time.T)
    if np.isnan(both).all():
        return np.zeros(both.shape, dtype=np.int64)
    known = np.where(np.isnan(both), np.nanmax(time), both)
    # One tick less, since the quotient of a product may round up.
    return ticks_of(np.minimum(known, (LONGEST_TICKS - 2) * tick_s), tick_s, rounding)


def embedding_floor(
    instance: Instance, config: ParallelConfig, block: NodeBlock, tick_s: float, rounding: Rounding
) -> int:
    """Reduction of tied embeddings if one host has all stages, ticks."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size > block.stages:
        return 0
    traffic = embedding_traffic(instance.model, instance.training, config)
    return int(ticks_of(intra_node_ring_s(instance.cluster, traffic, 2, instance.stack), tick_s, rounding))


def ticks_of(seconds: FloatArray | float, tick_s: float, rounding: Rounding) -> IntArray:
    """Convert to whole ticks; ``InputError`` if products with them would exceed 64 bits."""
    ticks = rounding(np.asarray(seconds) / tick_s)
    if not (ticks < LONGEST_TICKS).all():
        raise InputError(
            "intra_node (or the profile)",
            f"makes a step inside one host last {ticks.max() * tick_s:.3g} s, {ticks.max() / TICKS_PER_ROUND_TRIP:.1g} "
            "times a round trip through the model; check its bandwidth and latency.",
        )
    return ticks.astype(np.int64)


def link_ticks(seconds: FloatArray, tick_s: float, rounding: Rounding) -> IntArray:
    """Ticks of a link matrix; ``UNUSABLE_TICKS`` without a measurement, from a host to itself, or too slow."""
    ticks = np.full(seconds.shape, UNUSABLE_TICKS, dtype=np.int64)
    known = np.ceil(seconds / tick_s) < LONGEST_TICKS  # false for NaN
    ticks[known] = ticks_of(seconds[known], tick_s, rounding)
    return ticks
