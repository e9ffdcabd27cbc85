"""
How far off times may be: what public runs of the same kind of job took, over what was predicted for them.

The table is ``data/bands.yaml``; ``benchmarks/backtest/bands.py`` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipette_opt.base.shipped import shipped_path
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Band, IterationTime
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import Instance

SHARE = 0.9
"""Of the runs of a kind that its band covers."""

FEWEST_RUNS, FEWEST_SOURCES = 20, 2
"""Of a kind for which a band is given."""

KIND_FIELDS = ("low", "high", "stretch", "runs", "sources", "largest_gpus", "left_out", "larger")
"""Of a kind in the table; its head says what they are."""

HELD_OUT = "held_out_groups"
"""Errors of a calibrated stack on runs that its fit did not see."""

SMALL = 2048
"""Hidden size below which the time of launching kernels, which depends on the host, weighs much."""

GENERATIONS = {
    "Ampere or older": ("v100", "t4", "a100", "a10g", "a40", "l4"),
    "Hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "Blackwell": ("b200", "b300", "gb200", "gb300"),
}
"""Families of GPUs, by the first word of their names in the catalogue."""


NEVER_MEASURED = ("l40", "l40s", "mi300x", "mi350x", "mi355x", "rtx")
"""Families in the catalogue of which no public run was compared, and that are unlike those of which some were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindBand:
    """
    What is known of one kind of job.

    Parameters
    ----------
    low, high
        Nine in ten runs left out took between these times the prediction; ``None`` where too few runs are known.
    largest_gpus
        GPUs of the largest run.
    """

    low: float | None
    high: float | None
    runs: int
    largest_gpus: int


def job_kind(instance: Instance) -> str | None:
    """The kind of a job, by what moves errors most; ``None`` for GPUs of which no run is known."""
    family = instance.cluster.nodes[0].gpu.kind.lower().split("-")[0]
    generation = next((name for name, families in GENERATIONS.items() if family in families), None)
    if generation is None or len(instance.cluster.gpu_kinds) > 1:
        return None
    model, training = instance.model, instance.training
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = ", small model" if model.hidden_size < SMALL else ""
    precision = "fp8" if training.fp8 else "16 bit"
    return f"{shape}{size}, {precision}, {generation}"


def read_bands(path: Path | None = None) -> dict[str, KindBand]:
    """The table by kind, the shipped one by default."""
    place = path or shipped_path("data", "bands.yaml")
    kinds = _fields(place).any("kinds")
    found = {}
    for name, content in kinds.items():
        row = Fields(f"{place}, {name}", content, KIND_FIELDS)
        known = row.has("low")
        found[name] = KindBand(
            low=row.positive("low") if known else None,
            high=row.positive("high") if known else None,
            runs=row.whole("runs"),
            largest_gpus=row.whole("largest_gpus"),
        )
    return found


def told_apart(path: Path | None = None) -> float | None:
    """
    Predicted time of one plan over another's of the same job from which on public runs had that order.

    ``None`` where too few pairs were compared. See :func:`pipette_opt.calibrate.metrics.told_apart`.
    """
    place = path or shipped_path("data", "bands.yaml")
    row = Fields(f"{place}, apart", _fields(place).any("apart"), ("ratio", "share", "pairs"))
    return row.positive("ratio") if row.has("ratio") else None


def runs_by_gpu(path: Path | None = None) -> dict[str, int]:
    """How many public runs of each kind of GPU were compared with their predictions; kinds without any are absent."""
    runs = _fields(path or shipped_path("data", "bands.yaml")).any("gpus")
    return {str(name): int(count) for name, count in runs.items()}


def _fields(place: Path) -> Fields:
    return Fields(str(place), read_yaml(place), ("share", "kinds", "gpus", "apart"))


def with_band(estimate: IterationTime, instance: Instance, config: ParallelConfig) -> IterationTime:
    """The estimate with its band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s))


def job_band(instance: Instance, config: ParallelConfig, iteration_time_s: float) -> Band | None:
    """
    The band of a predicted time.

    ``None`` where too few runs of the kind were measured, or none with so many GPUs. A calibrated stack that records
    its errors on runs that its fit did not see has a band of its own.
    """
    fitted = instance.stack.fitted or {}
    if HELD_OUT in fitted.get("p90_error", {}):
        return _own_band(fitted, config, iteration_time_s)
    kind = job_kind(instance)
    row = _shipped().get(kind or "")
    if row is None or row.low is None or row.high is None or config.world_size > row.largest_gpus:
        return None
    shipped = ", predicted by the shipped stack" if fitted else ""
    return Band(
        low_s=row.low * iteration_time_s,
        high_s=row.high * iteration_time_s,
        share=SHARE,
        source=f"public runs like this ({kind}{shipped})",
        runs=row.runs,
        apart=_shipped_apart(),
    )


def _own_band(fitted: Mapping[str, Any], config: ParallelConfig, iteration_time_s: float) -> Band | None:
    """From nine tenths of the errors, of predicted over measured time, of runs that a fit did not see."""
    error, largest = float(fitted["p90_error"][HELD_OUT]), fitted.get("ranges", {}).get("num_gpus", (0, 0))[1]
    if not 0 <= error < 1 or config.world_size > largest:
        return None
    return Band(
        low_s=iteration_time_s / (1 + error),
        high_s=iteration_time_s / (1 - error),
        share=SHARE,
        source="runs that the stack was calibrated with, each predicted without those like it",
        runs=int(fitted.get("num_runs", 0)),
        apart=fitted.get("apart", {}).get(HELD_OUT),
    )


@cache
def _shipped() -> dict[str, KindBand]:
    return read_bands()


@cache
def _shipped_apart() -> float | None:
    return told_apart()
