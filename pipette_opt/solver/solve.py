"""Prune by bounds, let engines work on what is left, keep one certificate over all candidates."""

import threading
from collections.abc import Sequence

from pipette_opt.base.backends import Backend
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.lifting import lift_rings
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.portfolio import Portfolio
from pipette_opt.solver.processes import prove_in_processes

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

    Candidates whose bound reaches the incumbent are pruned, first by bounds that need no search. The others come in
    batches, those with the least bounds first. A batch that is not finished in its slice of time comes back with more
    of it. Who works on what is :data:`~pipette_opt.solver.portfolio.TABLE`. Good placements are for others to find:
    annealing gives them as hints.

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
    _prove(incumbent, Portfolio(incumbent))
    return incumbent.result()


def _prove(incumbent: Incumbent, portfolio: Portfolio) -> None:
    """Bounds without a search, then batches of the candidates with the least bounds."""
    limit_s = max(0.0, incumbent.seconds_left)
    ends = incumbent.ends - (1 - WITHOUT_SEARCH_SHARE) * limit_s
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
