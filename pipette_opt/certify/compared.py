"""Plans that every answer is compared with: hosts as listed, more overlap, and data parallelism as most run it."""

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from pipette_opt.base.errors import InfeasibleError, InputError
from pipette_opt.base.risk import IGNORED_RISK
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import gib
from pipette_opt.candidates import check_legal, data_parallelism_alone, enumerate_candidates
from pipette_opt.memory.fewest import check_memory
from pipette_opt.parallel import (
    HostTile,
    ParallelConfig,
    Placement,
    grid_by_rank,
    host_tiles,
    tile_placement,
    with_overlap,
)
from pipette_opt.plans.plan import Alternative, IterationTime, StageMemory, Usual, why_slower
from pipette_opt.prepare import Prepared
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.solutions import SimulatedSolution, stage_memory
from pipette_opt.specs import Instance

SHARDING_OF_USUAL = ("optim", "optim_grads_params")
"""Sharding among replicas of data parallelism alone: ZeRO 1 and ZeRO 3, by Megatron-FSDP's names."""


def placements_in_order(
    instance: Instance, config: ParallelConfig, host_order: Sequence[int], like: Mapping[int, IntArray]
) -> Iterator[tuple[HostTile, IntArray]]:
    """
    Yield placements of a configuration whose consecutive ranks fill hosts in their usual order.

    Parameters
    ----------
    host_order
        All hosts in the usual order; empty: as the cluster lists them.
    like
        Hosts of a plan, by their number. A configuration with as many hosts is placed on these, too, beside the first
        hosts of the cluster.
    """
    cluster = instance.cluster
    usual = np.array(host_order or range(cluster.num_nodes), dtype=np.int64)
    for tile in host_tiles(config, cluster.gpus_per_node, instance.launcher):
        number = math.prod(tile.node_grid(config))
        if not tile.contiguous or number > cluster.num_nodes:
            continue
        first = usual[:number]
        for hosts in {tuple(first.tolist()), tuple(usual[np.isin(usual, like.get(number, first))].tolist())}:
            yield tile, grid_by_rank(config, tile, np.array(hosts, dtype=np.int64))


def hosts_as_listed(
    prepared: Prepared, best: SimulatedSolution, host_order: Sequence[int], max_oom_risk: float
) -> Alternative | None:
    """
    Return the fastest placement of a plan's configuration with hosts in their usual order; ``None`` without any.

    It has no time if it does not fit, or uses links that were not measured.
    """
    config, like = best.candidate.config, {best.nodes.size: best.nodes}
    placed = [
        (nodes, tile_placement(config, tile, nodes))
        for tile, nodes in placements_in_order(prepared.given, config, host_order, like)
    ]
    if not placed:
        return None
    times_s = estimate_many(prepared.given, [(config, placement) for _, placement in placed])
    nodes, placement = placed[int(times_s.argmin())]
    memory = stage_memory(prepared.given, config, placement, prepared.predictor, max_oom_risk)
    fits = max_oom_risk >= IGNORED_RISK or all(stage.upper_bytes <= stage.capacity_bytes for stage in memory)
    if fits and np.isfinite(times_s.min()):
        return alternative(prepared.given, best, config, nodes, placement, memory)
    hosts = tuple(prepared.given.cluster.hosts[node] for node in nodes.ravel())
    reason = "uses links that were not measured" if fits else "does not fit"
    return Alternative(config=config, hosts=hosts, iteration_time_s=None, oom_probability=None, reason=reason)


def with_overlap_of_gradients(prepared: Prepared, best: SimulatedSolution, max_oom_risk: float) -> Alternative | None:
    """
    Return the fastest plan that differs from ``best`` only in overlap of gradient reduction with compute.

    ``None`` if ``best`` has this overlap, or cannot have it.
    """
    instance, config = prepared.given, best.candidate.config
    several = config.data_parallel_size * config.context_parallel_size > 1
    if config.overlap_grad_reduce or config.sharding_stage > 1 or not several:
        return None
    size = prepared.space.ddp_bucket_size
    others = [
        with_overlap(config, grad_reduce=True, param_gather=gathers, ddp_bucket_size=size)
        for gathers in (False, True)[: 1 + config.use_distributed_optimizer]
    ]
    legal = [other for other in others if not check_legal(instance.model, instance.training, other)]
    if not legal:
        return None
    timed = [(other, estimate(instance, other, best.placement)) for other in legal]
    fastest, found = min(timed, key=lambda pair: pair[1].iteration_time_s)
    memory = stage_memory(instance, fastest, best.placement, prepared.predictor, max_oom_risk)
    return alternative(instance, best, fastest, best.nodes, best.placement, memory, found, best.slots)


def as_most_run_it(
    prepared: Prepared, best: SimulatedSolution, host_order: Sequence[int], max_oom_risk: float
) -> Usual | None:
    """Return data parallelism alone on all GPUs, the fastest that fits; ``None`` if the plan itself is that."""
    instance = prepared.given
    alone = data_parallelism_alone(instance, prepared.space, SHARDING_OF_USUAL)
    num_gpus, config = alone.num_gpus or 0, best.candidate.config
    if config.data_parallel_size == config.world_size == num_gpus:
        return None
    try:
        legal = enumerate_candidates(instance, alone)
    except (InfeasibleError, InputError):
        batch = instance.training.global_batch_size
        if batch % num_gpus:
            return Usual(plan=None, problem=f"a batch of {batch:,} is no multiple of {num_gpus:,} GPUs")
        return Usual(plan=None, problem="Megatron-Core refuses it for this job")
    memory = check_memory(instance, legal, prepared.predictor, max_oom_risk)
    placed = [
        (fits.config, nodes, tile_placement(fits.config, tile, nodes))
        for fits in memory.fitting
        for tile, nodes in placements_in_order(instance, fits.config, host_order, {})
    ]
    if not placed:
        miss = memory.nearest_miss
        need, room = (0, 0) if miss is None else (int(miss.need_bytes.max()), int(memory.capacity_bytes.max()))
        return Usual(plan=None, problem=f"does not fit: needs {gib(need):.1f} GiB of {gib(room):.1f}")
    times_s = estimate_many(instance, [(config, placement) for config, _, placement in placed])
    if not np.isfinite(times_s.min()):
        return Usual(plan=None, problem="uses links that were not measured")
    config, nodes, placement = placed[int(times_s.argmin())]
    stages = stage_memory(instance, config, placement, prepared.predictor, max_oom_risk)
    return Usual(plan=alternative(instance, best, config, nodes, placement, stages))


def alternative(
    instance: Instance,
    best: SimulatedSolution,
    config: ParallelConfig,
    nodes: IntArray,
    placement: Placement,
    memory: Sequence[StageMemory],
    simulated: IterationTime | None = None,
    slots: IntArray | None = None,
) -> Alternative:
    """
    Return the record of another plan than ``best``.

    Parameters
    ----------
    simulated
        Its simulation, if known.
    """
    found = simulated or estimate(instance, config, placement)
    return Alternative(
        config=config,
        hosts=tuple(instance.cluster.hosts[node] for node in nodes.ravel()),
        iteration_time_s=found.iteration_time_s,
        oom_probability=max(stage.oom_probability for stage in memory),
        reason=why_slower(best.estimate, found),
        slots=None if slots is None else tuple(map(tuple, slots.reshape(nodes.size, -1).tolist())),
        breakdown=found.breakdown,
    )
