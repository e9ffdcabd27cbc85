"""``replan``: a new plan after hosts are lost or join."""

import logging
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.typed import NotNegative, Size, typed
from pipette_opt.job.read import one_of
from pipette_opt.library.arguments import (
    Named,
    Told,
    argument_errors,
    cluster_or_file,
    plan_or_file,
    texts,
    watcher_of,
)
from pipette_opt.library.measured import variables_of_runs, with_anchors
from pipette_opt.library.plans import plan_on_changed_hosts, plan_on_cluster, plan_with_band
from pipette_opt.optimize import OptimizeParams
from pipette_opt.options.values import checked, threads
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
    *,
    lost: str | None = None,
    joined: str | None = None,
    cluster: Named | ClusterSpec | None = None,
    max_moves: int | None = None,
    tolerance: float = 0.005,
    num_gpus: int | None = None,
    micro_batches: str | None = None,
    measured_runs: str | Iterable[str] | None = None,
    env: str | Iterable[str] | None = None,
    max_oom_risk: float = USUAL_RISK,
    time_limit_s: float = 10.0,
    workers: int | None = None,
    seed: int = 0,
    on_progress: Told | None = None,
) -> Replanned:
    """
    Plan again after hosts are lost or join: the new optimum, the parameters to reload, and the price of fewer moves.

    The new plan is ``chosen.plan``; nothing is written. The search is for the least time: a plan of another objective
    loses it, with a warning.

    Parameters
    ----------
    plan
        The plan that runs now, or its file.
    lost, joined
        Hosts that are gone, such as ``gpu[07-08]``, and hosts that may be used now.
    cluster
        Cluster that includes the joined hosts, if the plan's cluster file lacks them.
    max_moves
        Maximum number of hosts that may have to load other parameters, at least 0.
    tolerance
        Without ``max_moves``: accepted slowdown, as a share of the fastest time, in exchange for fewer moves.
    num_gpus
        Number of GPUs to use; by default the fastest number.
    micro_batches
        ``unequal`` allows different numbers of micro-batches per replica; ``equal`` does not; the plan's by default.
    measured_runs
        Measured runs that predicted times start from, as in :func:`~pipette_opt.solve`.
    env
        Variables of the measured launch scripts, each ``NAME=VALUE``.
    max_oom_risk
        Accepted probability of running out of memory, in (0, 1].
    time_limit_s
        Seconds of search.
    workers, seed, on_progress
        Threads, random choices and progress, as in :func:`~pipette_opt.solve`.

    Raises
    ------
    InputError
        If an argument or a file is wrong; ``where`` names the argument, or the file and its field.
    InfeasibleError
        If no plan fits in memory, or every plan needs more moves.
    """
    for option, least in (("--max-moves", max_moves), ("--tolerance", tolerance)):
        if least is not None:
            typed(NotNegative, least, option)
    if num_gpus is not None:
        typed(Size, num_gpus, "--num-gpus")
    if micro_batches is not None:
        one_of("--micro-batches", micro_batches, ("equal", "unequal"))
    old, instance, all_hosts, inputs = plan_on_changed_hosts(plan_or_file(plan), cluster_or_file(cluster), lost, joined)
    runs = texts(measured_runs) or ()
    variables = variables_of_runs(texts(env), runs)
    instance = with_anchors(instance, runs, old.config.world_size, all_hosts, variables)
    inputs = {**inputs, "stack": asdict(instance.stack)} if runs else inputs
    if micro_batches is not None:
        training = replace(instance.training, unequal_microbatches=micro_batches == "unequal")
        instance, inputs = replace(instance, training=training), {**inputs, "training": asdict(training)}
    if (asked := inputs.get("objective") or Objective.TIME) != Objective.TIME:
        logger.warning("replan searches for the least time; the objective of the plan, %s, does not count.", asked)
        inputs = {**inputs, "objective": str(Objective.TIME)}
    params = checked(
        OptimizeParams,
        time_limit_s=time_limit_s,
        workers=threads(workers),
        seed=seed,
        max_oom_risk=max_oom_risk,
    )
    found = changed_hosts.replan(
        instance,
        old,
        num_gpus=num_gpus,
        max_loads=max_moves,
        tolerance=tolerance,
        params=params,
        watcher=watcher_of(on_progress),
        inputs={**inputs, "max_oom_risk": max_oom_risk},
    )
    chosen = replace(found.chosen, plan=plan_with_band(found.chosen.plan, instance))
    options = tuple(chosen if option is found.chosen else option for option in found.options)
    return replace(found, old=_as_estimated(old, instance.stack), chosen=chosen, options=options)


def _as_estimated(plan: Plan, stack: StackSpec) -> Plan:
    """Return the plan with the time that ``estimate`` gives it on its own hosts, by a stack with the measured runs."""
    with suppress(InputError):  # the recorded time, if the cluster's file is no longer there
        _, instance, _ = plan_on_cluster(plan, None)
        instance = replace(instance, stack=stack)
        simulated = estimate(instance, plan.config, plan.placement)
        return replace(plan, estimate=with_band(simulated, instance, plan.config, plan.placement))
    return plan
