"""Prune by bounds, model what is left, keep one certificate over all candidates."""

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData, largest_ticks, objective_ticks
from pipette_opt.solution import Result, Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.chain_search import ChainSearch, searches_chain
from pipette_opt.solver.constraints import CONSTRAINTS
from pipette_opt.solver.grid_search import GridSearch, searches
from pipette_opt.solver.hints import add_hint
from pipette_opt.solver.objective import add_objective
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.rows.bound import MOST_CLASSES, applies, probe_rows, row_bound
from pipette_opt.solver.rows.classes import host_classes
from pipette_opt.solver.variables import Formulation, Variables
from pipette_opt.types import IntArray

logger = logging.getLogger(__name__)

MAX_PAIRS: dict[Formulation, int] = {"by_pair": 400_000, "by_host": 8_000_000}
"""Host pairs of all hops that a model may have; above, it takes too long to build and to search."""

PAIRS_PER_S = 500_000
"""Host pairs that are built into a model in a second; no model is begun that would take half of the time left."""

BOUNDING_SHARE = 0.3
"""Part of the time limit that bounds without a model may take."""

ROWS_SHARE, ROWS_SHARE_LARGE = 0.25, 0.6
"""Parts of the time left that bounds by rows may take, where CP-SAT may close the candidate and where it will not."""

LARGE_CELLS, SMALL_CELLS = 20, 9
"""Cells above which a model that names the hosts is seldom closed, and below which it needs no other bound."""

SEARCH_SHARE = 0.25
"""Of a model's slice, what the search of a grid takes before it; most of those that it closes need less."""

PROMISING = (0.5, 0.3, 0.15)
"""Between bound and incumbent, where counts are looked for in turn when the search of a large grid is stuck."""

STRUCTURED_TOLERANCE = 0.08
"""What links of twins differ by at most where racks and slow hosts, and not single links, decide."""

MOST_SEARCHED_HOSTS = 256
"""Hosts listed, above which a search of the grid costs more than it says."""

OnProgress = Callable[[float, int | None, int], None]
"""Called with seconds since the start, the incumbent's ticks (``None`` before the first) and the bound's."""

Improve = Callable[[Callable[[Solution], None], threading.Event], None]
"""Looks for solutions in a thread of its own, hands each to the first argument, and ends when the event is set."""

Refine = Callable[[Solution], Solution | None]
"""Anneals a placement; ``None`` if nothing comes of it."""


def solve(
    data: ProblemData,
    params: SolverParams,
    hint: Sequence[Solution] = (),
    on_progress: OnProgress | None = None,
    stop: threading.Event | None = None,
    improve: Improve | None = None,
    refine: Refine | None = None,
) -> Result:
    """
    Choose one candidate and place it, with a bound over all candidates.

    Candidates whose bound reaches the incumbent are pruned: first by bounds that need no search, then by counts of
    classes of hosts. The others come in batches, those with the least bounds first. Each grid of a batch is searched
    between periods, then the batch is modelled (unless it is too large), looking only for solutions better than the
    incumbent. A batch that is not finished in its slice of time comes back with more of it, and first shows that
    nothing is near its bound. With two workers or more, both formulations of a batch run at once, and the
    first to finish stops the other; with one they take turns.

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
    refine
        Given what the counts of classes promise to be good, gives back what it makes of it; called from one thread.

    Returns
    -------
    Result
        ``lower_bound_ticks`` holds for every candidate, however early the search stops. The pool has the best
        placement known of each other candidate.
    """
    search = _Search(data, params, on_progress, stop if stop is not None else threading.Event())
    search.refine = refine
    for solution in hint:
        search.offer(solution)
    with _improving(search, improve):
        search.bound_without_search()
        search.bound_by_rows()
        search.run()
    return search.result()


@contextmanager
def _improving(search: "_Search", improve: Improve | None) -> Iterator[None]:
    """Run ``improve`` meanwhile, and afterwards for the time left if a gap stays; its errors are raised here."""
    if improve is None:
        yield
        return
    ended, errors = threading.Event(), []

    def run() -> None:
        try:
            improve(search.offer, ended)
        except BaseException as error:
            errors.append(error)
        finally:
            search.helpers = 0

    search.helpers = 1
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
        while thread.is_alive() and not search.is_over:
            try:
                thread.join(0.05)
            except KeyboardInterrupt:
                search.stop.set()
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


