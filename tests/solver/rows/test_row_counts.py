"""Row counts keep what every engine does."""

from conformance import EngineConformance

from pipette_opt.solver.rows.engine import RowCounts


class TestRowCounts(EngineConformance):
    """Counts of classes in rows."""

    engine = RowCounts
