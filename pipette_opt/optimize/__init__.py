"""
Steps of ``solve``, in the order of the code.

1. :mod:`~pipette_opt.prepare` first finds the fastest plan of a few configurations, which is written at once. It then
lists the legal configurations. The joint model (CP-SAT, ``solver/joint.py``) chooses degrees, layers and GPU types over
the best links, and bounds every layer partition that is not listed. ``memory/`` removes configurations that do not fit,
``solver/pruning.py`` those that bounds rule out. The rest becomes the integer placement problem: a relaxation for each
candidate.
2. :class:`~pipette_opt.certify.SearchState` begins with pruning's first plan. It has the bound of every listed
configuration, who proved it, and the plans found.
3. :func:`~pipette_opt.certify.certify`: the simulator executes the real schedule and decides. Candidates that may be
faster are placed by annealing, simulated, and refuted by ``solver/`` on their relaxations. This
determines the gap. The joint model goes on with the time to beat, and its partitions are searched, too. So are
configurations that had no bound in time.
4. ``certify/beside.py`` places configurations that may be plainer, less risky or the next best.
``certify/preference.py`` chooses the plan among those as good as the fastest; ties are settled. Time that these steps
leave over goes to the proof again. For the objectives regret and robust, ``certify/in_worlds.py`` first gives each
configuration its weight over worlds, and ``certify/beside.py`` places those that may have the best value.
5. ``certify/finish.py`` makes the certificate from the state. Its ``lower_bound_s`` is the least bound of all.
6. The rules of ``verify`` about the plan itself are checked. The command ``verify`` also enumerates the space again.

A step with nothing to do ends at once. ``plans/steps.py`` has the time of each step.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipette_opt.candidates import SearchSpace
from pipette_opt.certify.beside import look_beside, look_for_best_value
from pipette_opt.certify.budget import beside_clock, clock_of, joint_limits, proof_clock, value_clock
from pipette_opt.certify.finish import finish_plan
from pipette_opt.certify.first_plans import begin, simulate_first_plan
from pipette_opt.certify.in_worlds import weigh_in_worlds
from pipette_opt.certify.params import OptimizeParams as OptimizeParams
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.scope import why_nothing
from pipette_opt.certify.state import SearchState
from pipette_opt.certify.ties import settle
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.steps import TIES
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prunes
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance


def optimize(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams | None = None,
    watcher: Watcher | None = None,
    inputs: Mapping[str, Any] | None = None,
    first: FirstPlan | None = None,
) -> Plan:
    """
    Find the best plan of a search space, and prove how good it is.

    Raises ``InfeasibleError`` with the reasons if no configuration is legal, fits and can be placed.

    Parameters
    ----------
    first
        Warm start: a known plan of the space; the plan found is no slower.
    """
    return complete(begun(instance, space, params or OptimizeParams(), watcher or Watcher(), inputs, first), inputs)


def begun(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams,
    watcher: Watcher,
    inputs: Mapping[str, Any] | None = None,
    first: FirstPlan | None = None,
) -> SearchState:
    """Return the search of :func:`optimize` with its problem prepared; a plan of a few configurations is passed on."""
    if first is not None:
        params = replace(params, today=first.config)
    clock = clock_of(instance, params, watcher)
    joint = joint_limits(instance, params, clock)

    def pass_on(few: Prepared) -> None:
        state = SearchState(few, simulate_first_plan(few), params, clock)
        watcher.on_plan(finish_plan(state, _recorded(params, inputs)))

    question = Question(
        instance,
        space,
        params.max_oom_risk,
        keep=prunes,
        joint=joint,
        first=first,
        chooses_sizes=True,
        on_first=pass_on,
    )
    return begin(question, params, clock)


def complete(state: SearchState, inputs: Mapping[str, Any] | None = None) -> Plan:
    """Run the steps of a search, and return its verified plan, which records these inputs."""
    from pipette_opt.verify import verify_content

    clock, params = state.clock, state.params
    recorded = _recorded(params, inputs)
    clock.watcher.is_prepared = True
    if state.plans:
        clock.watcher.on_plan(finish_plan(state, recorded))
    state.clock = proof_clock(clock, has_plan=bool(state.plans), weighs=params.objective.is_over_worlds)
    certify(state)
    state.clock = clock
    if not state.plans:
        raise why_nothing(state.prepared)
    weighed = weigh_in_worlds(state)
    if weighed is not None:
        look_for_best_value(state, value_clock(clock))
    look_beside(state, beside_clock(clock))
    state.clock = clock.keeping(TIES)
    certify(state)  # in the time that plans beside the fastest left over
    state.clock = clock
    plan = finish_plan(state, recorded, settle(state, clock.step(TIES)))
    plan = plan if weighed is None else weighed.certified(plan)
    verify_content(state.prepared.given, plan)
    return plan


def _recorded(params: OptimizeParams, inputs: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the inputs that a plan records."""
    order = {"host_order": list(params.host_order)} if params.host_order else {}
    return {**(inputs or {}), "max_oom_risk": params.max_oom_risk, "prefer": params.prefer, **order}
