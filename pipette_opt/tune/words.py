"""Trials in words: the state of a search, its result, and a table of trials."""

from collections.abc import Sequence

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import GIB, counted, percent
from pipette_opt.report.cells import BAD, GOOD, columns_table, spaced
from pipette_opt.tune.choice import SURE
from pipette_opt.tune.folder import TrialRecord
from pipette_opt.tune.loop import Progress, Tuned


def state_line(progress: Progress) -> str:
    """Return the state of a search in a line: trials, best measured, regret left."""
    records, best_s = progress.records, progress.view.best_s
    running = [record for record in records if not record.is_over]
    parts = [counted(len(records), "trial")]
    if running:
        parts.append(f"running: {', '.join(record.config.label() for record in running)}")
    if np.isfinite(best_s):
        parts += [f"best measured {best_s:.4g} s", f"regret at most {percent(progress.view.regret)}"]
    return "; ".join(parts)


def verdict(tuned: Tuned) -> str:
    """Return the result of a search in a sentence: the best measured configuration, and how far it may be from best."""
    if tuned.best is None:
        return f"No trial has a time: {tuned.reason}."
    return (
        f"Fastest of {counted(len(tuned.records), 'trial')}: {tuned.best.config.label()}, {tuned.best.time_s:.4g} s an "
        f"iteration. With {SURE:.0%} confidence it is at most {percent(tuned.regret)} slower than the best of "
        f"{counted(tuned.num_listed, 'configuration')}."
    )


def trials_table(records: Sequence[TrialRecord]) -> RenderableType:
    """Return a table with a row for each trial."""
    table = columns_table("trial >", "predicted >", "measured >", "GiB >", "odds >", "result", "configuration")
    least_s = min((record.time_s for record in records if record.time_s is not None), default=None)
    for record in records:
        style = GOOD if record.time_s is not None and record.time_s == least_s else ""
        table.add_row(
            Text(str(record.trial)),
            Text(f"{record.predicted_s:.4g} s"),
            Text("-" if record.time_s is None else f"{record.time_s:.4g} s", style=style),
            Text("-" if record.peak_bytes is None else f"{record.peak_bytes / GIB:.1f}"),
            Text(f"{record.fits:.0%}"),
            Text(record.status, style=BAD if record.status in ("ran out", "refused") else ""),
            Text(record.config.label()),
        )
    return spaced(table)


def problems(records: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each refused trial, with the reason."""
    return [f"- trial {record.trial} is refused: {record.problem}" for record in records if record.problem]