class _Search:
    """The incumbent and what is proven so far."""

    def __init__(
        self, data: ProblemData, params: SolverParams, on_progress: OnProgress | None, stop: threading.Event
    ) -> None:
        self.data, self.params, self.on_progress, self.stop = data, params, on_progress, stop
        self.started = time.perf_counter()
        self.bounds: IntArray = np.zeros(len(data.candidates), dtype=np.int64)
        self.found: dict[int, Solution] = {}
        self.modelled: set[int] = set()
        self.visits: dict[int, int] = {}
        self.reach: dict[int, float] = {}
        self.grids: dict[int, GridSearch | ChainSearch] = {}
        self.search_visits: dict[int, int] = {}
        self.helpers = 0
        self.refine: Refine | None = None
        self._lock = threading.RLock()
        self._reported: tuple[int | None, int] = (None, 0)

    @property
    def incumbent(self) -> Solution | None:
        """The best solution so far."""
        with self._lock:
            return min(self.found.values(), key=lambda one: (one.objective_ticks, one.candidate), default=None)

    @property
    def upper(self) -> int:
        """Objective of the incumbent; ``UNUSABLE_TICKS`` before the first."""
        with self._lock:
            return min((one.objective_ticks for one in self.found.values()), default=UNUSABLE_TICKS)

    @property
    def lower(self) -> int:
        """Bound over all candidates."""
        return min(self.upper, int(self.bounds.min(initial=UNUSABLE_TICKS)))

    def bound_without_search(self) -> None:
        """Bounds that need no model, for at most their share of the time."""
        self.bounds = lower_bounds(self.data, self.upper, self.started + BOUNDING_SHARE * self.params.time_limit_s)

    def bound_by_rows(self) -> None:
        """Bounds from counts of classes of hosts, least bounds first; most candidates of a joint choice end here."""
        self.report()
        if not self.params.decomposes:
            return
        tried: set[int] = set()
        while not self.is_over:
            ranked = self._open_candidates()
            left = [index for index in ranked if index not in tried and self._is_for_rows(index)]
            if not left or left[0] != ranked[0]:
                return  # only the least bound matters
            self._bound_one_by_rows(left[0], len(left))
            tried.add(left[0])

    def _is_for_rows(self, index: int) -> bool:
        candidate = self.data.candidates[index]
        chain = searches_chain(self.data, candidate)  # which is quicker, and proves more
        return applies(candidate) and candidate.num_cells >= SMALL_CELLS and not chain

    def _bound_one_by_rows(self, index: int, number: int) -> None:
        """One candidate, of so many that wait."""
        candidate = self.data.candidates[index]
        large = candidate.num_cells > LARGE_CELLS
        share = ROWS_SHARE_LARGE if large else ROWS_SHARE

        def on_bound(bound: int) -> None:
            self.bounds[index] = max(self.bounds[index], bound)
            self.report()

        promising: list[IntArray] = []
        found = row_bound(
            self.data,
            candidate,
            int(self.bounds[index]),
            self.upper - 1 if self.found else largest_ticks(candidate),
            most_classes=MOST_CLASSES if large else MOST_CLASSES[:1],
            hopeless=number > 1,
            seconds=share * self.seconds_left / min(number, 4),
            workers=max(1, self.params.num_workers - self.helpers),
            seed=self.params.seed,
            stop=self.stop,
            on_bound=on_bound,
            on_placement=promising.append,
        )
        on_bound(found if self.found or found <= largest_ticks(candidate) else UNUSABLE_TICKS)
        if promising and not self.is_over:  # the last counts are the nearest to the bound
            self._take_promising(index, promising[-1])

    def _take_promising(self, index: int, nodes: IntArray) -> None:
        """What counts amount to, and what annealing makes of it."""
        grid = self.data.candidates[index].grid
        solution = Solution(candidate=index, nodes=nodes.reshape(grid), objective_ticks=0)
        self.offer(solution)
        if self.refine is not None and (better := self.refine(solution)) is not None:
            self.offer(better)

    def _look_for_promising(self, index: int) -> None:
        """Counts between bound and incumbent, each time others."""
        visit, bound = self.search_visits[index], int(self.bounds[index])
        ceiling = bound + int((self.upper - 1 - bound) * PROMISING[visit % len(PROMISING)])
        refuted = probe_rows(
            self.data,
            self.data.candidates[index],
            ceiling,
            seconds=min(self.params.first_slice_s * 2**visit, self.seconds_left),
            workers=max(1, self.params.num_workers - self.helpers),
            seed=self.params.seed + visit,
            stop=self.stop,
            on_placement=lambda nodes: self._take_promising(index, nodes),
        )
        if refuted:
            self.bounds[index] = max(self.bounds[index], ceiling + 1)
            self.report()

    def offer(self, solution: Solution) -> None:
        """Take a solution, if it keeps the rules and is the best of its candidate."""
        candidate = self.data.candidates[solution.candidate]
        objective = _checked_objective(self.data, candidate, solution.nodes)
        if objective is None:
            return
        with self._lock:
            known = self.found.get(solution.candidate)
            if known is None or objective < known.objective_ticks:
                self.found[solution.candidate] = replace(solution, objective_ticks=objective)
                self.report()

    def report(self, batch: Sequence[int] = (), batch_bound: int = 0) -> None:
        """Tell incumbent and bound, if one has improved; a batch being solved may have a better bound already."""
        if self.on_progress is None:
            return
        with self._lock:
            bounds = self.bounds.copy()
            bounds[list(batch)] = np.maximum(bounds[list(batch)], batch_bound)
            lower = max(self._reported[1], min(self.upper, int(bounds.min(initial=UNUSABLE_TICKS))))
            upper = self.upper if self.found else None
            if (upper, lower) != self._reported:
                self._reported = (upper, lower)
                self.on_progress(time.perf_counter() - self.started, upper, 0 if lower >= UNUSABLE_TICKS else lower)

    def run(self) -> None:
        """Solve batches until nothing is open or time is up."""
        self.report()
        while not self.is_over:
            batch = self._next_batch()
            if not batch:
                return
            searched = self._search_grids(batch)
            still = [index for index in batch if self.bounds[index] < self.upper]
            if searched:
                still = [index for index in still if not searches_chain(self.data, self.data.candidates[index])]
            large = any(self.data.candidates[index].num_cells > LARGE_CELLS for index in still)
            if still and not self.is_over and not (large and searched) and not self._solve_batch(still):
                return
            self.report()

    def _search_grids(self, batch: list[int]) -> bool:
        """Search each grid of a batch between periods for a slice of time; False if none can be."""
        if not self.params.decomposes or self.data.num_nodes > MOST_SEARCHED_HOSTS:
            return False
        chosen = [index for index in batch if self._is_for_a_search(index)]
        for index in chosen:
            if not self.is_over and self.bounds[index] < self.upper:
                self._search_grid(index, len(batch))
        return bool(chosen)

    def _is_for_a_search(self, index: int) -> bool:
        """Whether there is a search for the grid, and it is its turn."""
        candidate = self.data.candidates[index]
        if searches_chain(self.data, candidate):
            return True
        return searches(candidate) and not (self.visits.get(index, 0) == 0 and self._suits_the_model(index))

    def _suits_the_model(self, index: int) -> bool:
        """Whether a grid is small and its hosts fall into classes: CP-SAT then has the first turn."""
        candidate = self.data.candidates[index]
        if candidate.num_cells > LARGE_CELLS:
            return False
        classes = host_classes(self.data, candidate, MOST_CLASSES[0])
        return classes is not None and classes.tolerance <= STRUCTURED_TOLERANCE

    def _search_grid(self, index: int, number: int) -> None:
        """Search one grid of so many."""
        candidate, bound = self.data.candidates[index], int(self.bounds[index])
        ceiling = self.upper - 1 if self.found else largest_ticks(candidate)
        if index not in self.grids:
            search = ChainSearch if searches_chain(self.data, candidate) else GridSearch
            self.grids[index] = search(self.data, candidate, bound, ceiling)
        grid = self.grids[index]
        grid.narrow(bound, ceiling)

        def on_bound(bound: int) -> None:
            with self._lock:
                self.bounds[index] = max(self.bounds[index], bound)
                self.report()

        def on_placement(nodes: IntArray) -> int:
            self.offer(Solution(candidate=index, nodes=nodes.reshape(candidate.grid), objective_ticks=0))
            return self.upper - 1 if self.found else largest_ticks(candidate)

        visit = self.search_visits.get(index, 0)
        self.search_visits[index] = visit + 1
        self.modelled.add(index)
        large = candidate.num_cells > LARGE_CELLS
        share = 1.0 if large or isinstance(grid, ChainSearch) else SEARCH_SHARE
        found = grid.run(
            min(share * self.params.first_slice_s * 2**visit / number, self.seconds_left),
            workers=max(1, self.params.num_workers - self.helpers),
            stop=self.stop,
            on_bound=on_bound,
            on_placement=on_placement,
        )
        on_bound(found if self.found or found <= largest_ticks(candidate) else UNUSABLE_TICKS)
        stuck = large and self.bounds[index] <= bound and self.refine is not None
        if stuck and self._is_for_rows(index) and not self.is_over:
            self._look_for_promising(index)

    @property
    def seconds_left(self) -> float:
        """Wall time left."""
        return self.started + self.params.time_limit_s - time.perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether to stop."""
        if self.stop.is_set() or self.seconds_left <= 0:
            return True
        return bool(self.found) and self.upper - self.lower <= self.params.gap_limit * self.upper

    def _open_candidates(self) -> list[int]:
        """Candidates that may beat the incumbent, least bounds first."""
        open_ones = np.flatnonzero(self.bounds < self.upper)
        return sorted(open_ones.tolist(), key=lambda index: (int(self.bounds[index]), index))

    def _next_batch(self) -> list[int]:
        """The open candidates with the least bounds; fewer the more often they have come back."""
        ranked = self._open_candidates()
        if not ranked:
            return []
        size = max(1, self.params.batch_size >> self.visits.get(ranked[0], 0))
        return ranked[:size]

    def _solve_batch(self, batch: list[int]) -> bool:
        """
        Find something better than the incumbent, or prove that the batch has nothing better.

        False if the batch is too large to be modelled.
        """
        soon = int(0.5 * max(self.seconds_left, 0.0) * PAIRS_PER_S)
        together = sum(_num_pairs(self.data, self.data.candidates[index]) for index in batch)
        if together > min(soon, max(MAX_PAIRS.values())):
            batch = batch[:1]
        pairs = sum(_num_pairs(self.data, self.data.candidates[index]) for index in batch)
        formulations = [one for one in _FORMULATIONS if pairs <= min(soon, MAX_PAIRS[one])]
        if not formulations:
            logger.info("%d pairs of hosts are too many for a model in the time left; no more is proven.", pairs)
            return False
        visit = max(self.visits.get(index, 0) for index in batch)
        ceiling = self._ceiling(batch)
        batch = [index for index in batch if self.bounds[index] <= ceiling]
        if not batch:
            return True  # a better incumbent came meanwhile
        self.modelled.update(batch)
        workers = max(1, self.params.num_workers - self.helpers)
        if workers == 1 or self.params.deterministic:
            formulations = [formulations[visit % len(formulations)]]
        beyond = ceiling + 1 if self.found else UNUSABLE_TICKS
        runs = [_Run(self, batch, ceiling, one, workers // len(formulations), visit) for one in formulations]
        self._race(runs)
        proven = max(run.proven(beyond) for run in runs)
        self.bounds[batch] = np.maximum(self.bounds[batch], proven)
        self._adapt(batch, runs, visit)
        logger.info("batch %s: %s, bound %d, incumbent %d", batch, [str(run) for run in runs], proven, self.upper)
        return True

    def _ceiling(self, batch: list[int]) -> int:
        """
        The largest objective to look for.

        Below the incumbent; nearer to the bound if that was too hard before, since what is refuted there raises the
        bound all the same.
        """
        if not self.found:
            return max(largest_ticks(self.data.candidates[index]) for index in batch)
        bound, share = int(self.bounds[batch[0]]), self.reach.get(batch[0], 1.0)
        return bound + int((self.upper - 1 - bound) * share)

    def _adapt(self, batch: list[int], runs: "list[_Run]", visit: int) -> None:
        """After a failure, more time and a nearer ceiling; after an easy success, all the way to the incumbent."""
        share = self.reach.get(batch[0], 1.0)
        if any(run.is_complete for run in runs):
            easy = min(run.solver.wall_time for run in runs) < 0.25 * self.params.first_slice_s * 2**visit
            self.reach.update(dict.fromkeys(batch, 1.0 if easy else share))
        else:
            self.reach.update(dict.fromkeys(batch, share / 2))
            self.visits.update(dict.fromkeys(batch, visit + 1))

    def _race(self, runs: "list[_Run]") -> None:
        """Run all, in threads so that the main one can take signals; stop the others when one has finished."""
        ended = threading.Semaphore(0)
        threads = [threading.Thread(target=run.run, args=(ended,), daemon=True) for run in runs]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            try:
                ended.acquire(timeout=0.05)
            except KeyboardInterrupt:
                self.stop.set()
            if self.stop.is_set() or any(run.is_complete for run in runs):
                for run in runs:
                    run.solver.stop_search()
        for run in runs:
            if run.error is not None:
                raise run.error

    def result(self) -> Result:
        """What is known now."""
        best = self.incumbent
        lower = self.lower
        if best is not None:
            status = "OPTIMAL" if lower == best.objective_ticks else "FEASIBLE"
        else:
            status = "INFEASIBLE" if lower >= UNUSABLE_TICKS else "UNKNOWN"
        others = sorted(
            (one for one in self.found.values() if one is not best),
            key=lambda one: (one.objective_ticks, one.candidate),
        )
        return Result(
            status=status,
            lower_bound_ticks=0 if lower >= UNUSABLE_TICKS else lower,
            solution=best,
            pool=tuple(others),
            wall_time_s=time.perf_counter() - self.started,
            num_pruned=len(self.data.candidates) - len(self.modelled),
            candidate_bounds=self.bounds,
        )


class _Run:
    """One model of a batch, in one formulation."""

    def __init__(
        self, search: _Search, batch: list[int], ceiling: int, formulation: Formulation, workers: int, visit: int
    ) -> None:
        self.search, self.batch, self.ceiling, self.formulation = search, batch, ceiling, formulation
        self.solver = cp_model.CpSolver()
        self.status = int(cp_model.UNKNOWN)
        self.best: int = UNUSABLE_TICKS
        self.error: BaseException | None = None
        params, parameters = search.params, self.solver.parameters
        parameters.num_workers = workers
        parameters.random_seed = params.seed
        parameters.log_search_progress = params.log
        parameters.catch_sigint_signal = False
        slice_s, left_s = params.first_slice_s * 2**visit, max(search.seconds_left, 0.0)
        if params.deterministic:
            parameters.interleave_search = True
            parameters.max_deterministic_time = slice_s
            parameters.max_time_in_seconds = left_s
        else:
            parameters.max_time_in_seconds = min(slice_s, left_s)
        self.solver.best_bound_callback = lambda bound: search.report(batch, _whole(bound))

    def __str__(self) -> str:
        return f"{self.formulation} {cp_model.CpSolverStatus(self.status).name} in {self.solver.wall_time:.2f} s"

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to find."""
        return self.status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)

    def run(self, ended: threading.Semaphore) -> None:
        """Build and solve."""
        try:
            search, model = self.search, cp_model.CpModel()
            bounds = {index: int(search.bounds[index]) for index in self.batch}
            variables = build(model, search.data, bounds, self.ceiling, self.formulation)
            hints = [search.found[index] for index in self.batch if index in search.found]
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
        search = self.run.search
        index = next(one for one, chosen in self.variables.chosen.items() if self.value(chosen))
        grid = self.variables.grid_of(index)
        nodes = np.empty(grid.shape, dtype=np.int64)
        for cell in grid.cells:
            nodes[cell] = next(node for node, host in grid.hosts_of(cell).items() if self.value(host))
        objective = objective_ticks(search.data, search.data.candidates[index], nodes)
        self.run.best = min(self.run.best, objective)
        search.offer(Solution(candidate=index, nodes=nodes, objective_ticks=objective))


_FORMULATIONS: tuple[Formulation, ...] = ("by_host", "by_pair")


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


def _checked_objective(data: ProblemData, candidate: CandidateData, nodes: IntArray) -> int | None:
    """The objective; ``None`` if a rule is broken."""
    if nodes.shape != candidate.grid or len(np.unique(nodes)) < nodes.size:
        return None
    if nodes.min() < 0 or nodes.max() >= data.num_nodes:
        return None
    allowed = data.allowed(candidate)
    if not all(allowed[row, nodes[row]].all() for row in range(candidate.grid[0])):
        return None
    objective = objective_ticks(data, candidate, nodes)
    return objective if objective < UNUSABLE_TICKS else None


def _num_pairs(data: ProblemData, candidate: CandidateData) -> int:
    """Host pairs of all hops."""
    P, D, K = candidate.grid
    hops = (P - 1) * D * K + (D > 1) * candidate.num_cells + (K > 1) * candidate.num_cells
    return hops * data.num_nodes**2


def _whole(bound: float) -> int:
    """A bound that CP-SAT holds as an integer, back from its double; 0 if there is none."""
    return math.floor(bound + 0.5) if math.isfinite(bound) and bound > 0 else 0
