"""
Solver and annealing together: placements are looked for while bounds are proven.

On this machine one thread anneals from the beginning to the end, as annealing alone would with the same seed; it shares
the processor with the proof, so that it may get less far. The others anneal first, with other seeds, and then prove;
what the proof promises to be good they refine by annealing. With few hosts all threads anneal first and then prove.
Whatever ends a run that leaves a gap, all threads then polish the incumbent for a moment.
Over a backend of processes the same is done in rounds of independent pieces: the open candidates of one grid shape to
prove, or a restart of the annealing with a seed of its own.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

import numpy as np

from pipette_opt.backends import Backend
from pipette_opt.heuristics.annealing import AnnealingParams, anneal, refine
from pipette_opt.heuristics.common import checked_solution, result_of
from pipette_opt.optimistic import optimistic_ticks
from pipette_opt.problem import UNUSABLE_TICKS, ProblemData
from pipette_opt.solution import Result, Solution

logger = logging.getLogger(__name__)

FIRST_SHARE, FIRST_S_PER_HOST, MOST_FIRST_S = 0.2, 0.03, 10.0
"""How long all threads anneal first: share of the limit, seconds per host, most seconds."""

FIRST_MOVES = 200_000
"""Moves of the first restart of a piece that anneals."""

REFINED_S, REFINED_SHARE = 1.0, 0.02
"""Seconds that a placement of the proof is refined at most, and the share of the time left."""

POLISHED_S, POLISHED_SHARE = 0.5, 0.1
"""Seconds that the incumbent is annealed at the end at most, and share of the time that has passed."""

POLISHED_FACTORS = (0.01, 0.1)
"""Temperature factors then, of the threads in turn: mostly what is left is which of like hosts is where."""

SMALL_CELLS = 20
"""Up to so many cells no thread anneals beside the proof: that is what takes time there."""

POLL_S = 0.05
"""Between looks at whether the proof has ended."""

MOVES_PER_S = 2e6
"""What annealing makes of up to 128 hosts, about."""

DETERMINISTIC_MOVES = 2_000_000
"""Moves in all before a deterministic proof."""

ROUND_S, ROUND_GROWTH = 2.0, 1.5
"""Seconds of the first round of pieces, and how much longer each next one is."""

SEED_STEP = 1000
"""Between the seeds of threads and pieces."""

OnProgress = Callable[[float, int | None, int], None]
"""Called with seconds since the start, the incumbent's ticks (``None`` before the first) and the bound's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParams:
    """
    How long and where to search.

    Parameters
    ----------
    time_limit_s
        Wall time of annealing and proof together.
    gap_limit
        Stop when (objective - bound) / objective is at most this.
    workers
        Threads; of no effect with a backend, which has its own number.
    first_s
        How long all threads anneal before anything is proven; by default as long as the number of hosts calls for.
    deterministic
        The same seed and workers give the same result wherever the time limit does not strike first: annealing is
        limited by moves and comes before the proof.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int = 2
    seed: int = 0
    deterministic: bool = False
    first_s: float | None = None

    def __post_init__(self) -> None:
        if not self.time_limit_s >= 0:
            raise ValueError(f"time_limit_s must be >= 0, got {self.time_limit_s}.")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")


def search(
    data: ProblemData,
    params: SearchParams,
    known: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    backend: Backend | None = None,
) -> Result:
    """
    The best placement of the best candidate that can be found, and what can be proven about it.

    Parameters
    ----------
    known
        Placements to start from; those that break a rule are ignored.
    on_progress
        Called whenever the incumbent or the bound improves, from any thread.
    stop
        When set, the best so far is returned soon.
    backend
        Processes to spread the work over; threads of this process without one.
    """
    stop = stop if stop is not None else threading.Event()
    if backend is not None:
        return _Rounds(data, params, known, on_progress, stop, backend).run()
    return _on_threads(data, params, known, on_progress, stop)


def first_annealing_s(data: ProblemData, time_limit_s: float) -> float:
    """How long all threads anneal before anything is proven."""
    return min(FIRST_SHARE * time_limit_s, FIRST_S_PER_HOST * data.num_nodes, MOST_FIRST_S)


def _anneal_first(data: ProblemData, params: SearchParams, stop: threading.Event) -> list[Result]:
    first_s = first_annealing_s(data, params.time_limit_s) if params.first_s is None else params.first_s
    if first_s <= 0:
        return []
    return anneal_on_threads(data, AnnealingParams(time_limit_s=first_s, seed=params.seed), params.workers, stop)


def anneal_on_threads(
    data: ProblemData, params: AnnealingParams, threads: int, stop: threading.Event | None = None
) -> list[Result]:
    """Annealing with another seed on each thread."""
    settings = [replace(params, seed=params.seed + SEED_STEP * number) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda one: anneal(data, one, stop=stop), settings))


class _Annealer:
    """Annealing in a thread of its own; what it finds waits until it is asked for."""

    def __init__(self, data: ProblemData, params: AnnealingParams, known: Sequence[Solution]) -> None:
        self.found: SimpleQueue[Solution] = SimpleQueue()
        self.over = threading.Event()
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(data, params, known), daemon=True)
        self._thread.start()

    def _run(self, data: ProblemData, params: AnnealingParams, known: Sequence[Solution]) -> None:
        try:
            anneal(data, params, stop=self.over, offer=self.found.put, start=known)
        except BaseException as error:
            self.error = error

    def hand_over(self, offer: Callable[[Solution], None], ended: threading.Event) -> None:
        """Hand on what is found until annealing or the proof ends; an error of the annealing is raised here."""
        while not ended.is_set() and (self._thread.is_alive() or not self.found.empty()):
            try:
                offer(self.found.get(timeout=POLL_S))
            except Empty:
                continue
        self.end()
        while not self.found.empty():
            offer(self.found.get())
        if self.error is not None:
            raise self.error

    def end(self) -> None:
        """Stop soon."""
        self.over.set()
        self._thread.join()


def _on_threads(
    data: ProblemData,
    params: SearchParams,
    known: Sequence[Solution],
    on_progress: OnProgress | None,
    stop: threading.Event,
) -> Result:
    """Annealing beside the proof, with two threads or more; else before it."""
    small = all(candidate.num_cells <= SMALL_CELLS for candidate in data.candidates)
    if small or params.workers < 2 or params.deterministic or params.time_limit_s <= 0:
        return _prove(data, params, known, on_progress, stop, None)
    annealer = _Annealer(data, AnnealingParams(time_limit_s=_unpolished_s(params), seed=params.seed), known)
    try:
        return _prove(data, params, known, on_progress, stop, annealer)
    finally:
        annealer.end()


def _prove(
    data: ProblemData,
    params: SearchParams,
    known: Sequence[Solution],
    on_progress: OnProgress | None,
    stop: threading.Event,
    annealer: _Annealer | None,
) -> Result:
    """The threads that do not anneal all the time."""
    from pipette_opt.solver.params import SolverParams
    from pipette_opt.solver.solve import solve

    started = time.perf_counter()
    if params.deterministic:
        settings = AnnealingParams(time_limit_s=None, max_moves=DETERMINISTIC_MOVES, seed=params.seed)
        hints = [anneal(data, settings, stop=stop)]
    else:
        others = params if annealer is None else replace(params, workers=params.workers - 1, seed=params.seed + 7)
        hints = _anneal_first(data, others, stop)
    passed = time.perf_counter() - started

    def told(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        if on_progress is not None:
            on_progress(passed + elapsed_s, incumbent, bound)

    def refined(solution: Solution) -> Solution | None:
        left = params.time_limit_s - (time.perf_counter() - started)
        moves = _moves_in(data, solution, min(REFINED_S, REFINED_SHARE * left))
        return refine(data, solution, moves=moves, seed=params.seed, stop=stop) if moves > 0 else None

    def polished(solution: Solution) -> list[Solution]:
        seconds = _polishing_s(time.perf_counter() - started)
        return _polished(data, solution, _moves_in(data, solution, seconds), params)

    result = solve(
        data,
        SolverParams(
            time_limit_s=max(0.1, _unpolished_s(params) - passed),
            gap_limit=params.gap_limit,
            workers=params.workers,
            seed=params.seed,
            deterministic=params.deterministic,
        ),
        hint=[*known, *_solutions(hints)],
        on_progress=told,
        stop=stop,
        improve=None if annealer is None else annealer.hand_over,
        refine=refined,
        polish=None if params.deterministic else polished,
    )
    return replace(result, wall_time_s=time.perf_counter() - started)


def _polishing_s(seconds: float) -> float:
    """How long the incumbent is polished at the end of a run of so many seconds."""
    return min(POLISHED_S, POLISHED_SHARE * seconds)


def _unpolished_s(params: SearchParams) -> float:
    """The time limit without what polishing may take."""
    return params.time_limit_s - _polishing_s(params.time_limit_s)


def _polished(data: ProblemData, solution: Solution, moves: int, params: SearchParams) -> list[Solution]:
    """What annealing makes of a solution in so many moves of each thread."""

    def one(number: int) -> Solution | None:
        factor = POLISHED_FACTORS[number % len(POLISHED_FACTORS)]
        return refine(data, solution, moves=moves, seed=params.seed + SEED_STEP * number, factor=factor)

    with ThreadPoolExecutor(params.workers) as pool:
        return [better for better in pool.map(one, range(params.workers)) if better is not None]


def _moves_in(data: ProblemData, solution: Solution, seconds: float) -> int:
    """What annealing makes of a solution's grid in so many seconds, about."""
    return int(MOVES_PER_S * min(1.0, 128 / data.candidates[solution.candidate].num_cells) * seconds)


def _solutions(results: Sequence[Result]) -> list[Solution]:
    """All of several results."""
    return [one for result in results if result.solution is not None for one in (result.solution, *result.pool)]


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
        solutions=tuple(replace(one, candidate=piece.indices[one.candidate]) for one in _solutions([result])),
        bounds=bounds,
    )


class _Rounds:
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
        first_s = self.params.first_s
        seconds = first_annealing_s(self.data, self.params.time_limit_s) if first_s is None else first_s
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
