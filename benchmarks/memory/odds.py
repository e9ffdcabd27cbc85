"""
Ranges and odds of memory on stacks that nobody fitted: ``python -m benchmarks.memory.odds -o PAGE``.

Public runs of every publisher are predicted by Megatron-Core's constants. Two deviations are compared: that of a stack
with these constants, on which bounds and accepted risks rest, and the one that also has the unknown constants
(:mod:`~pipette_opt.specs.memory_prior`). Neither is fitted to these runs. Beside them stands one deviation for all,
between and within publishers, learnt from the other publishers.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from benchmarks.backtest.ci_rows import with_flags
from benchmarks.backtest.sources import measured_runs
from benchmarks.backtest.stage_rows import known_rows
from benchmarks.measured import measured_folder
from benchmarks.memory.learning import EDGES
from benchmarks.worlds.rows import CHECKED_ONLY, NOT_PRETRAINING, SOURCES
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.calibrate.memory_calibration import moved_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.cli.output import check_place
from pipette_opt.cli.program import run_command
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.plans.predicted import NINE_IN_TEN
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import HIDDEN, NEEDED, SHOWN, MemoryConstants
from pipette_opt.specs.memory_prior import unknown_widths

PUBLISHERS: Mapping[str, tuple[str, ...]] = {
    **SOURCES,
    "Mist and Aceso (EuroSys 2025)": ("mist_runs", "mist_stage_memory"),
    **{publisher: (table,) for table, publisher in CHECKED_ONLY.items()},
}
"""Publishers of measured runs, and their tables."""

TESTS = "megatron_ci_golden"
"""Table with options in its notes."""

ON_DEVICE = "nvidia-smi"
"""Word in the notes of peaks of the whole device."""

KNOWN_PEAKS = (1, 2, 5)
"""Numbers of measured peaks that a stack's constants start from. Chosen."""

DRAWS, TESTED = 12, 60
"""Random draws of the known peaks, and most runs that each draw predicts. Chosen."""

ACCEPTED = 0.01
"""Accepted risk of running out of memory, the default of ``solve``."""

