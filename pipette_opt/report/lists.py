"""Table of configurations, for ``candidates``."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.prepare import CandidateRow
from pipette_opt.report.cells import BAD, GOOD, QUIET, columns_table, seconds_text, spaced


def candidates_table(rows: Iterable[CandidateRow]) -> RenderableType:
    """Table of legal configurations: whether each fits in memory, and a lower bound on its time."""
    table = columns_table("candidate", "GPUs >", "memory, at most >", "fits", "at best >")
    for row in rows:
        table.add_row(
            Text(row.config.label(), style="" if row.fits else QUIET),
            str(row.config.world_size),
            f"{row.need_gib:.1f} GiB",
            Text("yes", style=GOOD) if row.fits else Text("no", style=BAD),
            seconds_text(row.fastest_s),
        )
    return spaced(table)
