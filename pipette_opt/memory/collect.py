"""The dataset: traces of random points, collected in parallel into one CSV file, and continued where it stopped."""

import csv
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from pipette_opt.errors import InputError
from pipette_opt.files import write_atomically
from pipette_opt.memory.sample import Point, sample_point
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

_TARGETS = ("weight_bytes", "gradient_bytes", "optimizer_bytes", "activation_bytes", "step_bytes", "peak_bytes")
_PARTS = (ModelSpec, TrainingSpec, ParallelConfig)
COLUMNS = ("seed", "index", *(field.name for part in _PARTS for field in fields(part)), "stage", *_TARGETS)
"""Columns of the dataset: where the point comes from, the point, and what its trace counted."""

_CHUNK = 64


def trace_point(seed: int, index: int) -> dict[str, str]:
    """Trace the point of that number; one row of the dataset."""
    from pipette_opt.memory.trace import trace_stage

    point = sample_point(seed, index)
    trace = trace_stage(point.model, point.training, point.config, point.stage)
    row = {"seed": str(seed), "index": str(index), "stage": str(point.stage)}
    for part in (point.model, point.training, point.config):
        row |= {field.name: _text(getattr(part, field.name)) for field in fields(part)}
    return row | {name: str(getattr(trace, name)) for name in _TARGETS}


def point_of_row(row: Mapping[str, str]) -> Point:
    """The point of a row of the dataset."""
    values: list[dict[str, Any]] = [
        {field.name: _value(field.name, row[field.name]) for field in fields(part)} for part in _PARTS
    ]
    return Point(
        model=ModelSpec(**values[0]),
        training=TrainingSpec(**values[1]),
        config=ParallelConfig(**values[2]),
        stage=int(row["stage"]),
    )


def collect(
    path: Path,
    *,
    num_points: int,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """
    Trace points 0 to ``num_points - 1`` that ``path`` does not have yet.

    The file is rewritten, whole, after every few points, so it can be stopped and started again.

    Parameters
    ----------
    progress
        Called with the points done and the points wanted.

    Returns
    -------
    int
        Points traced now.
    """
    rows = read_rows(path) if path.exists() else []
    other = sorted({row["seed"] for row in rows} - {str(seed)})
    if other:
        raise InputError(str(path), f"holds points of seed {', '.join(other)}, not {seed}; choose another file.")
    have = {int(row["index"]) for row in rows}
    wanted = [index for index in range(num_points) if index not in have]
    done = 0
    for batch in _batches(_traces(seed, wanted, workers), _CHUNK * workers):
        rows.extend(batch)
        done += len(batch)
        write_rows(path, rows)
        if progress is not None:
            progress(len(have) + done, num_points)
    return done


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a dataset; raises ``InputError`` if it is none."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != COLUMNS:
                missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
                raise InputError(str(path), f"is no memory dataset: columns {missing or 'in another order'}.")
            rows = [dict(row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), f"cannot be read as CSV: {error}.") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InputError(f"{path}:{number}", f"must have {len(COLUMNS)} columns.")
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write a dataset, ordered by point, at once."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: int(row["index"])))
    write_atomically(path, text.getvalue())


def _traces(seed: int, indices: Sequence[int], workers: int) -> Iterator[dict[str, str]]:
    """Rows of the points, in any order."""
    if workers == 1:
        yield from (trace_point(seed, index) for index in indices)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=8)
    yield from parallel(delayed(trace_point)(seed, index) for index in indices)


def _batches(rows: Iterable[dict[str, str]], size: int) -> Iterator[list[dict[str, str]]]:
    batch: list[dict[str, str]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _text(value: object) -> str:
    """A cell: booleans as 0 and 1, nothing for ``None``, layers separated by spaces."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


_TYPES = {field.name: field.type for part in _PARTS for field in fields(part)}


def _value(name: str, text: str) -> object:
    """The value of a cell, by the declared type of its field."""
    if name == "layers_per_stage":
        return tuple(int(count) for count in text.split())
    if text == "":
        return None
    kind = _TYPES[name]
    if kind is bool:
        return text == "1"
    if kind is float:
        return float(text)
    return int(text) if text.isdigit() and kind is not str else text
