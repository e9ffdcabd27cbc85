"""Choices on the page of ``python -m benchmarks.systems``: a row for each job, a column for each system."""

import statistics
from collections.abc import Sequence
from itertools import groupby

from benchmarks.page import table
from benchmarks.systems.methods import LACKS, SystemRow

AS_FAST = 5e-4
"""Relative difference below which two times count as equal. Chosen."""


def choices_section(rows: Sequence[SystemRow]) -> str:
    """Return the section: seconds of this project, the other systems' additional time in percent, and all choices."""
    systems = list(LACKS)
    cases = [(name, {row.system: row for row in group}) for name, group in groupby(rows, key=lambda row: row.case)]
    jobs = [
        (name, *_ours(found[systems[0]]), *(_more(found.get(system), found[systems[0]]) for system in systems[1:]))
        for name, found in cases
    ]
    summary = []
    for system in systems[1:]:
        ratios = [
            row.iteration_time_s / found[systems[0]].iteration_time_s - 1  # type: ignore[operator]
            for _, found in cases
            if (row := found.get(system)) is not None
            and row.iteration_time_s is not None
            and found[systems[0]].iteration_time_s is not None
        ]
        summary.append(
            (
                *(system, f"{len(ratios)} of {len(cases)}", sum(abs(ratio) <= AS_FAST for ratio in ratios)),
                *(sum(ratio < -AS_FAST for ratio in ratios), f"{statistics.median(ratios):+.1%}" if ratios else "-"),
                *(f"{max(ratios):+.1%}" if ratios else "-", LACKS[system]),
            )
        )
    choices = "\n".join(
        f"**{name}**\n\n" + "".join(f"- {row.system}: {row.choice}, {_seconds(row)}\n" for row in found.values())
        for name, found in cases
    )
    return (
        "## On the same jobs, by the same simulator\n\nEvery choice is timed by the simulator on the measured links; "
        "memory is predicted alike for all. Gap: proven maximum by which a plan of this project's space could be "
        "faster. Other systems: time over this project's plan; below zero: faster.\n\n"
        + table(("job", systems[0], "gap", *systems[1:]), jobs)
        + "\n"
        + table(("system", "jobs with a plan", "as fast", "faster", "median", "worst", "its world lacks"), summary)
        + f"\nThis project's own space lacks: {LACKS[systems[0]]}.\n\n### Choices\n\n{choices}"
    )


def _ours(row: SystemRow) -> list[str]:
    if row.iteration_time_s is None or row.lower_bound_s is None:
        return ["-", "-"]
    return [f"{row.iteration_time_s:.4g} s", f"{1 - row.lower_bound_s / row.iteration_time_s:.2%}"]


def _more(row: SystemRow | None, ours: SystemRow) -> str:
    if row is None or row.iteration_time_s is None or ours.iteration_time_s is None:
        return "-"
    return f"{row.iteration_time_s / ours.iteration_time_s - 1:+.1%}"


def _seconds(row: SystemRow) -> str:
    searched = f"searched for {row.seconds:.1f} s"
    return searched if row.iteration_time_s is None else f"{row.iteration_time_s:.4g} s, {searched}"
