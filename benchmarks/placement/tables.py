"""Results of the placement benchmark: rows as CSV, medians over seeds as a Markdown table, and the machine."""

import csv
import io
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

from benchmarks.placement.run import BASELINES, FAILED, BenchRow
from pipette_opt import __version__
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import note_continued
from pipette_opt.read.files import read_csv

HEADER = (
    "cluster",
    "weights",
    "sends",
    "hosts",
    "shape",
    "objective s",
    "bound s",
    "placement gap",
    "worst",
    "closed",
    "seconds",
    "limit",
    "goal",
    "met",
    "annealing",
    "Pipette's annealing",
    "AMP",
    "Varuna",
    "listed order",
)

EXPLANATION = (
    "Medians over the seeds of a row. Placement gap: objective minus proven bound, over the part of the objective that "
    "placement can change (the objective minus the same with free transfers between hosts); worst: of all seeds; "
    "closed: seeds with gap 0. Seconds: wall time of the solver with the annealing of its first incumbent, without "
    'imports and compilation; limit: what it had, which can be less than the goal allows (then "not yet"); '
    "with a star it stopped as soon as its goal was met. The last five columns: objective of the baseline minus the "
    "solver's, over the same part; negative would be better than the solver; a dash where the method has no placement. "
    "Both annealings had the solver's seconds, each on a thread of its own."
)

_GROUP = ("cluster", "weights", "p2p", "num_used", "num_listed", "shape", "limit_s", "target_s", "stops_at_goal")

_LATER = ("stops_at_goal",)
"""Columns that older files lack."""


def csv_text(rows: Iterable[BenchRow]) -> str:
    """Return all rows as CSV, one line each."""
    text = io.StringIO()
    names = [field.name for field in fields(BenchRow)]
    writer = csv.DictWriter(text, fieldnames=names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return text.getvalue()


def read_rows(path: Path) -> list[BenchRow]:
    """Return the rows of a file written from :func:`csv_text`."""
    kinds = get_type_hints(BenchRow)
    rows: list[BenchRow] = []
    note_continued(path)
    for number, line in read_csv(path)[1]:
        try:
            known = [name for name in kinds if name in line or name not in _LATER]
            rows.append(BenchRow(**{name: _value(line[name], kinds[name]) for name in known}))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            problem = f"line {number} is no row of this benchmark ({error}); write to another file."
            raise InputError(str(path), problem) from None
    return rows


def _value(text: str, kind: Any) -> Any:
    options = get_args(kind) or (kind,)
    if text == "" and type(None) in options:
        return None
    if kind is bool:
        return {"True": True, "False": False}[text]
    return next(option for option in options if option is not type(None))(text)


def summary(rows: Sequence[BenchRow]) -> list[list[str]]:
    """Return the cells of the table: medians over the seeds, in the order in which groups first appear."""
    return [_cells(group) for group in _groups(rows)]


def _groups(rows: Iterable[BenchRow]) -> list[list[BenchRow]]:
    groups: dict[tuple[object, ...], list[BenchRow]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in _GROUP), []).append(row)
    return list(groups.values())


def _cells(group: Sequence[BenchRow]) -> list[str]:
    first = group[0]
    gaps = [row.placement_gap for row in group if row.placement_gap is not None]
    solved = len(gaps) == len(group)
    gap = statistics.median(gaps) if solved else None
    seconds = statistics.median(row.seconds for row in group)
    hosts = str(first.num_used) if first.num_used == first.num_listed else f"{first.num_used} of {first.num_listed}"
    return [
        first.cluster,
        first.weights,
        first.p2p,
        hosts,
        first.shape,
        _number(_median(row.objective_s for row in group)),
        _number(_median(row.lower_bound_s for row in group)),
        _percent(gap),
        _percent(max(gaps)) if solved else "-",
        f"{sum(row.status == 'OPTIMAL' for row in group)}/{len(group)}",
        f"{seconds:.1f}",
        f"{first.limit_s:g}" + "*" * first.stops_at_goal,
        "-" if first.target is None else f"{100 * first.target:g}% in {first.target_s:g} s",
        _is_met(first, gap),
        *(_signed(_median(row.above(name) for row in group)) for name in BASELINES),
    ]


def _is_met(first: BenchRow, gap: float | None) -> str:
    if first.target is None or first.target_s is None:
        return "-"
    if gap is not None and gap <= first.target + 1e-12:
        return "yes"
    return "no" if first.limit_s >= first.target_s else "not yet"


def markdown(rows: Sequence[BenchRow], warm_up_s: float, workers: int) -> str:
    """Return the page: date, versions, hardware, the table, and definitions of its columns."""
    table = [list(HEADER), ["---"] * len(HEADER), *summary(rows)]
    lines = ["| " + " | ".join(cells) + " |" for cells in table]
    head = [
        f"# Placement, {datetime.now(UTC).date().isoformat()}",
        "",
        f"{environment()}; {workers} threads; imports and compilation {warm_up_s:.1f} s, before everything timed.",
        "",
    ]
    return "\n".join([*head, *lines, "", EXPLANATION, "", *verdicts(rows), *what_stays_open(rows)]) + "\n"


def verdicts(rows: Sequence[BenchRow]) -> list[str]:
    """Return a summary of the table: closed instances, failures, and baselines that found a better placement."""
    closed = sum(row.status == "OPTIMAL" for row in rows)
    lines = [f"{closed} of {len(rows)} instances closed."]
    lines += [
        f"failed: {row.cluster} {row.shape} seed {row.seed}: {row.error}" for row in rows if row.error is not None
    ]
    for name in BASELINES:
        above = [value for row in rows if (value := row.above(name)) is not None]
        better = sum(value < 0 for value in above)
        if above:
            lines.append(
                f"{name.replace('_', ', ')}: median {statistics.median(above):+.2%}, worst {max(above):+.2%}; "
                f"better than the solver on {better} of {len(above)}."
            )
    return ["- " + line for line in lines]


def what_stays_open(rows: Sequence[BenchRow]) -> list[str]:
    """Return a line for each row of the table that is not proven for every seed."""
    lines = []
    for group in _groups(rows):
        left = [row for row in group if row.status not in ("OPTIMAL", FAILED)]
        if not left:
            continue
        first = group[0]
        name = f"{first.cluster} {first.num_used} {first.shape} {first.weights} {first.p2p}"
        seeds = "seed " + ", ".join(str(row.seed) for row in left)
        bounds = "; ".join(f"{_number(row.lower_bound_s)} to {_number(row.objective_s)} s" for row in left)
        several = f", {max(row.num_open for row in left)} of {first.num_candidates} candidates"
        lines.append(f"{name}: {seeds}, between {bounds}{several if first.num_candidates > 1 else ''}.")
    return ["", "Open:", "", *("- " + line for line in lines)] if lines else []


def environment() -> str:
    """Return versions and hardware as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("ortools", "numba", "numpy"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"pipette-opt {__version__}, Python {platform.python_version()}, {packages}; "
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}{load}"
    )


def _processor() -> str:
    """Return the CPU's name as the operating system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5g}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2%}"


def _signed(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"