LEAST = 1e-6
"""Least probability in the log loss: the odds' own limit."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Odds:
    """
    Predicted memory of runs; arrays have the shape ``(num_runs,)``.

    Parameters
    ----------
    error
        ``log(measured / predicted)`` of each peak; not a number without a peak.
    spread, stack_spread
        Standard deviations of this error, of a stack with the constants and with unknown constants.
    room
        Logarithm of usable over needed memory.
    need_spread, need_stack_spread
        Standard deviations of the need, as of the peak.
    ran_out
        1 if the run ran out of memory, 0 if it fitted; not a number if unknown.
    """

    error: FloatArray
    spread: FloatArray
    stack_spread: FloatArray
    room: FloatArray
    need_spread: FloatArray
    need_stack_spread: FloatArray
    ran_out: FloatArray


def odds(
    folder: Annotated[
        Path | None, typer.Option(help="Folder of measured runs; measured/ in $PIPETTE_OPT_SHARED by default.")
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="File for the page.")] = None,
) -> None:
    """
    Compare ranges and odds of memory with public runs, publisher by publisher.

    Example: [bold]python -m benchmarks.memory.odds -o page.md[/]
    """
    check_place(out)
    folder = folder or measured_folder()
    if not folder.is_dir():
        raise InputError("--folder", f"is no folder of measured runs: {folder}.")
    text = page(published_runs(folder))
    typer.echo(text, nl=False)
    if out is not None:
        write_atomically(out, text)


def published_runs(folder: Path) -> dict[str, list[MemoryRun]]:
    """Return the runs of each publisher whose peak, or whose outcome, can be predicted."""
    found: dict[str, list[MemoryRun]] = {}
    for publisher, tables in PUBLISHERS.items():
        runs = [run for table in tables for run in _runs_of(folder / f"{table}.csv")]
        if runs:
            found[publisher] = runs
    return found


def _runs_of(path: Path) -> list[MemoryRun]:
    """Return the pre-training runs of a table that say what they recompute; none if it is unreadable or missing."""
    if not path.is_file():
        return []
    try:
        runs = measured_runs(path)
    except InputError:  # one table has a precision without a name here
        return []
    with path.open(encoding="utf-8", newline="") as file:
        says = [bool(row.get("recompute")) for row in csv.DictReader(file)]
    chosen = [run for run in runs if says[run.row] and not _is_other(run)]
    if path.stem == TESTS:
        chosen = [flagged for run in chosen if (flagged := with_flags(run)) is not None]
    return [inside_allocator(run, memory) for run, memory in known_rows(chosen, read_stack())]


def _is_other(run: MeasuredRun) -> bool:
    """Return whether a run is fine-tuning, or of a model whose layers are not counted."""
    text = f"{run.model} {run.notes}".lower()
    return any(word in text for word in (*NOT_PRETRAINING, "supervised"))


def inside_allocator(run: MeasuredRun, memory: MemoryRun) -> MemoryRun:
    """Return a peak of the device without what lies outside of the allocator; any other peak unchanged."""
    if memory.peak_gib is None or ON_DEVICE not in run.notes:
        return memory
    constants = MemoryConstants()
    outside = constants.unusable_gib + float((memory.regressors @ (constants.vector() * HIDDEN)).max())
    return replace(memory, peak_gib=memory.peak_gib - outside)


def odds_of(constants: MemoryConstants, runs: Sequence[MemoryRun]) -> Odds:
    """Return the predicted memory of runs by the constants of a stack."""
    rows = []
    for run in runs:
        memory = predict_memory(constants, run)
        shown, need = (
            _unknown(constants, regressors, mask)
            for regressors, mask in ((run.regressors[run.measured_rows], SHOWN), (run.regressors, NEEDED))
        )
        rows.append(
            (
                np.nan if run.peak_gib is None else np.log(run.peak_gib / memory.taken_gib),
                memory.taken_spread,
                np.hypot(memory.taken_spread, shown),
                np.log(max(memory.usable_gib, 1e-3) / memory.needed_gib),
                memory.needed_spread,
                np.hypot(memory.needed_spread, need),
                np.nan if run.ran_out is None else float(run.ran_out),
            )
        )
    return Odds(**dict(zip(Odds.__dataclass_fields__, np.array(rows, dtype=np.float64).T, strict=True)))


def _unknown(constants: MemoryConstants, regressors: FloatArray, mask: BoolArray) -> float:
    """Return the deviation that unknown constants leave in the fullest row."""
    fullest = int((regressors @ (constants.vector() * mask)).argmax())
    return float(unknown_widths(constants, regressors[[fullest]], mask)[0])


def between_and_within(errors: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the standard deviations between and within publishers of ``log(measured / predicted)``, around 0."""
    within = float(np.mean([values.var() for values in errors if len(values) > 2]))
    means = np.array([values.mean() for values in errors])
    chance = np.mean([within / len(values) for values in errors])
    return float(np.sqrt(max((means**2).mean() - chance, 0.0))), float(np.sqrt(within))


