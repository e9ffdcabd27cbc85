"""
Proof in several processes, in rounds of independent tasks.

A task is the open candidate configurations of one grid shape. Each round starts with all plans and bounds of earlier
rounds.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.backends import Backend
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.solve import solve

ROUND_S = 2.0
"""Length of the first round, seconds. Chosen."""

ROUND_GROWTH = 1.5
"""Factor by which each round is longer than the round before. Chosen."""

MIN_ROUND_S = 0.05
"""Least length of a round when time is nearly over, seconds. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """
    Candidate configurations that one process proves for a few seconds.

    Parameters
    ----------
    data
        Problem with only these candidates.
    indices
        Indices of the candidates in the whole problem.
    params
        Time limit, engines and seed of the process.
    start
        Known solutions as warm starts.
    """

    data: ProblemData
    indices: tuple[int, ...]
    params: SolverParams
    start: tuple[Solution, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """Result of a process, by indices of the whole problem: solutions, each candidate's bound (ticks) and engine."""

    indices: tuple[int, ...]
    solutions: tuple[Solution, ...]
    bounds: tuple[int, ...]
    proven_by: tuple[str, ...]


def work_on(piece: Piece) -> Outcome:
    """Solve the candidate configurations of one process."""
    result = solve(piece.data, piece.params, hint=piece.start)
    return Outcome(
        indices=piece.indices,
        solutions=tuple(replace(found, candidate=piece.indices[found.candidate]) for found in result.solutions),
        bounds=tuple(result.candidate_bounds.tolist()),
        proven_by=tuple(result.proven_by),
    )


def solve_in_processes(
    backend: Backend,
    data: ProblemData,
    params: SolverParams,
    hint: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """
    Solve as :func:`~pipette_opt.solver.solve.solve` does, by rounds of processes.

    Rounds end when no candidate configuration is open or time is over.
    """
    incumbent = Incumbent(data, params, on_progress, stop)
    for solution in hint:
        incumbent.offer(solution)
    optimistic = np.array([optimistic_ticks(data, candidate) for candidate in data.candidates], dtype=np.int64)
    incumbent.bounds = optimistic.copy()
    seconds, made = ROUND_S, 0
    while not incumbent.is_over and incumbent.open_candidates():
        round_s = min(seconds, max(incumbent.clock.left_s, MIN_ROUND_S))
        half = incumbent.clock.after(round_s / 2)
        pieces = _pieces(incumbent, round_s, backend.num_workers, made)
        known = incumbent.upper, incumbent.bounds.sum()
        made += len(pieces)
        for _, outcome in backend.run(work_on, pieces, incumbent.clock.stop):
            for solution in outcome.solutions:
                incumbent.offer(solution)
            for index, bound, name in zip(outcome.indices, outcome.bounds, outcome.proven_by, strict=True):
                incumbent.prove(index, bound, name)
        if known == (incumbent.upper, incumbent.bounds.sum()) and not half.is_over:
            break  # no engine has anything left to do
        seconds *= ROUND_GROWTH
    incumbent.searched.update(np.flatnonzero(optimistic < incumbent.upper).tolist())
    return incumbent.result()


def _pieces(incumbent: Incumbent, seconds: float, workers: int, made: int) -> list[Piece]:
    """Return a task for each grid shape with open candidates, at most ``workers``, smallest bounds first."""
    shapes: dict[tuple[int, int, int], list[int]] = {}
    for index in incumbent.open_candidates():
        shapes.setdefault(incumbent.data.candidates[index].grid, []).append(index)
    groups = list(shapes.values())[: max(workers, 1)]
    return [_piece(incumbent, group, seconds, made + number) for number, group in enumerate(groups, start=1)]


def _piece(incumbent: Incumbent, chosen: list[int], seconds: float, number: int) -> Piece:
    best, data, params = incumbent.best, incumbent.data, incumbent.params
    if best is not None and best.candidate not in chosen:
        chosen = [*chosen, best.candidate]  # so that only better placements than the incumbent are looked for
    place = {index: position for position, index in enumerate(chosen)}
    return Piece(
        data=replace(data, candidates=tuple(data.candidates[index] for index in chosen)),
        indices=tuple(chosen),
        params=SolverParams(
            time_limit_s=seconds,
            gap_limit=params.gap_limit,
            workers=1,
            seed=params.seed + number,
            engines=params.engines,
        ),
        start=tuple(
            replace(found, candidate=place[found.candidate])
            for found in incumbent.found.values()
            if found.candidate in place
        ),
    )
