"""Baselines: launch on hosts in listed order without a rank map, and Megatron-LM's rule for the degrees."""

import time
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel import HostTile
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of


def identity_order(data: ProblemData) -> Result:
    """
    Place every candidate on hosts in listed order, in rank order, and return the best.

    Only tilings of consecutive ranks are considered. A candidate is left out if its stages do not fit on its hosts, or
    if it would use a missing link: the baseline tries no other hosts.
    """
    started = time.perf_counter()
    return result_of(listed_solutions(data), _bounds(data), started)


def megatron_rule(data: ProblemData) -> Result:
    """
    Return the placement by Megatron-LM's rule: tensor parallelism inside a host, then pipeline until the model fits.

    The rule is takeaways 1 to 3 of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters
    Using Megatron-LM" (SC'21). It takes the least product of tensor and pipeline size that fits, with the largest
    tensor size inside a host. Data parallelism uses the other GPUs. All micro-batch sizes and other choices are tried,
    on hosts in listed order, but for sharded parameters and gradients, which the rule does not know.
    """
    started = time.perf_counter()
    solutions = [
        found
        for found in listed_solutions(data)
        if (candidate := data.candidates[found.candidate]).grid[2] == 1 and (candidate.config.zero_stage or 0) < 2
    ]
    if not solutions:
        return identity_order(data)
    chosen = min(_model_parallel(data.candidates[found.candidate]) for found in solutions)
    kept = [found for found in solutions if _model_parallel(data.candidates[found.candidate]) == chosen]
    return result_of(kept, _bounds(data), started)


def identity_nodes(candidate: CandidateData) -> IntArray:
    """Return hosts 0, 1, 2, ... in the order of the candidate's ranks, in the shape of the candidate's grid."""
    return listed_nodes(candidate.grid, candidate.tile)


def listed_nodes(grid: tuple[int, int, int], tile: HostTile) -> IntArray:
    """Return hosts 0, 1, 2, ... in rank order, for a grid and a host tile."""
    P, D, K = grid
    numbers = np.arange(P * D * K, dtype=np.int64)
    if tile.order == "tp-cp-ep-dp-pp":
        return numbers.reshape(P, D, K)
    return numbers.reshape(D, P, K).transpose(1, 0, 2)


def listed_solutions(data: ProblemData) -> Iterator[Solution]:
    """Yield the solution of every candidate with consecutive ranks on hosts in listed order, if it can run there."""
    for index, candidate in enumerate(data.candidates):
        if candidate.tile.contiguous and candidate.num_cells <= data.num_nodes:
            solution = checked_solution(data, index, identity_nodes(candidate))
            if solution is not None:
                yield solution


def _model_parallel(candidate: CandidateData) -> tuple[int, int]:
    """Return the sort key of the rule: the fewest GPUs per replica first, then the largest tensor-parallel size."""
    config = candidate.config
    tensor = config.tensor_model_parallel_size * config.context_parallel_size
    return tensor * config.pipeline_model_parallel_size, -tensor


def _bounds(data: ProblemData) -> list[int]:
    return [optimistic_ticks(data, candidate) for candidate in data.candidates]
