"""
Comparison of public runs with their predictions, by model, GPU and precision: ``data/backtests.yaml``.

Each command of ``benchmarks/`` that makes a page of results replaces only its own rows.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
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
"""Comment at the head of ``data/backtests.yaml``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackTest:
    """
    Comparison of public runs of one model on one GPU type in one precision.

    Parameters
    ----------
    by
        Command of ``benchmarks/`` that made the comparison.
    names
        Names of the model in the sources of the runs.
    shape
        Layers, hidden size, attention heads and experts; see :func:`shape_of`.
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


def shape_of(model: ModelSpec) -> tuple[int, int, int, int]:
    """Return layers, hidden size, attention heads and experts (0 if dense), by which models are told apart."""
    return model.num_layers, model.hidden_size, model.num_attention_heads, model.num_experts or 0


def precision_of(training: TrainingSpec) -> str:
    """Return the precision of matrix products: bf16, fp16, fp32, fp8 with its recipe, or nvfp4."""
    if training.fp4:
        return "nvfp4"
    return f"fp8 {training.fp8_recipe}" if training.fp8 else training.precision


def read_backtests(path: Path | None = None) -> tuple[BackTest, ...]:
    """Read the comparisons in a file, by default the shipped one. ``InputError`` for an unknown field."""
    place = path or shipped_path("data", "backtests.yaml")
    found = []
    for number, content in enumerate(read_yaml(place) or []):
        row = Fields(f"{place}, row {number + 1}", content, [part.name for part in fields(BackTest)])
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
