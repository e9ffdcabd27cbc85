"""Answers to a :class:`~pipette_opt.problem.ProblemData`: one placement, and what is proven about it."""

from dataclasses import dataclass, field

import numpy as np

from pipette_opt.types import IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Solution:
    """
    One candidate, placed.

    Parameters
    ----------
    candidate
        Index into ``ProblemData.candidates``.
    nodes
        Host of each cell, shape ``CandidateData.grid``.
    objective_ticks
        The integer objective.
    """

    candidate: int
    nodes: IntArray
    objective_ticks: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", read_only(self.nodes, np.int64))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Result:
    """
    What a solver or a baseline gives back.

    Parameters
    ----------
    status
        ``OPTIMAL``, ``FEASIBLE``, ``INFEASIBLE`` or ``UNKNOWN``.
    lower_bound_ticks
        No solution of any candidate has a smaller integer objective; 0 if nothing is proven.
    solution
        The best found; ``None`` if none.
    pool
        Further solutions worth judging, best first, at most one per candidate, without ``solution``.
    """

    status: str
    lower_bound_ticks: int
    solution: Solution | None
    pool: tuple[Solution, ...] = ()
    wall_time_s: float = 0.0
    num_pruned: int = 0
    candidate_bounds: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    @property
    def solutions(self) -> tuple[Solution, ...]:
        """The best and the pool; empty if none was found."""
        return () if self.solution is None else (self.solution, *self.pool)
