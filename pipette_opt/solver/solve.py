"""Prune by bounds, let engines work on what is left, keep one certificate over all candidates."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import NamedTuple

from pipette_opt.problem import ProblemData
from pipette_opt.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.counting import ROWS_SHARE, Counting
from pipette_opt.solver.known import Known, OnProgress
from pipette_opt.solver.lifting import lift_rings
from pipette_opt.solver.merging import Merging
from pipette_opt.solver.modelling import Modelling
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.racking import Racking
from pipette_opt.solver.refining import Refine, Refining
from pipette_opt.solver.searching import Searching, is_column, is_large

BOUNDING_SHARE = 0.3
"""Part of the time limit that bounds without a model may take."""

LIFTING_SHARE = 0.1
"""Part of the time limit in which costs of rings may begin to be raised."""

NEXT_TO_NOTHING = 0.05
"""Of what lacked to the ceiling before."""

POLL_S = 0.05
"""Between looks at whether the time is over."""

Improve = Callable[[Callable[[Solution], None], threading.Event], None]
"""Looks for solutions in a thread of its own, hands each to the first argument, and ends when the event is set."""

GoOn = Callable[[Solution | None, Callable[[Solution], None], threading.Event], None]
"""The same from the incumbent, when no more can be proven."""

Polish = Callable[[Solution], Sequence[Solution]]
"""What annealing makes of a placement, soon."""


def solve(
    data: ProblemData,
    params: SolverParams,
    hint: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    improve: Improve | None = None,
    go_on: GoOn | None = None,
    refine: Refine | None = None,
    polish: Polish | None = None,
) -> Result:
    """
    Choose one candidate and place it, with a bound over all candidates.

    Candidates whose bound reaches the incumbent are pruned: first by bounds that need no search, then by counts of
    classes of hosts, or by a search if they are single columns. The others come in batches, those with the least bounds
    first. Each grid of a batch is searched between periods, then the batch is modelled (unless it is too large),
    looking only for solutions better than the incumbent; a batch of few cells is searched in half of the threads and
    modelled in the others. A batch that is not finished in its slice of time comes back with more of it, and first
    shows that nothing is near its bound. With two threads or more for the models, both formulations of a batch run at
    once, and the first to finish stops the other; with one they take turns.

    Parameters
    ----------
    hint
        Known placements, best used with one for each promising candidate; those that break a rule are ignored.
    on_progress
        Called whenever the incumbent or the bound improves, from any thread.
    stop
        When set, the best so far is returned soon. An interrupt from the keyboard does the same, and sets it.
    improve
        Runs beside the proof, in place of one of several workers, and goes on for the time left if no more can be
        proven. What it finds depends on the timing of threads.
    go_on
        Beside ``improve`` takes the place of the other workers then.
    refine
        Given what the counts of classes promise to be good, gives back what it makes of it; called from one thread.
    polish
        Given the incumbent at the end, if a gap stays, gives back what may be better.

    Returns
    -------
    Result
        ``lower_bound_ticks`` holds for every candidate, however early the search stops. The pool has the best
        placement known of each other candidate.
    """
    started = time.perf_counter()
    data = lift_rings(data, LIFTING_SHARE * params.time_limit_s) if params.decomposes else data
    known = Known(data, params, on_progress, stop if stop is not None else threading.Event(), started)
    for solution in hint:
        known.offer(solution)
    with _improving(known, improve, go_on):
        refining = Refining(known, refine)
        engines = _Engines(
            Counting(known, refining),
            Racking(known, refining),
            Merging(known, refining),
            Searching(known),
            Modelling(known),
        )
        _work(known, engines)
    if polish is not None:
        _polish(known, polish)
    return known.result()


def _polish(known: Known, polish: Polish) -> None:
    """Offer what comes of the incumbent, if a gap stays; an interrupt from the keyboard ends that, too."""
    if known.incumbent is None or known.lower >= known.upper:
        return
    try:
        for solution in polish(known.incumbent):
            known.offer(solution)
    except KeyboardInterrupt:
        known.stop.set()


@contextmanager
def _improving(known: Known, improve: Improve | None, go_on: GoOn | None) -> Iterator[None]:
    """Run ``improve`` meanwhile, and afterwards both for the time left if a gap stays; their errors are raised here."""
    if improve is None:
        yield
        return
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        known.helpers = 1
        looking = [pool.submit(improve, known.offer, ended)]
        looking[0].add_done_callback(lambda _: setattr(known, "helpers", 0))
        try:
            yield
            if go_on is not None and not known.is_over:
                looking.append(pool.submit(go_on, known.incumbent, known.offer, ended))
            while not known.is_over and not all(one.done() for one in looking):
                try:
                    wait(looking, POLL_S)
                except KeyboardInterrupt:
                    known.stop.set()
        finally:
            ended.set()
    for one in looking:
        one.result()


class _Engines(NamedTuple):
    """Whatever proves something, with what it has begun."""

    counting: Counting
    racking: Racking
    merging: Merging
    searching: Searching
    modelling: Modelling


def _work(known: Known, engines: _Engines) -> None:
    """All engines, in their order."""
    known.bounds = lower_bounds(known.data, known.upper, known.started + BOUNDING_SHARE * known.params.time_limit_s)
    known.report()
    if known.params.decomposes:
        _bound(known, engines)
    known.report()
    while not known.is_over:
        batch = engines.modelling.next_batch()
        if not batch:
            return
        if _is_raced(batch, known, engines) and _race(batch, known, engines):
            continue
        left = _search(batch, known, engines)
        if left and not known.is_over and not engines.modelling.solve(left):
            return
        known.report()


def _bound(known: Known, engines: _Engines) -> None:
    """
    Candidates one by one, least bounds first; most of those of a joint choice end here.

    Only the least bound matters, so this ends with one that stays where it is.
    """
    tried: set[int] = set()
    while not known.is_over:
        ranked = known.open_candidates()
        able = [index for index in ranked if engines.searching.is_chain(index) or engines.counting.suits(index)]
        if len(able) == 1 and not engines.searching.is_chain(able[0]):
            few = not is_large(known.data.candidates[able[0]])
            if few or engines.racking.suits(able[0]) or engines.merging.is_alike(able[0]):
                return  # few cells are searched at once, and racks or patterns of like hosts tell more than rows
        left = [index for index in able if index not in tried]
        if not left or left[0] != ranked[0]:
            return
        if engines.searching.is_chain(left[0]):
            _search_chain(known, engines.searching, left[0])
        else:
            alone = engines.counting.has_ranges(left[0]) or not engines.merging.suits(left[0])
            engines.counting.bound(left[0], len(left), alone=alone)
        tried.add(left[0])


def _search_chain(known: Known, searching: Searching, index: int) -> None:
    """A chain to its end, if that does not take too long."""
    least = (1 - ROWS_SHARE) * known.seconds_left
    while known.is_open(index) and not known.is_over and known.seconds_left > least:
        searching.search(index)


def _is_raced(batch: Sequence[int], known: Known, engines: _Engines) -> bool:
    """
    Whether a batch is searched in some threads while it is modelled in the others.

    Either may close a few cells in a second where the other takes a minute, but models seldom close a single column.
    """
    candidates = [known.data.candidates[index] for index in batch]
    few = all(engines.searching.suits(index) for index in batch) and not any(is_large(one) for one in candidates)
    return few and known.workers > 1 and not any(is_column(one) for one in candidates)


def _race(batch: Sequence[int], known: Known, engines: _Engines) -> bool:
    """Search a batch in half of the threads while it is modelled in the others; False if no model can be built."""
    ended, workers = threading.Event(), known.workers

    def search() -> None:
        while not ended.is_set() and any(_is_due(index, known) for index in batch):
            for index in batch:
                _small_turn(index, len(batch), known, engines, workers=workers - workers // 2, stop=ended)

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        try:
            modelled = engines.modelling.solve(list(batch), max(1, workers // 2))
        finally:
            ended.set()
        searching.result()
    return modelled


def _search(batch: Sequence[int], known: Known, engines: _Engines) -> list[int]:
    """Give searches of a batch their slices; what is left for a model."""
    for index in batch:
        turn = _large_turn if is_large(known.data.candidates[index]) else _small_turn
        turn(index, len(batch), known, engines)
    searching = engines.searching
    searched = [index for index in batch if searching.suits(index)]
    still = [index for index in batch if known.is_open(index) and not (index in searched and searching.is_alone(index))]
    if searched and any(is_large(known.data.candidates[index]) for index in still):
        return []
    return still


def _small_turn(
    index: int,
    number: int,
    known: Known,
    engines: _Engines,
    *,
    workers: int | None = None,
    stop: threading.Event | None = None,
) -> None:
    """
    A slice of one candidate of so many for its search, then, if that does not end it, for patterns of classes.

    These go on where they leave next to nothing.
    """
    if _is_due(index, known) and engines.searching.suits(index):
        engines.searching.search(index, number, workers=workers, stop=stop)
    lacked = known.ceiling_of(index) - known.bounds[index]
    while (
        _is_due(index, known)
        and engines.merging.suits(index)
        and engines.merging.search(index, number, workers=workers, stop=stop)
    ):
        if known.ceiling_of(index) - known.bounds[index] > NEXT_TO_NOTHING * lacked:
            break


def _large_turn(index: int, number: int, known: Known, engines: _Engines) -> None:
    """
    At first a look by search, then racks, to their end, unless there are many classes of hosts that are alike.

    Patterns of classes as long as they raise the bound; else the search, and counts.
    """
    if _is_due(index, known) and engines.searching.is_quick(index):
        engines.searching.search(index, number)
    if _is_due(index, known) and not engines.merging.is_alike(index) and engines.racking.suits(index):
        engines.racking.search(index, number)
    if _is_due(index, known) and engines.merging.suits(index) and engines.merging.search(index, number):
        return
    if not (_is_due(index, known) and engines.searching.suits(index)):
        return
    bound = int(known.bounds[index])
    engines.searching.search(index, number)
    if _is_due(index, known) and known.bounds[index] <= bound and engines.counting.refines(index):
        engines.counting.look_for_promising(index, engines.searching.visits[index])


def _is_due(index: int, known: Known) -> bool:
    return known.is_open(index) and not known.is_over
