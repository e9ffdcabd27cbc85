"""The best placement, over threads or processes."""

import threading
from collections.abc import Sequence

from pipette_opt.base.backends import Backend
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.search.params import OnProgress, SearchParams
from pipette_opt.solver.search.rounds import Rounds
from pipette_opt.solver.search.threads import search_on_threads


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
        return Rounds(data, params, known, on_progress, stop, backend).run()
    return search_on_threads(data, params, known, on_progress, stop)
