"""Prune by bounds, let engines work on what is left, keep one certificate over all candidates."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager

from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.lifting import lift_rings
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.portfolio import Portfolio
from pipette_opt.solver.refining import Refine, Refining

BOUNDING_SHARE = 0.3
"""Part of the time limit that bounds without a model may take."""

LIFTING_SHARE = 0.1
"""Part of the time limit in which costs of rings may begin to be raised."""

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
    data = lift_rings(data, LIFTING_SHARE * params.time_limit_s) if not params.deterministic else data
    incumbent = Incumbent(data, params, on_progress, stop if stop is not None else threading.Event(), started)
    for solution in hint:
        incumbent.offer(solution)
    with _improving(incumbent, improve, go_on):
        refining = Refining(incumbent, refine)
        _work(incumbent, Portfolio(incumbent, refining.take))
    if polish is not None:
        _polish(incumbent, polish)
    return incumbent.result()


def _polish(incumbent: Incumbent, polish: Polish) -> None:
    """Offer what comes of the incumbent, if a gap stays; an interrupt from the keyboard ends that, too."""
    if incumbent.best is None or incumbent.lower >= incumbent.upper:
        return
    try:
        for solution in polish(incumbent.best):
            incumbent.offer(solution)
    except KeyboardInterrupt:
        incumbent.stop.set()


@contextmanager
def _improving(incumbent: Incumbent, improve: Improve | None, go_on: GoOn | None) -> Iterator[None]:
    """Run ``improve`` meanwhile, and afterwards both for the time left if a gap stays; their errors are raised here."""
    if improve is None:
        yield
        return
    ended = threading.Event()
    with ThreadPoolExecutor(2) as pool:
        incumbent.helpers = 1
        looking = [pool.submit(improve, incumbent.offer, ended)]
        looking[0].add_done_callback(lambda _: setattr(incumbent, "helpers", 0))
        try:
            yield
            if go_on is not None and not incumbent.is_over:
                looking.append(pool.submit(go_on, incumbent.best, incumbent.offer, ended))
            while not incumbent.is_over and not all(one.done() for one in looking):
                try:
                    wait(looking, POLL_S)
                except KeyboardInterrupt:
                    incumbent.stop.set()
        finally:
            ended.set()
    for one in looking:
        one.result()


def _work(incumbent: Incumbent, portfolio: Portfolio) -> None:
    """Bounds without a search, candidates one by one, then batches of those with the least bounds."""
    ends = incumbent.started + BOUNDING_SHARE * incumbent.params.time_limit_s
    incumbent.bounds = lower_bounds(incumbent.data, incumbent.upper, ends)
    incumbent.report()
    portfolio.bound()
    incumbent.report()
    while not incumbent.is_over:
        batch = portfolio.model.next_batch()
        if not batch:
            return
        if portfolio.races(batch) and _race(batch, incumbent, portfolio):
            continue
        worked = portfolio.take_turns(batch)
        left = portfolio.left_to_model(batch)
        if left and not incumbent.is_over and not portfolio.model.solve(left):
            return
        if not worked and not left:
            return
        incumbent.report()


def _race(batch: Sequence[int], incumbent: Incumbent, portfolio: Portfolio) -> bool:
    """Search a batch in half of the threads while it is modelled in the others; False if no model can be built."""
    ended, workers = threading.Event(), incumbent.workers

    def search() -> None:
        while not ended.is_set() and not incumbent.is_over and any(incumbent.is_open(index) for index in batch):
            if not portfolio.take_turns(batch, workers - workers // 2, ended):
                return

    with ThreadPoolExecutor(1) as pool:
        searching = pool.submit(search)
        try:
            modelled = portfolio.model.solve(list(batch), max(1, workers // 2))
        finally:
            ended.set()
        searching.result()
    return modelled
