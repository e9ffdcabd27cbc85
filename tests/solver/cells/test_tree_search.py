"""Both tree searches keep what every engine does."""

from conformance import EngineConformance

from pipette_opt.solver.cells.engine import RowTreeSearch, TreeSearch


class TestTreeSearch(EngineConformance):
    """Cells with the fewest choices first."""

    engine = TreeSearch
    closes = True
    kind = "unif"


class TestRowTreeSearch(EngineConformance):
    """Row by row."""

    engine = RowTreeSearch
    closes = True
    kind = "unif"
