"""
Steps of ``solve``, in the order of the code.

1. :mod:`~pipette_opt.prepare` lists the legal configurations. The joint model (CP-SAT, ``solver/joint.py``) chooses
degrees, layers and GPU types over the best links, and bounds every layer partition that is not listed. ``memory/``
removes configurations that do not fit, ``solver/pruning.py`` those that bounds rule out. The rest becomes the integer
placement problem: a relaxation for each candidate.
2. :class:`~pipette_opt.certify.SearchState` begins with pruning's first plan. It has the bound of every listed
configuration, who proved it, and the plans found.
3. :func:`~pipette_opt.certify.certify`: the simulator executes the real schedule and decides. Candidates that may be
faster are placed by annealing, simulated, and refuted by the engines of ``solver/`` on their relaxations. This
determines the gap. The joint model goes on with the time to beat, and its partitions are searched, too. So are
configurations that had no bound in time.
4. ``certify/beside.py`` places configurations that may be plainer, less risky or the next best.
``certify/preference.py`` chooses the plan among those as good as the fastest; ties are settled. For the
objective regret, ``certify/regret.py`` first gives each configuration its weight over worlds.
5. ``certify/finish.py`` makes the certificate from the state. Its ``lower_bound_s`` is the least bound of all.
6. The rules of ``verify`` about the plan itself are checked. The command ``verify`` also enumerates the space again.

A step with nothing to do ends at once. ``plans/steps.py`` has the time of each step.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify import certify
from pipette_opt.certify.beside import look_beside
from pipette_opt.certify.budget import beside_clock, clock_of, joint_limits, proof_clock
from pipette_opt.certify.finish import finish_plan
from pipette_opt.certify.first_plans import begin
from pipette_opt.certify.params import OptimizeParams as OptimizeParams
from pipette_opt.certify.preference import Preference, risks_of
from pipette_opt.certify.regret import RegretSearch
from pipette_opt.certify.scope import why_nothing
from pipette_opt.certify.state import SearchState
from pipette_opt.certify.ties import settle_ties
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.steps import SLOTS, TIES
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prunes
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
    known: Sequence[SimulatedSolution] = (),
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
        Plans to start from, of candidates of ``prepared.problem``.
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
    clock = clock_of(instance, params, watcher)
    preference = preference or Preference(
        prefer=params.prefer, max_oom_risk=params.max_oom_risk, today=None if first is None else first.config
    )
    finished = partial(
        finish_plan,
        preference=preference,
        slots_s=SLOTS.share / 2 * clock.limit_s,  # half for the first plan, half for the last
        inputs={**(inputs or {}), "max_oom_risk": params.max_oom_risk, "prefer": params.prefer},
    )
    joint = joint_limits(instance, params, clock)
    question = Question(instance, space, params.max_oom_risk, keep=prunes, joint=joint, first=first, chooses_sizes=True)
    state = begin(question, params, clock, prepared, known)
    if state.plans:
        watcher.on_plan(finished(state))
    state.clock = proof_clock(clock, has_plan=bool(state.plans))
    certify(state)
    state.clock = clock
    if not state.plans:
        raise why_nothing(state.prepared)
    regrets = None
    if params.objective is Objective.REGRET:
        clock.report("weighing configurations in worlds")
        fastest = best_first(state.simulated)[0].candidate.config
        regrets = RegretSearch(state.prepared, params.regret_quantile, state.bound_s, fastest)
        preference = regrets.preference(preference)
        finished = partial(finished, preference=preference)
    clock.report("placing plans beside the fastest")
    look_beside(state, preference, beside_clock(clock))
    order = host_order or range(instance.cluster.num_nodes)
    plan = finished(state, shown=_settled(state, preference, order, clock.step(TIES)))
    plan = plan if regrets is None else regrets.certified(plan)
    verify_content(state.prepared.given, plan)
    return plan


def _settled(state: SearchState, preference: Preference, order: Sequence[int], clock: Clock) -> SimulatedSolution:
    """Return the preferred plan with hosts in the usual order, or a simpler plan that is as fast and as plain."""
    prepared, simulated = state.prepared, state.simulated
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
