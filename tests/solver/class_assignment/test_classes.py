"""Costs between classes of hosts."""

import numpy as np

from pipette_opt.solver.class_assignment.problem import merge_levels


def test_merged_costs_are_never_above() -> None:
    """Levels are the least of those that they take the place of, and within the tolerance."""
    ticks = np.random.default_rng(0).integers(1000, 2000, (9, 9))
    merged = merge_levels(ticks, 0.05)
    assert (merged <= ticks).all()
    assert (ticks <= merged * 1.05).all()
    assert len(np.unique(merged)) < 20 < len(np.unique(ticks))
    assert (merge_levels(ticks, 0.0) == ticks).all()
