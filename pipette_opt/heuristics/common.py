"""What the baselines share: answers in the common form."""

import time
from collections.abc import Iterable, Sequence

import numpy as np

from pipette_opt.placed import objective_ticks
from pipette_opt.problem import UNUSABLE_TICKS, ProblemData
from pipette_opt.solution import Result, Solution
from pipette_opt.types import IntArray


def checked_solution(data: ProblemData, index: int, nodes: IntArray) -> Solution | None:
    """A solution with its objective; ``None`` if a host lacks memory or a link may not be used."""
    candidate = data.candidates[index]
    allowed = data.allowed(candidate)
    if not all(allowed[row, nodes[row]].all() for row in range(candidate.grid[0])):
        return None
    objective = objective_ticks(data, candidate, nodes)
    if objective >= UNUSABLE_TICKS:
        return None
    return Solution(candidate=index, nodes=nodes, objective_ticks=objective)


def result_of(solutions: Iterable[Solution], bounds: Sequence[int] | IntArray, started: float) -> Result:
    """
    The best solution and the others as pool.

    Parameters
    ----------
    bounds
        Lower bound of every candidate, ``UNUSABLE_TICKS`` where it has no placement at all.
    started
        ``time.perf_counter()`` at the start.
    """
    ranked = sorted(solutions, key=lambda solution: (solution.objective_ticks, solution.candidate))
    lower = min((int(bound) for bound in bounds), default=UNUSABLE_TICKS)
    if ranked:
        lower = min(lower, ranked[0].objective_ticks)
        status = "OPTIMAL" if lower == ranked[0].objective_ticks else "FEASIBLE"
    else:
        status = "INFEASIBLE" if lower >= UNUSABLE_TICKS else "UNKNOWN"
    return Result(
        status=status,
        lower_bound_ticks=0 if lower >= UNUSABLE_TICKS else lower,
        solution=ranked[0] if ranked else None,
        pool=tuple(ranked[1:]),
        wall_time_s=time.perf_counter() - started,
        candidate_bounds=np.array(bounds, dtype=np.int64),
    )
