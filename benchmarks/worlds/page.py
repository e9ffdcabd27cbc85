"""Page of results: how far times are off, and how often bands hold, with the source left out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.worlds.few import NUMBERS, Few, few_runs
from benchmarks.worlds.judge import Judged, judge
from benchmarks.worlds.larger import Larger, larger_jobs
from benchmarks.worlds.ratios import Ranges, judge_ratios
from benchmarks.worlds.rows import CHECKED_ONLY, SOURCES, Row
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.worlds.bands import SHARE
from pipette_opt.worlds.jobs import job_kind
from pipette_opt.worlds.prior import Prior, Priors
from pipette_opt.worlds.worlds import Worlds

MANY_PAIRS = 50
"""Number of pairs from which on a table's share inside is more than an anecdote. Chosen."""

LOSES = 0.005
"""Difference of median errors from which on one way counts as better. Chosen."""


def judged_tables(rows: Sequence[Row], priors: Priors) -> dict[str, Judged]:
    """Return the errors of each table with jobs of several runs, by the prior without its publisher."""
    judged = {table: judge(own, prior_without(table, priors)) for table, own in by_table(rows).items()}
    return {table: found for table, found in judged.items() if found.jobs}


class Alone(NamedTuple):
    """
    Runs of a table by the prior without its publisher, none of them known; each of shape ``(num_runs,)``.

    Parameters
    ----------
    ends
        Lower end, middle and upper end of measured over predicted time, shape ``(num_runs, 3)``.
    ratios
        Measured over predicted time.
    kinds
        Kind of each run's job.
    """

    ends: FloatArray
    ratios: FloatArray
    kinds: Sequence[str]

    @property
    def is_inside(self) -> BoolArray:
        """Mask of the runs that lie in their bands."""
        return (self.ends[:, 0] <= self.ratios) & (self.ratios <= self.ends[:, 2])

    @property
    def width(self) -> float:
        """Median of upper minus lower end, over the middle."""
        return _median((self.ends[:, 2] - self.ends[:, 0]) / self.ends[:, 1])

    @property
    def error(self) -> float:
        """Median of the middle's relative error."""
        return _median(np.abs(self.ends[:, 1] / self.ratios - 1))

    def of(self, kind: str) -> "Alone":
        """Return the runs of one kind of job."""
        chosen = np.array(self.kinds) == kind
        return Alone(self.ends[chosen], self.ratios[chosen], [kind] * int(chosen.sum()))


def judged_alone(rows: Sequence[Row], priors: Priors) -> dict[str, Alone]:
    """Return the bands of each table's runs by the prior without its publisher."""
    found = {}
    for table, own in by_table(rows).items():
        prior = prior_without(table, priors)
        middle = np.exp(prior.job_mean(np.array([row.reference for row in own])))
        bands = Worlds(prior=prior).bands(np.array([row.terms for row in own]), SHARE) * middle[:, None]
        bands = np.column_stack([np.minimum(bands[:, 0], middle), middle, np.maximum(bands[:, 2], middle)])
        ratios = np.exp([row.log_ratio for row in own])
        found[table] = Alone(bands, ratios, [job_kind(row.case.instance) for row in own])
    return found


