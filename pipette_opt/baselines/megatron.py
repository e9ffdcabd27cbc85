"""Launches without a rank map, and Megatron-LM's rule of thumb for the degrees."""

import time
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.parallel import NodeBlock
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of


def identity_order(data: ProblemData) -> Result:
    """
    Place every candidate on hosts in listed order, ranks 0, 1, 2, ... filling one after the other; return the best.

    Only tilings of consecutive ranks are considered. A candidate whose stages do not fit on those hosts, or that would
    use a missing link, is left out: the baseline does not look for other hosts.
    """
    started = time.perf_counter()
    return result_of(listed_solutions(data), _bounds(data), started)


def megatron_rule(data: ProblemData) -> Result:
    """
    Tensor parallelism inside a host, then pipeline parallelism until the model fits, data parallelism for the rest.

    Takeaways 1 to 3 of Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
    Megatron-LM" (SC'21): the least product of tensor and pipeline size that fits, tensor parallelism first as long
    as it stays inside a host; the micro-batch size and the rest are tried. Hosts in the order listed.
    """
    started = time.perf_counter()
    solutions = [found for found in listed_solutions(data) if data.candidates[found.candidate].grid[2] == 1]
    if not solutions:
        return identity_order(data)
    chosen = min(_model_parallel(data.candidates[found.candidate]) for found in solutions)
    kept = [found for found in solutions if _model_parallel(data.candidates[found.candidate]) == chosen]
    return result_of(kept, _bounds(data), started)


def identity_nodes(candidate: CandidateData) -> IntArray:
    """Return hosts 0, 1, 2, ... in the order of the candidate's ranks, in the shape of its grid."""
    return listed_nodes(candidate.grid, candidate.block)


def listed_nodes(grid: tuple[int, int, int], block: NodeBlock) -> IntArray:
    """Return hosts 0, 1, 2, ... in rank order, for a grid and a host tile."""
    P, D, K = grid
    numbers = np.arange(P * D * K, dtype=np.int64)
    if block.order == "tp-cp-ep-dp-pp":
        return numbers.reshape(P, D, K)
    return numbers.reshape(D, P, K).transpose(1, 0, 2)


def listed_solutions(data: ProblemData) -> Iterator[Solution]:
    """Yield every candidate that consecutive ranks pack, on hosts in listed order, where these can run it."""
    for index, candidate in enumerate(data.candidates):
        if candidate.block.contiguous and candidate.num_cells <= data.num_nodes:
            solution = checked_solution(data, index, identity_nodes(candidate))
            if solution is not None:
                yield solution


def _model_parallel(candidate: CandidateData) -> tuple[int, int]:
    """Return the GPUs of one replica, fewest first; of equal ones, the larger tensor-parallel size."""
    config = candidate.config
    tensor = config.tensor_model_parallel_size * config.context_parallel_size
    return tensor * config.pipeline_model_parallel_size, -tensor


def _bounds(data: ProblemData) -> list[int]:
    return [optimistic_ticks(data, candidate) for candidate in data.candidates]
