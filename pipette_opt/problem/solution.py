"""Results for a :class:`~pipette_opt.problem.data.ProblemData`: solutions, their check, and lower bounds."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.types import IntArray, read_only
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """
    A candidate configuration with its placement.

    Parameters
    ----------
    candidate
        Index into ``ProblemData.candidates``.
    nodes
        Host of each grid cell, shape ``CandidateData.grid``.
    """

    candidate: int
    nodes: IntArray
    objective_ticks: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", read_only(self.nodes, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """
    Result of a solver or a baseline.

    Parameters
    ----------
    status
        ``OPTIMAL``, ``FEASIBLE``, ``INFEASIBLE`` or ``UNKNOWN``.
    lower_bound_ticks
        Lower bound on the integer objective over all candidate configurations, ticks; 0 if nothing is proven.
    solution
        Best solution found; ``None`` if none.
    pool
        Further solutions worth simulating, best first, at most one per candidate, without ``solution``.
    proven_by
        Name of the engine or bound that last raised each candidate's bound; empty if not recorded.
    """

    status: str
    lower_bound_ticks: int
    solution: Solution | None
    pool: tuple[Solution, ...] = ()
    wall_time_s: float = 0.0
    num_pruned: int = 0
    candidate_bounds: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    proven_by: tuple[str, ...] = ()

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """Best solution, followed by the pool; empty if no solution was found."""
        return () if self.solution is None else (self.solution, *self.pool)


def checked_solution(data: ProblemData, index: int, nodes: IntArray) -> Solution | None:
    """
    Return the placement as a solution with its objective; ``None`` if it breaks a rule.

    Each grid cell needs a host of the cluster with enough memory. No host may have two cells, and all links must be
    usable.
    """
    candidate = data.candidates[index]
    if nodes.shape != candidate.grid or len(np.unique(nodes)) < nodes.size:
        return None
    if nodes.min() < 0 or nodes.max() >= data.num_nodes:
        return None
    allowed = data.allowed(candidate)
    if not all(allowed[row, nodes[row]].all() for row in range(candidate.grid[0])):
        return None
    objective = objective_ticks(data, candidate, nodes)
    if objective >= UNUSABLE_TICKS:
        return None
    return Solution(candidate=index, nodes=nodes, objective_ticks=objective)


def result_of(solutions: Iterable[Solution], bounds: Sequence[int] | IntArray, started: float) -> Result:
    """
    Return a result with the fastest solution, and the further solutions as pool.

    Parameters
    ----------
    bounds
        Lower bound of every candidate configuration, integer ticks; ``UNUSABLE_TICKS`` if the candidate has no
        placement.
    started
        ``time.perf_counter()`` at the start of the solve.
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
