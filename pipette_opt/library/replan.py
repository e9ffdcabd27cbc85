"""``replan``: a new plan after hosts are lost or join."""

import logging
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    cluster_or_file,
    options_of,
    params_of,
    plan_or_file,
    watcher_of,
)
from pipette_opt.library.measured import variables_of_runs, with_anchors
from pipette_opt.library.plans import plan_on_changed_hosts, plan_on_cluster, plan_with_band
from pipette_opt.options.questions import LimitOptions, ReplanOptions
from pipette_opt.plans.plan import Plan
from pipette_opt.replan import changed_hosts
from pipette_opt.replan.changed_hosts import Replanned
from pipette_opt.simulate.estimate import estimate
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.specs.objective import Objective
from pipette_opt.worlds.bands import with_band

logger = logging.getLogger(__name__)


@argument_errors()
def replan(
    plan: Plan | Named,
    cluster: Named | ClusterSpec | None = None,
    *,
    on_progress: Told | None = None,
    **asked: Any,
) -> Replanned:
    """
    Plan again after hosts are lost or join: the new optimum, the parameters to reload, and the price of fewer moves.

    The new plan is ``chosen.plan``; nothing is written. The search is for the least time: a plan of another objective
    loses it, with a warning.

    Parameters
    ----------
    plan
        The plan that runs now, or its file.
    cluster
        Cluster that includes the joined hosts, if the plan's cluster file lacks them.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    asked
        Hosts, moves and limits, fields of :class:`~pipette_opt.options.questions.ReplanOptions` and
        :class:`~pipette_opt.options.questions.LimitOptions`: ``lost="gpu[07-08]"``.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    InfeasibleError
        If no plan fits in memory, or every plan needs more moves.
    """
    options, limits = options_of(asked, ReplanOptions, LimitOptions)
    old, instance, all_hosts, inputs = plan_on_changed_hosts(
        plan_or_file(plan), cluster_or_file(cluster), options.lost, options.joined
    )
    runs = options.measured_runs or ()
    variables = variables_of_runs(options.env, runs)
    instance = with_anchors(instance, runs, old.config.world_size, all_hosts, variables)
    inputs = {**inputs, "stack": asdict(instance.stack)} if runs else inputs
    if options.micro_batches is not None:
        training = replace(instance.training, unequal_microbatches=options.micro_batches == "unequal")
        instance, inputs = replace(instance, training=training), {**inputs, "training": asdict(training)}
    if (objective := inputs.get("objective") or Objective.TIME) != Objective.TIME:
        logger.warning("replan searches for the least time; the objective of the plan, %s, does not count.", objective)
        inputs = {**inputs, "objective": str(Objective.TIME)}
    found = changed_hosts.replan(
        instance,
        old,
        num_gpus=options.num_gpus,
        max_loads=options.max_moves,
        tolerance=options.tolerance,
        params=params_of(limits, time_limit_s=options.time_limit),
        watcher=watcher_of(on_progress),
        inputs={**inputs, "max_oom_risk": limits.max_oom_risk},
    )
    chosen = replace(found.chosen, plan=plan_with_band(found.chosen.plan, instance))
    others = tuple(chosen if option is found.chosen else option for option in found.options)
    return replace(found, old=_as_estimated(old, instance.stack), chosen=chosen, options=others)


def _as_estimated(plan: Plan, stack: StackSpec) -> Plan:
    """Return the plan with the time that ``estimate`` gives it on its own hosts, by a stack with the measured runs."""
    with suppress(InputError):  # the recorded time, if the cluster's file is no longer there
        _, instance, _ = plan_on_cluster(plan, None)
        instance = replace(instance, stack=stack)
        simulated = estimate(instance, plan.config, plan.placement)
        return replace(plan, estimate=with_band(simulated, instance, plan.config, plan.placement))
    return plan
