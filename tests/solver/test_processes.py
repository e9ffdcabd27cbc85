"""Rounds of proofs over processes, also when one is killed."""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from instances import best_by_enumeration, several_shapes

from pipette_opt.base.backends import JoblibBackend, Work
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.processes import solve_in_processes

pytestmark = pytest.mark.search


def test_processes_give_the_same_kind_of_result() -> None:
    """Rounds of pieces over joblib prove the same optimum, candidate by candidate not above enumeration."""
    data, optimum = several_shapes()
    result = solve_in_processes(JoblibBackend(2), data, SolverParams(time_limit_s=600.0))
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert result.solution.objective_ticks == optimum
    for candidate, bound in zip(data.candidates, result.candidate_bounds.tolist(), strict=True):
        assert bound <= max(best_by_enumeration(data, candidate), optimum)


def killed_after_its_work(marker: Path, work: Work, piece: object) -> object:
    """Do a piece of work; the first process that has done so dies before it can say so."""
    outcome = work(piece)
    with suppress(FileExistsError):
        marker.touch(exist_ok=False)
        os.kill(os.getpid(), signal.SIGKILL)
    return outcome


class OneDies(JoblibBackend):
    """Processes of which the first to finish is killed."""

    def __init__(self, marker: Path) -> None:
        super().__init__(2)
        self.marker = marker

    def run(self, work: Work, tasks: Sequence[object], stop: threading.Event) -> Iterator[tuple[int, object]]:
        """See :meth:`JoblibBackend.run`."""
        return super().run(partial(killed_after_its_work, self.marker, work), tasks, stop)


def test_a_killed_worker_loses_only_time(tmp_path: Path) -> None:
    """A process is killed with what it has found; the others and the next attempt still prove the optimum."""
    data, optimum = several_shapes()
    result = solve_in_processes(OneDies(tmp_path / "died"), data, SolverParams(time_limit_s=600.0))
    assert (tmp_path / "died").exists()
    assert (result.status, result.lower_bound_ticks) == ("OPTIMAL", optimum)
    assert result.solution is not None
    assert result.solution.objective_ticks == optimum
