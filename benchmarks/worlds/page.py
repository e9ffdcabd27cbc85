"""Page of results: how far times are off once a run is known, and how often bands hold, with the source left out."""

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.worlds.judge import Judged, judge
from benchmarks.worlds.larger import ALL_CONSTANTS, Larger, larger_jobs
from benchmarks.worlds.rows import CHECKED_ONLY, SOURCES, Row
from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.prior import KINDS, Priors
from pipette_opt.worlds.worlds import Worlds

LOSES = 0.005
"""Difference of median errors from which on one way counts as better. Chosen."""

SHARE = 0.9
"""Share of runs that a band is meant to hold."""


def judged_tables(rows: Sequence[Row], priors: Priors) -> dict[str, Judged]:
    """Return the errors of each table with jobs of several runs, by the prior without its publisher."""
    publishers = {table: publisher for publisher, tables in SOURCES.items() for table in tables}
    found = {}
    for table in dict.fromkeys(row.table for row in rows):
        own = [row for row in rows if row.table == table]
        prior = priors.without[publishers[table]] if table in publishers else priors.all_sources
        judged = judge(own, prior)
        if judged.jobs:
            found[table] = judged
    return found


def page_of(rows: Sequence[Row], priors: Priors) -> str:
    """Return the page."""
    tables = judged_tables(rows, priors)
    larger = {}
    publishers = {table: publisher for publisher, own in SOURCES.items() for table in own}
    for table in dict.fromkeys(row.table for row in rows):
        own = [row for row in rows if row.table == table]
        prior = priors.without[publishers[table]] if table in publishers else priors.all_sources
        result = larger_jobs(own, Worlds(prior=prior))
        if result is not None:
            larger[table] = result
    return "\n".join([*_answer(tables, larger, priors), *_tables(tables), *_larger(larger), ""])


def _answer(tables: Mapping[str, Judged], larger: Mapping[str, Larger], priors: Priors) -> list[str]:
    inside = float(np.mean([judged.inside.mean() for judged in tables.values()]))
    widths = [_median(judged.width) / _median(judged.anchored) for judged in tables.values()]
    needed = [_over_needed(judged) for judged in tables.values()]
    won = [name for name, judged in tables.items() if _median(judged.anchored) < _median(judged.scaled) - LOSES]
    lost = [
        f"{name} with {len(judged.anchored):,} pairs"
        for name, judged in tables.items()
        if _median(judged.anchored) > _median(judged.scaled) + LOSES
    ]
    worse = [name for name, result in larger.items() if result.calibrated > result.shipped + LOSES]
    covered = float(np.mean([result.inside for result in larger.values()]))
    of_all = [name for name, error in ALL_CONSTANTS.items() if error / 100 > larger[name].shipped + LOSES]
    return [
        "# Worlds: times and bands once a run is known",
        "",
        f"- One run of a job makes the others better than one factor does in {len(won)} of {len(tables)} tables "
        f"({', '.join(won)}), and worse in {len(lost)} ({', '.join(lost) or 'none'}); elsewhere as good.",
        f"- {inside:.0%} of the runs lie inside their bands with one run known (mean over tables; {SHARE:.0%} is "
        f"meant). The median band is {np.median(widths):.1f} times as wide as the median error (4.9 for "
        f"normal errors), and {np.median(needed):.1f} times as wide as nine in ten of the errors need.",
        f"- The largest jobs, once the smaller ones calibrated the stack: worse than by the shipped stack in "
        f"{len(worse)} of {len(larger)} tables ({', '.join(worse) or 'none'}). Fitting all constants, as calibrate did "
        f"before, was worse in {len(of_all)} of {len(ALL_CONSTANTS)} ({', '.join(of_all)}).",
        f"- {covered:.0%} of these largest jobs lie inside their bands (mean over tables).",
        "",
        "Plain scaling by the known run is one of the kinds of stack that the worlds weigh, with the share that the "
        f"other sources give it ({_scaled_share(priors):.0%} of all); where the runs speak for it, its times and bands "
        "are shown.",
        "",
        "Each table is predicted by the prior without its publisher, nothing tuned to it: `python -m benchmarks.worlds "
        f"--page PAGE`. {', '.join(CHECKED_ONLY.values())} is in no prior.",
        "",
    ]


def _scaled_share(priors: Priors) -> float:
    """Return the share of stacks that are off by one factor for all layouts of a job."""
    return priors.all_sources.kinds[KINDS.index("scaled")].share


def _tables(tables: Mapping[str, Judged]) -> list[str]:
    lines = [
        "| table | runs | jobs | pairs | error shipped | prior alone | one run: one factor | one run: worlds | "
        "mean: factor | mean: worlds | inside | width / error | width / needed |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, judged in tables.items():
        errors = (judged.shipped, judged.prior, judged.scaled, judged.anchored)
        medians = " | ".join(f"{100 * _median(error):.1f} %" for error in errors)
        means = " | ".join(f"{100 * float(error.mean()):.1f} %" for error in (judged.scaled, judged.anchored))
        lines.append(
            f"| {name} | {judged.runs} | {judged.jobs} | {len(judged.anchored):,} | {medians} | {means} | "
            f"{judged.inside.mean():.0%} | {_median(judged.width) / _median(judged.anchored):.1f} | "
            f"{_over_needed(judged):.1f} |"
        )
    about = (
        "Medians over all pairs of a known run and another run of its job. Needed: twice the error that nine in ten "
        "pairs stay below. Where most pairs repeat a layout, the median error is far below it; few pairs tell little."
    )
    return [*lines, "", about, ""]


def _over_needed(judged: Judged) -> float:
    """Return the median width of bands over the width that holds ``SHARE`` of the runs around the same times."""
    return _median(judged.width) / (2 * float(np.quantile(judged.anchored, SHARE)))


def _larger(larger: Mapping[str, Larger]) -> list[str]:
    lines = [
        "## Larger jobs",
        "",
        "Runs with the most GPUs of a table, once its runs with fewer GPUs calibrated the stack "
        "(`pipette-opt calibrate`). Median errors. Before: all constants fitted, on 27 November 2026.",
        "",
        "| table | runs | known | shipped | calibrated | before | inside | constants |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, result in larger.items():
        before = f"{ALL_CONSTANTS[name]:.1f} %" if name in ALL_CONSTANTS else ""
        lines.append(
            f"| {name} | {result.runs} | {result.known} | {100 * result.shipped:.1f} % | "
            f"{100 * result.calibrated:.1f} % | {before} | {result.inside:.0%} | "
            f"{'fitted' if result.is_fitted else 'kept'} |"
        )
    return lines


def _median(values: FloatArray) -> float:
    return float(np.median(values))
