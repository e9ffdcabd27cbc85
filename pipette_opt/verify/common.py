"""What several rules need: hosts by the cluster's numbers, and when two figures are the same."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import ProofStep, is_number
from pipette_opt.parallel import Placement
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance

Rule = Callable[[Instance, Plan], Iterator[str]]
"""The docstring is the rule; it yields what is wrong, with the numbers."""

CHEAP: tuple[ProofStep, ...] = ("work alone", "best links", "judge over best links")
"""Steps that look at no pair of hosts, which the bounds here reproduce."""

ROUNDING = 1e-9
"""Relative; sums and quotients of doubles."""

REPRODUCED = 1e-6
"""Relative; a figure computed again, maybe by another machine's arithmetic."""

CLOSED_GAP = 2e-6
"""Relative; what rounding to ticks and doubles may leave open of a closed gap, or tell apart of equal plans."""


def on_cluster(instance: Instance, plan: Plan) -> Placement:
    """The placement with its hosts numbered as in the cluster."""
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    return replace(plan.placement, node=np.array([index[plan.hosts[node]] for node in plan.placement.node]))


def close(found: float, expected: float, tolerance: float) -> bool:
    """Equal up to rounding; a NaN is close to nothing."""
    return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def same(found: object, expected: object, tolerance: float) -> bool:
    """Numbers that are close, anything else that is equal."""
    if is_number(found) and is_number(expected):
        return close(found, expected, tolerance)
    return found == expected
