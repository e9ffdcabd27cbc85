"""Solver of the placement problem: prunes by bounds, then places and bounds the rest by CP-SAT models."""

import threading
from collections.abc import Sequence

from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.class_assignment.turns import ClassAssignment
from pipette_opt.solver.incumbent import Incumbent, OnProgress
from pipette_opt.solver.model import CpSatModel
from pipette_opt.solver.params import SolverParams

WITHOUT_SEARCH_SHARE = 0.3
"""Largest fraction of the time limit for bounds without a search. Chosen."""


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
    batches, smallest bounds first: class assignment, then the CP-SAT model that names hosts. A batch without a proof
    after its time slice comes back with a longer slice. Good placements come from annealing, as warm starts.

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
    incumbent.bounds = lower_bounds(data, incumbent.upper, incumbent.clock.slice(WITHOUT_SEARCH_SHARE))
    incumbent.report()
    classes, model = ClassAssignment(incumbent), CpSatModel(incumbent)
    while not incumbent.is_over and (batch := model.next_batch()):
        worked = classes.take_turns(batch)
        left = [index for index in batch if incumbent.is_open(index)]
        if left and not incumbent.is_over:
            worked |= model.solve(left)
        if not worked:
            break
        incumbent.report()
    return incumbent.result()
