"""Solver and baselines on a placement instance: results within equal seconds, and the solver's proof."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal, get_args

import numpy as np

from benchmarks.placement.clusters import UnavailableError
from benchmarks.placement.instances import BenchInstance
from benchmarks.placement.problems import Shape, balanced_problem
from pipette_opt.annealing.anneal import AnnealingParams, anneal, load_replicas
from pipette_opt.base.types import P2PMode
from pipette_opt.baselines.amp import AmpParams, amp
from pipette_opt.baselines.megatron import identity_order
from pipette_opt.baselines.rounds import place
from pipette_opt.baselines.varuna import varuna
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.params import SolverParams

BASELINES = ("annealing_tuned", "annealing_pipette", "amp", "varuna", "identity")
"""Baselines, in the order of their columns after the solver's."""

FAILED = "FAILED"
"""Status of an instance that ended with an error."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRow:
    """
    Result for one instance; seconds exclude imports and compilation.

    Parameters
    ----------
    objective_s, lower_bound_s
        Objective and lower bound of the problem in integers, seconds; ``None`` without a solution.
    dependent_s
        Objective less the objective if all transfers between hosts were free, seconds.
    placement_gap
        Objective minus bound, over ``dependent_s``.
    seconds
        Wall time of the solver, including the annealing of its first incumbent.
    num_open
        Number of candidates whose bound is below the objective.
    annealing_tuned_s, annealing_pipette_s, amp_s, varuna_s, identity_s
        Objective of the baseline, seconds; ``None`` if it has no placement. Both annealings ran as long as the solver,
        each on a thread of its own.
    error
        Error message if the status is ``FAILED``.
    stops_at_goal
        Whether the solver stopped as soon as the gap reached its target.
    """

    cluster: str
    weights: str
    p2p: str
    num_used: int
    num_listed: int
    shape: str
    seed: int
    limit_s: float
    target: float | None
    target_s: float | None
    status: str
    objective_s: float | None
    lower_bound_s: float
    dependent_s: float | None
    gap: float | None
    placement_gap: float | None
    seconds: float
    num_candidates: int
    num_open: int
    annealing_tuned_s: float | None
    annealing_pipette_s: float | None
    amp_s: float | None
    varuna_s: float | None
    identity_s: float | None
    error: str | None = None
    stops_at_goal: bool = False

    def key(self) -> tuple[object, ...]:
        """Return the key of the instance."""
        return self.cluster, self.weights, self.p2p, self.shape, self.seed, self.limit_s, self.stops_at_goal

    def above(self, baseline: str) -> float | None:
        """
        Return a baseline's objective minus the solver's, over the part that placement can change.

        Returns ``None`` if either has no solution.
        """
        value = getattr(self, f"{baseline}_s")
        if value is None or self.objective_s is None or not self.dependent_s:
            return None
        return float((value - self.objective_s) / self.dependent_s)


def key_of(instance: BenchInstance) -> tuple[object, ...]:
    """Return the key of :meth:`BenchRow.key` for an instance before its run."""
    return (
        instance.cluster,
        instance.weights,
        instance.p2p,
        instance.shape_text,
        instance.seed,
        instance.limit_s,
        instance.stops_at_goal,
    )


def run_all(
    chosen: Sequence[BenchInstance],
    *,
    workers: int,
    known: Iterable[BenchRow] = (),
    say: Say = lambda text: None,
    stop: threading.Event | None = None,
) -> Iterator[BenchRow]:
    """
    Run instances one after the other and yield their rows.

    Instances with missing data are reported and left out. An instance that ends with an error yields a row with the
    error.

    Parameters
    ----------
    known
        Rows of an earlier run, which are yielded again for equal instances that did not fail.
    stop
        Event after which no instance is started; an interrupt from the keyboard sets it.
    """
    stop = stop if stop is not None else threading.Event()
    done = {row.key(): row for row in known if row.status != FAILED}
    missing: set[str] = set()
    for number, instance in enumerate(chosen, start=1):
        if key_of(instance) in done:
            yield done[key_of(instance)]
            continue
        if stop.is_set():
            return
        try:
            row = run_one(instance, instance.build(), workers=workers, stop=stop)
        except UnavailableError as reason:
            if str(reason) not in missing:
                missing.add(str(reason))
                say(f"left out: {reason}")
            continue
        except Exception as error:
            row = failed_row(instance, error)
        if stop.is_set():
            return  # what was interrupted had less than its time
        say(f"{number}/{len(chosen)} {instance.name}: {_in_words(row)}")
        yield row


def failed_row(instance: BenchInstance, error: Exception) -> BenchRow:
    """Return the row of an instance that ended with an error, without figures."""
    return BenchRow(
        cluster=instance.cluster,
        weights=instance.weights,
        p2p=instance.p2p,
        num_used=instance.num_used,
        num_listed=instance.num_listed,
        shape=instance.shape_text,
        seed=instance.seed,
        limit_s=instance.limit_s,
        target=instance.target,
        target_s=instance.target_s,
        status=FAILED,
        objective_s=None,
        lower_bound_s=0.0,
        dependent_s=None,
        gap=None,
        placement_gap=None,
        seconds=0.0,
        num_candidates=0,
        num_open=0,
        annealing_tuned_s=None,
        annealing_pipette_s=None,
        amp_s=None,
        varuna_s=None,
        identity_s=None,
        error=f"{type(error).__name__}: {error}".splitlines()[0][:200],
        stops_at_goal=instance.stops_at_goal,
    )


def run_one(
    instance: BenchInstance, data: ProblemData, *, workers: int, stop: threading.Event | None = None
) -> BenchRow:
    """Return the result of the solver, and of every baseline; annealing runs as long as the solver."""
    stop = stop if stop is not None else threading.Event()
    params = SolverParams(time_limit_s=instance.limit_s, workers=workers, seed=instance.seed)
    enough = _Enough(instance, data, stop)
    started = time.perf_counter()
    result = place(data, params, on_progress=enough.look, stop=enough)
    seconds = time.perf_counter() - started
    tuned, pipette = both_annealings(data, seconds, workers, instance.seed, stop)
    amp_params = AmpParams(moves=amp_moves(data), time_limit_s=instance.limit_s, seed=instance.seed)
    best = result.solution
    objective = None if best is None else best.objective_ticks * data.tick_s
    dependent = None if best is None else dependent_ticks(data, best) * data.tick_s
    bound = result.lower_bound_ticks * data.tick_s
    difference = None if objective is None else max(0.0, objective - bound)
    upper = np.inf if best is None else best.objective_ticks
    return BenchRow(
        cluster=instance.cluster,
        weights=instance.weights,
        p2p=instance.p2p,
        num_used=instance.num_used,
        num_listed=data.num_nodes,
        shape=instance.shape_text,
        seed=instance.seed,
        limit_s=instance.limit_s,
        target=instance.target,
        target_s=instance.target_s,
        status=result.status,
        objective_s=objective,
        lower_bound_s=bound,
        dependent_s=dependent,
        gap=None if objective is None or difference is None else difference / objective,
        placement_gap=None if difference is None or dependent is None else _share(difference, dependent),
        seconds=seconds,
        num_candidates=len(data.candidates),
        num_open=int((result.candidate_bounds < upper).sum()),
        annealing_tuned_s=_objective_s(data, tuned),
        annealing_pipette_s=_objective_s(data, pipette),
        amp_s=_objective_s(data, amp(data, amp_params)),
        varuna_s=_objective_s(data, varuna(data)),
        identity_s=_objective_s(data, identity_order(data)),
        stops_at_goal=instance.stops_at_goal,
    )


class _Enough(threading.Event):
    """Event that is set at the instance's target or when the whole run stops; ``set`` stops the whole run."""

    def __init__(self, instance: BenchInstance, data: ProblemData, stop: threading.Event) -> None:
        super().__init__()
        self._all = stop
        self._target = instance.target if instance.stops_at_goal and len(data.candidates) == 1 else None
        self._free_ticks = 0
        if self._target is not None:  # all hosts of an instance have the same GPUs
            candidate = data.candidates[0]
            nodes = np.arange(candidate.num_cells).reshape(candidate.grid)
            self._free_ticks = objective_ticks(data, free_transfers(candidate), nodes)

    def is_set(self) -> bool:
        """Return whether to stop."""
        return super().is_set() or self._all.is_set()

    def set(self) -> None:
        """Stop the whole run."""
        self._all.set()

    def look(self, elapsed_s: float, incumbent: int | None, bound: int) -> None:
        """Set the event if incumbent and bound (ticks) reach the instance's target."""
        if self._target is None or incumbent is None:
            return
        if incumbent - bound <= self._target * (incumbent - self._free_ticks):
            super().set()


