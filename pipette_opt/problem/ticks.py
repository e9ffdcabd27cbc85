"""Conversion of seconds to ticks (integer time units) for links, gradient rings, tied embeddings and tensor groups."""

from collections.abc import Callable, Hashable
from functools import reduce

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.costs.collectives import embedding_traffic, has_tied_stages
from pipette_opt.costs.compute import StageCompute
from pipette_opt.costs.context import SpanningRing, spanning_ring
from pipette_opt.costs.layer_kinds import counted_layers
from pipette_opt.costs.links import BestLinks, EachLink, Links, NoLinks, RingShape
from pipette_opt.costs.overlap import StageRing
from pipette_opt.costs.reductions import Reductions
from pipette_opt.costs.stage import expert_block
from pipette_opt.parallel import HostTile, ParallelConfig, ranks_of_a_host
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.specs import Instance

TICKS_PER_ROUND_TRIP = 10_000_000
"""Number of ticks in the shortest forward and backward through all stages. Chosen."""

LONGEST_TICKS = 1 << 40
"""
Links at least this slow are not used, integer ticks: products with layers and micro-batches would exceed 64 bits.
Chosen.

It is about 100,000 times the shortest round trip.
"""

NO_TICKS = np.zeros((0, 0), dtype=np.int64)


class SharedLinks:
    """
    Cache of link matrices in integer ticks; candidate configurations with equal transfers share one array.

    Parameters
    ----------
    least_only
        Keep only the least entry of each matrix, as a matrix of one host. This suffices for bounds over the best links.
    num_bytes
        Size of all cached matrices, bytes.
    """

    def __init__(self, tick_s: float, *, least_only: bool = False) -> None:
        self.tick_s, self.num_bytes = tick_s, 0
        self._least_only = least_only
        self._known: dict[tuple[Hashable, ...], IntArray] = {}

    def links(self, instance: Instance) -> Links:
        """Return the links to be converted: each pair of hosts, or with ``least_only`` the best."""
        return (BestLinks if self._least_only else EachLink)(instance.cluster, instance.stack)

    def shared(self, key: tuple[Hashable, ...], make: Callable[[], IntArray]) -> IntArray:
        """
        Return the array of a key, made by ``make`` on first use; hosts are its last two axes.

        The key must name every input of the array.
        """
        if key not in self._known:
            made = make()
            if self._least_only and made.size:
                made = made.min(axis=(-2, -1), keepdims=True)
            self._known[key] = read_only(made, np.int64)
            self.num_bytes += self._known[key].nbytes
        return self._known[key]


def expert_key(instance: Instance, config: ParallelConfig, tile: HostTile) -> tuple[Hashable, ...]:
    """Return the cache key of the inputs that only rings of experts have."""
    if instance.model.num_experts is None:
        return ()
    return expert_block(config), ranks_of_a_host(config, tile)


def tensor_key(
    instance: Instance, config: ParallelConfig, compute: StageCompute, tile: HostTile
) -> tuple[Hashable, ...]:
    """Return the cache key of the inputs of :func:`tensor_ticks`."""
    if tile.nodes_per_slot == 1:
        return (None,)
    return tuple(_spanning_rings(instance, config, compute, tile))


def _spanning_rings(
    instance: Instance, config: ParallelConfig, compute: StageCompute, tile: HostTile
) -> list[SpanningRing]:
    """Return, for each type of layer, the tensor or context ring of one layer between hosts."""
    return [
        spanning_ring(instance, counted.config, tile, counted.kind, compute.most_idle_s(counted.is_recomputed))
        for counted in counted_layers(instance.model, config)
    ]


def tensor_ticks(
    instance: Instance,
    config: ParallelConfig,
    compute: StageCompute,
    tile: HostTile,
    links: Links,
    tick_s: float,
) -> tuple[IntArray, IntArray]:
    """
    Return the forward and backward ticks of one layer's tensor or context ring over links.

    Each has the shape of a link matrix; empty if slots stay inside hosts. Where layers differ, the least of them
    counts.
    """
    if tile.nodes_per_slot == 1:
        return NO_TICKS, NO_TICKS
    rings = _spanning_rings(instance, config, compute, tile)
    forward, backward = (
        reduce(np.minimum, [link_ticks(ring.shown_s(links, way), tick_s) for ring in rings]) for way in (0, 1)
    )
    return forward, backward


