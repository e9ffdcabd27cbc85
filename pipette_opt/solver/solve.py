"""Prune by bounds, let engines work on what is left, keep one certificate over all candidates."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from pipette_opt.base.backends import Backend
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.annealing import until_over
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.lifting import lift_rings
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.portfolio import Portfolio, When
from pipette_opt.solver.processes import prove_in_processes
from pipette_opt.solver.refining import polish

WITHOUT_SEARCH_SHARE = 0.3
"""Share of the time limit that bounds without a search may take. Chosen."""

LIFTING_SHARE = 0.1
"""Share of the time limit in which costs of rings may begin to be raised. Chosen."""


def solve(
    data: ProblemData,
    params: SolverParams,
    hint: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    backend: Backend | None = None,
) -> Result:
    """
    Choose one candidate and place it, with a bound over all candidates.

    Where annealing is among the engines (not in a plan's search), it looks for placements first, beside the proof,
    after it, and for a moment at the very end. Candidates whose bound reaches the incumbent are pruned, first by bounds
    that need no search. The others come in batches, those with the least bounds first. A batch that is not finished in
    its slice of time comes back with more of it. Who works on what, and when, is
    :data:`~pipette_opt.solver.portfolio.TABLE`.

    Parameters
    ----------
    hint
        Known placements, best used with one for each promising candidate; those that break a rule are ignored.
    on_progress
        Called whenever the incumbent or the bound improves, from any thread.
    stop
        When set, the best so far is returned soon. An interrupt from the keyboard does the same, and sets it.
    backend
        Processes to spread the work over; threads of this process without one.

    Returns
    -------
    Result
        ``lower_bound_ticks`` holds for every candidate, however early the search stops. The pool has the best
        placement known of each other candidate.
    """
    incumbent = Incumbent(data, params, on_progress, stop)
    for solution in hint:
        incumbent.offer(solution)
    if backend is not None:
        return prove_in_processes(incumbent, backend)
    portfolio = Portfolio(incumbent)
    with _annealing_beside(incumbent, portfolio):
        if portfolio.anneals(When.FIRST):
            portfolio.annealing.run_first()
        _prove(incumbent, portfolio)
        if portfolio.anneals(When.AFTER):
            portfolio.annealing.run_after()
    if portfolio.anneals(When.LAST) and incumbent.lower < incumbent.upper:
        try:
            polish(incumbent)
        except KeyboardInterrupt:
            incumbent.stop.set()
    return incumbent.result()


@contextmanager
def _annealing_beside(incumbent: Incumbent, portfolio: Portfolio) -> Iterator[None]:
    """Anneal in a thread of its own meanwhile, and for the time left if a gap stays; its errors are raised here."""
    if not portfolio.anneals(When.BESIDE):
        yield
        return
    ended = threading.Event()

    def run() -> None:
        try:
            portfolio.annealing.run_beside(ended)
        finally:
            incumbent.helpers = 0

    with ThreadPoolExecutor(1) as pool:
        incumbent.helpers = 1
        beside = pool.submit(run)
        try:
            yield
            until_over(incumbent, [beside])
        finally:
            ended.set()
    beside.result()


def _prove(incumbent: Incumbent, portfolio: Portfolio) -> None:
    """Bounds without a search, then batches of the candidates with the least bounds."""
    limit_s = max(0.0, incumbent.seconds_left)
    ends = incumbent.ends - (1 - WITHOUT_SEARCH_SHARE) * limit_s
    if not incumbent.params.deterministic:
        incumbent.data = lift_rings(incumbent.data, LIFTING_SHARE * limit_s)
    incumbent.bounds = lower_bounds(incumbent.data, incumbent.upper, ends)
    incumbent.report()
    while not incumbent.is_over:
        batch = portfolio.model.next_batch()
        if not batch:
            return
        worked = portfolio.take_turns(batch)
        left = portfolio.left_to_model(batch)
        if left and not incumbent.is_over and not portfolio.model.solve(left):
            return
        if not worked and not left:
            return
        incumbent.report()
