"""Solver of the placement problem: prunes by bounds, runs engines on the rest, and keeps one certificate."""

import threading
from collections.abc import Sequence

from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.lifting import lift_rings
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.portfolio import Portfolio

WITHOUT_SEARCH_SHARE = 0.3
"""Largest fraction of the time limit for bounds without a search. Chosen."""

LIFTING_SHARE = 0.1
"""Fraction of the time limit after which no further candidate configuration gets raised ring costs. Chosen."""


def solve(
    data: ProblemData,
    params: SolverParams,
    hint: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
) -> Result:
    """
    Choose a candidate (configuration with a host tile) and place it, with a lower bound over all candidates.

    Candidates whose bound reaches the incumbent are pruned, first by bounds without a search. The others come in
    batches, smallest bounds first. A batch without a proof after its time slice comes back with a longer slice.
    :data:`~pipette_opt.solver.portfolio.TABLE` assigns engines. Good placements come from annealing, as warm starts.

    Parameters
    ----------
    hint
        Known placements as warm starts, ideally one for each promising candidate. Placements that break a rule are
        ignored.
    on_progress
        Called whenever the incumbent or the bound improves, from any thread.
    stop
        When set, the best placement so far is returned soon. An interrupt from the keyboard sets it.

    Returns
    -------
    Result
        ``lower_bound_ticks`` holds for every candidate, however early the search stops. The pool has the best known
        placement of each other candidate.
    """
    incumbent = Incumbent(data, params, on_progress, stop)
    for solution in hint:
        incumbent.offer(solution)
    _prove(incumbent, Portfolio(incumbent))
    return incumbent.result()


def _prove(incumbent: Incumbent, portfolio: Portfolio) -> None:
    """Compute bounds without a search, then let engines search batches of candidates, smallest bounds first."""
    without_search = incumbent.clock.slice(WITHOUT_SEARCH_SHARE)
    incumbent.data = lift_rings(incumbent.data, incumbent.clock.slice(LIFTING_SHARE))
    incumbent.bounds = lower_bounds(incumbent.data, incumbent.upper, without_search)
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
