"""
Steps of ``solve``, in the order of the code.

1. :mod:`~pipette_opt.prepare` lists the legal configurations. The joint model (CP-SAT, ``solver/joint.py``) chooses
degrees, layers and GPU types over the best links, and bounds every layer partition that is not listed. ``memory/``
removes configurations that do not fit, ``solver/pruning.py`` those that bounds rule out. The rest becomes the integer
placement problem: a relaxation for each candidate, and an analytical 1F1B model where it applies.
2. First plans: pruning's first plan is simulated, and placements are annealed by the analytical model.
3. ``certify/late_splits.py`` runs the joint model again with that time to beat; its partitions are searched, too.
4. :func:`~pipette_opt.certify.certify`: the simulator executes the real schedule and decides. Candidates that may be
faster are placed by annealing, simulated, and refuted by the engines of ``solver/`` on their relaxations. This
determines the gap. If configurations without bound keep it open, they are bounded, and the step runs once more.
5. The joint model runs once more. ``certify/beside.py`` places configurations that may be plainer, less risky or the
next best. ``certify/preference.py`` chooses the plan among those as good as the fastest; ties are settled.
6. ``certify/finish.py`` makes the certificate. Its ``lower_bound_s`` is the least bound of open candidates, pruned
configurations and the joint model.
7. The rules of ``verify`` about the plan itself are checked. The command ``verify`` also enumerates the space again.

A step with nothing to do ends at once. ``certify/budget.py`` and ``docs/method.md`` state the time of each step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from pipette_opt.base.backends import Backend
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify import Certified, certify
from pipette_opt.certify.beside import look_beside
from pipette_opt.certify.budget import Budget
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.finish import finish_plan
from pipette_opt.certify.first_plans import anneal_analytical_models, simulate_annealed, simulate_first_plan
from pipette_opt.certify.late_splits import fastest_plan, prove_splits
from pipette_opt.certify.params import OptimizeParams as OptimizeParams
from pipette_opt.certify.preference import Preference, risks_of
from pipette_opt.certify.regret import RegretSearch
from pipette_opt.certify.scope import why_nothing
from pipette_opt.certify.ties import settle_ties
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, bound_again, prepare, prunes
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.slots import SLOTS_SHARE
from pipette_opt.simulate.solutions import TIE, SimulatedSolution, best_first
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective


def optimize(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams | None = None,
    watcher: Watcher | None = None,
    inputs: Mapping[str, Any] | None = None,
    prepared: Prepared | None = None,
    known: Sequence[Solution] = (),
    backend: Backend | None = None,
    host_order: Sequence[int] | None = None,
    first: FirstPlan | None = None,
    preference: Preference | None = None,
) -> Plan:
    """
    Find the best plan of a search space, and prove how good it is.

    Raises ``InfeasibleError`` with the reasons if no configuration is legal, fits and can be placed.

    Parameters
    ----------
    prepared
        Result of :func:`~pipette_opt.prepare.prepare` for this instance and space, if made before.
    known
        Placements to start from, of candidates of ``prepared.with_analytical_model``.
    backend
        Processes for the proof; ``None``: threads of this process.
    host_order
        Host indices in the preferred order among equally fast plans; by default as listed.
    first
        Warm start: a known plan of the space; the plan found is no slower.
    preference
        Value of plans, and the choice among equally good plans. By default the time, with ``params.prefer`` and
        closeness to ``first``.
    """
    from pipette_opt.verify import verify_content

    params, watcher = params or OptimizeParams(), watcher or Watcher()
    budget = Budget(instance, params, watcher)
    clock = budget.clock
    preference = preference or Preference(
        prefer=params.prefer, max_oom_risk=params.max_oom_risk, today=None if first is None else first.config
    )
    finished = partial(
        finish_plan,
        clock=clock,
        slots_s=SLOTS_SHARE / 2 * budget.limit_s,  # half for the first plan, half for the last
        preference=preference,
        num_alternatives=params.num_alternatives,
        seed=params.seed,
        inputs={**(inputs or {}), "max_oom_risk": params.max_oom_risk, "prefer": params.prefer},
    )
    prepared = prepared or prepare(
        Question(
            instance, space, params.max_oom_risk, keep=prunes, joint=budget.joint, first=first, chooses_sizes=True
        ),
        clock,
    )
    with clock.loading():
        compile_kernels(prepared, clock.stop)

    if number := len(prepared.with_analytical_model.candidates):
        clock.report(f"annealing placements of {counted(number, 'candidate')}")
    simulated = simulate_first_plan(prepared)
    hint = anneal_analytical_models(prepared, budget.hint(has_plan=bool(simulated)), params.workers, params.seed, known)
    simulated += simulate_annealed(prepared, hint)
    if simulated:
        watcher.on_plan(finished(prepared, simulated))

    prove = partial(prove_splits, to_beat_s=params.to_beat_s, gap_limit=params.gap_limit)
    if simulated:
        joint = budget.joint_again(is_least=prepared.is_joint_least)
        prepared, found = prove(prepared, simulated, clock=joint, search=budget.before_ties)
        simulated += found
    certified = certify(prepared, simulated, params, budget.certifying(has_plan=bool(simulated)), backend)
    simulated += certified.simulated
    if not simulated:
        raise why_nothing(prepared)
    if not certified.is_closed and not budget.before_ties.is_over:
        bounded, kept = _bounded_again(prepared, simulated, params.gap_limit, clock)
        if bounded is not prepared:
            prepared = bounded
            certified = certify(prepared, kept, params, budget.certifying(has_plan=bool(kept)), backend)
            simulated = [*kept, *certified.simulated]

    prepared, found = prove(prepared, simulated, clock=budget.proof)
    simulated += found
    regrets = None
    if params.objective is Objective.REGRET:
        clock.report("weighing configurations in worlds")
        fastest = best_first(simulated)[0].candidate.config
        regrets = RegretSearch(prepared, params.regret_quantile, _bound_s(prepared, simulated, certified), fastest)
        preference = regrets.preference(preference)
        finished = partial(finished, preference=preference)
    clock.report("placing plans beside the fastest")
    beside = look_beside(prepared, simulated, certified.reasons, preference, params, budget.beside)
    simulated += beside.simulated
    order = host_order or range(prepared.instance.cluster.num_nodes)
    shown = _settled(prepared, simulated, preference, order, budget.ties)
    plan = finished(prepared, [*simulated, shown], certified, shown=shown, bounds_s=beside.bounds_s)
    plan = plan if regrets is None else regrets.certified(plan, simulated)
    verify_content(prepared.given, plan)
    return plan


def _bound_s(prepared: Prepared, simulated: Sequence[SimulatedSolution], certified: Certified) -> float:
    """Return the lower bound of a search so far, with that of the joint model, seconds."""
    joint_s = float("inf") if prepared.joined is None else prepared.joined.model.bound_s
    return min(certified.bound_s, joint_s, best_first(simulated)[0].estimate.iteration_time_s)


def _settled(
    prepared: Prepared,
    simulated: Sequence[SimulatedSolution],
    preference: Preference,
    order: Sequence[int],
    clock: Clock,
) -> SimulatedSolution:
    """Return the preferred plan with hosts in the usual order, or a simpler plan that is as fast and as plain."""
    risk_of = risks_of(prepared, preference.max_oom_risk)

    def rank(plan: SimulatedSolution) -> tuple[int, ...]:
        return preference.rank(plan.candidate.config, risk_of(plan))

    shown = preference.choose(best_first(simulated), risk_of)
    if preference.prefer == "fastest" and not preference.weighs:
        return best_first([*simulated, *settle_ties(prepared, simulated, shown, order, clock)])[0]
    least_s = (1 - TIE) * shown.estimate.iteration_time_s
    equal = [plan for plan in simulated if plan.estimate.iteration_time_s >= least_s and rank(plan) == rank(shown)]
    settled = settle_ties(prepared, equal, shown, order, clock)[-1]
    is_as_good = settled.estimate.iteration_time_s >= least_s and rank(settled) == rank(shown)
    is_as_good &= preference.value(settled) <= (1 + TIE) * preference.value(shown)
    return settled if is_as_good else shown


def _bounded_again(
    prepared: Prepared,
    simulated: Sequence[SimulatedSolution],
    gap_limit: float,
    clock: Clock,
) -> tuple[Prepared, list[SimulatedSolution]]:
    """
    Bound the configurations that had no bound yet. Return the new problem, and the plans that it still contains.

    The problem is unchanged if such configurations do not keep a gap open.
    """
    first = fastest_plan(simulated)
    if prepared.pruned is None or prepared.pruned.bound_s >= (1 - gap_limit) * first.seconds:
        return prepared, list(simulated)
    clock.report("bounding the configurations left out for time")
    bounded = bound_again(prepared, first, clock)
    candidates = {(candidate.config, candidate.tile): candidate for candidate in bounded.problem.candidates}
    kept = [
        replace(plan, candidate=candidates[key])
        for plan in simulated
        if (key := (plan.candidate.config, plan.candidate.tile)) in candidates
    ]
    with clock.loading():
        compile_kernels(bounded, clock.stop)
    return bounded, kept