def ring_ticks(rings: Reductions, ring: StageRing, tick_s: float) -> IntArray:
    """
    Return the ticks of a stage's gradient rings over links between hosts, in the shape of a link matrix.

    With experts, two rings follow one another over the same hosts. Both run at the rate of the slowest hop, or of the
    fabric inside a host if it is slower.
    """
    return link_ticks(ring.shown_s(rings.dense_s, rings.experts_s), tick_s)


def ring_floor(instance: Instance, config: ParallelConfig, tile: HostTile, ring: StageRing, tick_s: float) -> int:
    """Return ticks of a stage's gradient rings if links between hosts take no time; expert rings at their least."""
    rings = Reductions(instance, config, tile, NoLinks(instance.cluster, instance.stack))
    return int(ticks_of(ring.shown_s(rings.dense_s, rings.experts_s)[0], tick_s))


def embedding_key(instance: Instance, config: ParallelConfig, tile: HostTile, gpus: int) -> tuple[Hashable, ...]:
    """Return the cache key of the inputs of :func:`embedding_ticks`."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == tile.stages:
        return (None,)
    return embedding_traffic(instance.model, instance.training, config), gpus // tile.stages


def embedding_ticks(instance: Instance, config: ParallelConfig, tile: HostTile, gpus: int, tick_s: float) -> IntArray:
    """
    Return the ticks of the tied-embedding reduction between each pair of hosts of the first and the last stage.

    An unmeasured link counts as the slowest measured one. The array is empty if nothing is reduced between hosts.
    """
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size == tile.stages:
        return NO_TICKS
    traffic = embedding_traffic(instance.model, instance.training, config)
    time = EachLink(instance.cluster, instance.stack).ring_s(RingShape(1, 2, gpus // tile.stages), traffic)
    both = np.maximum(time, time.T)
    if np.isnan(both).all():
        return np.zeros(both.shape, dtype=np.int64)
    known = np.where(np.isnan(both), np.nanmax(time), both)
    # One tick less, since the quotient of a product may round up.
    return ticks_of(np.minimum(known, (LONGEST_TICKS - 2) * tick_s), tick_s)


def embedding_floor(instance: Instance, config: ParallelConfig, tile: HostTile, tick_s: float) -> int:
    """Return the ticks of the tied-embedding reduction if one host has all stages; otherwise 0."""
    if not has_tied_stages(instance.model, config) or config.pipeline_model_parallel_size > tile.stages:
        return 0
    traffic = embedding_traffic(instance.model, instance.training, config)
    seconds = NoLinks(instance.cluster, instance.stack).ring_s(RingShape(2), traffic)
    return int(ticks_of(seconds[0], tick_s))


def ticks_of(seconds: FloatArray | float, tick_s: float) -> IntArray:
    """
    Convert seconds to whole ticks, rounded down.

    Raises ``InputError`` if products with the result could exceed 64 bits.
    """
    ticks = np.floor(np.asarray(seconds) / tick_s)
    if not (ticks < LONGEST_TICKS).all():
        raise InputError(
            "intra_node (or the profile)",
            f"makes a step inside one host last {ticks.max() * tick_s:.3g} s, {ticks.max() / TICKS_PER_ROUND_TRIP:.1g} "
            "times a round trip through the model; check its bandwidth and latency.",
        )
    return ticks.astype(np.int64)


def link_ticks(seconds: FloatArray, tick_s: float) -> IntArray:
    """Return a link matrix in integer ticks; ``UNUSABLE_TICKS`` if unmeasured, too slow, or from a host to itself."""
    seconds = np.atleast_2d(seconds)
    ticks = np.full(seconds.shape, UNUSABLE_TICKS, dtype=np.int64)
    known = np.ceil(seconds / tick_s) < LONGEST_TICKS  # false for NaN
    ticks[known] = ticks_of(seconds[known], tick_s)
    return ticks
