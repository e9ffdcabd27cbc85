"""
The certificate of a plan and the plan itself: made in one place, from what was judged and what was proven.

There is one gap, of the judge's time. Where
links of single GPUs are known, the search was on relaxed hosts, and each host is given an order of its GPUs here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipette_opt.candidates import covered
from pipette_opt.certify.certificate import Certified
from pipette_opt.certify.scope import not_searched, proof, scope, searched
from pipette_opt.judge.slots import SLOTS_SHARE, with_slots
from pipette_opt.judge.solutions import (
    JudgedSolution,
    best_first,
    judge_lower_bound_s,
    lost_because,
    make_plan,
    placement_dependent_s,
    stage_memory,
)
from pipette_opt.parallel import without_overlap
from pipette_opt.plans.notes import plan_notes
from pipette_opt.plans.plan import Alternative, Certificate, JointModel, Plan, StageMemory
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared
from pipette_opt.problem.data import ProblemData
from pipette_opt.specs import Instance

PROVEN_WITHIN = 2e-6
"""Relative; what rounding to ticks and doubles may cost a bound that is otherwise the optimum."""


def finish_plan(
    prepared: Prepared,
    judged: Sequence[JudgedSolution],
    certified: Certified | None = None,
    *,
    watcher: Watcher,
    time_limit_s: float,
    max_oom_risk: float,
    num_alternatives: int,
    seed: int,
    inputs: Mapping[str, Any] | None = None,
) -> Plan:
    """
    The plan of the fastest judged solution, with its certificate and what came next.

    Parameters
    ----------
    certified
        What is proven about the judge's time; by default the bound that needs no search.
    time_limit_s
        Of the search; orders of GPUs may take half of their share of it.
    """
    if prepared.has_slots:
        watcher.report("assigning the GPUs of each host")
        seconds = SLOTS_SHARE / 2 * time_limit_s  # of the first plan, and of the last
        judged = with_slots(prepared.given, prepared.problem, judged, num_alternatives, seconds, watcher.stop)
    ranked = best_first(judged)
    best, instance = ranked[0], prepared.given

    def memory_of(one: JudgedSolution) -> tuple[StageMemory, ...]:
        return stage_memory(instance, one.candidate.config, one.placement, prepared.predictor, max_oom_risk)

    memory = memory_of(best)
    others = _others(ranked)[:num_alternatives]
    return make_plan(
        instance,
        prepared.problem,
        ranked,
        finish_certificate(prepared, best, certified, watcher.elapsed_s),
        memory,
        alternatives=tuple(_alternative(instance, best, other, memory_of(other)) for other in others),
        notes=plan_notes(instance, best.candidate.config, best.estimate.iteration_time_s, prepared.memory, memory),
        seed=seed,
        inputs={**(inputs or {}), "search": asdict(prepared.space)},
    )


def finish_certificate(
    prepared: Prepared, best: JudgedSolution, certified: Certified | None, wall_time_s: float
) -> Certificate:
    """The certificate of the best solution: the gap, what it covers, and who ruled out what."""
    bounds = [_bound_without_search_s(prepared) if certified is None else certified.bound_s]
    if prepared.joined is not None:
        bounds.append(prepared.joined.model.bound_s)
    certificate = make_certificate(prepared.given, prepared.problem, best, min(bounds), wall_time_s)
    num_candidates = len(prepared.memory.fitting)
    parts = () if certified is None else proof(prepared, certified.reasons)
    by_search = sum(part.configurations for part in parts if part.by == "search")
    return replace(
        certificate,
        scope=scope(prepared),
        searched=searched(prepared),
        not_searched=not_searched(prepared),
        proof=parts,
        joint_model=_joint_model(prepared, certificate.objective_s),
        num_candidates=num_candidates,
        num_pruned=num_candidates - by_search if parts else 0,
    )


def make_certificate(
    instance: Instance,
    data: ProblemData,
    best: JudgedSolution,
    judge_bound_s: float,
    wall_time_s: float,
) -> Certificate:
    """
    What is proven about the best solution: one gap, between its judged time and the bound on the judge's time.

    Parameters
    ----------
    data
        What was searched.
    """
    fastest = best.estimate.iteration_time_s
    bound_s = min(judge_bound_s, fastest)
    dependent_s = placement_dependent_s(instance, best)
    return Certificate(
        status="OPTIMAL" if is_proven(bound_s, fastest) else "FEASIBLE",
        objective_s=fastest,
        lower_bound_s=bound_s,
        gap=(fastest - bound_s) / fastest,
        placement_dependent_s=dependent_s,
        placement_gap=(fastest - bound_s) / dependent_s if dependent_s > 0 else 0.0,
        judge_lower_bound_s=bound_s,
        scope=covered(instance),
        wall_time_s=wall_time_s,
        num_candidates=len({candidate.config for candidate in data.candidates}),
        num_pruned=0,
    )


def is_proven(bound_s: float, seconds: float) -> bool:
    """Whether a bound closes the gap, up to rounding."""
    return bound_s >= (1 - PROVEN_WITHIN) * seconds


def _joint_model(prepared: Prepared, objective_s: float) -> JointModel | None:
    """What the joint model said; of what is slower than the plan, it is not said by how much."""
    model = None if prepared.joined is None else prepared.joined.model
    if model is None:
        return None
    bound_s = min(model.bound_s, objective_s)
    if model.status == "INFEASIBLE" and not is_proven(bound_s, objective_s):
        # It compared with a faster plan than this one: on relaxed hosts, or one that there was no time to place.
        return replace(model, bound_s=bound_s, status="FEASIBLE")
    return replace(model, bound_s=bound_s)


def _bound_without_search_s(prepared: Prepared) -> float:
    """No plan is faster of those with usual splits, by the cheap bounds alone."""
    return min(judge_lower_bound_s(prepared.lower), prepared.ruled_out_s)


def _others(ranked: Sequence[JudgedSolution]) -> list[JudgedSolution]:
    """All but the first, of those that differ only in what overlaps the fastest."""
    alike = {without_overlap(one.candidate.config): one for one in reversed(ranked)}
    return [one for one in ranked[1:] if alike[without_overlap(one.candidate.config)] is one]


def _alternative(
    instance: Instance, best: JudgedSolution, other: JudgedSolution, memory: Sequence[StageMemory]
) -> Alternative:
    worst = max(memory, key=lambda one: one.oom_probability)
    return Alternative(
        config=other.candidate.config,
        hosts=tuple(instance.cluster.hosts[node] for node in other.nodes.ravel()),
        iteration_time_s=other.estimate.iteration_time_s,
        oom_probability=worst.oom_probability,
        oom_probability_at_most=worst.oom_probability_at_most,
        reason=lost_because(best, other),
        slots=None if other.slots is None else tuple(map(tuple, other.slots.reshape(other.nodes.size, -1).tolist())),
        breakdown=other.estimate.breakdown,
    )
