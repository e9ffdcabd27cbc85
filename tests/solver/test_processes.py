"""Rounds of proofs over processes, also when one is killed."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from instances import best_by_enumeration, one_candidate_cluster, several_shapes

from pipette_opt.base.backends import JoblibBackend
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.processes import solve_in_processes

pytestmark = pytest.mark.search


def test_processes_give_the_same_kind_of_result() -> None:
    """Rounds of pieces over joblib prove the same optimum, candidate by candidate not above enumeration."""
    data, optimum = several_shapes()
    result = solve_in_processes(JoblibBackend(2), data, SolverParams(time_limit_s=60.0))
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert result.solution.objective_ticks == optimum
    for candidate, bound in zip(data.candidates, result.candidate_bounds.tolist(), strict=True):
        assert bound <= max(best_by_enumeration(data, candidate), optimum)


def test_a_killed_worker_loses_only_time() -> None:
    """A process is killed in the middle of a run; the result is still a placement with a bound below it."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_nodes=18)

    def kill_one() -> None:
        from joblib.externals.loky import get_reusable_executor

        while not (processes := get_reusable_executor(reuse=True)._processes):
            time.sleep(0.1)
        time.sleep(2.0)
        os.kill(next(iter(processes)), signal.SIGKILL)

    killer = threading.Thread(target=kill_one, daemon=True)
    killer.start()
    result = solve_in_processes(JoblibBackend(2), data, SolverParams(time_limit_s=7.0))
    killer.join()
    assert result.solution is not None
    assert result.solution.objective_ticks == objective_ticks(data, data.candidates[0], result.solution.nodes)
    assert 0 < result.lower_bound_ticks <= result.solution.objective_ticks
