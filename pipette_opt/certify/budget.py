"""Division of a search's time limit among its steps."""

from dataclasses import replace

from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.family_groups import has_far_groups
from pipette_opt.simulate.slots import search_share
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance

JOINT_SHARE, MIXED_JOINT_SHARE = 0.2, 0.6
"""
Fractions of the time limit for the joint model over all layer partitions. Chosen.

The second is for clusters with several GPU types and for groups of hosts that are far apart. Only the joint model can
assign layers to several types, and only its families know the groups. The first is also the fraction of the remaining
time once a plan is known.
"""

MIN_JOINT_SHARE = 0.5
"""
Fraction of the remaining time for the joint model while its bound is the least of all. Chosen.

No other step then raises the bound of the plan, so the joint model comes before the simulator's certificate.
"""

HINT_SHARE = 0.2
"""Largest fraction of the time limit for annealing a warm start. Chosen."""

MAX_HINT_S = 2.0
"""Largest time for annealing a warm start, seconds. Chosen."""

TIES_SHARE = 0.05
"""Fraction of the time limit for the choice among equally fast plans. Chosen."""

BESIDE_SHARE = 0.1
"""Fraction of the time limit for plans beside the fastest: plainer, less risky, and the next best. Chosen."""

MIN_BESIDE_SHARE = 0.05
"""Least fraction of the time limit for plans beside the fastest, even after a long preparation. Chosen."""

MIN_CERTIFYING_S = 0.01
"""Least time of the simulator's certificate if a plan is known, seconds. Chosen."""

MIN_PLACING_S = 0.5
"""Least time of the simulator's certificate without a known plan, seconds; enough to place a plan. Chosen."""


class Budget:
    """
    Clocks of the steps of a search.

    Parameters
    ----------
    limit_s
        Time limit, seconds, without the time reserved for the order of GPUs inside hosts.
    """

    def __init__(self, instance: Instance, params: OptimizeParams, watcher: Watcher) -> None:
        self.params = params
        self.limit_s = search_share(instance) * params.time_limit_s
        self.clock = Clock(watcher=watcher, ends_s=self.limit_s)
        is_mixed = len(instance.cluster.gpu_kinds) > 1 or has_far_groups(instance.cluster)
        self._joint_share = MIXED_JOINT_SHARE if is_mixed else JOINT_SHARE

    @property
    def before_ties(self) -> Clock:
        """Clock of all steps before the choice among equally fast plans."""
        return replace(self.clock, ends_s=(1 - TIES_SHARE) * self.limit_s)

    @property
    def ties(self) -> Clock:
        """Clock of the choice among equally fast plans."""
        return self.clock.after(TIES_SHARE * self.limit_s)

    @property
    def proof(self) -> Clock:
        """Clock of the proof, which keeps time for plans beside the fastest and for the choice among equal plans."""
        return replace(self.clock, ends_s=(1 - TIES_SHARE - BESIDE_SHARE) * self.limit_s)

    @property
    def beside(self) -> Clock:
        """Clock of plans beside the fastest."""
        seconds = min(BESIDE_SHARE * self.limit_s, self.before_ties.left_s)
        return self.clock.after(max(seconds, MIN_BESIDE_SHARE * self.limit_s))

    @property
    def joint(self) -> JointLimits:
        """Limits of the first run of the joint model; its time is a fraction of the remaining time."""
        return JointLimits(
            time_limit_s=self._joint_share * self.clock.left_s,
            workers=self.params.workers,
            seed=self.params.seed,
            to_beat_s=self.params.to_beat_s,
        )

    def joint_again(self, *, is_least: bool) -> Clock:
        """Return the joint model's clock once a plan is known; with more time if its bound is the least of all."""
        return self.clock.slice(MIN_JOINT_SHARE if is_least else JOINT_SHARE)

    def hint(self, *, has_plan: bool) -> Clock:
        """Return the clock of the annealed warm start; without a plan, the time already used is not subtracted."""
        left_s = self.clock.left_s if has_plan else self.limit_s
        return self.clock.after(min(MAX_HINT_S, HINT_SHARE * self.limit_s, left_s))

    def certifying(self, *, has_plan: bool) -> Clock:
        """Return the clock of the simulator's certificate."""
        least_s = MIN_CERTIFYING_S if has_plan else MIN_PLACING_S
        return self.clock.after(max(least_s, self.proof.left_s))
