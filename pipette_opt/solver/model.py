"""CP-SAT placement model with a variable for each host: few candidate configurations at a time, doubling slices."""

import logging
import math
import threading
from operator import attrgetter

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import largest_ticks, objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.constraints import CONSTRAINTS
from pipette_opt.solver.hints import add_hint
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.objective import add_objective
from pipette_opt.solver.stoppable import POLL_S, new_solver
from pipette_opt.solver.variables import Variables

logger = logging.getLogger(__name__)

MAX_PAIRS = 8_000_000
"""Largest number of host pairs over all hops of a model; larger models take too long to build and solve. Chosen."""

PAIRS_PER_S = 500_000
"""Host pairs added to a model per second. No model is built that would take half of the remaining time. Chosen."""


class CpSatModel:
    """
    Exact placement model of a few candidate configurations, which also chooses among them.

    Attributes
    ----------
    returns
        Number of time slices that ended without a proof, by candidate.
    reach
        Ceiling of a candidate as a fraction of the gap between bound (0) and incumbent (1, the start).
    """

    name = "cp-sat-model"
    """Name of the model's bounds in the certificate."""

    def __init__(self, incumbent: Incumbent) -> None:
        self.incumbent = incumbent
        self.returns: dict[int, int] = {}
        self.reach: dict[int, float] = {}

    def next_batch(self) -> list[int]:
        """Return the open candidates with the smallest bounds; fewer after each slice without a proof."""
        ranked = self.incumbent.open_candidates()
        if not ranked:
            return []
        size = max(1, self.incumbent.params.batch_size >> self.returns.get(ranked[0], 0))
        return ranked[:size]

    def solve(self, batch: list[int]) -> bool:
        """
        Find a better placement than the incumbent, or prove that the batch of candidate configurations has none.

        The time slice doubles from visit to visit. Return ``False`` if the batch is too large for a model.
        """
        if not self._is_possible(batch):
            batch = batch[:1]
        if not self._is_possible(batch):
            logger.info("too many pairs of hosts for a model in the time left; the proof ends here.")
            return False
        visit = max(self.returns.get(index, 0) for index in batch)
        ceiling = self._ceiling(batch)
        bounds = {index: bound for index in batch if (bound := int(self.incumbent.bounds[index])) <= ceiling}
        if not bounds:
            return True  # a better incumbent or bound arrived meanwhile
        batch = list(bounds)
        self.incumbent.searched.update(batch)
        beyond = ceiling + 1 if self.incumbent.found else UNUSABLE_TICKS
        run = _Run(self.incumbent, bounds, ceiling, self.incumbent.params.first_slice_s * 2**visit)
        self._wait_for(run, batch)
        proven = run.proven(beyond)
        for index in batch:
            self.incumbent.prove(index, proven, self.name)
        self._adapt(batch, run, visit)
        upper = self.incumbent.upper
        logger.info("batch %s: %s, bound %d, incumbent %d", batch, run, proven, upper)
        return True

    def _is_possible(self, batch: list[int]) -> bool:
        """Return whether the batch's model can be built in the remaining time."""
        data, left_s = self.incumbent.data, self.incumbent.clock.left_s
        pairs = sum(_num_pairs(data, data.candidates[index]) for index in batch)
        return pairs <= min(0.5 * left_s * PAIRS_PER_S, MAX_PAIRS)

    def _ceiling(self, batch: list[int]) -> int:
        """
        Return the largest objective to look for, integer ticks.

        It is below the incumbent, and nearer to the bound after failures, as refuting a lower ceiling also raises the
        bound.
        """
        if not self.incumbent.found:
            return max(largest_ticks(self.incumbent.data.candidates[index]) for index in batch)
        bound, share = int(self.incumbent.bounds[batch[0]]), self.reach.get(batch[0], 1.0)
        return bound + int((self.incumbent.upper - 1 - bound) * share)

    def _adapt(self, batch: list[int], run: "_Run", visit: int) -> None:
        """
        Adapt the next time slice and ceiling to the result of a run.

        A run without a proof gets more time, and a lower ceiling unless it improved the incumbent. A quick proof sets
        the ceiling just below the incumbent again.
        """
        share = self.reach.get(batch[0], 1.0)
        if run.is_complete:
            easy = run.solver.wall_time < 0.25 * self.incumbent.params.first_slice_s * 2**visit
            self.reach.update(dict.fromkeys(batch, 1.0 if easy else share))
        else:
            found = run.status == cp_model.FEASIBLE
            self.reach.update(dict.fromkeys(batch, share if found else share / 2))
            self.returns.update(dict.fromkeys(batch, visit + 1))

    def _wait_for(self, run: "_Run", batch: list[int]) -> None:
        """
        Run the model in a thread, so that the main thread can handle signals.

        Stop the run once the batch has no better placement.
        """
        ended = threading.Event()
        thread = threading.Thread(target=run.run, args=(ended,), daemon=True)
        thread.start()
        while thread.is_alive():
            try:
                ended.wait(POLL_S)
            except KeyboardInterrupt:
                self.incumbent.clock.stop.set()
            closed = not any(self.incumbent.is_open(index) for index in batch)
            if closed or self.incumbent.clock.stop.is_set():
                run.solver.stop_search()
        if run.error is not None:
            raise run.error


