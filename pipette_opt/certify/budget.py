"""Clocks of a search that are more than a slice of the time left."""

from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import BESIDE, JOINT, JOINT_UNEQUAL, TIES, Step
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.family_groups import has_far_groups
from pipette_opt.simulate.slots import search_share
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance

MIN_BESIDE_SHARE = 0.05
"""Least fraction of the time limit for plans beside the fastest, even after a long preparation. Chosen."""

MIN_CERTIFYING_S = 0.01
"""Least time of the simulator's certificate if a plan is known, seconds. Chosen."""

MIN_PLACING_S = 0.5
"""Least time of the simulator's certificate without a known plan, seconds; enough to place a plan. Chosen."""


def clock_of(instance: Instance, params: OptimizeParams, watcher: Watcher) -> Clock:
    """Return the clock of a search, without the time reserved for the order of GPUs inside hosts."""
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


def proof_clock(clock: Clock, *, has_plan: bool, beside: Step = BESIDE) -> Clock:
    """Return the clock of the simulator's certificate, which keeps time for the steps that follow the proof."""
    least_s = MIN_CERTIFYING_S if has_plan else MIN_PLACING_S
    return clock.after(max(least_s, clock.keeping(TIES, beside).left_s))


def beside_clock(clock: Clock, beside: Step = BESIDE) -> Clock:
    """Return the clock of plans beside the fastest."""
    seconds = min(clock.step(beside).left_s, clock.keeping(TIES).left_s)
    return clock.after(max(seconds, MIN_BESIDE_SHARE * clock.limit_s))