def page(published: Mapping[str, Sequence[MemoryRun]]) -> str:
    """Return the page: its answer, then peaks, peaks once some are known, outcomes, and odds beside outcomes."""
    base = MemoryConstants()
    all_odds = {publisher: odds_of(base, runs) for publisher, runs in published.items()}
    peaks = _peaks(all_odds)
    known = _known(published, base)
    outcomes, means = _outcomes(all_odds)
    between, within = between_and_within([values.error[np.isfinite(values.error)] for values in _with_peaks(all_odds)])
    lines = [
        "# Memory of stacks that nobody fitted",
        "",
        f"- Nine in ten peaks are to lie inside a range. With what is unknown about the stack {peaks.whole:.0%} do "
        f"(mean over publishers), by the constants alone {peaks.alone:.0%}, by a deviation learnt from the others "
        f"{peaks.others:.0%}.",
        f"- Odds of running out: log loss {means['stack'][1]:.2f} with what is unknown, {means['alone'][1]:.2f} "
        f"without; Brier score {means['stack'][0]:.3f} and {means['alone'][0]:.3f} (means over publishers).",
        f"- As a limit of 1 % these odds would refuse {means['stack'][2]:.0%} of the jobs that ran; the odds of the "
        f"constants alone refuse {means['alone'][2]:.0%}. So the accepted risk limits these, and the others are shown.",
        "",
        "Megatron-Core's constants, nothing fitted to these runs: `python -m benchmarks.memory.odds -o PAGE`. Rows "
        "that do not say what they recompute, and fine-tuning, are left out. Other software is predicted as if it were "
        "Megatron-LM; that is part of what is unknown.",
        "",
        "## Peaks",
        "",
        f"Error: logarithm of measured over predicted peak. Its standard deviation is {between:.3f} between publishers "
        f"and {within:.3f} within them. Deviations are medians; a range is 1.645 of them to both sides.",
        "",
        "| publisher | peaks | mean error | within | inside: constants alone | others | with unknown | its deviation |",
        "|---|---|---|---|---|---|---|---|",
        *peaks.lines,
        "",
        "## Once peaks of the stack are known",
        "",
        f"{', '.join(map(str, KNOWN_PEAKS))} random peaks move the constants, as `--measured` does; {DRAWS} draws. "
        "Before: the range of the constants alone, which did not change with a measured peak.",
        "",
        "| publisher | known | median error | inside, before | inside | deviation |",
        "|---|---|---|---|---|---|",
        *known,
        "",
        "## Outcomes",
        "",
        "Refused: jobs that ran, with odds above 1 %. Missed: jobs that ran out, with odds of at most 1 %. The first "
        "figure is of the constants alone, the second with what is unknown. Most publishers only print runs that fit.",
        "",
        "| publisher | runs | ran out | Brier score | log loss | refused | missed |",
        "|---|---|---|---|---|---|---|",
        *outcomes,
        "",
        "## Said and seen",
        "",
        "Runs of publishers with failures. Jobs that are published or tried are chosen, so shares are no frequencies.",
        "",
        "| odds | constants alone: runs | said | ran out | with unknown: runs | said | ran out |",
        "|---|---|---|---|---|---|---|",
        *_said_and_seen(all_odds),
    ]
    return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Peaks:
    """Table of peaks, and mean shares inside the ranges: constants alone, deviation of the others, with unknown."""

    lines: list[str]
    alone: float
    others: float
    whole: float


def _with_peaks(all_odds: Mapping[str, Odds]) -> list[Odds]:
    return [values for values in all_odds.values() if np.isfinite(values.error).any()]


def _peaks(all_odds: Mapping[str, Odds]) -> _Peaks:
    """Return the table of peaks: each publisher is left out of the deviation of the others."""
    measured = {name: values for name, values in all_odds.items() if np.isfinite(values.error).any()}
    errors = {name: values.error[np.isfinite(values.error)] for name, values in measured.items()}
    lines, shares = [], []
    for name, values in measured.items():
        has_peak, error = np.isfinite(values.error), errors[name]
        others = np.hypot(*between_and_within([own for other, own in errors.items() if other != name]))
        deviations = (values.spread[has_peak], others, values.stack_spread[has_peak])
        inside = [float((np.abs(error) <= NINE_IN_TEN * deviation).mean()) for deviation in deviations]
        shares.append(inside)
        within = f"{error.std():.3f}" if len(error) > 2 else ""
        lines.append(
            f"| {name} | {len(error)} | {error.mean():+.3f} | {within} | "
            f"{' | '.join(f'{share:.0%}' for share in inside)} | {np.median(deviations[2]):.2f} |"
        )
    alone, of_others, whole = np.mean(shares, axis=0).tolist()
    return _Peaks(lines=lines, alone=alone, others=of_others, whole=whole)


