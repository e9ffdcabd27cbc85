"""Warm starts: known plans, as placements of hosts in a grid."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.state import SearchState
from pipette_opt.parallel import HostTile, ParallelConfig, Placement, host_tiles, tile_placement
from pipette_opt.parallel.placement import gpus_of_a_host
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import Prepared, Question, prepare
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance


def begin(question: Question, params: OptimizeParams, clock: Clock) -> SearchState:
    """
    Begin a search: prepare its problem and take the first plan.

    Raises the errors of :func:`~pipette_opt.prepare.prepare`.
    """
    return begin_with(prepare(question, clock), params, clock)


def begin_with(
    prepared: Prepared, params: OptimizeParams, clock: Clock, known: Sequence[SimulatedSolution] = ()
) -> SearchState:
    """
    Begin the search of a prepared problem.

    Parameters
    ----------
    known
        Plans to start from, of candidates of the problem.
    """
    with clock.loading():
        compile_kernels(prepared, clock)
    return SearchState(prepared, [*simulate_first_plan(prepared), *known], params, clock)


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
