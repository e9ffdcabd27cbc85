"""CP-SAT models of a few candidates each, in slices of time that double."""

import logging
import math
import threading

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.placed import largest_ticks, objective_ticks
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solution import Solution
from pipette_opt.solver.constraints import CONSTRAINTS
from pipette_opt.solver.hints import add_hint
from pipette_opt.solver.known import Known
from pipette_opt.solver.objective import add_objective
from pipette_opt.solver.variables import Formulation, Variables

logger = logging.getLogger(__name__)

MAX_PAIRS: dict[Formulation, int] = {"by_pair": 400_000, "by_host": 8_000_000}
"""Host pairs of all hops that a model may have; above, it takes too long to build and to search."""

PAIRS_PER_S = 500_000
"""Host pairs that are built into a model in a second; no model is begun that would take half of the time left."""


FORMULATIONS: tuple[Formulation, ...] = ("by_host", "by_pair")


class Modelling:
    """
    The models built so far.

    Attributes
    ----------
    visits
        How often a candidate has come back.
    reach
        How far from bound to incumbent a candidate's ceiling is put; all the way at first.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.visits: dict[int, int] = {}
        self.reach: dict[int, float] = {}

    def next_batch(self) -> list[int]:
        """The open candidates with the least bounds; fewer the more often they have come back."""
        ranked = self.known.open_candidates()
        if not ranked:
            return []
        size = max(1, self.known.params.batch_size >> self.visits.get(ranked[0], 0))
        return ranked[:size]

    def solve(self, batch: list[int], workers: int | None = None) -> bool:
        """
        Find something better than the incumbent, or prove that the batch has nothing better.

        With all threads by default. False if the batch is too large to be modelled.
        """
        soon = int(0.5 * max(self.known.seconds_left, 0.0) * PAIRS_PER_S)
        together = sum(_num_pairs(self.known.data, self.known.data.candidates[index]) for index in batch)
        if together > min(soon, max(MAX_PAIRS.values())):
            batch = batch[:1]
        pairs = sum(_num_pairs(self.known.data, self.known.data.candidates[index]) for index in batch)
        formulations = [one for one in FORMULATIONS if pairs <= min(soon, MAX_PAIRS[one])]
        if not formulations:
            logger.info("%d pairs of hosts are too many for a model in the time left; no more is proven.", pairs)
            return False
        visit = max(self.visits.get(index, 0) for index in batch)
        ceiling = self._ceiling(batch)
        bounds = {index: bound for index in batch if (bound := int(self.known.bounds[index])) <= ceiling}
        if not bounds:
            return True  # a better incumbent or bound came meanwhile
        batch = list(bounds)
        self.known.searched.update(batch)
        workers = self.known.workers if workers is None else workers
        if workers == 1 or self.known.params.deterministic:
            formulations = [formulations[visit % len(formulations)]]
        beyond = ceiling + 1 if self.known.found else UNUSABLE_TICKS
        runs = [_Run(self.known, bounds, ceiling, one, workers // len(formulations), visit) for one in formulations]
        self._race(runs, batch)
        proven = max(run.proven(beyond) for run in runs)
        for index in batch:
            self.known.prove(index, proven)
        self._adapt(batch, runs, visit)
        logger.info("batch %s: %s, bound %d, incumbent %d", batch, [str(run) for run in runs], proven, self.known.upper)
        return True

    def _ceiling(self, batch: list[int]) -> int:
        """
        The largest objective to look for.

        Below the incumbent; nearer to the bound if that was too hard before, since what is refuted there raises the
        bound all the same.
        """
        if not self.known.found:
            return max(largest_ticks(self.known.data.candidates[index]) for index in batch)
        bound, share = int(self.known.bounds[batch[0]]), self.reach.get(batch[0], 1.0)
        return bound + int((self.known.upper - 1 - bound) * share)

    def _adapt(self, batch: list[int], runs: "list[_Run]", visit: int) -> None:
        """
        After a failure, more time, and a nearer ceiling, if the incumbent is not nearer now; after an easy success, all
        the way to the incumbent.
        """
        share = self.reach.get(batch[0], 1.0)
        if any(run.is_complete for run in runs):
            easy = min(run.solver.wall_time for run in runs) < 0.25 * self.known.params.first_slice_s * 2**visit
            self.reach.update(dict.fromkeys(batch, 1.0 if easy else share))
        else:
            found = any(run.status == cp_model.FEASIBLE for run in runs)
            self.reach.update(dict.fromkeys(batch, share if found else share / 2))
            self.visits.update(dict.fromkeys(batch, visit + 1))

    def _race(self, runs: "list[_Run]", batch: list[int]) -> None:
        """
        Run all, in threads so that the main one can take signals.

        They are stopped when one has finished, or when it has been shown elsewhere that the batch has nothing better.
        """
        ended = threading.Semaphore(0)
        threads = [threading.Thread(target=run.run, args=(ended,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                ended.acquire(timeout=0.05)
            except KeyboardInterrupt:
                self.known.stop.set()
            closed = not any(self.known.is_open(index) for index in batch)
            if closed or self.known.stop.is_set() or any(run.is_complete for run in runs):
                for run in runs:
                    run.solver.stop_search()
        for run in runs:
            if run.error is not None:
                raise run.error


class _Run:
    """One model of a batch, in one formulation."""

    def __init__(
        self, known: Known, bounds: dict[int, int], ceiling: int, formulation: Formulation, workers: int, visit: int
    ) -> None:
        self.known, self.bounds, self.ceiling, self.formulation = known, bounds, ceiling, formulation
        self.solver = cp_model.CpSolver()
        self.status = int(cp_model.UNKNOWN)
        self.best: int = UNUSABLE_TICKS
        self.error: BaseException | None = None
        params, parameters = known.params, self.solver.parameters
        parameters.num_workers = workers
        parameters.random_seed = params.seed
        parameters.log_search_progress = params.log
        parameters.catch_sigint_signal = False
        slice_s, left_s = params.first_slice_s * 2**visit, max(known.seconds_left, 0.0)
        if params.deterministic:
            parameters.interleave_search = True
            parameters.max_deterministic_time = slice_s
            parameters.max_time_in_seconds = left_s
        else:
            parameters.max_time_in_seconds = min(slice_s, left_s)
        self.solver.best_bound_callback = lambda bound: known.report(list(bounds), _whole(bound))

    def __str__(self) -> str:
        return f"{self.formulation} {cp_model.CpSolverStatus(self.status).name} in {self.solver.wall_time:.2f} s"

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to find."""
        return self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)

    def run(self, ended: threading.Semaphore) -> None:
        """Build and solve."""
        try:
            known, model = self.known, cp_model.CpModel()
            variables = build(model, known.data, self.bounds, self.ceiling, self.formulation)
            hints = [known.found[index] for index in self.bounds if index in known.found]
            if hints:
                add_hint(model, variables, min(hints, key=lambda one: one.objective_ticks))
            status = self.solver.solve(model, _Callback(self, variables))
            if status == cp_model.MODEL_INVALID:
                raise AssertionError(f"CP-SAT rejects the model: {model.validate()}")
            self.status = int(status)
        except BaseException as error:
            self.error = error
        finally:
            ended.release()

    def proven(self, beyond: int) -> int:
        """No solution of the batch has an objective below this; ``beyond`` if the model has none at all."""
        if self.status == cp_model.INFEASIBLE:
            return beyond
        if self.status == cp_model.OPTIMAL:
            return self.best
        return _whole(self.solver.best_objective_bound)


