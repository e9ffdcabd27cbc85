"""
Ranges and odds of memory on stacks that nobody fitted: ``python -m benchmarks.memory.odds -o PAGE``.

Public runs of every publisher are predicted by Megatron-Core's constants, with the deviation that unknown constants add
(:mod:`~pipette_opt.specs.memory_prior`); neither is fitted to these runs. The page shows how many jobs that ran each
accepted risk refuses, and how many that ran out of memory it passes: the table by which
:data:`~pipette_opt.base.risk.USUAL_RISK` was chosen.
"""

import argparse
import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.backtest.ci_rows import with_flags
from benchmarks.backtest.sources import measured_runs
from benchmarks.backtest.stage_rows import known_rows
from benchmarks.measured import measured_folder
from benchmarks.memory.verdicts import EDGES
from benchmarks.page import run_page
from benchmarks.worlds.rows import CHECKED_ONLY, NOT_PRETRAINING, SOURCES
from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_calibration import moved_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.plans.predicted import NINE_IN_TEN
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import HIDDEN, MemoryConstants

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

ACCEPTED = (0.01, 0.03, 0.05, USUAL_RISK, 0.15, 0.2, 0.3)
"""Accepted risks of the page; one is the default of ``solve``. Chosen."""

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
    spread
        Standard deviation of this error.
    chance
        Probability of running out of memory.
    ran_out
        1 if the run ran out of memory, 0 if it fitted; not a number if unknown.
    """

    error: FloatArray
    spread: FloatArray
    chance: FloatArray
    ran_out: FloatArray


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page: ranges and odds of public runs, publisher by publisher."""
    folder = measured_folder()
    if not folder.is_dir():
        raise SystemExit(f"{folder} is no folder of measured runs: set PIPETTE_OPT_SHARED.")
    yield page(published_runs(folder))


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
        rows.append(
            (
                np.nan if run.peak_gib is None else np.log(run.peak_gib / memory.taken_gib),
                np.hypot(memory.taken_spread, memory.taken_unknown),
                oom_probability(memory),
                np.nan if run.ran_out is None else float(run.ran_out),
            )
        )
    return Odds(**dict(zip(Odds.__dataclass_fields__, np.array(rows, dtype=np.float64).T, strict=True)))