def amp_moves(data: ProblemData) -> int:
    """Return the number of swaps of AMP's annealing, which grows with the number of hosts."""
    return max(5_000, 200 * data.num_nodes)


def dependent_ticks(data: ProblemData, solution: Solution) -> int:
    """Return the objective less the objective if all transfers between hosts were free, ticks."""
    candidate = data.candidates[solution.candidate]
    return solution.objective_ticks - objective_ticks(data, free_transfers(candidate), solution.nodes)


def free_transfers(candidate: CandidateData) -> CandidateData:
    """Return the candidate with all transfers between hosts free."""
    return replace(
        candidate,
        p2p_ticks=np.zeros_like(candidate.p2p_ticks),
        ring_ticks=np.zeros_like(candidate.ring_ticks),
        tensor_forward_ticks=np.zeros_like(candidate.tensor_forward_ticks),
        tensor_backward_ticks=np.zeros_like(candidate.tensor_backward_ticks),
        embedding_ticks=np.zeros_like(candidate.embedding_ticks),
    )


def both_annealings(
    data: ProblemData, seconds: float, workers: int, seed: int, stop: threading.Event | None = None
) -> tuple[Result, Result]:
    """
    Return the results of tuned and of Pipette's annealing, each after ``seconds``.

    With two workers they run at the same time, with one they run in turn.
    """
    variants: tuple[Literal["tuned", "pipette"], ...] = ("tuned", "pipette")
    settings = [AnnealingParams(variant=variant, time_limit_s=seconds, seed=seed) for variant in variants]
    with ThreadPoolExecutor(min(workers, 2)) as pool:
        tuned, pipette = pool.map(lambda params: anneal(data, params, stop=stop), settings)
    return tuned, pipette


