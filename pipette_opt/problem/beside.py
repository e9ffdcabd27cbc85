"""
Time that overlapped collectives add to a configuration: at least, and by the rings of each grid row.

Overlapped collectives lengthen a path through the schedule in three ways. The first forwards wait for parameters,
compute slows down while a collective runs, and the rest of the reduction follows the last backward. All three grow with
the ring time of a grid row.

Whatever the placement, the fastest possible rings give a lower bound. All grid rows run their rings at the same time,
and :mod:`pipette_opt.costs.best_rings` bounds the rates that they can have together, in one or more scenarios. Each row
gets one of the rates of a scenario, by the scenario and the assignment that make the path shortest.

For a placement, the slowest hop of a row decides its rings. Hops are sorted into levels by their ring time, and
:func:`ring_levels` has the added time of each level.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only
from pipette_opt.costs.collectives import RingTraffic, gradient_traffic, parameter_traffic
from pipette_opt.costs.compute import StageCompute, layer_and_idle_s, stage_compute, straggling
from pipette_opt.costs.context import inside_layer_s, inside_stages_s
from pipette_opt.costs.exchange import expert_layer_s
from pipette_opt.costs.links import BestLinks, EachLink
from pipette_opt.costs.overlap import UNLIMITED_S, exposed, hiding_s, num_buckets, shown_gather_s
from pipette_opt.costs.reductions import Reductions, dense_shape
from pipette_opt.costs.sharded import sharded_costs
from pipette_opt.parallel import HostTile, ParallelConfig, gpus_of_a_host, ranks_of_a_host
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.specs import Instance, LayerKind

MAX_LEVELS = 128
"""Largest number of levels of ring hops; on 16 hosts with symmetric links, each pair has its own. Chosen."""

MAX_HOSTS_OF_LEVELS = 200
"""With more hosts than this, no model names the hosts, so that levels are not needed. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beside:
    """
    Least seconds of overlapped communication, for each rate that the rings of a grid row can have.

    Parameters
    ----------
    first_s, last_s
        Seconds added to the first forward and to the last backward of a chunk, shape ``(rates, chunks, pp)``.
    ready_s
        Earliest end of a chunk's first forward, seconds, shape ``(rates, chunks, pp)``.
    queued_s
        Seconds of the gradient reductions of all chunks up to each, without the first chunk, which follow one another,
        shape ``(rates, chunks, pp)``.
    later_s
        Seconds of the reduction of the first stage, shape ``(rates,)``.
    stages
        Number of pipeline stages in a grid row (on one host).
    """

    first_s: FloatArray
    last_s: FloatArray
    ready_s: FloatArray
    queued_s: FloatArray
    later_s: FloatArray
    stages: int

    def of_paths_s(self, counts: PathCounts, later: float = 0.0) -> FloatArray:
        """
        Return the seconds that overlapped communication adds to each path, shape ``(num_paths, pp)``.

        All seconds of a path are in the column of the stage where the path ends. ``later``: as in :meth:`by_row_s`.
        """
        paths, _, pp = counts.first.shape
        every_path, by_row = np.arange(paths), self.by_row_s(counts, later)
        added = np.zeros((paths, pp))
        if by_row.shape[1] == 1:
            added[every_path, counts.stage] = by_row[:, 0].sum(axis=1)
            return added
        from scipy.optimize import linear_sum_assignment  # takes half a second to load

        scenarios = by_row.reshape(paths, -1, by_row.shape[2], by_row.shape[2])
        for path in every_path.tolist():
            least = (seconds[linear_sum_assignment(seconds)].sum() for seconds in scenarios[path])
            added[path, counts.stage[path]] = min(least)
        return added

    def by_row_s(self, counts: PathCounts, later: float = 0.0) -> FloatArray:
        """
        Return the seconds that the rings of each grid row add to each path, shape ``(num_paths, rates, rows)``.

        Parameters
        ----------
        later
            Fraction of the first stage's last backward that is left when its first bucket is reduced: then the paths
            end there, and this fraction of the reduction is added.
        """
        paths, _, pp = counts.first.shape
        rates, every_path = len(self.first_s), np.arange(paths)
        first, begun = counts.without_begun(counts.first), np.flatnonzero(counts.begun >= 0)
        last = counts.last.astype(np.float64)
        last[:, 0, 0] -= later
        by_stage = np.einsum("rcs,kcs->rks", first, self.first_s) + np.einsum("rcs,kcs->rks", last, self.last_s)
        chunk, stage = np.divmod(counts.begun[begun], pp)
        by_stage[begun, :, stage] += self.ready_s[:, chunk, stage].T
        by_stage[:, :, 0] += later * self.later_s
        by_stage[every_path, :, counts.stage] += self.queued_s[:, counts.parts - 1, counts.stage].T
        by_row: FloatArray = by_stage.reshape(paths, rates, pp // self.stages, self.stages).sum(axis=3)
        return by_row


@lru_cache(maxsize=4096)
def least_beside(instance: Instance, config: ParallelConfig, tile: HostTile) -> Beside | None:
    """Return the least cost of overlapped communication; ``None`` without overlap."""
    if not config.overlap_grad_reduce:
        return None
    return _beside(instance, config, tile, *least_rings_s(instance, config, tile))


class RingLevels(NamedTuple):
    """
    Levels of the slowest hop of a grid row's rings, fastest first.

    Parameters
    ----------
    of_hop
        Level of a hop from host i to host j, shape ``(num_nodes, num_nodes)``; ``UNUSABLE_TICKS`` without a link.
    beside
        Overlapped communication, with the levels as rates.
    """

    of_hop: IntArray
    beside: Beside


@lru_cache(maxsize=256)
def ring_levels(instance: Instance, config: ParallelConfig, tile: HostTile) -> RingLevels | None:
    """
    Return the levels of ring hops; ``None`` if no overlapped collective leaves a host.

    Times of a level are the least of its hops, and never below those of the level before.
    """
    is_large = instance.cluster.num_nodes > MAX_HOSTS_OF_LEVELS
    if not config.overlap_grad_reduce or not config.reduces_in_one_ring or is_large:
        return None
    if dense_shape(config, tile).num_hosts == 1:
        return None
    rings = Reductions(instance, config, tile, EachLink(instance.cluster, instance.stack))
    model, training, known = instance.model, instance.training, dict[tuple[RingTraffic, bool], FloatArray]()

    def ring_s(traffic: RingTraffic, experts: bool) -> FloatArray:
        if (traffic, experts) not in known:
            known[traffic, experts] = np.atleast_2d(rings.experts_s(traffic) if experts else rings.dense_s(traffic))
        return known[traffic, experts]

    def of_stages(traffic: Callable[..., list[RingTraffic]]) -> list[list[FloatArray]]:
        both = [[ring_s(each, False) for each in traffic(model, training, config)]]
        if model.num_experts is not None:
            both.append([ring_s(each, True) for each in traffic(model, training, config, experts=True)])
        return both

    reduction = of_stages(gradient_traffic)
    gather = of_stages(parameter_traffic) if config.overlap_param_gather else None
    of_hop = _levels_of(sum(known.values(), start=np.zeros((1, 1))))
    number = int(of_hop[of_hop < UNUSABLE_TICKS].max(initial=-1)) + 1
    if number == 0:
        return None

    def least_s(parts: list[list[FloatArray]]) -> FloatArray:
        """Return the least seconds of each level and stage, shape ``(levels, pp)``."""
        by_part = [np.stack([_least_of(of_hop, of_stage, number) for of_stage in part], axis=1) for part in parts]
        total: FloatArray = np.sum(by_part, axis=0)
        return total

    return RingLevels(
        of_hop=read_only(of_hop, np.int64),
        beside=_beside(instance, config, tile, least_s(reduction), None if gather is None else least_s(gather)),
    )


def _levels_of(seconds: FloatArray) -> IntArray:
    """Return the level of each hop by its seconds; levels have equal width if there are more values than levels."""
    levels = np.full(seconds.shape, UNUSABLE_TICKS, dtype=np.int64)
    is_link = np.isfinite(seconds) & ~np.eye(len(seconds), dtype=np.bool_)
    values = np.unique(seconds[is_link])
    if len(values) > MAX_LEVELS:
        values = np.unique(values[np.searchsorted(values, np.linspace(values[0], values[-1], MAX_LEVELS + 1)[:-1])])
    levels[is_link] = np.searchsorted(values, seconds[is_link], side="right") - 1
    return levels


def _least_of(of_hop: IntArray, seconds: FloatArray, number: int) -> FloatArray:
    """Return the least seconds of a ring with a hop of at least each level, shape ``(number,)``."""
    if seconds.size == 1:  # equal for all hops
        return np.full(number, seconds.item())
    least, is_link = np.full(number, np.inf), of_hop < UNUSABLE_TICKS
    np.minimum.at(least, of_hop[is_link], seconds[is_link])
    lowest: FloatArray = np.minimum.accumulate(least[::-1])[::-1]
    return lowest


def _beside(
    instance: Instance, config: ParallelConfig, tile: HostTile, reduction: FloatArray, gather: FloatArray | None
) -> Beside:
    """Return the cost of overlapped communication for given seconds of reduction and gather, ``(rates, pp)`` each."""
    compute, chunks = stage_compute(instance, config), config.num_chunks
    forward, backward = (seconds.min(axis=0) for seconds in chunk_seconds(instance, config, compute, tile))
    buckets, slowdown = num_buckets(instance.model, config), instance.stack.overlap_slowdown
    each = len(reduction)
    beside = exposed(
        np.tile(buckets, (each, 1)),
        np.tile(forward[None, :, :, None], (each, 1, 1, 1)),
        np.tile(backward[None, :, :, None], (each, 1, 1, 1)),
        reduction,
        gather,
        slowdown,
        np.tile(config.chunk_shares, (each, 1, 1)),
    )

    def least(seconds: FloatArray | None) -> FloatArray:
        return np.zeros((each, *forward.shape)) if seconds is None else seconds[..., 0]

    first = least(beside.first_extra_s)
    if chunks == 1 and gather is not None:
        # A longer forward hides more of a gather in buckets: its wait is shortest where the forward is longest.
        most = hiding_s(instance, config, compute)[0]
        slower = slowdown * (1.0 - 1.0 / buckets) * np.minimum(gather, forward[0])
        first = (shown_gather_s(gather, buckets, most, 0.0) + slower)[:, None, :]
    return Beside(
        first_s=first,
        last_s=least(beside.last_extra_s),
        ready_s=least(beside.ready_s),
        later_s=reduction[:, 0],
        queued_s=reduction[:, None, :] * (np.cumsum(config.chunk_shares, axis=0) - config.chunk_shares[0]),
        stages=tile.stages,
    )


def later_share(instance: Instance, config: ParallelConfig) -> float:
    """
    Return the fraction of the first stage's last backward that is left when its first bucket of gradients is complete.

    0 if the stage's exposed reduction (:func:`~pipette_opt.costs.overlap.stage_rings`) already counts the first bucket.
    """
    if not config.overlap_grad_reduce or config.num_chunks > 1 or not config.reduces_in_one_ring:
        return 0.0
    _, backward = hiding_s(instance, config, stage_compute(instance, config))
    return 0.0 if backward[0] < UNLIMITED_S else 1.0 - 1.0 / float(num_buckets(instance.model, config)[0])


def least_rings_s(instance: Instance, config: ParallelConfig, tile: HostTile) -> tuple[FloatArray, FloatArray | None]:
    """
    Return the least seconds of gradient reduction and parameter gather of each stage, shape ``(rates, pp)`` each.

    The gather is ``None`` if it does not overlap with the forwards.
    """
    reduction, gather = least_ring_parts_s(instance, config, tile)
    return reduction.sum(axis=0), None if gather is None else gather.sum(axis=0)


def least_ring_parts_s(
    instance: Instance, config: ParallelConfig, tile: HostTile, most_bytes_per_s: float = np.inf
) -> tuple[FloatArray, FloatArray | None]:
    """
    Return the least seconds of reduction and gather, shape ``(2, rates, pp)`` each: dense parameters, then routed
    experts.

    The gather is ``None`` without overlap.

    Parameters
    ----------
    most_bytes_per_s
        Upper limit on the rate of the slowest hop of every ring between hosts.
    """
    model, training, experts = instance.model, instance.training, instance.model.num_experts is not None

    def parts(traffic: Callable[..., list[RingTraffic]]) -> FloatArray:
        if not config.reduces_in_one_ring:  # pass_seconds counts what ZeRO 2 and 3 send in each micro-batch
            return np.zeros((2, 1, config.pipeline_model_parallel_size))
        own = traffic(model, training, config)
        of_experts = traffic(model, training, config, experts=True) if experts else None
        return _least_s(instance, config, tile, own, of_experts, most_bytes_per_s)

    return parts(gradient_traffic), parts(parameter_traffic) if config.overlap_param_gather else None


def _least_s(
    instance: Instance,
    config: ParallelConfig,
    tile: HostTile,
    own: list[RingTraffic],
    experts: list[RingTraffic] | None,
    most_bytes_per_s: float = np.inf,
) -> FloatArray:
    """
    Return the least seconds of each stage's rings, dense and of experts, shape ``(2, rates, pp)``.

    ``own``, ``experts``: traffic of the rings of each stage.
    """
    links = BestLinks(instance.cluster, instance.stack, most_bytes_per_s)
    rings = Reductions(instance, config, tile, links, config.pipeline_model_parallel_size // tile.stages)

    def of_stages_s(ring_s: Callable[[RingTraffic], FloatArray], traffic: list[RingTraffic]) -> FloatArray:
        # A stage without such parameters has a single time for all rates.
        return np.stack(np.broadcast_arrays(*map(cache(ring_s), traffic)), axis=1)

    dense = of_stages_s(rings.dense_s, own)
    if experts is None:
        return np.stack([dense, np.zeros_like(dense)])
    return np.stack(np.broadcast_arrays(dense, of_stages_s(rings.experts_s, experts)))


def pass_seconds(
    instance: Instance, config: ParallelConfig, compute: StageCompute, tile: HostTile
) -> tuple[FloatArray, FloatArray]:
    """
    Return forward and backward seconds of each chunk, as :func:`chunk_seconds`, plus exposed ZeRO 2 and 3 collectives.

    The collectives run over the best links. They are left out with several optimizer instances, since rings of one
    instance may be faster than a ring of all replicas. They are also left out if a slot spans hosts, since tensor
    communication then hides part of them.
    """
    passes = chunk_seconds(instance, config, compute, tile)
    sharded = sharded_costs(instance.model, instance.training, config)
    several = config.num_distributed_optimizer_instances > 1 or tile.nodes_per_slot > 1
    if sharded is None or config.sharing_ranks == 1 or several:
        return passes
    ring = replace(instance, allreduce="ring")  # only reductions at the end of an iteration are hierarchical
    units, slowdown, shown = np.array(sharded.units), instance.stack.overlap_slowdown, []
    for work_s, way in zip(passes, ("forward", "backward"), strict=True):
        experts = None if sharded.experts is None else getattr(sharded.experts, way)
        sent = _least_s(ring, config, tile, getattr(sharded.layers, way), experts).sum(axis=0).min(axis=0)
        shown.append(work_s + shown_gather_s(sent, units, work_s, slowdown))
    return shown[0], shown[1]


def chunk_seconds(
    instance: Instance, config: ParallelConfig, compute: StageCompute, tile: HostTile
) -> tuple[FloatArray, FloatArray]:
    """Return seconds of each chunk's passes, with communication inside a host: ``(num_kinds, num_chunks, pp)``."""
    ranks, gpus = ranks_of_a_host(config, tile), gpus_of_a_host(config, tile)
    experts_s = cache(partial(_experts_s, instance, ranks, gpus))
    inside = [
        inside_stages_s(instance, config, compute, [kind], tile, experts_s)
        for kind in range(len(instance.cluster.gpu_kinds))
    ]
    forward, backward = np.stack(inside, axis=1)
    return compute.forward_s + forward, compute.backward_s + backward


def _experts_s(
    instance: Instance, ranks: int, gpus: int, config: ParallelConfig, kind: LayerKind
) -> tuple[float, float]:
    return expert_layer_s(instance, config, kind, ranks, gpus)


def layer_seconds(instance: Instance, config: ParallelConfig, tile: HostTile, kind: LayerKind) -> FloatArray:
    """
    Return forward and backward seconds of one layer, with communication inside a host, shape ``(2, num_kinds)``.

    The configuration must recompute either all layers or none.
    """
    slower, found = straggling(instance, config, instance.stack), []
    ranks, gpus = ranks_of_a_host(config, tile), gpus_of_a_host(config, tile)
    for number, gpu in enumerate(instance.cluster.gpu_kinds):
        (forward, backward), idle = layer_and_idle_s(instance, config, gpu, instance.stack, kind)
        sent = inside_layer_s(instance, config, idle, kind, [number], tile)
        tokens = expert_layer_s(instance, config, kind, ranks, gpus) if kind.has_experts else (0.0, 0.0)
        found.append([forward * slower + sent[0] + tokens[0], backward * slower + sent[1] + tokens[1]])
    return np.array(found).T