def by_table(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Return the rows of each table."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.table, []).append(row)
    return found


def prior_without(table: str, priors: Priors) -> Prior:
    """Return the prior that has not seen the publisher of a table."""
    publishers = {name: publisher for publisher, tables in SOURCES.items() for name in tables}
    return priors.without[publishers[table]] if table in publishers else priors.all_sources


def page_of(rows: Sequence[Row], priors: Priors) -> str:
    """Return the page."""
    tables = judged_tables(rows, priors)
    larger = {}
    for table, own in by_table(rows).items():
        result = larger_jobs(own, prior_without(table, priors))
        if result is not None:
            larger[table] = result
    alone = judged_alone(rows, priors)
    ratios = {table: judge_ratios(own, prior_without(table, priors)) for table, own in by_table(rows).items()}
    of_pairs = ratio_lines({table: found for table, found in ratios.items() if found is not None})
    few = {table: few_runs(own, prior_without(table, priors)) for table, own in by_table(rows).items()}
    answer = _answer(tables, larger, alone)
    parts = (answer, _tables(tables), _few(few), _alone(alone), of_pairs, _larger(larger))
    return "\n".join([line for part in parts for line in part] + [""])


def _answer(tables: Mapping[str, Judged], larger: Mapping[str, Larger], alone: Mapping[str, Alone]) -> list[str]:
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
    return [
        "# Worlds: times and bands, without a run and with one",
        "",
        f"- Without a run, {np.mean([runs.is_inside.mean() for runs in alone.values()]):.0%} of the runs lie inside "
        f"their bands (mean over {len(alone)} tables; {SHARE:.0%} is meant). The median table's band is "
        f"{np.median([runs.width for runs in alone.values()]):.2f} of the time wide, its error "
        f"{100 * np.median([runs.error for runs in alone.values()]):.0f} %.",
        f"- With one run known, expected times are those of one factor. The worlds would be better in {len(won)} of "
        f"{len(tables)} tables ({', '.join(won)}), and worse in {len(lost)} ({', '.join(lost) or 'none'}).",
        f"- {inside:.0%} of the runs lie inside their bands with one run known (mean over tables; {SHARE:.0%} is "
        f"meant). The median band is {np.median(widths):.1f} times as wide as the median error (4.9 for "
        f"normal errors), and {np.median(needed):.1f} times as wide as nine in ten of the errors need.",
        f"- The largest jobs, once the smaller ones calibrated the stack: worse than by the shipped stack in "
        f"{len(worse)} of {len(larger)} tables ({', '.join(worse) or 'none'}).",
        f"- {covered:.0%} of these largest jobs lie inside their bands (mean over tables).",
        "",
        "What is shown is the simulated time times one factor of the job, so that order, proof and gap are those of "
        "simulated times. It costs this much accuracy beside the worlds, which weigh layouts, too.",
        "",
        "Each table is predicted by the prior without its publisher, nothing tuned to it: `python -m benchmarks.worlds "
        f"--page PAGE`. In no prior: {', '.join(CHECKED_ONLY.values())}.",
        "",
    ]


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


def _few(few: Mapping[str, Mapping[int, Few]]) -> list[str]:
    lines = [
        "## A few runs known",
        "",
        "Errors of the other runs of a job once some of its runs, drawn at random, are known: as shown (constants at "
        "their posterior mean, one factor) / with one factor alone / by the worlds, on which `tune` and regret work.",
        "",
        f"| table | draws | {' | '.join(f'{number} known' for number in NUMBERS)} |",
        f"|---|---|{'---|' * len(NUMBERS)}",
    ]
    for name, found in few.items():
        cells = [
            " / ".join(f"{100 * error:.1f}" for error in (own.shown, own.factor, own.worlds)) + " %" if own else "-"
            for own in (found.get(number) for number in NUMBERS)
        ]
        if found:
            lines.append(f"| {name} | {max(own.draws for own in found.values())} | {' | '.join(cells)} |")
    return [*lines, "", "Medians over the other runs of a draw, means over draws.", ""]


def _alone(alone: Mapping[str, Alone]) -> list[str]:
    heads = ("runs | expected | nine in ten | inside | width | error |", "---|---|---|---|---|---|")
    lines = [
        "## Without a run",
        "",
        "By kind of job, over all tables. Each run by the prior without its publisher.",
        "",
    ]
    lines += [f"| public runs of | publishers | {heads[0]}", f"|---|---|{heads[1]}"]
    publishers = {table: publisher for publisher, own in SOURCES.items() for table in own} | CHECKED_ONLY
    counts = Counter(kind for runs in alone.values() for kind in runs.kinds)
    for kind in sorted(counts):
        parts = {table: own for table, runs in alone.items() if len((own := runs.of(kind)).ratios)}
        ends, ratios = (np.concatenate([part[number] for part in parts.values()]) for number in range(2))
        together = Alone(ends, ratios, [kind] * len(ratios))
        lines.append(f"| {kind} | {len({publishers[table] for table in parts})} | {_cells(together)} |")
    lines += ["", f"| table | {heads[0]}", f"|---|{heads[1]}"]
    lines += [f"| {table} | {_cells(runs)} |" for table, runs in alone.items()]
    about = "Expected and nine in ten: medians of the bands, as shares of the simulated time. Width and error: medians."
    return [*lines, "", about, ""]


def _cells(runs: Alone) -> str:
    low, middle, high = np.median(runs.ends, axis=0)
    return (
        f"{len(runs.ratios)} | {middle:.2f} | {low:.2f} to {high:.2f} | {runs.is_inside.mean():.0%} | "
        f"{runs.width:.2f} | {100 * runs.error:.1f} %"
    )


def _over_needed(judged: Judged) -> float:
    """Return the median width of bands over the width that holds ``SHARE`` of the runs around the same times."""
    return _median(judged.width) / (2 * float(np.quantile(judged.anchored, SHARE)))


def _larger(larger: Mapping[str, Larger]) -> list[str]:
    lines = [
        "## Larger jobs",
        "",
        "Runs with the most GPUs of a table, once its runs with fewer GPUs calibrated the stack "
        "(`pipette-opt calibrate`). Median errors.",
        "",
        "| table | runs | known | shipped | calibrated | inside | constants |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in larger.items():
        lines.append(
            f"| {name} | {result.runs} | {result.known} | {100 * result.shipped:.1f} % | "
            f"{100 * result.calibrated:.1f} % | {result.inside:.0%} | "
            f"{'fitted' if result.is_fitted else 'kept'} |"
        )
    return lines


def ratio_lines(tables: Mapping[str, Ranges]) -> list[str]:
    """Return the section on ratios of two times of one job, answer first."""
    inside, width = np.mean([(ranges.inside, ranges.width) for ranges in tables.values()], axis=0)
    many = [ranges.inside for ranges in tables.values() if ranges.pairs >= MANY_PAIRS]
    lines = [
        "## Two plans of one job",
        "",
        f"Without a known run, {inside:.0%} of the measured ratios of two layouts' times lie inside their ranges (mean "
        f"over tables; {SHARE:.0%} is meant), {np.mean(many) if many else 0:.0%} in the {len(many)} tables with "
        f"{MANY_PAIRS} pairs or more. The mean width is {width:.2f} of the logarithm.",
        "",
        "Score: mean interval score, lower is better; a pair outside adds 20 times its distance from the range.",
        "",
        "| table | pairs | inside | width | score | error shipped | error worlds |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in tables.items():
        errors = " | ".join(f"{100 * np.expm1(error):.1f} %" for error in (found.shipped, found.error))
        lines.append(
            f"| {name} | {found.pairs:,} | {found.inside:.0%} | {found.width:.2f} | {found.score:.2f} | {errors} |"
        )
    return [*lines, ""]


def _median(values: FloatArray) -> float:
    return float(np.median(values))
