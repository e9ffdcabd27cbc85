"""
Over a backend of processes: rounds of independent pieces.

A piece is the open candidates of one grid shape to prove, or a restart of the annealing with a seed of its own; each
round begins with what those before have found and proven.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.annealing.threads import SEED_STEP
from pipette_opt.base.backends import Backend
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import PROVERS, SolverParams

FIRST_MOVES = 200_000
"""Moves of the first restart of a piece that anneals. Chosen."""

ROUND_S = 2.0
"""Seconds of the first round of pieces. Chosen."""

ROUND_GROWTH = 1.5
"""How much longer each next round is. Chosen."""

LEAST_ROUND_S = 0.05
"""Smallest number of seconds of a round, where the time is nearly over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Piece:
    """
    Some candidates, to prove or to anneal, for some seconds.

    Parameters
    ----------
    indices
        Of the candidates in the whole problem; ``data`` has only these.
    params
        Whose engines say which: annealing alone, or those that prove.
    """

    data: ProblemData
    indices: tuple[int, ...]
    params: SolverParams
    start: tuple[Solution, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Outcome:
    """What came out of a piece, in the indices of the whole problem."""

    indices: tuple[int, ...]
    solutions: tuple[Solution, ...]
    bounds: tuple[int, ...]


def work_on(piece: Piece) -> Outcome:
    """Do one piece."""
    params = piece.params
    if params.anneals:
        settings = AnnealingParams(time_limit_s=params.time_limit_s, seed=params.seed, first_moves=FIRST_MOVES)
        result = anneal(piece.data, settings, start=piece.start)
    else:
        from pipette_opt.solver.solve import solve

        result = solve(piece.data, params, hint=piece.start)
    return Outcome(
        indices=piece.indices,
        solutions=tuple(replace(one, candidate=piece.indices[one.candidate]) for one in result.solutions),
        bounds=tuple(result.candidate_bounds.tolist()),
    )


def solve_in_processes(incumbent: Incumbent, backend: Backend) -> Result:
    """Rounds until nothing is open or time is up."""
    data, params = incumbent.data, incumbent.params
    optimistic = np.array([optimistic_ticks(data, one) for one in data.candidates], dtype=np.int64)
    incumbent.bounds = optimistic.copy()
    seconds = params.first_annealing_s(data.num_nodes) if params.anneals else 0.0
    proves, made = seconds <= 0, 0
    seconds = seconds or ROUND_S
    while not incumbent.is_over and incumbent.open_candidates():
        seconds_now = min(seconds, max(incumbent.seconds_left, LEAST_ROUND_S))
        pieces = _pieces(incumbent, seconds_now, backend.num_workers, made, proves=proves)
        if not pieces:
            break
        made += len(pieces)
        for _, outcome in backend.run(work_on, pieces, incumbent.stop):
            for solution in outcome.solutions:
                incumbent.offer(solution)
            for index, bound in zip(outcome.indices, outcome.bounds, strict=True):
                incumbent.prove(index, bound)
        seconds = ROUND_GROWTH * seconds if proves else ROUND_S
        proves = True
    incumbent.searched.update(np.flatnonzero(optimistic < incumbent.upper).tolist())
    return incumbent.result()


def _pieces(incumbent: Incumbent, seconds: float, workers: int, made: int, *, proves: bool) -> list[Piece]:
    """For each open shape a proof, then restarts of the annealing on the cores that are left, at least one."""
    shapes: dict[tuple[int, int, int], list[int]] = {}
    for index in incumbent.open_candidates():
        shapes.setdefault(incumbent.data.candidates[index].grid, []).append(index)
    groups, number = list(shapes.values()), max(workers, 1)
    provers = tuple(name for name in incumbent.params.engines if name in PROVERS)
    most_proofs = (max(1, number - 1) if incumbent.params.anneals else number) if proves and provers else 0
    work: list[tuple[list[int], tuple[str, ...]]] = [(group, provers) for group in groups[:most_proofs]]
    if incumbent.params.anneals:
        restarts = max(1, number - len(work))
        work += [(groups[restart % len(groups)], ("annealing",)) for restart in range(restarts)]
    return [
        _piece(incumbent, group, engines, seconds, SEED_STEP * (made + place))
        for place, (group, engines) in enumerate(work, start=1)
    ]


def _piece(incumbent: Incumbent, indices: Sequence[int], engines: tuple[str, ...], seconds: float, seed: int) -> Piece:
    best, chosen = incumbent.best, list(indices)
    if "annealing" not in engines and best is not None and best.candidate not in chosen:
        chosen.append(best.candidate)  # so that nothing worse than the incumbent is looked for
    place = {index: position for position, index in enumerate(chosen)}
    data, params = incumbent.data, incumbent.params
    return Piece(
        data=replace(data, candidates=tuple(data.candidates[index] for index in chosen)),
        indices=tuple(chosen),
        params=SolverParams(
            time_limit_s=seconds, gap_limit=params.gap_limit, workers=1, seed=params.seed + seed, engines=engines
        ),
        start=tuple(
            replace(one, candidate=place[one.candidate]) for one in incumbent.found.values() if one.candidate in place
        ),
    )
