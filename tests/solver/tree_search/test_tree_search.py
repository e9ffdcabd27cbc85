"""The tree search keeps what every engine does."""

from conformance import EngineConformance

from pipette_opt.solver.tree_search.engine import TreeSearch


class TestTreeSearch(EngineConformance):
    """Cells with the fewest choices first."""

    engine = TreeSearch
    closes = True
    kind = "unif"