WARM_UP_SHAPES: tuple[Shape, ...] = ((2, 2), (3, 1), (1, 3), (4, 2))


def warm_up(workers: int) -> float:
    """Import and compile everything that is timed; return the seconds of imports and compilation alone."""
    first, again = (_every_form(workers) for _ in range(2))
    return max(0.0, first - again)


def _every_form(workers: int) -> float:
    """Solve and anneal tiny problems of every kind; return the wall time in seconds."""
    started = time.perf_counter()
    rates = np.random.default_rng(0).uniform(20, 25, (9, 9))
    np.fill_diagonal(rates, np.nan)
    for (P, D), p2p, spare in product(WARM_UP_SHAPES, get_args(P2PMode), (0, 1)):
        used = P * D + spare
        data = balanced_problem(rates[:used, :used], (P, D), p2p)
        place(data, SolverParams(time_limit_s=0.1, workers=workers))
        both_annealings(data, 0.0, 1, 0)
        load_replicas(data)
        amp(data, AmpParams(moves=10))
    return time.perf_counter() - started


def _share(difference: float, dependent: float) -> float:
    if dependent > 0:
        return difference / dependent
    return 0.0 if difference <= 0 else 1.0


def _objective_s(data: ProblemData, result: Result) -> float | None:
    best: Solution | None = result.solution
    return None if best is None else best.objective_ticks * data.tick_s


def _in_words(row: BenchRow) -> str:
    if row.error is not None:
        return row.error
    if row.objective_s is None:
        return f"{row.status}, no solution in {row.seconds:.1f} s"
    above = row.above("annealing_tuned")
    beside = "" if above is None else f", tuned annealing {above:+.2%}"
    return f"placement gap {row.placement_gap:.2%} in {row.seconds:.1f} s{beside}"