class _Callback(cp_model.CpSolverSolutionCallback):
    """Hands every solution to the search at once."""

    def __init__(self, run: _Run, variables: Variables) -> None:
        super().__init__()
        self.run, self.variables = run, variables

    def on_solution_callback(self) -> None:
        """Read candidate and hosts; the objective is computed again from them."""
        known = self.run.known
        index = next(one for one, chosen in self.variables.chosen.items() if self.value(chosen))
        grid = self.variables.grid_of(index)
        nodes = np.empty(grid.shape, dtype=np.int64)
        for cell in grid.cells:
            nodes[cell] = next(node for node, host in grid.hosts_of(cell).items() if self.value(host))
        objective = objective_ticks(known.data, known.data.candidates[index], nodes)
        self.run.best = min(self.run.best, objective)
        known.offer(Solution(candidate=index, nodes=nodes, objective_ticks=objective))


def build(
    model: cp_model.CpModel,
    data: ProblemData,
    bounds: dict[int, int],
    ceiling: int,
    formulation: Formulation = "by_pair",
) -> Variables:
    """
    The joint model of some candidates.

    Parameters
    ----------
    bounds
        Known lower bound of each candidate of the model, by index.
    ceiling
        Largest objective of interest.
    """
    if ceiling < min(bounds.values()):
        raise ValueError(f"ceiling must be >= the least bound {min(bounds.values())}, got {ceiling}.")
    variables = Variables(model, data, bounds, ceiling)
    for add in CONSTRAINTS:
        add(model, data, variables)
    add_objective(model, data, variables, formulation)
    return variables


def _num_pairs(data: ProblemData, candidate: CandidateData) -> int:
    """Host pairs of all hops."""
    P, D, K = candidate.grid
    hops = (P - 1) * D * K + (D > 1) * candidate.num_cells + (K > 1) * candidate.num_cells
    return hops * data.num_nodes**2


def _whole(bound: float) -> int:
    """A bound that CP-SAT holds as an integer, back from its double; 0 if there is none."""
    return math.floor(bound + 0.5) if math.isfinite(bound) and bound > 0 else 0
