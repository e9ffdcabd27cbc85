"""Table of methods, for ``benchmark``."""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import percent, three_digits
from pipette_opt.baselines.compare import MethodRow
from pipette_opt.report.cells import GOOD, columns_table, titled


def benchmark_table(rows: Sequence[MethodRow]) -> RenderableType:
    """Table of methods: simulated iteration time, distance to the best method, and gap to the own bound."""
    table = columns_table("method", "configuration", "iteration >", "to best >", "gap >", "took >")
    best = min((row.iteration_time_s for row in rows if row.iteration_time_s is not None), default=None)
    for row in rows:
        winner = row.iteration_time_s is not None and row.iteration_time_s == best
        behind = "-" if row.iteration_time_s is None or best is None else f"+{percent(row.iteration_time_s / best - 1)}"
        table.add_row(
            Text(row.method, style="bold" if winner else ""),
            row.config,
            "-" if row.iteration_time_s is None else f"{three_digits(row.iteration_time_s)} s",
            Text(behind, style=GOOD if winner else ""),
            "-" if row.gap is None else percent(row.gap),
            f"{three_digits(row.seconds)} s",
        )
    return titled("Simulated iteration time of each method's plan; less is better.", table)
