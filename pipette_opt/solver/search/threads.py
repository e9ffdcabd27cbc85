"""
On the threads of this machine: annealing beside the proof.

One thread anneals from the beginning to the end, as annealing alone would with the same seed; it shares the processor
with the proof, so that it may get less far. The others anneal first, with other seeds, and then prove; what the proof
promises to be good they refine by annealing, and when no more can be proven they anneal again, from the incumbent. With
few hosts all threads anneal first and then prove. Whatever ends a run that leaves a gap, all threads then polish the
incumbent for a moment.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue

from pipette_opt.annealing.anneal import AnnealingParams, anneal, refine
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.search.params import SEED_STEP, OnProgress, SearchParams, first_annealing_s

REFINED_S, REFINED_SHARE = 1.0, 0.02
"""Seconds that a placement of the proof is refined at most, and the share of the time left."""

POLISHED_S, POLISHED_SHARE = 0.5, 0.1
"""Seconds that the incumbent is annealed at the end at most, and share of the time that has passed."""

POLISHED_FACTORS = (0.01, 0.1)
"""Temperature factors then, of the threads in turn: mostly what is left is which of like hosts is where."""

SMALL_CELLS = 20
"""Up to so many cells no thread anneals beside the proof: that is what takes time there."""

FIRST_SEED, LATER_SEED = 7, 11
"""Beyond the seed of the thread that anneals all the time, those of the others before and after the proof."""

POLL_S = 0.05
"""Between looks at whether the proof has ended."""

MOVES_PER_S = 2e6
"""What annealing makes of up to 128 hosts, about."""

DETERMINISTIC_MOVES = 2_000_000
"""Moves in all before a deterministic proof."""


def search_on_threads(
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
    annealer: "_Annealer | None",
) -> Result:
    """The threads that do not anneal all the time."""
    from pipette_opt.solver.params import ENGINES, SolverParams
    from pipette_opt.solver.solve import solve

    started = time.perf_counter()
    if params.deterministic:
        settings = AnnealingParams(time_limit_s=None, max_moves=DETERMINISTIC_MOVES, seed=params.seed)
        hints = [anneal(data, settings, stop=stop)]
    else:
        others = (
            params if annealer is None else replace(params, workers=params.workers - 1, seed=params.seed + FIRST_SEED)
        )
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

    def gone_on(incumbent: Solution | None, offer: Callable[[Solution], None], ended: threading.Event) -> None:
        left = _unpolished_s(params) - (time.perf_counter() - started)
        settings = AnnealingParams(time_limit_s=max(0.0, left), seed=params.seed + LATER_SEED)
        start = [] if incumbent is None else [incumbent]
        anneal_on_threads(data, settings, params.workers - 1, ended, start=start, offer=offer)

    result = solve(
        data,
        SolverParams(
            time_limit_s=max(0.1, _unpolished_s(params) - passed),
            gap_limit=params.gap_limit,
            workers=params.workers,
            seed=params.seed,
            deterministic=params.deterministic,
            engines=ENGINES if params.engines is None else params.engines,
        ),
        hint=[*known, *(one for result in hints for one in result.solutions)],
        on_progress=told,
        stop=stop,
        improve=None if annealer is None else annealer.hand_over,
        go_on=None if annealer is None else gone_on,
        refine=refined,
        polish=None if params.deterministic else polished,
    )
    return replace(result, wall_time_s=time.perf_counter() - started)


def _anneal_first(data: ProblemData, params: SearchParams, stop: threading.Event) -> list[Result]:
    """Annealing on each thread, as long as is asked for."""
    first_s = first_annealing_s(data, params)
    if first_s <= 0:
        return []
    return anneal_on_threads(data, AnnealingParams(time_limit_s=first_s, seed=params.seed), params.workers, stop)


def anneal_on_threads(
    data: ProblemData,
    params: AnnealingParams,
    threads: int,
    stop: threading.Event | None = None,
    *,
    start: Sequence[Solution] = (),
    offer: Callable[[Solution], None] | None = None,
) -> list[Result]:
    """Annealing with another seed on each thread; ``offer`` is told improvements from any."""
    settings = [replace(params, seed=params.seed + SEED_STEP * number) for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda one: anneal(data, one, stop=stop, start=start, offer=offer), settings))


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