def _known(published: Mapping[str, Sequence[MemoryRun]], base: MemoryConstants) -> list[str]:
    """Return the table of peaks that are predicted once others of the publisher are known."""
    lines, random = [], np.random.default_rng(0)
    for publisher, runs in published.items():
        peaks = [run for run in runs if run.peak_gib is not None]
        for number in [number for number in KNOWN_PEAKS if number + 2 <= len(peaks)]:
            parts = []
            for _ in range(DRAWS):
                order = random.permutation(len(peaks))
                known = [replace(peaks[index], ran_out=False) for index in order[:number]]
                parts.append(odds_of(moved_constants(known, base), [peaks[i] for i in order[number : number + TESTED]]))
            sizes = np.abs(np.concatenate([part.error for part in parts]))
            before, after = (np.concatenate([getattr(part, name) for part in parts]) for name in SPREAD_NAMES)
            inside = [f"{(sizes <= NINE_IN_TEN * deviation).mean():.0%}" for deviation in (before, after)]
            lines.append(
                f"| {publisher} | {number} | {np.median(sizes):.1%} | {' | '.join(inside)} | {np.median(after):.2f} |"
            )
    return lines


SPREAD_NAMES = ("spread", "stack_spread")
"""Fields of the deviations of a peak: of the constants alone, and with what is unknown."""


def _chances(values: Odds) -> dict[str, FloatArray]:
    """Return the odds of running out of memory, by the constants alone and with what is unknown."""
    deviations = {"alone": values.need_spread, "stack": values.need_stack_spread}
    return {name: normal_beyond(values.room / deviation) for name, deviation in deviations.items()}


def _outcomes(all_odds: Mapping[str, Odds]) -> tuple[list[str], dict[str, list[float]]]:
    """Return the table of outcomes, and the means of Brier score, log loss and share refused over publishers."""
    lines, scores = [], defaultdict(list)
    for publisher, values in all_odds.items():
        is_known = np.isfinite(values.ran_out)
        if not is_known.any():
            continue
        ran_out, cells = values.ran_out[is_known] == 1, []
        for name, chances in _chances(values).items():
            chance = chances[is_known]
            likelihood = np.where(ran_out, chance, 1 - chance)
            refused, missed = (chance > ACCEPTED) & ~ran_out, (chance <= ACCEPTED) & ran_out
            brier, loss = float(((chance - ran_out) ** 2).mean()), float(-np.log(np.maximum(likelihood, LEAST)).mean())
            scores[name].append((brier, loss, float(refused.sum() / max((~ran_out).sum(), 1))))
            cells.append((f"{brier:.3f}", f"{loss:.2f}", str(refused.sum()), str(missed.sum())))
        pairs = [f"{first}, {second}" for first, second in zip(*cells, strict=True)]
        lines.append(f"| {publisher} | {len(ran_out)} | {ran_out.sum()} | {' | '.join(pairs)} |")
    return lines, {name: np.mean(rows, axis=0).tolist() for name, rows in scores.items()}


def _said_and_seen(all_odds: Mapping[str, Odds]) -> list[str]:
    """Return the table of odds and outcomes of publishers with failures, by size of the odds."""
    failing = [values for values in all_odds.values() if (values.ran_out == 1).any()]
    ran_out = np.concatenate([values.ran_out for values in failing])
    chances = {name: np.concatenate([_chances(values)[name] for values in failing]) for name in ("alone", "stack")}
    lines = []
    for low, high in pairwise(EDGES):
        cells = []
        for chance in chances.values():
            chosen = np.isfinite(ran_out) & (chance > low if low else chance >= 0) & (chance <= high)
            number = int(chosen.sum())
            shares = [f"{value[chosen].mean():.1%}" if number else "" for value in (chance, ran_out)]
            cells += [str(number), *shares]
        lines.append(f"| {low:.0%} to {high:.0%} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    run_command(odds)
