"""
Over a backend of processes: rounds of independent pieces.

A piece is the open candidates of one grid shape to prove, or a restart of the annealing with a seed of its own; each
round begins with what those before have found and proven.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.backends import Backend
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.solution import Result, Solution, checked_solution, result_of
from pipette_opt.solver.search.params import SEED_STEP, OnProgress, SearchParams, first_annealing_s

FIRST_MOVES = 200_000
"""Moves of the first restart of a piece that anneals."""

ROUND_S, ROUND_GROWTH = 2.0, 1.5
"""Seconds of the first round of pieces, and how much longer each next one is."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """
    Some candidates, to prove or to anneal, for some seconds.

    Parameters
    ----------
    indices
        Of the candidates in the whole problem; ``data`` has only these.
    """

    data: ProblemData
    indices: tuple[int, ...]
    proves: bool
    seconds: float
    seed: int
    gap_limit: float
    start: tuple[Solution, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What came out of a piece, in the indices of the whole problem."""

    indices: tuple[int, ...]
    solutions: tuple[Solution, ...]
    bounds: tuple[int, ...]


def work_on(piece: Piece) -> Outcome:
    """Do one piece."""
    if piece.proves:
        from pipette_opt.solver.params import SolverParams
        from pipette_opt.solver.solve import solve

        params = SolverParams(time_limit_s=piece.seconds, gap_limit=piece.gap_limit, workers=1, seed=piece.seed)
        result = solve(piece.data, params, hint=piece.start)
        bounds = tuple(int(bound) for bound in result.candidate_bounds)
    else:
        settings = AnnealingParams(time_limit_s=piece.seconds, seed=piece.seed, first_moves=FIRST_MOVES)
        result = anneal(piece.data, settings, start=piece.start)
        bounds = (0,) * len(piece.indices)
    return Outcome(
        indices=piece.indices,
        solutions=tuple(replace(one, candidate=piece.indices[one.candidate]) for one in result.solutions),
        bounds=bounds,
    )


class Rounds:
    """Rounds of pieces: the incumbent and what is proven so far."""

    def __init__(
        self,
        data: ProblemData,
        params: SearchParams,
        known: Sequence[Solution],
        on_progress: OnProgress | None,
        stop: threading.Event,
        backend: Backend,
    ) -> None:
        self.data, self.params, self.stop, self.backend = data, params, stop, backend
        self.on_progress = on_progress
        self.started = time.perf_counter()
        self.bounds = np.array([optimistic_ticks(data, one) for one in data.candidates], dtype=np.int64)
        self.optimistic = self.bounds.copy()
        self.found: dict[int, Solution] = {}
        self.pieces = 0
        for one in known:
            self.offer(one)

    @property
    def upper(self) -> int:
        """Objective of the incumbent."""
        return min((one.objective_ticks for one in self.found.values()), default=UNUSABLE_TICKS)

    @property
    def seconds_left(self) -> float:
        """Wall time left."""
        return self.started + self.params.time_limit_s - time.perf_counter()

    @property
    def is_closed(self) -> bool:
        """Whether bound and incumbent are as near as asked for."""
        lower = min(self.upper, int(self.bounds.min(initial=UNUSABLE_TICKS)))
        return self.upper - lower <= (self.params.gap_limit * self.upper if self.found else 0)

    def offer(self, solution: Solution) -> None:
        """Take a solution if it keeps the rules and is the best of its candidate."""
        checked = checked_solution(self.data, solution.candidate, solution.nodes)
        known = self.found.get(solution.candidate)
        if checked is not None and (known is None or checked.objective_ticks < known.objective_ticks):
            self.found[solution.candidate] = checked

    def run(self) -> Result:
        """Rounds until nothing is open or time is up."""
        seconds = first_annealing_s(self.data, self.params)
        proves = seconds <= 0
        seconds = seconds or ROUND_S
        while not self.stop.is_set() and self.seconds_left > 0 and not self.is_closed:
            pieces = self._pieces(min(seconds, max(self.seconds_left, 0.05)), proves=proves)
            for _, outcome in self.backend.run(work_on, pieces, self.stop):
                self._take(outcome)
            seconds = ROUND_GROWTH * seconds if proves else ROUND_S
            proves = True
        result = result_of(self.found.values(), self.bounds, self.started)
        return replace(result, num_pruned=int((self.optimistic >= self.upper).sum()))

    def _take(self, outcome: Outcome) -> None:
        for one in outcome.solutions:
            self.offer(one)
        indices = list(outcome.indices)
        self.bounds[indices] = np.maximum(self.bounds[indices], outcome.bounds)
        if self.on_progress is not None:
            lower = min(self.upper, int(self.bounds.min(initial=UNUSABLE_TICKS)))
            incumbent = self.upper if self.found else None
            self.on_progress(time.perf_counter() - self.started, incumbent, 0 if lower >= UNUSABLE_TICKS else lower)

    def _pieces(self, seconds: float, *, proves: bool) -> list[Piece]:
        """For each open shape a proof, then restarts of the annealing on the cores that are left, at least one."""
        open_ones = np.flatnonzero(self.bounds < self.upper).tolist()
        shapes: dict[tuple[int, int, int], list[int]] = {}
        for index in sorted(open_ones, key=lambda one: (int(self.bounds[one]), one)):
            shapes.setdefault(self.data.candidates[index].grid, []).append(index)
        groups = list(shapes.values())
        number = max(self.backend.num_workers, 1)
        most_proofs = max(1, number - 1) if proves else 0
        pieces = [self._piece(group, seconds, proves=True) for group in groups[:most_proofs]]
        for restart in range(max(1, number - len(pieces))):
            pieces.append(self._piece(groups[restart % len(groups)], seconds, proves=False))
        return pieces

    def _piece(self, indices: list[int], seconds: float, *, proves: bool) -> Piece:
        self.pieces += 1
        best = min(self.found.values(), key=lambda one: (one.objective_ticks, one.candidate), default=None)
        if proves and best is not None and best.candidate not in indices:
            indices = [*indices, best.candidate]  # so that nothing worse than the incumbent is looked for
        place = {index: position for position, index in enumerate(indices)}
        return Piece(
            data=replace(self.data, candidates=tuple(self.data.candidates[index] for index in indices)),
            indices=tuple(indices),
            proves=proves,
            seconds=seconds,
            seed=self.params.seed + SEED_STEP * self.pieces,
            gap_limit=self.params.gap_limit,
            start=tuple(
                replace(one, candidate=place[one.candidate]) for one in self.found.values() if one.candidate in place
            ),
        )