def between_and_within(errors: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the standard deviations between and within publishers of ``log(measured / predicted)``, around 0."""
    within = float(np.mean([values.var() for values in errors if len(values) > 2]))
    means = np.array([values.mean() for values in errors])
    chance = np.mean([within / len(values) for values in errors])
    return float(np.sqrt(max((means**2).mean() - chance, 0.0))), float(np.sqrt(within))


def page(published: Mapping[str, Sequence[MemoryRun]]) -> str:
    """Return the page: its answer, accepted risks, peaks, peaks once some are known, outcomes, odds beside outcomes."""
    base = MemoryConstants()
    all_odds = {publisher: odds_of(base, runs) for publisher, runs in published.items()}
    known = _once_known(published, base)
    share, peaks = _peaks(all_odds)
    brier, loss, outcomes = _outcomes(all_odds)
    between, within = between_and_within([values.error[np.isfinite(values.error)] for values in _with_peaks(all_odds)])
    refused, passed = refused_and_passed(all_odds.values(), USUAL_RISK)
    refused_once, passed_once = refused_and_passed(known.odds, USUAL_RISK)
    lines = [
        "# Memory of stacks that nobody fitted",
        "",
        f"- `--max-oom-risk {USUAL_RISK:g}`, the default, refuses {refused:.0%} of the public jobs that ran and passes "
        f"{passed:.1%} of those that ran out of memory; once one peak of the publisher is known {refused_once:.0%} and "
        f"{passed_once:.1%}.",
        f"- Nine in ten peaks are to lie inside a range; {share:.0%} do (mean over publishers).",
        f"- Odds of running out: log loss {loss:.2f}, Brier score {brier:.3f} (means over publishers).",
        "",
        "Megatron-Core's constants, nothing fitted to these runs: `python -m benchmarks.memory.odds -o PAGE`. Rows "
        "that do not say what they recompute, and fine-tuning, are left out. Other software is predicted as if it were "
        "Megatron-LM; that is part of what is unknown.",
        "",
        "## Accepted risks",
        "",
        "Refused: jobs that ran, with a higher risk. Passed: jobs that ran out, with at most this risk. Runs of all "
        "publishers are pooled; the mean over publishers is of the refused. Once a peak is known: of publishers with "
        f"peaks, {DRAWS} random peaks each, one at a time.",
        "",
        "| accepted risk | refused | mean over publishers | passed | refused, one peak known | passed so |",
        "|---|---|---|---|---|---|",
        *_accepted(all_odds, known.odds),
        "",
        "## Peaks",
        "",
        f"Error: logarithm of measured over predicted peak. Its standard deviation is {between:.3f} between publishers "
        f"and {within:.3f} within them. Deviations are medians; a range is 1.645 of them to both sides.",
        "",
        "| publisher | peaks | mean error | within | inside | its deviation |",
        "|---|---|---|---|---|---|",
        *peaks,
        "",
        "## Once peaks of the stack are known",
        "",
        f"{', '.join(map(str, KNOWN_PEAKS))} random peaks move the constants, as `--measured` does; {DRAWS} draws.",
        "",
        "| publisher | known | median error | inside | deviation |",
        "|---|---|---|---|---|",
        *known.lines,
        "",
        "## Outcomes",
        "",
        f"Refused and passed at a risk of {USUAL_RISK:.0%}. Most publishers only print runs that fit.",
        "",
        "| publisher | runs | ran out | Brier score | log loss | refused | passed |",
        "|---|---|---|---|---|---|---|",
        *outcomes,
        "",
        "## Said and seen",
        "",
        "Runs of publishers with failures. Jobs that are published or tried are chosen, so shares are no frequencies.",
        "",
        "| odds | runs | said | ran out |",
        "|---|---|---|---|",
        *_said_and_seen(all_odds),
    ]
    return "\n".join(lines) + "\n"


def refused_and_passed(all_odds: Iterable[Odds], accepted: float) -> tuple[float, float]:
    """Return the shares of jobs that ran with a risk above ``accepted``, and of jobs that ran out with at most that."""
    ran_out, chance = (np.concatenate([getattr(values, name) for values in all_odds]) for name in ("ran_out", "chance"))
    ran, failed = chance[ran_out == 0], chance[ran_out == 1]
    return float((ran > accepted).sum() / max(len(ran), 1)), float((failed <= accepted).sum() / max(len(failed), 1))


def _accepted(all_odds: Mapping[str, Odds], once: Sequence[Odds]) -> list[str]:
    """Return the table of accepted risks with the shares refused and passed."""
    lines = []
    for accepted in ACCEPTED:
        refused, passed = refused_and_passed(all_odds.values(), accepted)
        mean = np.mean([refused_and_passed([values], accepted)[0] for values in all_odds.values() if _has_run(values)])
        once_refused, once_passed = refused_and_passed(once, accepted)
        cells = (refused, mean, passed, once_refused, once_passed)
        name = f"**{accepted:.0%}**" if accepted == USUAL_RISK else f"{accepted:.0%}"
        lines.append(f"| {name} | {' | '.join(f'{cell:.1%}' for cell in cells)} |")
    return lines


def _has_run(values: Odds) -> bool:
    return bool((values.ran_out == 0).any())


def _with_peaks(all_odds: Mapping[str, Odds]) -> list[Odds]:
    return [values for values in all_odds.values() if np.isfinite(values.error).any()]


def _peaks(all_odds: Mapping[str, Odds]) -> tuple[float, list[str]]:
    """Return the mean share of peaks inside their ranges over publishers, and the table of peaks."""
    lines, shares = [], []
    for name, values in all_odds.items():
        has_peak = np.isfinite(values.error)
        if not has_peak.any():
            continue
        error, deviation = values.error[has_peak], values.spread[has_peak]
        shares.append(float((np.abs(error) <= NINE_IN_TEN * deviation).mean()))
        within = f"{error.std():.3f}" if len(error) > 2 else ""
        cells = (name, len(error), f"{error.mean():+.3f}", within, f"{shares[-1]:.0%}", f"{np.median(deviation):.2f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return float(np.mean(shares)), lines


@dataclass(frozen=True, slots=True, kw_only=True)
class _OnceKnown:
    """Table of peaks predicted once others are known, and the odds of all other runs once one peak is known."""

    lines: list[str]
    odds: list[Odds]


def _once_known(published: Mapping[str, Sequence[MemoryRun]], base: MemoryConstants) -> _OnceKnown:
    """Predict the runs of each publisher once some of its peaks are known."""
    lines, found, random = [], [], np.random.default_rng(0)
    for publisher, runs in published.items():
        peaks = [run for run in runs if run.peak_gib is not None]
        for number in [number for number in KNOWN_PEAKS if number + 2 <= len(peaks)]:
            parts = []
            for _ in range(DRAWS):
                order = random.permutation(len(peaks))
                known = [replace(peaks[index], ran_out=False) for index in order[:number]]
                moved = moved_constants(known, base)
                parts.append(odds_of(moved, [peaks[index] for index in order[number : number + TESTED]]))
                if number == 1:
                    others = [run for run in runs if run is not peaks[order[0]] and run.ran_out is not None]
                    found += [odds_of(moved, others)] if others else []
            sizes = np.abs(np.concatenate([part.error for part in parts]))
            spread = np.concatenate([part.spread for part in parts])
            inside = (sizes <= NINE_IN_TEN * spread).mean()
            lines.append(
                f"| {publisher} | {number} | {np.median(sizes):.1%} | {inside:.0%} | {np.median(spread):.2f} |"
            )
    return _OnceKnown(lines=lines, odds=found)


def _outcomes(all_odds: Mapping[str, Odds]) -> tuple[float, float, list[str]]:
    """Return the means of Brier score and log loss over publishers, and the table of outcomes."""
    lines, scores = [], []
    for publisher, values in all_odds.items():
        is_known = np.isfinite(values.ran_out)
        if not is_known.any():
            continue
        ran_out, chance = values.ran_out[is_known] == 1, values.chance[is_known]
        likelihood = np.where(ran_out, chance, 1 - chance)
        brier, loss = float(((chance - ran_out) ** 2).mean()), float(-np.log(np.maximum(likelihood, LEAST)).mean())
        refused, passed = ((chance > USUAL_RISK) & ~ran_out).sum(), ((chance <= USUAL_RISK) & ran_out).sum()
        scores.append((brier, loss))
        lines.append(
            f"| {publisher} | {len(ran_out)} | {ran_out.sum()} | {brier:.3f} | {loss:.2f} | {refused} | {passed} |"
        )
    brier, loss = np.mean(scores, axis=0).tolist()
    return brier, loss, lines


def _said_and_seen(all_odds: Mapping[str, Odds]) -> list[str]:
    """Return the table of odds and outcomes of publishers with failures, by size of the odds."""
    failing = [values for values in all_odds.values() if (values.ran_out == 1).any()]
    ran_out, chance = (np.concatenate([getattr(values, name) for values in failing]) for name in ("ran_out", "chance"))
    lines = []
    for low, high in pairwise(EDGES):
        chosen = np.isfinite(ran_out) & (chance > low if low else chance >= 0) & (chance <= high)
        shares = [f"{value[chosen].mean():.1%}" if chosen.any() else "" for value in (chance, ran_out)]
        lines.append(f"| {low:.0%} to {high:.0%} | {chosen.sum()} | {' | '.join(shares)} |")
    return lines


if __name__ == "__main__":
    run_page(make)
