"""Page of ``python -m benchmarks.systems``: a row for each job, a column for each system."""

import statistics
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import groupby

from benchmarks.command import environment
from benchmarks.systems.methods import LACKS, SystemRow

AS_FAST = 5e-4
"""Relative difference below which two times count as equal. Chosen."""


def markdown(rows: Sequence[SystemRow], seed: int, time_limit_s: float) -> str:
    """Return the page: seconds of this project, the other systems' additional time in percent, and all choices."""
    systems = list(LACKS)
    lines = [
        "# Choices of each system",
        "",
        f"`python -m benchmarks.systems --seed {seed} --time-limit {time_limit_s:g}`, {datetime.now(UTC):%Y-%m-%d}, "
        f"{environment()}.",
        "",
        "Every choice is timed by the simulator on the measured links; memory is predicted alike for all. Gap: proven "
        "maximum by which a plan of this project's space could be faster. Other systems: time over this project's "
        "plan; below zero: faster.",
        "",
        _row(["job", systems[0], "gap", *systems[1:]]),
        _row(["---"] * (len(systems) + 2)),
    ]
    cases = [(name, {row.system: row for row in group}) for name, group in groupby(rows, key=lambda row: row.case)]
    for name, found in cases:
        ours = found[systems[0]]
        cells = [name, *_ours(ours), *(_more(found.get(system), ours) for system in systems[1:])]
        lines.append(_row(cells))
    lines += ["", _row(["system", "jobs with a plan", "as fast", "faster", "median", "worst", "its world lacks"])]
    lines.append(_row(["---"] * 7))
    for system in systems[1:]:
        ratios = [
            row.iteration_time_s / found[systems[0]].iteration_time_s - 1  # type: ignore[operator]
            for _, found in cases
            if (row := found.get(system)) is not None
            and row.iteration_time_s is not None
            and found[systems[0]].iteration_time_s is not None
        ]
        lines.append(
            _row(
                [
                    system,
                    f"{len(ratios)} of {len(cases)}",
                    str(sum(abs(ratio) <= AS_FAST for ratio in ratios)),
                    str(sum(ratio < -AS_FAST for ratio in ratios)),
                    f"{statistics.median(ratios):+.1%}" if ratios else "-",
                    f"{max(ratios):+.1%}" if ratios else "-",
                    LACKS[system],
                ]
            )
        )
    lines += ["", f"This project's own space lacks: {LACKS[systems[0]]}.", "", "## Choices", ""]
    for name, found in cases:
        lines += [f"**{name}**", ""]
        lines += [f"- {row.system}: {row.choice}, {_seconds(row)}" for row in found.values()]
        lines.append("")
    return "\n".join(lines)


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


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