class _Run:
    """One CP-SAT solve of a batch's model."""

    def __init__(
        self,
        incumbent: Incumbent,
        bounds: dict[int, int],
        ceiling: int,
        slice_s: float,
    ) -> None:
        self.incumbent, self.bounds, self.ceiling = incumbent, bounds, ceiling
        self.solver = new_solver()
        self.status = int(cp_model.UNKNOWN)
        self.best: int = UNUSABLE_TICKS
        self.error: BaseException | None = None
        params, parameters = incumbent.params, self.solver.parameters
        parameters.num_workers = params.num_workers
        parameters.random_seed = params.seed
        parameters.log_search_progress = params.log
        parameters.catch_sigint_signal = False
        parameters.max_time_in_seconds = min(slice_s, incumbent.clock.left_s)
        self.solver.best_bound_callback = lambda bound: incumbent.report(list(bounds), _whole(bound))

    def __str__(self) -> str:
        return f"{cp_model.CpSolverStatus(self.status).name} in {self.solver.wall_time:.2f} s"

    @property
    def is_complete(self) -> bool:
        """Return whether the model was solved to optimality or infeasibility."""
        return self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)

    def run(self, ended: threading.Event) -> None:
        """Build and solve the model; set ``ended`` afterwards."""
        try:
            incumbent, model = self.incumbent, cp_model.CpModel()
            variables = build(model, incumbent.data, self.bounds, self.ceiling)
            hints = [incumbent.found[index] for index in self.bounds if index in incumbent.found]
            if hints:
                add_hint(model, variables, min(hints, key=attrgetter("objective_ticks")))
            status = self.solver.solve(model, _Callback(self, variables))
            if status == cp_model.MODEL_INVALID:
                raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
            self.status = int(status)
        except BaseException as error:
            self.error = error
        finally:
            ended.set()

    def proven(self, beyond: int) -> int:
        """Return a lower bound on the batch's objective, integer ticks; ``beyond`` if the model is infeasible."""
        if self.status == cp_model.INFEASIBLE:
            return beyond
        if self.status == cp_model.OPTIMAL:
            return self.best
        return _whole(self.solver.best_objective_bound)


class _Callback(cp_model.CpSolverSolutionCallback):
    """Callback that offers every solution to the incumbent at once."""

    def __init__(self, run: _Run, variables: Variables) -> None:
        super().__init__()
        self.run, self.variables = run, variables

    def on_solution_callback(self) -> None:
        """Read candidate and hosts of a solution, compute its objective, and offer it to the incumbent."""
        incumbent = self.run.incumbent
        index = next(index for index, chosen in self.variables.chosen.items() if self.value(chosen))
        grid = self.variables.grid_of(index)
        nodes = np.empty(grid.shape, dtype=np.int64)
        for cell in grid.cells:
            nodes[cell] = next(node for node, host in grid.hosts_of(cell).items() if self.value(host))
        objective = objective_ticks(incumbent.data, incumbent.data.candidates[index], nodes)
        self.run.best = min(self.run.best, objective)
        incumbent.offer(Solution(candidate=index, nodes=nodes, objective_ticks=objective))


def build(
    model: cp_model.CpModel,
    data: ProblemData,
    bounds: dict[int, int],
    ceiling: int,
) -> Variables:
    """
    Build the exact placement model of several candidate configurations.

    Parameters
    ----------
    bounds
        Known lower bound of each candidate of the model, integer ticks, by index.
    ceiling
        Largest objective to look for, ticks.
    """
    if ceiling < min(bounds.values()):
        raise ValueError(f"ceiling must be >= the least bound {min(bounds.values())}, got {ceiling}.")
    variables = Variables(model, data, bounds, ceiling)
    for add in CONSTRAINTS:
        add(model, data, variables)
    add_objective(model, data, variables)
    return variables


def _num_pairs(data: ProblemData, candidate: CandidateData) -> int:
    """Return the number of host pairs over all hops of a candidate configuration's grid."""
    P, D, K = candidate.grid
    hops = (P - 1) * D * K + (candidate.ring_length > 1) * candidate.num_cells + (K > 1) * candidate.num_cells
    return hops * data.num_nodes**2


def _whole(bound: float) -> int:
    """Return CP-SAT's floating-point bound as an integer; 0 without a bound."""
    return math.floor(bound + 0.5) if math.isfinite(bound) and bound > 0 else 0
