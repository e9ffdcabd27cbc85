"""
Final plan and certificate, made from the simulated solutions and the proofs.

The gap is that of the simulated time. If links of single GPUs are known, the search ran on relaxed hosts, and the GPUs
of each host are ordered now.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipette_opt.candidates import covered
from pipette_opt.certify.compared import alternative as record
from pipette_opt.certify.compared import as_most_run_it, hosts_as_listed, with_overlap_of_gradients
from pipette_opt.certify.preference import RiskOf, risks_of
from pipette_opt.certify.scope import not_searched, proof, scope, searched
from pipette_opt.certify.state import SearchState
from pipette_opt.plans.notes import plan_notes
from pipette_opt.plans.plainness import kind_of, risk_levels
from pipette_opt.plans.plan import (
    PROVEN_WITHIN,
    Alternative,
    Certificate,
    Imbalance,
    JointModel,
    Plan,
    RiskChoice,
    StageMemory,
)
from pipette_opt.plans.steps import SLOTS
from pipette_opt.prepare import Prepared
from pipette_opt.problem.data import ProblemData
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.slots import with_slots
from pipette_opt.simulate.solutions import (
    TIE,
    SimulatedSolution,
    best_first,
    make_plan,
    placement_dependent_s,
    stage_memory,
)
from pipette_opt.specs import Instance

SHOWN_IMBALANCE = 1.3
"""Expert imbalance (busiest rank's load over the mean) at which a plan for even loads is simulated again. Chosen."""


def finish_plan(
    state: SearchState, inputs: Mapping[str, Any] | None = None, shown: SimulatedSolution | None = None
) -> Plan:
    """
    Make the plan of the preferred simulated solution, with its certificate and the alternatives.

    Parameters
    ----------
    shown
        Preferred solution, if chosen before; it is chosen again if links of single GPUs are known.
    """
    preference = state.preference
    prepared, clock = state.prepared, state.clock
    simulated = state.simulated if shown is None else [*state.simulated, shown]
    num_alternatives = state.params.num_alternatives
    if prepared.has_slots:
        clock.report("assigning the GPUs of each host")
        also = () if shown is None else (shown,)
        half = clock.after(SLOTS.share / 2 * clock.limit_s)  # half for the first plan, half for the last
        simulated = with_slots(prepared.given, prepared.problem, simulated, num_alternatives, half, also)
        shown = None
    ranked, risk_of = best_first(simulated), risks_of(prepared, preference.max_oom_risk)
    fastest, instance = ranked[0], prepared.given
    best = shown or preference.choose(simulated, risk_of)
    is_fastest = best.candidate.config == fastest.candidate.config and time_of(best) <= (1 + TIE) * time_of(fastest)

    def memory_of(plan: SimulatedSolution) -> tuple[StageMemory, ...]:
        config, placement = plan.candidate.config, plan.placement
        return stage_memory(instance, config, placement, prepared.predictor, preference.max_oom_risk)

    def alternative(other: SimulatedSolution) -> Alternative:
        config, memory = other.candidate.config, memory_of(other)
        return record(instance, best, config, other.nodes, other.placement, memory, other.estimate, other.slots)

    order, risk = preference.host_order, preference.max_oom_risk
    memory, next_best = memory_of(best), _others(ranked, best)[:num_alternatives]
    of_kind_s = {kind_of(other.candidate.config): time_of(other) for other in next_best}
    for config in state.listed if next_best else ():
        if (kind := kind_of(config)) in of_kind_s:
            of_kind_s[kind] = min(of_kind_s[kind], state.bound_of(config))
    others = [
        replace(alternative(other), lower_bound_s=of_kind_s[kind_of(other.candidate.config)]) for other in next_best
    ]
    plan = make_plan(
        instance,
        prepared.problem,
        [best],
        finish_certificate(state, best, None if is_fastest else fastest),
        memory,
        alternatives=tuple(others),
        notes=(*plan_notes(instance, best.candidate.config, prepared.memory, memory), *state.why_open),
        seed=state.params.seed,
        inputs={**(inputs or {}), "search": asdict(prepared.space)},
    )
    return replace(
        plan,
        fastest=None if is_fastest else alternative(fastest),
        listed=None if preference.is_in_order(best) else hosts_as_listed(prepared, best, order, risk),
        overlapped=with_overlap_of_gradients(prepared, best, risk),
        usual=as_most_run_it(prepared, best, order, risk),
        risks=tuple(
            RiskChoice(max_oom_risk=level, plan=alternative(safe))
            for level, safe in _least_times(ranked, preference.max_oom_risk, risk_of)
        ),
        imbalance=_imbalance(prepared, best, preference.max_oom_risk),
    )


def time_of(plan: SimulatedSolution) -> float:
    """Return the simulated time of a plan, seconds."""
    return plan.estimate.iteration_time_s


def finish_certificate(
    state: SearchState, best: SimulatedSolution, fastest: SimulatedSolution | None = None
) -> Certificate:
    """
    Make the certificate of the best solution: gap, coverage, and the step that ruled out each configuration.

    Parameters
    ----------
    fastest
        Fastest solution, if ``best`` is a plainer one; else ``None``.
    """
    prepared, wall_time_s = state.prepared, state.clock.watcher.elapsed_s
    fastest_s = None if fastest is None else fastest.estimate.iteration_time_s
    certificate = make_certificate(prepared.given, prepared.problem, best, state.bound_s, wall_time_s, fastest_s)
    num_candidates = len(prepared.memory.fitting)
    joined = prepared.joined
    joint_model = None if joined is None else joint_model_up_to(joined.model, certificate.best_s)
    parts = proof(prepared, state.reasons())
    by_search = sum(part.configurations for part in parts if part.by == "search")
    return replace(
        certificate,
        scope=scope(prepared),
        searched=searched(prepared),
        not_searched=not_searched(prepared),
        proof=parts,
        joint_model=joint_model,
        num_candidates=num_candidates,
        num_pruned=num_candidates - by_search,
    )


def make_certificate(
    instance: Instance,
    data: ProblemData,
    best: SimulatedSolution,
    simulate_bound_s: float,
    wall_time_s: float,
    fastest_s: float | None = None,
) -> Certificate:
    """
    Make the certificate of the best solution from its simulated time and a lower bound.

    Parameters
    ----------
    data
        Problem that was searched.
    simulate_bound_s
        Lower bound on the simulated time of every plan, seconds.
    fastest_s
        Time of the fastest solution, seconds, if ``best`` is a plainer one.
    """
    objective_s = best.estimate.iteration_time_s
    fastest = objective_s if fastest_s is None else fastest_s
    bound_s = min(simulate_bound_s, fastest)
    dependent_s = placement_dependent_s(instance, best)
    return Certificate(
        status="OPTIMAL" if is_proven(bound_s, fastest) else "FEASIBLE",
        objective_s=objective_s,
        lower_bound_s=bound_s,
        gap=(fastest - bound_s) / fastest,
        placement_dependent_s=dependent_s,
        placement_gap=(objective_s - bound_s) / dependent_s if dependent_s > 0 else 0.0,
        scope=covered(instance),
        wall_time_s=wall_time_s,
        num_candidates=len({candidate.config for candidate in data.candidates}),
        num_pruned=0,
        fastest_s=fastest_s,
    )


def is_proven(bound_s: float, seconds: float) -> bool:
    """Return whether a lower bound equals the time of the fastest plan, up to rounding."""
    return bound_s >= (1 - PROVEN_WITHIN) * seconds


def joint_model_up_to(model: JointModel, best_s: float) -> JointModel:
    """Return the joint model's result with its bound limited to the time of the fastest plan found."""
    bound_s = min(model.bound_s, best_s)
    if model.status == "INFEASIBLE" and not is_proven(bound_s, best_s):
        # The model had a faster plan to beat: on relaxed hosts, or one that there was no time to place.
        return replace(model, bound_s=bound_s, status="FEASIBLE")
    return replace(model, bound_s=bound_s)


def _others(ranked: Sequence[SimulatedSolution], best: SimulatedSolution) -> list[SimulatedSolution]:
    """Return the fastest solution for each choice of degrees, micro-batch size and recomputation, without ``best``."""
    fastest_of = {kind_of(plan.candidate.config): plan for plan in reversed(ranked)}
    others = (plan for plan in ranked if plan.candidate.config != best.candidate.config)
    return [plan for plan in others if fastest_of[kind_of(plan.candidate.config)] is plan]


def _least_times(
    ranked: Sequence[SimulatedSolution], max_oom_risk: float, risk_of: RiskOf
) -> list[tuple[float, SimulatedSolution]]:
    """Return each level of out-of-memory risk with the fastest plan within it, if one exists."""
    found = []
    for level in risk_levels(max_oom_risk):
        safe = next((plan for plan in ranked if risk_of(plan) <= level), None)
        found += [] if safe is None else [(level, safe)]
    return found


def _imbalance(prepared: Prepared, best: SimulatedSolution, max_oom_risk: float) -> Imbalance | None:
    """
    Return the plan simulated with :data:`SHOWN_IMBALANCE`.

    ``None`` for dense models, for experts on a single rank, and if the job states an imbalance.
    """
    config, instance = best.candidate.config, prepared.given
    groups = config.expert_model_parallel_size
    if instance.model.num_experts is None or groups == 1 or instance.training.imbalance(groups) != 1.0:
        return None
    uneven = replace(instance, training=replace(instance.training, expert_imbalance=SHOWN_IMBALANCE))
    memory = stage_memory(uneven, config, best.placement, prepared.predictor, max_oom_risk)
    return Imbalance(
        expert_imbalance=SHOWN_IMBALANCE,
        iteration_time_s=estimate(uneven, config, best.placement).iteration_time_s,
        oom_probability=max(stage.oom_probability for stage in memory),
    )
