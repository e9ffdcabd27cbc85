"""Table of methods, for ``benchmark``."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import percent
from pipette_opt.baselines.compare import MethodRow
from pipette_opt.report.cells import GOOD, columns_table, seconds_text, spaced


def benchmark_table(rows: Sequence[MethodRow]) -> RenderableType:
    """Table of methods: time by the analytical 1F1B model, distance to the best method, and gap to the own bound."""
    table = columns_table("method", "configuration", "closed form >", "to best >", "gap >", "iteration >", "took >")
    best = min((row.objective_s for row in rows if row.objective_s is not None), default=None)
    for row in rows:
        winner = row.objective_s is not None and row.objective_s == best
        behind = "-" if row.objective_s is None or best is None else f"+{percent(row.objective_s / best - 1)}"
        table.add_row(
            Text(row.method, style="bold" if winner else ""),
            row.config,
            seconds_text(row.objective_s),
            Text(behind, style=GOOD if winner else ""),
            "-" if row.gap is None else percent(row.gap),
            seconds_text(row.iteration_time_s),
            f"{row.seconds:.1f} s",
        )
    return spaced(table)
