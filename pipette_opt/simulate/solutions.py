"""
From solver solutions to a plan: simulated times, the best solution, and reasons why others are slower.

Solutions are in integer ticks of the solver's objective; the plan is in simulated seconds.
"""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.base.version import __version__
from pipette_opt.costs.least_links import LeastLinks
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.times import PlacedTimes
from pipette_opt.memory.filter import predicted_memory, usable_bytes
from pipette_opt.memory.predictor import MemoryPredictor, oom_probability
from pipette_opt.parallel import ParallelConfig, Placement, RankGrid, tile_placement
from pipette_opt.parallel.recompute import amount
from pipette_opt.plans.plan import (
    Alternative,
    Certificate,
    IterationTime,
    Plan,
    StageMemory,
    why_unused,
)
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance, LinkMatrix

TIE = 1e-6
"""Relative difference below which plans are equally fast, as ticks are not much finer. Chosen."""


INSTANT_BYTES_PER_S = 1e30
"""Bandwidth of a link that takes no time, bytes per second."""

MAX_SWAPS = 200_000
"""Largest number of swaps that are evaluated to explain why hosts are unused. Chosen."""

MAX_SIMULATED_SWAPS = 8
"""Number of swaps simulated for each unused host, those with the least objective. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimulatedSolution:
    """
    Placed candidate configuration with its simulated time.

    Parameters
    ----------
    nodes
        Host of each cell, shape of the candidate's grid.
    slots
        GPUs of each host of the grid in rank order, shape ``(*nodes.shape, gpus)``; by default 0, 1, ...
    """

    candidate: CandidateData
    nodes: IntArray
    estimate: IterationTime
    slots: IntArray | None = None

    @property
    def placement(self) -> Placement:
        """Placement: a GPU for every rank."""
        return self.placed_on(self.nodes)

    def placed_on(self, nodes: IntArray) -> Placement:
        """Return the placement of the candidate configuration on the given hosts."""
        return tile_placement(self.candidate.config, self.candidate.tile, nodes, self.slots)


def simulate_solution(instance: Instance, data: ProblemData, solution: Solution) -> SimulatedSolution:
    """Return a solution with the simulated time of its schedule."""
    candidate = data.candidates[solution.candidate]
    placement = tile_placement(candidate.config, candidate.tile, solution.nodes)
    return SimulatedSolution(
        candidate=candidate,
        nodes=solution.nodes,
        estimate=estimate(instance, candidate.config, placement),
    )


def best_first(simulated: Sequence[SimulatedSolution]) -> list[SimulatedSolution]:
    """
    Return the solutions by simulated time, each configuration once.

    Among those as fast as the fastest, the simplest configuration is first. Of equal configurations, the one given last
    is kept.
    """
    ranked = sorted(simulated, key=attrgetter("estimate.iteration_time_s"))
    limit_s = (1 + TIE) * ranked[0].estimate.iteration_time_s if ranked else 0.0
    equal = [plan for plan in ranked if plan.estimate.iteration_time_s <= limit_s]
    given = {id(plan): number for number, plan in enumerate(simulated)}
    equal.sort(key=lambda plan: (simplicity(plan.candidate.config), -given[id(plan)]))
    seen, unique = set(), []
    for plan in (*equal, *ranked[len(equal) :]):
        if plan.candidate.config not in seen:
            seen.add(plan.candidate.config)
            unique.append(plan)
    return unique


def simplicity(config: ParallelConfig) -> tuple[int, ...]:
    """Return the sort key of equally fast configurations: fewer GPUs, less recomputation, fewer chunks first."""
    return (
        config.world_size,
        amount(config.recomputation),
        int(config.offload is not None),
        int(config.tp_comm_overlap),
        config.num_chunks,
        config.pipeline_model_parallel_size,
        config.context_parallel_size,
        int(config.overlap_grad_reduce) + int(config.overlap_param_gather),
        len(set(config.layers_per_stage)),
        int(config.pipeline_model_parallel_layout is not None),
    )


def best_links_times(instance: Instance, candidate: CandidateData) -> PlacedTimes | None:
    """
    Return the times of a candidate configuration with every link as fast as the cluster's fastest.

    The simulated time never falls when a time grows, so no placement is faster than the simulation of these times.
    ``None`` if hosts differ in GPU type, or no link was measured.
    """
    cluster = instance.cluster
    if len(cluster.gpu_kinds) > 1 or cluster.num_nodes == 1:
        return None
    nodes = np.arange(candidate.num_cells).reshape(candidate.grid)
    equal = cluster.with_equal_links(flow_counts(instance, candidate))
    if equal is None:
        return None
    ideal, links = replace(instance, cluster=equal), partial(LeastLinks, cluster)
    return placed_times(ideal, candidate.config, tile_placement(candidate.config, candidate.tile, nodes), links=links)


def flow_counts(instance: Instance, candidate: CandidateData) -> Sequence[int]:
    """
    Return the numbers of concurrent flows between two hosts that placements of a candidate configuration may have.

    A cluster of best links needs the bandwidth of each, as interpolation may be below it. All-to-alls have a flow for
    each rank that sends to other hosts, and context rings a flow for each ring.
    """
    per_node, stages = candidate.config.world_size // candidate.num_cells, candidate.tile.stages
    if instance.model.num_experts is not None or candidate.tile.context_nodes > 1:
        return range(1, per_node + 1)
    return sorted({per_node // stages, per_node})


def placement_dependent_s(instance: Instance, best: SimulatedSolution) -> float:
    """Return the seconds of the simulated time that transfers between hosts cost."""
    apart = estimate(_links_free(instance), best.candidate.config, best.placement).iteration_time_s
    return max(0.0, best.estimate.iteration_time_s - apart)


def _links_free(instance: Instance) -> Instance:
    """Return the instance with instant links between hosts."""
    cluster = instance.cluster
    links_of_gpus = cluster.gpu_links and cluster.gpu_links.inside_only()
    fast = np.full((cluster.num_nodes, cluster.num_nodes), INSTANT_BYTES_PER_S)
    links = (LinkMatrix(concurrent_flows=1, bytes_per_s=fast),)
    return replace(
        instance,
        cluster=replace(
            cluster,
            link_matrices=links,
            inter_node_latency_s=0.0,
            known_latency_s=None,
            node_bytes_per_s=None,
            gpu_links=links_of_gpus,
            levels=(),
        ),
    )


def make_plan(
    instance: Instance,
    data: ProblemData,
    ranked: Sequence[SimulatedSolution],
    certificate: Certificate,
    memory: tuple[StageMemory, ...],
    *,
    alternatives: tuple[Alternative, ...] = (),
    notes: tuple[str, ...] = (),
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
) -> Plan:
    """Return the plan of the first of the ranked solutions."""
    best = ranked[0]
    return Plan(
        config=best.candidate.config,
        placement=best.placement,
        hosts=instance.cluster.hosts,
        gpus_per_node=instance.cluster.gpus_per_node,
        global_batch_size=instance.training.global_batch_size,
        launcher=instance.launcher,
        p2p=instance.p2p,
        nccl_algorithm=instance.allreduce,
        certificate=certificate,
        estimate=best.estimate,
        memory=memory,
        unused_hosts=unused_hosts(instance, data, best),
        alternatives=alternatives,
        notes=notes,
        not_modelled=instance.not_modelled,
        seed=seed,
        inputs=dict(inputs or {}),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    """Return the versions of the programs that make the plan."""
    found = {"pipette-opt": __version__, "python": platform.python_version()}
    for name in ("ortools", "numpy", "numba"):
        found[name] = version(name)
    return found


def stage_memory(
    instance: Instance,
    config: ParallelConfig,
    placement: Placement,
    predictor: MemoryPredictor,
    max_oom_risk: float,
) -> tuple[StageMemory, ...]:
    """Return the memory of every stage, compared with the smallest of the GPUs that hold it."""
    (prediction,) = predicted_memory(instance, predictor, [config], max_oom_risk)
    hosts = placement.node[RankGrid.of(config, placement.order).ranks()]
    capacity = usable_bytes(instance.cluster, predictor)[hosts].reshape(len(hosts), -1).min(axis=1)
    risk = oom_probability(prediction, capacity)
    return tuple(
        StageMemory(
            stage=stage,
            predicted_bytes=int(prediction.predicted_bytes[stage]),
            upper_bytes=int(prediction.upper_bytes[stage]),
            capacity_bytes=int(capacity[stage]),
            oom_probability=float(risk[stage]),
            counted_bytes=int(prediction.counted_bytes[stage]),
            spread=float(prediction.spread[stage]),
            extrapolates=bool(prediction.extrapolates[stage]),
            components=prediction.components_of(stage),
        )
        for stage in range(len(hosts))
    )


def unused_hosts(instance: Instance, data: ProblemData, best: SimulatedSolution) -> dict[str, str]:
    """Explain for each unused host how much the plan would lose by the best swap that uses it."""
    unused = sorted(set(range(data.num_nodes)) - set(best.nodes.ravel().tolist()))
    if not unused:
        return {}
    if len(unused) * best.nodes.size > MAX_SWAPS:
        return {instance.cluster.hosts[node]: "not needed" for node in unused}
    return {instance.cluster.hosts[node]: _why_unused(instance, data, best, node) for node in unused}


def _why_unused(instance: Instance, data: ProblemData, best: SimulatedSolution, node: int) -> str:
    """Explain the loss by the fastest swap of a used host for ``node``; only the best by objective are simulated."""
    allowed, swaps = data.allowed(best.candidate), []
    for cell in np.ndindex(*best.nodes.shape):
        if allowed[cell[0], node]:
            nodes = best.nodes.copy()
            nodes[cell] = node
            swaps.append((objective_ticks(data, best.candidate, nodes), int(best.nodes[cell]), nodes))
    possible = (swap for swap in swaps if swap[0] < UNUSABLE_TICKS)
    swaps = sorted(possible, key=itemgetter(0, 1))[:MAX_SIMULATED_SWAPS]
    if not swaps:
        return "not enough memory, or links without a measurement, for any place in the plan"
    seconds = estimate_many(instance, [(best.candidate.config, best.placed_on(nodes)) for *_, nodes in swaps])
    partner = swaps[int(seconds.argmin())][1]
    return why_unused(instance.cluster.hosts[partner], float(seconds.min()), best.estimate.iteration_time_s)
