"""Helpers that all rules share: placement on the cluster's hosts, tolerances, and comparison of figures."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import ProofStep, is_number
from pipette_opt.parallel import Placement
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance

Rule = Callable[[Instance, Plan], Iterator[str]]
"""Rule on the plan, stated by its docstring; yields a text with the numbers for each violation."""

CHEAP: tuple[ProofStep, ...] = ("work alone", "best links", "judge over best links")
"""Proof steps that depend on no pair of hosts; verification reproduces their bounds."""

ROUNDING = 1e-9
"""Relative tolerance for sums and quotients of doubles. Chosen."""

REPRODUCED = 1e-6
"""Relative tolerance for a figure that is computed again, possibly on another machine. Chosen."""

CLOSED_GAP = 2e-6
"""Relative difference between equal times that rounding to the solver's ticks may cause. Chosen."""


def on_cluster(instance: Instance, plan: Plan) -> Placement:
    """Return the plan's placement with hosts numbered as in the cluster."""
    index = {host: number for number, host in enumerate(instance.cluster.hosts)}
    return replace(plan.placement, node=np.array([index[plan.hosts[node]] for node in plan.placement.node]))


def close(found: float, expected: float, tolerance: float) -> bool:
    """Return whether two numbers are equal within a relative tolerance; NaN equals nothing."""
    return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance * 1e-3)


def same(found: object, expected: object) -> bool:
    """Return whether two numbers are equal within ``REPRODUCED``, or two other values are equal."""
    if is_number(found) and is_number(expected):
        return close(found, expected, REPRODUCED)
    return found == expected
