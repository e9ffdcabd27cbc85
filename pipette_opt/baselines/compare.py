"""Comparison of the solver with baselines on equal instance, candidates, time limit and simulator."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.baselines.amp import AmpParams, amp
from pipette_opt.baselines.amp_layers import with_amp_splits
from pipette_opt.baselines.megatron import identity_order, megatron_rule
from pipette_opt.baselines.pipette import PipetteParams, pipette
from pipette_opt.baselines.varuna import varuna
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.first_plans import begin_with
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.state import SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import JOINT
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, load_predictor, prepare
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, simulate_solution
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance

METHODS = ("pipette-opt", "Pipette's annealing", "AMP", "Varuna", "identity order", "Megatron's rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRow:
    """
    Result of one method.

    Parameters
    ----------
    iteration_time_s
        Simulated iteration time of the method's fastest plan, seconds; ``None`` if it found none.
    lower_bound_s
        Lower bound that the method proves, seconds; ``None`` for methods without a proof.
    """

    method: str
    config: str
    iteration_time_s: float | None
    lower_bound_s: float | None
    gap: float | None
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


def searched(prepared: Prepared, params: OptimizeParams, watcher: Watcher) -> SearchState:
    """Return the solver's search of prepared configurations, after the time limit or its proof."""
    state = begin_with(prepared, params, Clock(watcher=watcher, limit_s=params.time_limit_s))
    state.clock = state.clock.after(params.time_limit_s)
    certify(state)
    return state


def learned_problem(state: SearchState) -> ProblemData:
    """Return the candidates that bounds left open or that have a plan, with all paths that the search has found."""
    learned = {(entry.candidate.config, entry.candidate.tile): entry.candidate for entry in state.open}
    parts = {(candidate.config, candidate.tile): candidate for candidate in state.data.candidates}
    chosen = {part: candidate for part, candidate in parts.items() if part in learned or part in state.plans}
    return replace(state.data, candidates=tuple((chosen | learned).values()))


def compare_methods(prepared: Prepared, params: OptimizeParams, watcher: Watcher) -> list[MethodRow]:
    """
    Run every method with equal time, and time their plans by the simulator.

    Pipette's annealing minimises the relaxations of the solver's search: of the candidates that bounds left open, with
    all paths that the search found. Of methods that place several candidates, the fastest counts.

    Parameters
    ----------
    watcher
        Its stop event ends the comparison; only methods that had their full time before it have a row.
    """
    instance, stop = prepared.instance, watcher.stop
    state = searched(prepared, params, watcher)
    data = state.data  # with the layer partitions that the joint model found meanwhile
    if stop.is_set():
        return []
    rows = [_row(METHODS[0], list(state.plans.values()), params.time_limit_s - state.clock.left_s, state.bound_s)]
    annealing = PipetteParams(time_limit_s=params.time_limit_s, workers=params.workers, seed=params.seed)
    pipette(learned_problem(state), PipetteParams(time_limit_s=None, max_moves=1))  # compiled once
    runs: dict[str, tuple[ProblemData, Callable[[ProblemData], Result]]] = {
        "Pipette's annealing": (learned_problem(state), lambda data: pipette(data, annealing, stop)),
        "AMP": (data, lambda data: amp(data, AmpParams(time_limit_s=params.time_limit_s, seed=params.seed))),
        "Varuna": (data, varuna),
        "identity order": (data, identity_order),
        "Megatron's rule": (data, megatron_rule),
    }
    for method in METHODS[1:]:
        given, run = runs[method]
        begun = time.perf_counter()
        result = run(given)
        seconds = time.perf_counter() - begun
        if stop.is_set():
            break
        rows.append(_row(method, simulated_plans(instance, given, result), seconds))
    return rows


def simulated_plans(instance: Instance, data: ProblemData, result: Result) -> list[SimulatedSolution]:
    """Return the plans of a result, simulated; a plan that reduces embeddings over a missing link is left out."""
    plans: list[SimulatedSolution] = []
    for solution in result.solutions:
        with suppress(MissingLinkError):
            plans.append(simulate_solution(instance, data, solution))
    return plans


def _row(
    method: str, plans: Sequence[SimulatedSolution], seconds: float, lower_bound_s: float | None = None
) -> MethodRow:
    """Return the row of a method with its fastest plan."""
    if not plans:
        return MethodRow(
            method=method, config="none found", iteration_time_s=None, lower_bound_s=None, gap=None, seconds=seconds
        )
    best = best_first(plans)[0]
    time_s = best.estimate.iteration_time_s
    return MethodRow(
        method=method,
        config=best.candidate.config.label(),
        iteration_time_s=time_s,
        lower_bound_s=lower_bound_s,
        gap=None if lower_bound_s is None else max(0.0, 1 - lower_bound_s / time_s),
        seconds=seconds,
    )
