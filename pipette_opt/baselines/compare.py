"""Comparison of the solver with baselines on equal instance, candidates, time limit and simulator."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from pipette_opt.annealing.anneal import AnnealingParams
from pipette_opt.annealing.threads import anneal_on_threads
from pipette_opt.baselines.amp import AmpParams, amp
from pipette_opt.baselines.amp_layers import with_amp_splits
from pipette_opt.baselines.megatron import identity_order, megatron_rule
from pipette_opt.baselines.rounds import place
from pipette_opt.baselines.varuna import varuna
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import JOINT
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, fitting_candidates, load_predictor, prepare
from pipette_opt.problem.build import build_problem_data
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result
from pipette_opt.simulate.solutions import best_first, simulate_solution
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.params import SolverParams
from pipette_opt.specs import Instance

METHODS = (
    "pipette-opt",
    "annealing (tuned)",
    "annealing (Pipette's)",
    "AMP",
    "Varuna",
    "identity order",
    "Megatron's rule",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """
    Result of one method.

    Parameters
    ----------
    objective_s
        Objective of the method's best solution by the analytical 1F1B model, seconds; ``None`` if it found none.
    lower_bound_s
        Lower bound that the method proves, seconds; ``None`` for methods without a proof.
    iteration_time_s
        Simulated iteration time of the best solution, seconds.
    """

    method: str
    config: str
    objective_s: float | None
    lower_bound_s: float | None
    gap: float | None
    iteration_time_s: float | None
    seconds: float


def prepare_all(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams,
    watcher: Watcher,
) -> Prepared:
    """
    Return the prepared problem of all methods, with the usual layer partitions, AMP's, and those of the joint model.

    The joint CP-SAT model gets its fraction of the time limit, as in ``solve``.
    """
    space = with_amp_splits(instance, space, load_predictor(params.max_oom_risk, instance))
    limits = JointLimits(time_limit_s=JOINT.share * params.time_limit_s, workers=params.workers, seed=params.seed)
    return prepare(Question(instance, space, params.max_oom_risk, joint=limits), Clock(watcher=watcher))


def analytical_problem(prepared: Prepared) -> ProblemData:
    """Return the problem of the candidates that have an analytical 1F1B model, with that model as objective."""
    searched = {candidate.config for candidate in prepared.problem.candidates}
    fitting = [candidate for candidate in fitting_candidates(prepared.memory) if candidate.config in searched]
    data = build_problem_data(prepared.instance, fitting, prepared.memory.capacity_bytes)
    return replace(data, candidates=tuple(each for each in data.candidates if each.has_analytical_model))


def compare_methods(prepared: Prepared, params: OptimizeParams, stop: threading.Event | None = None) -> list[MethodRow]:
    """
    Run every method with equal time and threads, on the candidates for which the analytical 1F1B model is exact.

    Parameters
    ----------
    stop
        Event that ends the comparison; only methods that had their full time before it have a row.
    """
    data, stop = analytical_problem(prepared), stop or threading.Event()

    def annealed(variant: Literal["tuned", "pipette"]) -> Result:
        settings = AnnealingParams(variant=variant, time_limit_s=params.time_limit_s, seed=params.seed)
        results = anneal_on_threads(data, settings, params.workers, stop)
        return min(results, key=lambda result: inf if result.solution is None else result.solution.objective_ticks)

    def solved() -> Result:
        settings = SolverParams(
            time_limit_s=params.time_limit_s, gap_limit=params.gap_limit, workers=params.workers, seed=params.seed
        )
        return place(data, settings, stop=stop)

    runs: dict[str, Callable[[], Result]] = {
        "pipette-opt": solved,
        "annealing (tuned)": lambda: annealed("tuned"),
        "annealing (Pipette's)": lambda: annealed("pipette"),
        "AMP": lambda: amp(data, AmpParams(time_limit_s=params.time_limit_s, seed=params.seed)),
        "Varuna": lambda: varuna(data),
        "identity order": lambda: identity_order(data),
        "Megatron's rule": lambda: megatron_rule(data),
    }
    rows: list[MethodRow] = []
    for method in METHODS:
        row = _row(prepared, data, method, runs[method])
        if stop.is_set():
            break
        rows.append(row)
    return rows


def _row(prepared: Prepared, data: ProblemData, method: str, run: Callable[[], Result]) -> MethodRow:
    started = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - started
    if result.solution is None:
        return MethodRow(
            method=method,
            config="none found",
            objective_s=None,
            lower_bound_s=None,
            gap=None,
            iteration_time_s=None,
            seconds=seconds,
        )
    (simulated,) = best_first([simulate_solution(prepared.instance, data, result.solution)])
    objective_s = result.solution.objective_ticks * data.tick_s
    bound_s = _lower_bound_s(data, result) if method == METHODS[0] else None
    return MethodRow(
        method=method,
        config=simulated.candidate.config.label(),
        objective_s=objective_s,
        lower_bound_s=bound_s,
        gap=None if bound_s is None else max(0.0, 1 - bound_s / objective_s),
        iteration_time_s=simulated.estimate.iteration_time_s,
        seconds=seconds,
    )


def _lower_bound_s(data: ProblemData, result: Result) -> float:
    """Return the bound that the solver proved, seconds, less the most that rounding up to ticks can have added."""
    rounding = max(candidate.rounding_ticks for candidate in data.candidates)
    return max(0, result.lower_bound_ticks - rounding) * data.tick_s
