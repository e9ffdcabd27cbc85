"""Best public MFU of each kind of job, ``data/best_mfu.csv``; screens show it beside the MFU of a plan."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.typed import Share, Size, typed
from pipette_opt.read.files import read_csv
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.worlds.jobs import SMALL_MODEL, kind_of, kind_precision

PLACE = ("data", "best_mfu.csv")
"""Place of the shipped table: one row for each kind of job."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BestRun:
    """
    Public run with the highest MFU of its kind.

    Parameters
    ----------
    kind
        Kind of the job (:func:`~pipette_opt.worlds.jobs.kind_of`); small models have no kind of their own.
    mfu
        Model FLOPs at the measured time over the dense peak of the GPUs, as in
        :class:`~pipette_opt.plans.predicted.IterationTime`.
    runs
        Number of public runs of this kind that were compared.
    model, num_gpus, gpu
        Model as its publisher names it, number of GPUs, and GPU type.
    publisher, source
        Publisher, and its page with version or commit.
    """

    kind: str
    mfu: Share
    runs: Size
    model: str
    num_gpus: Size
    gpu: str
    publisher: str
    source: str


COLUMNS = tuple(BestRun.__dataclass_fields__)
"""Columns of the file."""


@cache
def shipped_best_runs() -> Mapping[str, BestRun]:
    """Return the shipped best runs by kind; the file is read once."""
    return read_best_runs(shipped_path(*PLACE))


def read_best_runs(path: Path) -> Mapping[str, BestRun]:
    """Read a file of best runs, by kind. ``InputError`` for other columns, values outside their range, a kind twice."""
    columns, rows = read_csv(path)
    if tuple(columns) != COLUMNS:
        raise InputError(str(path), f"must have the columns {', '.join(COLUMNS)}, got {', '.join(columns)}.")
    found: dict[str, BestRun] = {}
    for line, row in rows:
        where = f"{path}, line {line}"
        numbers = {name: _number(row[name]) for name in ("mfu", "runs", "num_gpus")}
        run = typed(BestRun, row | numbers, where, closed=True)
        if run.kind in found:
            raise InputError(where, f"kind {run.kind!r} is given twice.")
        found[run.kind] = run
    return found


def best_run(model: ModelSpec, training: TrainingSpec, generations: Iterable[str]) -> BestRun | None:
    """
    Return the public run with the highest MFU of a job's kind; ``None`` without a public run of this kind.

    A small model counts as a larger one of its precision and generation. GPUs of several generations have no kind here.
    """
    words = set(generations)
    if len(words) != 1:
        return None
    kind = kind_of(model, kind_precision(training), words.pop()).replace(SMALL_MODEL, "")
    return shipped_best_runs().get(kind)


def _number(text: str | None) -> float | int | str | None:
    """Return a cell as a number; other text stays as it is, for the message on its type."""
    for kind in (int, float):
        try:
            return kind(text or "")
        except ValueError:
            continue
    return text
