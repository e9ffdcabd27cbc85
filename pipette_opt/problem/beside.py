"""
Lower bound on the cost of overlapped collectives of a configuration, wherever it is placed.

Three effects lengthen a path through the schedule: first forwards that wait for parameters, compute that collectives
slow down, and the rest of the reduction after it. All of these grow with the times of the rings, so the best rings give
lower bounds. Rows of the grid have their rings at once. Of the rates that this many rings can have
(:mod:`pipette_opt.costs.best_rings`), each row has one, assigned in the best way for a path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.costs.best_rings import best_ring_rates
from pipette_opt.costs.collectives import (
    NO_TRAFFIC,
    RingTraffic,
    across_s,
    best_hop,
    gradient_traffic,
    hierarchical_s,
    intra_node_ring_s,
    least_ring_s,
    parameter_traffic,
    stacked,
)
from pipette_opt.costs.compute import StageCompute, layer_and_idle_s, stage_compute, straggling
from pipette_opt.costs.context import inside_layer_s, inside_stages_s
from pipette_opt.costs.exchange import expert_layer_s, expert_ring_s
from pipette_opt.costs.experts import expert_block
from pipette_opt.costs.overlap import exposed, hiding_s, num_buckets, shown_gather_s
from pipette_opt.costs.sharded import sharded_costs
from pipette_opt.parallel import NodeBlock, ParallelConfig, gpus_of_a_host, ranks_of_a_host, ring_members
from pipette_opt.problem.path_counts import PathCounts
from pipette_opt.specs import Instance, LayerKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Beside:
    """
    Least seconds of overlapped communication, for each rate that the rings of a grid row may have.

    Parameters
    ----------
    first_s, last_s
        Additional time of the first forward and the last backward of a chunk, shape ``(rates, chunks, pp)``.
    ready_s
        Earliest end of a chunk's forwards, shape ``(rates, chunks, pp)``.
    part_s
        One part of a stage's reduction, the mean of all but the first chunk's, shape ``(rates, pp)``.
    stages
        Stages of a grid row.
    """

    first_s: FloatArray
    last_s: FloatArray
    ready_s: FloatArray
    part_s: FloatArray
    stages: int

    def of_paths_s(self, counts: PathCounts) -> FloatArray:
        """Additional time of each path, on the stage where it ends, seconds, shape ``(num_paths, pp)``."""
        paths, _, pp = counts.first.shape
        rates, every_path = len(self.first_s), np.arange(paths)
        first, begun = counts.without_begun(counts.first), np.flatnonzero(counts.begun >= 0)
        by_stage = np.einsum("rcs,kcs->rks", first, self.first_s) + np.einsum("rcs,kcs->rks", counts.last, self.last_s)
        chunk, stage = np.divmod(counts.begun[begun], pp)
        by_stage[begun, :, stage] += self.ready_s[:, chunk, stage].T
        by_stage[every_path, :, counts.stage] += (counts.parts - 1)[:, None] * self.part_s[:, counts.stage].T
        by_row = by_stage.reshape(paths, rates, pp // self.stages, self.stages).sum(axis=3)
        added = np.zeros((paths, pp))
        if rates == 1:
            added[every_path, counts.stage] = by_row[:, 0].sum(axis=1)
            return added
        from scipy.optimize import linear_sum_assignment  # takes half a second to load

        for path in every_path.tolist():
            of_row, rate = linear_sum_assignment(by_row[path].T)
            added[path, counts.stage[path]] = by_row[path, rate, of_row].sum()
        return added


@lru_cache(maxsize=4096)
def least_beside(instance: Instance, config: ParallelConfig, block: NodeBlock) -> Beside | None:
    """Return the least cost of overlapped communication; ``None`` without overlap, or if no link is known for it."""
    if not config.overlap_grad_reduce:
        return None
    compute, chunks = stage_compute(instance, config), config.num_chunks
    forward, backward = (seconds.min(axis=0) for seconds in chunk_seconds(instance, config, compute, block))
    rings = least_rings_s(instance, config, block)
    if rings is None:
        return None
    reduction, gather = rings
    buckets, slowdown = num_buckets(instance.model, config), instance.stack.overlap_slowdown
    each = len(reduction)
    beside = exposed(
        np.tile(buckets, (each, 1)),
        np.tile(forward[None, :, :, None], (each, 1, 1, 1)),
        np.tile(backward[None, :, :, None], (each, 1, 1, 1)),
        reduction,
        gather,
        np.zeros((each, 2, len(buckets))),
        slowdown,
        np.tile(config.chunk_shares, (each, 1, 1)),
    )

    def least(seconds: FloatArray | None) -> FloatArray:
        return np.zeros((each, *forward.shape)) if seconds is None else seconds[..., 0]

    first = least(beside.first_extra_s)
    if chunks == 1 and gather is not None:
        # A longer forward hides more of a gather in buckets: its wait is shortest where the forward is longest.
        most = hiding_s(instance, config, compute, least=False)[0]
        slower = slowdown * (1.0 - 1.0 / buckets) * np.minimum(gather, forward[0])
        first = (shown_gather_s(gather, buckets, most, 0.0) + slower)[:, None, :]
    return Beside(
        first_s=first,
        last_s=least(beside.last_extra_s),
        ready_s=least(beside.ready_s),
        part_s=reduction * (1.0 - config.chunk_shares[0]) / max(chunks - 1, 1),
        stages=block.stages,
    )


def least_rings_s(
    instance: Instance, config: ParallelConfig, block: NodeBlock
) -> tuple[FloatArray, FloatArray | None] | None:
    """
    Reduction and parameter gather of each stage over the best rings, seconds, shape ``(rates, pp)``.

    The gather is ``None`` if it does not overlap with the forwards; the result is ``None`` if no ring was measured.
    """
    rings = least_ring_parts_s(instance, config, block)
    return None if rings is None else (rings[0].sum(axis=0), None if rings[1] is None else rings[1].sum(axis=0))


def least_ring_parts_s(
    instance: Instance, config: ParallelConfig, block: NodeBlock, most_bytes_per_s: float = np.inf
) -> tuple[FloatArray, FloatArray | None] | None:
    """
    Reduction and gather over the best rings, seconds, ``(2, rates, pp)``: routed experts second, all else first.

    Parameters
    ----------
    most_bytes_per_s
        Largest rate of the slowest hop of every ring between hosts.
    """
    least = _least_of(instance, config, block, most_bytes_per_s)
    if least is None:
        return None
    model, training, experts = instance.model, instance.training, instance.model.num_experts is not None

    def parts(traffic: Callable[..., list[RingTraffic]]) -> FloatArray:
        if config.sharding_stage > 1:  # counted in each micro-batch: pass_seconds
            none = [NO_TRAFFIC] * config.pipeline_model_parallel_size
            return least(none, None)
        own = traffic(model, training, config)
        return least(own, traffic(model, training, config, experts=True) if experts else None)

    return parts(gradient_traffic), parts(parameter_traffic) if config.overlap_param_gather else None


def _least_of(
    instance: Instance, config: ParallelConfig, block: NodeBlock, most_bytes_per_s: float = np.inf
) -> Callable[[list[RingTraffic], list[RingTraffic] | None], FloatArray] | None:
    """
    Return a function of the time of rings of all replicas over the best links, experts second, ``(2, rates, pp)``.

    ``None`` if no ring was measured.
    """
    cluster, stack = instance.cluster, instance.stack
    gpus, members = gpus_of_a_host(config, block), ring_members(config, block)
    replicas = config.data_parallel_size * config.context_parallel_size
    rows = config.pipeline_model_parallel_size // block.stages
    num_hosts = -(-replicas // members)
    ranks, size = ranks_of_a_host(config, block), expert_block(config)
    rates = np.array([np.inf])
    in_domains = num_hosts > 1 and cluster.most_in_domain > 1
    if in_domains and np.isnan(best_hop(cluster, gpus, num_hosts, stack)[0]):
        return None
    if num_hosts > 1 and not in_domains:
        rates = np.minimum(best_ring_rates(cluster, gpus, num_hosts, rows), most_bytes_per_s)
        if not rates.min() > 0:
            return None
        if rates.min() == rates.max():
            rates = rates[:1]
    over = hierarchical_s if instance.allreduce == "hierarchical" else across_s

    @cache
    def ring_s(traffic: RingTraffic, rate: float, flows: int = members) -> float:
        if not traffic.num_steps:
            return 0.0
        inside = intra_node_ring_s(cluster, traffic, flows, stack) if flows > 1 else 0.0
        if num_hosts == 1:
            return inside
        if in_domains:
            return max(
                inside,
                least_ring_s(cluster, traffic, group_flows=flows, num_flows=gpus, num_hosts=num_hosts, stack=stack),
            )
        flow, fabric = np.array([rate / gpus]), cluster.inside_bytes_per_s(flows)
        arguments = (cluster, stacked([traffic]), flow, fabric, np.array(flows), np.array(num_hosts), stack)
        across = over(*arguments, cluster.least_latency_s)
        return max(inside, float(across[0]))

    def experts_s(traffic: RingTraffic, rate: float) -> float:
        if ranks % size == 0 and traffic.num_steps and num_hosts > 1:
            return ring_s(traffic, rate, ranks // size)
        return expert_ring_s(instance, config, traffic, ranks, gpus)

    def stages_s(own: list[RingTraffic], experts: list[RingTraffic] | None) -> FloatArray:
        found = np.array([[ring_s(traffic, rate) for traffic in own] for rate in rates])
        if experts is None:
            return np.stack([found, np.zeros_like(found)])
        return np.stack([found, [[experts_s(traffic, rate) for traffic in experts] for rate in rates]])

    return stages_s


def pass_seconds(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock
) -> tuple[FloatArray, FloatArray]:
    """
    Chunks as of :func:`chunk_seconds`, with the exposed part of ZeRO stages 2 and 3 over the best links.

    The exposed part of several groups of replicas is left out, as rings of single groups may be faster than those of
    all. It is also left out where rings inside a slot span hosts: their time in a pass hides some of it.
    """
    passes = chunk_seconds(instance, config, compute, block)
    sharded = sharded_costs(instance.model, instance.training, config)
    several = config.num_distributed_optimizer_instances > 1 or block.nodes_per_slot > 1
    if sharded is None or config.sharing_ranks == 1 or several:
        return passes
    least = _least_of(instance, config, block)
    if least is None:
        return passes
    units, slowdown, shown = np.array(sharded.units), instance.stack.overlap_slowdown, []
    for work_s, way in zip(passes, ("forward", "backward"), strict=True):
        experts = None if sharded.experts is None else getattr(sharded.experts, way)
        sent = least(getattr(sharded.layers, way), experts).sum(axis=0).min(axis=0)
        shown.append(work_s + shown_gather_s(sent, units, work_s, slowdown))
    return shown[0], shown[1]


def chunk_seconds(
    instance: Instance, config: ParallelConfig, compute: StageCompute, block: NodeBlock
) -> tuple[FloatArray, FloatArray]:
    """Forward and backward time with communication inside a host, shape ``(num_kinds, num_chunks, pp)``."""
    ranks, gpus = ranks_of_a_host(config, block), gpus_of_a_host(config, block)
    forward, backward = inside_stages_s(
        instance, config, compute, block, lambda alike, kind: expert_layer_s(instance, alike, kind, ranks, gpus)
    )
    return compute.forward_s + forward, compute.backward_s + backward


def layer_seconds(instance: Instance, config: ParallelConfig, block: NodeBlock, kind: LayerKind) -> FloatArray:
    """
    Time of one layer of a kind with communication inside a host, forward and backward, shape ``(2, num_kinds)``.

    In a configuration that recomputes all layers, or none.
    """
    slower, found = straggling(instance, config, instance.stack), []
    ranks, gpus = ranks_of_a_host(config, block), gpus_of_a_host(config, block)
    for gpu in instance.cluster.gpu_kinds:
        (forward, backward), idle = layer_and_idle_s(instance, config, gpu, instance.stack, kind)
        sent = inside_layer_s(instance, config, idle, kind, block)
        tokens = expert_layer_s(instance, config, kind, ranks, gpus) if kind.has_experts else (0.0, 0.0)
        found.append([forward * slower + sent[0] + tokens[0], backward * slower + sent[1] + tokens[1]])
    return np.array(found).T
