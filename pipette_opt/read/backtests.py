"""
Comparison of public runs with their predictions, by model, GPU and precision: ``data/backtests.yaml``.

The commands of ``benchmarks/`` that make the pages of results also write this file (``benchmarks/backtest/table.py``).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import ModelSpec, TrainingSpec


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


def runs_by_gpu(rows: Sequence[BackTest]) -> Mapping[str, int]:
    """Return the number of compared runs by GPU type; types without runs are absent."""
    counts = Counter[str]()
    for row in rows:
        counts[row.gpu] += row.runs
    return counts
