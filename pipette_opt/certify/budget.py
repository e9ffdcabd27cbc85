"""Division of a search's time limit among its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pipette_opt.base.types import Prefer
from pipette_opt.certify.ledger import CertifyParams
from pipette_opt.plans.watcher import Watcher
from pipette_opt.problem.family_groups import has_far_groups
from pipette_opt.simulate.slots import search_share
from pipette_opt.simulate.solutions import SimulatedSolution
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective

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


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeParams:
    """
    Limits, accepted risk and objective of a search.

    Parameters
    ----------
    time_limit_s
        Wall time of the whole search, seconds, from the enumeration on; kernel compilation does not count.
    gap_limit
        Stop when the gap is proven to be at most this, in [0, 1).
    workers
        Number of search threads.
    seed
        Random seed, in [0, 2^31).
    max_oom_risk
        Accepted probability of running out of memory; 1: memory does not count.
    num_alternatives
        Number of plans reported beside the best.
    objective
        Objective that the plan minimises.
    to_beat_s
        Iteration time to beat, seconds: the search ends once no plan can be faster.
    prefer
        ``fastest``: the fastest plan found; ``simple``: the plainest plan within 1 % of it.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int = 2
    seed: int = 0
    max_oom_risk: float = 0.01
    num_alternatives: int = 5
    objective: Objective = Objective.TIME
    to_beat_s: float = float("inf")
    prefer: Prefer = "fastest"

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2^31), got {self.seed}.")
        if not 0 < self.max_oom_risk <= 1:
            raise ValueError(f"max_oom_risk must be in (0, 1], got {self.max_oom_risk}.")
        if self.prefer not in get_args(Prefer):
            raise ValueError(f"prefer must be one of {', '.join(get_args(Prefer))}, got {self.prefer!r}.")


class Budget:
    """
    Seconds for each step of a search.

    Parameters
    ----------
    limit_s
        Time limit, seconds, without the time reserved for the order of GPUs inside hosts.
    """

    def __init__(self, instance: Instance, params: OptimizeParams, watcher: Watcher) -> None:
        self.params, self.watcher = params, watcher
        self.limit_s = search_share(instance) * params.time_limit_s
        is_mixed = len(instance.cluster.gpu_kinds) > 1 or has_far_groups(instance.cluster)
        self._joint_share = MIXED_JOINT_SHARE if is_mixed else JOINT_SHARE

    @property
    def left_s(self) -> float:
        """Remaining seconds of the limit; 0 once the search was stopped."""
        return 0.0 if self.watcher.stop.is_set() else self.limit_s - self.watcher.elapsed_s

    @property
    def ties_s(self) -> float:
        """Seconds for the choice among equally fast plans."""
        return TIES_SHARE * self.limit_s

    @property
    def kept_s(self) -> float:
        """Seconds reserved for plans beside the fastest, which the proof must not use."""
        return BESIDE_SHARE * self.limit_s

    @property
    def beside_s(self) -> float:
        """Seconds for plans beside the fastest; 0 once the search was stopped."""
        if self.watcher.stop.is_set():
            return 0.0
        return max(min(self.kept_s, self.left_s - self.ties_s), MIN_BESIDE_SHARE * self.limit_s)

    @property
    def joint(self) -> JointLimits:
        """Limits of the first run of the joint model; its time is a fraction of the remaining time."""
        seconds = self._joint_share * self.left_s
        return JointLimits(
            time_limit_s=seconds,
            workers=self.params.workers,
            seed=self.params.seed,
            to_beat_s=self.params.to_beat_s,
        )

    def joint_again_s(self, *, is_least: bool) -> float:
        """Return the joint model's seconds once a plan is known; more if its bound is the least of all."""
        return (MIN_JOINT_SHARE if is_least else JOINT_SHARE) * self.left_s

    def hint_s(self, simulated: Sequence[SimulatedSolution]) -> float:
        """Return the seconds for annealing a warm start; without a plan, the time already used is not subtracted."""
        left_s = self.limit_s - self.watcher.elapsed_s if simulated else self.limit_s
        return min(MAX_HINT_S, HINT_SHARE * self.limit_s, left_s)

    def certifying(self, simulated: Sequence[SimulatedSolution]) -> CertifyParams:
        """Return the limits of the simulator's certificate for the remaining time."""
        least_s = MIN_CERTIFYING_S if simulated else MIN_PLACING_S
        return CertifyParams(
            time_limit_s=max(least_s, self.limit_s - self.ties_s - self.kept_s - self.watcher.elapsed_s),
            gap_limit=self.params.gap_limit,
            to_beat_s=self.params.to_beat_s,
            workers=self.params.workers,
            seed=self.params.seed,
        )
