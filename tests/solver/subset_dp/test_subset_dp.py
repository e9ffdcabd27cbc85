"""Subset dynamic programming keeps what every engine does."""

from conformance import EngineConformance

from pipette_opt.solver.subset_dp.engine import SubsetDp


class TestSubsetDp(EngineConformance):
    """Of single columns."""

    engine = SubsetDp
    shapes = ((2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1))
    closes = True
    large = (17, 1, 1)
    kind = "unif"
