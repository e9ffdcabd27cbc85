"""Table of methods, for ``benchmark``."""

from collections.abc import Sequence

from rich.console import RenderableType

from pipette_opt.base.table import GOOD, Cell, Table
from pipette_opt.base.units import percent, short_seconds
from pipette_opt.baselines.compare import MethodRow
from pipette_opt.report.cells import as_rich


def benchmark_table(rows: Sequence[MethodRow]) -> RenderableType:
    """Table of methods: simulated iteration time, distance to the best method, and gap to the own bound."""
    best = min((row.iteration_time_s for row in rows if row.iteration_time_s is not None), default=None)
    cells = []
    for row in rows:
        winner = row.iteration_time_s is not None and row.iteration_time_s == best
        behind = "-" if row.iteration_time_s is None or best is None else f"+{percent(row.iteration_time_s / best - 1)}"
        cells.append(
            (
                Cell(row.method, style="bold" if winner else ""),
                row.config,
                short_seconds(row.iteration_time_s),
                Cell(behind, style=GOOD if winner else ""),
                "-" if row.gap is None else percent(row.gap),
                short_seconds(row.seconds),
            )
        )
    return as_rich(
        Table(
            title="Simulated iteration time of each method's plan; less is better.",
            headers=("method", "configuration", "iteration >", "to best >", "gap >", "took >"),
            rows=cells,
        )
    )
