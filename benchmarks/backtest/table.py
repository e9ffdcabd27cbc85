"""Writer of ``data/backtests.yaml``: each command that makes a page of results replaces only its own rows."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

from pipette_opt.base.files import note_continued, write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.backtests import BackTest, precision_of, read_backtests, shape_of
from pipette_opt.specs import ModelSpec, TrainingSpec

HEAD = """\
# Public runs and their predictions by the shipped stack, nothing fitted to them, by model, GPU and format. `by`: the
# command that wrote the row, `names`: what its source calls the model, `shape`: layers, hidden size, attention heads
# and experts (0 for none), `gpus`: fewest and most GPUs, `middle`: median of measured over predicted time, `error`:
# mean of how far predictions were off, as a share of what was measured.
"""
"""Comment at the head of ``data/backtests.yaml``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """Measured public run, with its ``ratio`` of measured to predicted time."""

    name: str
    model: ModelSpec
    training: TrainingSpec
    gpu: str
    num_gpus: int
    ratio: float
    key: tuple[tuple[int, ...], str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (shape_of(self.model), self.gpu, precision_of(self.training)))


def write_backtests(by: str, runs: Iterable[ComparedRun], path: Path | None = None) -> None:
    """Write the comparisons of a command to the file, in place of the rows that this command wrote before."""
    place = path or shipped_path("data", "backtests.yaml")
    note_continued(place)
    others = [row for row in read_backtests(place) if row.by != by] if place.is_file() else []
    rows = sorted([*others, *rows_of(by, runs)], key=lambda row: (row.by, row.shape, row.gpu, row.precision))
    content = [{name: _plain(value) for name, value in asdict(row).items()} for row in rows]
    write_atomically(place, HEAD + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None))


def rows_of(by: str, runs: Iterable[ComparedRun]) -> list[BackTest]:
    """Return the comparisons that the command ``by`` makes of runs: one for each model, GPU type and precision."""
    found = []
    for (shape, gpu, precision), members in groupby(sorted(runs, key=lambda run: run.key), key=lambda run: run.key):
        group = list(members)
        ratios = np.array([run.ratio for run in group])
        found.append(
            BackTest(
                by=by,
                names=tuple(sorted({run.name for run in group})),
                shape=shape,
                gpu=gpu,
                precision=precision,
                runs=len(group),
                gpus=(min(run.num_gpus for run in group), max(run.num_gpus for run in group)),
                middle=round(float(np.median(ratios)), 3),
                error=round(float(np.mean(np.abs(1.0 / ratios - 1.0))), 3),
            )
        )
    return found


def _plain(value: object) -> object:
    """Return a tuple as a list, which YAML can write, and any other value unchanged."""
    return list(value) if isinstance(value, tuple) else value
