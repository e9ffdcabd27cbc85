"""
Public runs that were compared with their predictions, by model, GPU and format: ``data/backtests.yaml``.

The commands behind the pages of results write it; each replaces the rows that it wrote before.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import yaml

from pipette_opt.base.files import note_continued, write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import ModelSpec, TrainingSpec

HEAD = """\
# Public runs and their predictions by the shipped stack, nothing fitted to them, by model, GPU and format. `by`: the
# command that wrote the row, `names`: what its source calls the model, `shape`: layers, hidden size, attention heads
# and experts (0 for none), `gpus`: fewest and most GPUs, `middle`: median of measured over predicted time, `error`:
# mean of how far predictions were off, as a share of what was measured.
"""
"""What stands above the rows of the file, for whoever opens it."""

ROW = ("by", "names", "shape", "gpu", "precision", "runs", "gpus", "middle", "error")
"""Fields of a row, in the order in which they are written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTest:
    """
    Runs of one model on one kind of GPU in one format.

    Parameters
    ----------
    by
        The command that compared them, of ``benchmarks/``.
    names
        What their sources call the model.
    shape
        As :func:`shape_of` says.
    gpus
        Fewest and most GPUs of a run.
    middle
        Median of measured over predicted time.
    error
        Mean of ``abs(predicted / measured - 1)``.
    """

    by: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    gpu: str
    precision: str
    runs: int
    gpus: tuple[int, ...]
    middle: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRun:
    """One run; ``ratio`` is measured over predicted time."""

    name: str
    model: ModelSpec
    training: TrainingSpec
    gpu: str
    num_gpus: int
    ratio: float
    key: tuple[tuple[int, ...], str, str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", (shape_of(self.model), self.gpu, precision_of(self.training)))


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    """What tells models apart: layers, hidden size, attention heads, experts (0 for none)."""
    return model.num_layers, model.hidden_size, model.num_attention_heads, model.num_experts or 0


def precision_of(training: TrainingSpec) -> str:
    """The format of the layers' products: bf16, fp16, fp32, a kind of fp8, or nvfp4."""
    if training.fp4:
        return "nvfp4"
    return f"fp8 {training.fp8_recipe}" if training.fp8 else training.precision


def read_backtests(path: Path | None = None) -> tuple[BackTest, ...]:
    """All rows, of the shipped file by default; ``InputError`` for other fields than a row's."""
    place = path or shipped_path("data", "backtests.yaml")
    found = []
    for number, content in enumerate(read_yaml(place) or []):
        row = Fields(f"{place}, row {number + 1}", content, ROW)
        found.append(
            BackTest(
                by=row.text("by"),
                names=tuple(map(str, row.any("names"))),
                shape=tuple(map(int, row.any("shape"))),
                gpu=row.text("gpu"),
                precision=row.text("precision"),
                runs=row.whole("runs"),
                gpus=tuple(map(int, row.any("gpus"))),
                middle=row.positive("middle"),
                error=row.not_negative("error"),
            )
        )
    return tuple(found)


def write_backtests(by: str, runs: Iterable[ComparedRun], path: Path | None = None) -> None:
    """The rows of a command in place of those that it wrote before."""
    place = path or shipped_path("data", "backtests.yaml")
    note_continued(place)
    others = [one for one in read_backtests(place) if one.by != by] if place.is_file() else []
    rows = sorted([*others, *rows_of(by, runs)], key=lambda one: (one.by, one.shape, one.gpu, one.precision))
    content = [{name: _plain(value) for name, value in asdict(one).items()} for one in rows]
    write_atomically(place, HEAD + yaml.safe_dump(content, sort_keys=False, width=1000, default_flow_style=None))


def rows_of(by: str, runs: Iterable[ComparedRun]) -> list[BackTest]:
    """A row for each model, GPU and format."""
    found = []
    for (shape, gpu, precision), some in groupby(sorted(runs, key=lambda one: one.key), key=lambda one: one.key):
        group = list(some)
        ratios = np.array([one.ratio for one in group])
        found.append(
            BackTest(
                by=by,
                names=tuple(sorted({one.name for one in group})),
                shape=shape,
                gpu=gpu,
                precision=precision,
                runs=len(group),
                gpus=(min(one.num_gpus for one in group), max(one.num_gpus for one in group)),
                middle=round(float(np.median(ratios)), 3),
                error=round(float(np.mean(np.abs(1.0 / ratios - 1.0))), 3),
            )
        )
    return found


def _plain(value: object) -> object:
    """A value as YAML has it."""
    return list(value) if isinstance(value, tuple) else value


def of_model(rows: Sequence[BackTest], model: ModelSpec) -> Mapping[str, tuple[BackTest, ...]]:
    """Rows of models with the same shape, by GPU."""
    same = [one for one in rows if one.shape == shape_of(model)]
    return {gpu: tuple(one for one in same if one.gpu == gpu) for gpu in sorted({one.gpu for one in same})}
