"""
Upper end of the band of a plan's time, and a lower bound on that of every plan.

It is the time in a single world, in which each group of configurations (:mod:`.regret`) is as slow as the upper end of
its band. Lower bounds are those of the regret. The terms of a group are those over the fastest links, so that all
placements of a configuration have one factor; the band that is shown takes the terms of the plan's own placement.
"""

from collections.abc import Mapping

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.certificate import Robust
from pipette_opt.verify.regret import Group, Groups, group_of
from pipette_opt.worlds.bands import SHARE
from pipette_opt.worlds.worlds import Worlds


def log_upper_ends(groups: Groups, worlds: Worlds) -> FloatArray:
    """Return the logarithm of the upper end of the band over the predicted time, shape ``(num_groups, 1)``."""
    return groups.below_peak(np.log(worlds.bands(groups.terms, SHARE)[:, 2:]))


def upper_ends_of(groups: Groups, worlds: Worlds) -> dict[Group, float]:
    """Return the upper end of the band of each group, per second of predicted time."""
    return groups.by_group(np.exp(log_upper_ends(groups, worlds)[:, 0]))


def robust_of(
    config: ParallelConfig, seconds: float, groups: Groups, worlds: Worlds, found_s: Mapping[ParallelConfig, float]
) -> Robust:
    """
    Return the upper end of a plan's band, and its lower bound.

    Parameters
    ----------
    seconds
        Predicted time of the plan.
    found_s
        Predicted times of other plans found, by configuration, seconds.
    """
    log_factors = log_upper_ends(groups, worlds)
    factors = groups.by_group(np.exp(log_factors[:, 0]))
    others_s = [factors[group] * other_s for other, other_s in found_s.items() if (group := group_of(other)) in factors]
    factor = factors[group_of(config)]
    best_s = min([factor * seconds, *others_s])
    bound_s = min(float(groups.world_bounds_s(log_factors)[0]), best_s)
    return Robust(
        value_s=factor * seconds,
        best_s=best_s,
        lower_bound_s=bound_s,
        gap=(best_s - bound_s) / best_s,
        factor=factor,
        share=SHARE,
        measured_runs=len(worlds.observations),
        groups=len(groups.numbers),
        left_out_s=groups.left_out_s,
    )
