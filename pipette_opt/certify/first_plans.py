"""Warm starts: annealed placements by the analytical 1F1B model, known placements, and their simulated times."""

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams
from pipette_opt.annealing.threads import anneal_on_threads
from pipette_opt.base.types import IntArray
from pipette_opt.parallel import HostTile, ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.parallel.placement import gpus_of_a_host
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

MAX_HINTS_SIMULATED = 64
"""Largest number of annealed placements that are simulated. Chosen."""


def anneal_analytical_models(
    prepared: Prepared,
    clock: Clock,
    workers: int,
    seed: int,
    known: Sequence[Solution] = (),
) -> Result:
    """
    Anneal the candidate configurations that have an analytical 1F1B model, on every thread with a different seed.

    Parameters
    ----------
    clock
        Time limit; once it is over, nothing is annealed.
    known
        Placements that are returned where annealing finds no better one.
    """
    if clock.is_over:
        return _with_known(Result(status="UNKNOWN", lower_bound_ticks=0, solution=None), known)
    settings = AnnealingParams(time_limit_s=clock.left_s, seed=seed)
    first, *others = anneal_on_threads(prepared.with_analytical_model, settings, workers, clock.stop)
    more = [solution for other in others for solution in other.solutions]
    return _with_known(_with_known(first, more), known)


def simulate_annealed(prepared: Prepared, result: Result) -> list[SimulatedSolution]:
    """Return the best solutions of an annealing result, simulated."""
    return [
        simulate_solution(prepared.instance, prepared.with_analytical_model, solution)
        for solution in result.solutions[:MAX_HINTS_SIMULATED]
    ]


def simulate_first_plan(prepared: Prepared) -> list[SimulatedSolution]:
    """Return the plan on listed hosts that gave pruning its time to beat, simulated; empty without one."""
    first = None if prepared.pruned is None else prepared.pruned.first
    if first is None:
        return []
    solutions = [
        Solution(candidate=index, nodes=first.nodes, objective_ticks=0)
        for index, candidate in enumerate(prepared.problem.candidates)
        if (candidate.config, candidate.tile) == (first.config, first.tile)
    ]
    return [simulate_solution(prepared.instance, prepared.problem, solution) for solution in solutions]


def _with_known(hint: Result, known: Sequence[Solution]) -> Result:
    """Return the result with known placements merged in: the better placement of each candidate configuration."""
    if not known:
        return hint
    order = attrgetter("objective_ticks", "candidate")
    ranked = sorted((*known, *hint.solutions), key=order)
    best_of = {solution.candidate: solution for solution in reversed(ranked)}
    best, *others = sorted(best_of.values(), key=order)
    status = "FEASIBLE" if hint.status in ("INFEASIBLE", "UNKNOWN") else hint.status
    return replace(hint, status=status, solution=best, pool=tuple(others))


def first_plan(instance: Instance, config: ParallelConfig, placement: Placement, seconds: float) -> FirstPlan | None:
    """Return a placement as hosts of a grid; ``None`` if it does not give every host an equal tile."""
    for tile in host_tiles(config, instance.cluster.gpus_per_node, instance.launcher):
        nodes = _grid_of(config, tile, placement)
        if nodes is not None:
            return FirstPlan(config=config, tile=tile, nodes=nodes, seconds=seconds)
    return None


def _grid_of(config: ParallelConfig, tile: HostTile, placement: Placement) -> IntArray | None:
    """Return the host of each grid cell for one tile shape; ``None`` if the placement does not fit it."""
    shape = tile.node_grid(config)
    cells = tile_placement(config, tile, np.arange(int(np.prod(shape))).reshape(shape))
    if cells.order != placement.order or gpus_of_a_host(config, tile) * int(np.prod(shape)) != len(placement.node):
        return None
    nodes = np.full(int(np.prod(shape)), -1, dtype=np.int64)
    nodes[cells.node] = placement.node
    if not (nodes[cells.node] == placement.node).all() or len(set(nodes.tolist())) < nodes.size:
        return None
    return nodes.reshape(shape)
