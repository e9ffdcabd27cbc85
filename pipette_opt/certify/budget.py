"""Clocks of a search that are more than a slice of the time left."""

from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import BESIDE, BEST_VALUE, JOINT, JOINT_UNEQUAL, TIES, Step
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.family_groups import has_far_groups
from pipette_opt.simulate.slots import search_share
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance
from pipette_opt.worlds.factor import job_factor

MIN_BESIDE_SHARE = 0.05
"""Least fraction of the time limit for plans beside the fastest, even after a long preparation. Chosen."""

MIN_CERTIFYING_S = 0.01
"""Least time of the simulator's certificate if a plan is known, seconds. Chosen."""

MIN_PLACING_S = 0.5
"""Least time of the simulator's certificate without a known plan, seconds; enough to place a plan. Chosen."""


def clock_of(instance: Instance, params: OptimizeParams, watcher: Watcher) -> Clock:
    """Return the clock of a search, without the time reserved for the order of GPUs inside hosts."""
    watcher.factor = job_factor(instance)
    limit_s = search_share(instance) * params.time_limit_s
    return Clock(watcher=watcher, ends_s=limit_s, limit_s=limit_s)


def joint_limits(instance: Instance, params: OptimizeParams, clock: Clock) -> JointLimits:
    """Return the limits of the first run of the joint model."""
    is_unequal = len(instance.cluster.gpu_kinds) > 1 or has_far_groups(instance.cluster)
    return JointLimits(
        time_limit_s=clock.step(JOINT_UNEQUAL if is_unequal else JOINT).left_s,
        workers=params.workers,
        seed=params.seed,
        to_beat_s=params.to_beat_s,
    )


def proof_clock(clock: Clock, *, has_plan: bool, weighs: bool = False) -> Clock:
    """
    Return the clock of the simulator's certificate, which keeps time for the steps that follow the proof.

    Parameters
    ----------
    weighs
        Whether plans of the best value are searched afterwards, as the value is not the time.
    """
    least_s = MIN_CERTIFYING_S if has_plan else MIN_PLACING_S
    return clock.after(max(least_s, clock.keeping(TIES, BESIDE, *([BEST_VALUE] if weighs else [])).left_s))


def value_clock(clock: Clock) -> Clock:
    """Return the clock of plans of the best value."""
    return _kept(clock, BEST_VALUE, clock.keeping(TIES, BESIDE))


def beside_clock(clock: Clock) -> Clock:
    """Return the clock of plans beside the fastest."""
    return _kept(clock, BESIDE, clock.keeping(TIES))


def _kept(clock: Clock, step: Step, rest: Clock) -> Clock:
    """Return the clock of a step for which time was kept, within the rest; a little time even without a rest."""
    return clock.after(max(min(clock.step(step).left_s, rest.left_s), MIN_BESIDE_SHARE * clock.limit_s))
