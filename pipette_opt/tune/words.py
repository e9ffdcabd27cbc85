"""Trials in words: the state of a search, its result, and a table of trials."""

from collections.abc import Sequence

import numpy as np
from rich.console import RenderableType

from pipette_opt.base.table import BAD, GOOD, Cell, Table
from pipette_opt.base.units import chosen_percent, counted, gib, percent, short_seconds
from pipette_opt.report.cells import as_rich
from pipette_opt.tune.choice import SURE
from pipette_opt.tune.folder import OwnRun, TrialRecord, band_words
from pipette_opt.tune.loop import Progress, Tuned

LEAST_SHOWN = 5e-5
"""Least regret that is not shown as none."""


def state_line(progress: Progress) -> str:
    """Return the state of a search in a line: trials, those that run, and what is known so far."""
    running = [record for record in progress.records if not record.is_over]
    parts = [counted(len(progress.records), "trial")]
    if running:
        parts.append(f"running: {', '.join(record.config.label() for record in running)}")
    return "; ".join([*parts, *_known(progress)])


def event_line(progress: Progress) -> str:
    """Return what happened last in a line, and after a result what is known so far."""
    is_next = any(not record.is_over for record in progress.records[-1:])
    return "; ".join([progress.message, *([] if is_next else _known(progress))])


def _known(progress: Progress) -> list[str]:
    """Return the best measured time and the regret left, as clauses; none before the first time."""
    best_s = progress.view.best_s
    if not np.isfinite(best_s):
        return []
    return [f"best measured {short_seconds(best_s)}", f"regret at most {percent(progress.view.regret)}"]


def verdict(tuned: Tuned) -> str:
    """Return the result of a search in a sentence: the best measured configuration, and how far it may be from best."""
    if tuned.best is None:
        return f"No {'run' if tuned.own else 'trial'} has a time: {tuned.reason}."
    of = counted(tuned.num_listed, "configuration")
    far = f"it is at most {percent(tuned.regret)} slower than the best of {of}"
    if tuned.regret < LEAST_SHOWN:
        far = f"it is the fastest of {of}"
    runs, time_s = counted(len(tuned.records), "trial"), short_seconds(tuned.best.time_s)
    which = ""
    if tuned.own:
        runs += f" and {counted(len(tuned.own), 'run')} of your own"
        which = f", {best_words(tuned.best)}"
    return (
        f"Fastest of {runs}: {tuned.best.config.label()}, {time_s} an iteration{which}. With {chosen_percent(SURE)} "
        f"confidence {far}."
    )


def best_words(best: TrialRecord | OwnRun) -> str:
    """Return words for the fastest run: the number of a trial, or the place of a run of the user's own."""
    return f"your run {best.place}" if isinstance(best, OwnRun) else f"trial {best.trial}"


def trials_table(records: Sequence[TrialRecord], own: Sequence[OwnRun] = ()) -> RenderableType:
    """Return a table with a row for each trial, then for each run of the user's own."""
    times_s = [*(record.time_s for record in records), *(run.time_s for run in own)]
    least_s = min((time_s for time_s in times_s if time_s is not None), default=None)

    def measured(time_s: float | None) -> Cell:
        return Cell(short_seconds(time_s), style=GOOD if time_s is not None and time_s == least_s else "")

    of_trials = [
        (
            str(record.trial),
            "-" if record.expected_s is None else band_words(record.expected_s),
            measured(record.time_s),
            "-" if record.peak_bytes is None else f"{gib(record.peak_bytes):.1f}",
            percent(record.fits, decimals=1),
            Cell(record.status, style=BAD if record.status in ("ran out", "refused") else ""),
            record.config.label(),
        )
        for record in records
    ]
    of_own = [
        (
            *("own", "-", measured(run.time_s), "-", "-"),
            Cell("ran out", style=BAD) if run.time_s is None else "timed",
            run.config.label(),
        )
        for run in own
    ]
    headers = ("trial >", "expected >", "measured >", "GiB >", "fits >", "result", "configuration")
    return as_rich(Table(headers=headers, rows=[*of_trials, *of_own]))


def problems(records: Sequence[TrialRecord]) -> list[str]:
    """Return a line for each reason why trials are refused, and for each note on what their results leave open."""
    texts = {record.trial: f"refused: {record.problem}" if record.problem else record.note for record in records}
    trials = {text: [str(trial) for trial, own in texts.items() if own == text] for text in texts.values()}
    return [
        f"- trial{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}: {text}"
        for text, numbers in trials.items()
        if text
    ]
