"""First plans: placements annealed by the closed forms, or that run today, and what the simulator says of them."""

import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams
from pipette_opt.annealing.threads import anneal_on_threads
from pipette_opt.base.types import IntArray
from pipette_opt.parallel import NodeBlock, ParallelConfig, Placement, block_placement, node_blocks
from pipette_opt.parallel.placement import gpus_of_a_host
from pipette_opt.prepare import Prepared
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.simulate.solutions import SimulatedSolution, simulate_solution
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

MAX_HINTS_SIMULATED = 64
"""Largest number of annealed placements that are shown to the simulator. Chosen."""


def anneal_closed_forms(
    prepared: Prepared,
    seconds: float,
    workers: int,
    seed: int,
    stop: threading.Event,
    known: Sequence[Solution] = (),
) -> Result:
    """
    Anneal the candidates that have a closed form, on every thread with a seed of its own.

    Parameters
    ----------
    known
        Placements that are kept where nothing better is found.
    seconds
        Nothing is annealed without.
    """
    if seconds <= 0:
        return _with_known(Result(status="UNKNOWN", lower_bound_ticks=0, solution=None), known)
    settings = AnnealingParams(time_limit_s=seconds, seed=seed)
    first, *others = anneal_on_threads(prepared.with_closed_form, settings, workers, stop)
    return _with_known(_with_known(first, [one for other in others for one in other.solutions]), known)


def simulate_closed_forms(prepared: Prepared, result: Result) -> list[SimulatedSolution]:
    """Simulate the best solutions of a result."""
    return [
        simulate_solution(prepared.instance, prepared.with_closed_form, one)
        for one in result.solutions[:MAX_HINTS_SIMULATED]
    ]


def simulate_first_plan(prepared: Prepared) -> list[SimulatedSolution]:
    """The plan on the listed hosts that others were left out for, if there is one."""
    first = None if prepared.pruned is None else prepared.pruned.first
    if first is None:
        return []
    solutions = [
        Solution(candidate=index, nodes=first.nodes, objective_ticks=0)
        for index, candidate in enumerate(prepared.problem.candidates)
        if (candidate.config, candidate.block) == (first.config, first.block)
    ]
    return [simulate_solution(prepared.instance, prepared.problem, one) for one in solutions]


def _with_known(hint: Result, known: Sequence[Solution]) -> Result:
    """The hint with the better of its own and the known placements of each candidate."""
    if not known:
        return hint
    ranked = sorted((*known, *hint.solutions), key=lambda one: (one.objective_ticks, one.candidate))
    best_of = {one.candidate: one for one in reversed(ranked)}
    best, *others = sorted(best_of.values(), key=lambda one: (one.objective_ticks, one.candidate))
    status = "FEASIBLE" if hint.status in ("INFEASIBLE", "UNKNOWN") else hint.status
    return replace(hint, status=status, solution=best, pool=tuple(others))


def first_plan(instance: Instance, config: ParallelConfig, placement: Placement, seconds: float) -> FirstPlan | None:
    """A placement as hosts in a grid; ``None`` where it is no packing of whole hosts with equal blocks."""
    for block in node_blocks(config, instance.cluster.gpus_per_node, instance.launcher):
        nodes = _grid_of(config, block, placement)
        if nodes is not None:
            return FirstPlan(config=config, block=block, nodes=nodes, seconds=seconds)
    return None


def _grid_of(config: ParallelConfig, block: NodeBlock, placement: Placement) -> IntArray | None:
    """Hosts of the grid of a block, if a placement is one of these."""
    shape = block.node_grid(config)
    cells = block_placement(config, block, np.arange(int(np.prod(shape))).reshape(shape))
    if cells.order != placement.order or gpus_of_a_host(config, block) * int(np.prod(shape)) != len(placement.node):
        return None
    nodes = np.full(int(np.prod(shape)), -1, dtype=np.int64)
    nodes[cells.node] = placement.node
    if not (nodes[cells.node] == placement.node).all() or len(set(nodes.tolist())) < nodes.size:
        return None
    return nodes.reshape(shape)
