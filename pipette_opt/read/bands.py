"""
How far off times may be: what public runs of the same kind of job took, over what was predicted for them.

The table is ``data/bands.yaml``; ``benchmarks/backtest/bands.py`` makes it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from pipette_opt.base.shipped import shipped_path
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Band, IterationTime
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import Instance, ModelSpec

SHARE = 0.9
"""Of the runs of a kind that its band covers."""

FEWEST_RUNS, FEWEST_SOURCES = 20, 2
"""Of a kind for which a band is given."""

KIND_FIELDS = ("low", "high", "middle", "stretch", "seen", "runs", "sources", "largest_gpus", "left_out", "larger")
"""Of a kind in the table; its head says what they are."""

DISTANCES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "pipeline_model_parallel_size",
    "num_chunks",
    "micro_batch_size",
)
"""
Properties of a configuration whose size says how far it is from measured runs. A configuration with more of one than a
kind's runs have is predicted with less certainty.
"""

HELD_OUT = "held_out_groups"
"""Errors of a calibrated stack on runs that its fit did not see."""

COLUMN_DISTANCES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "mbs": "micro_batch_size",
}
"""The same of a calibrated stack, by the column of runs."""

MORE_OF = "more_"
"""How errors of a calibrated stack on runs with the most of a column begin, which its fit did not see."""

SMALL = 2048
"""Hidden size below which the time of launching kernels, which depends on the host, weighs much."""

GENERATIONS = {
    "Ampere or older": ("v100", "t4", "a100", "a10g", "a40", "l4"),
    "Hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "Blackwell": ("b200", "b300", "gb200", "gb300"),
}
"""Families of GPUs, by the first word of their names in the catalogue."""


NEVER_MEASURED = ("l40", "l40s", "mi300x", "mi350x", "mi355x", "rtx", "vr200", "r100")
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
    middle
        Median of the same ratio.
    stretch
        How much farther from the median the ends are than those of the runs themselves.
    seen
        Of each of ``DISTANCES``, the largest value that some runs have.
    """

    low: float | None
    high: float | None
    runs: int
    largest_gpus: int
    middle: float = 1.0
    stretch: float = 1.0
    seen: Mapping[str, int] = field(default_factory=dict)

    def beyond(self, name: str, stretch: float) -> "Beyond":
        """The band of configurations with more of one of ``DISTANCES``, by the larger of both stretches."""
        wider = max(1.0, stretch / self.stretch)
        ends = (None if end is None else self.middle * (end / self.middle) ** wider for end in (self.low, self.high))
        return Beyond(name=name, most=self.seen[name], low=next(ends), high=next(ends))


def job_kind(instance: Instance) -> str | None:
    """The kind of a job, by what moves errors most; ``None`` for GPUs of which no run is known."""
    if len(instance.cluster.gpu_kinds) > 1:
        return None
    return kind_of(instance.model, instance.training.fp8, instance.cluster.nodes[0].gpu.kind)


def kind_of(model: ModelSpec, fp8: bool, gpu: str) -> str | None:
    """The same of a model whose products are in fp8, or in 16 bits, on a kind of GPU."""
    family = gpu.lower().split("-")[0]
    generation = next((name for name, families in GENERATIONS.items() if family in families), None)
    if generation is None:
        return None
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = ", small model" if model.hidden_size < SMALL else ""
    precision = "fp8" if fp8 else "16 bit"
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
            middle=row.positive("middle") if known else 1.0,
            stretch=row.positive("stretch") if known else 1.0,
            seen={str(one): int(most) for one, most in row.any("seen").items()},
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


def beyond(path: Path | None = None) -> dict[str, float]:
    """
    Stretch that bands needed to hold for runs with more of one of ``DISTANCES`` than those that made the band.

    At least 1. Bands of kinds whose own stretch is larger are wide enough.
    """
    found = _fields(path or shipped_path("data", "bands.yaml")).any("beyond")
    return {str(name): float(stretch) for name, stretch in found.items()}


def runs_by_gpu(path: Path | None = None) -> dict[str, int]:
    """How many public runs of each kind of GPU were compared with their predictions; kinds without any are absent."""
    runs = _fields(path or shipped_path("data", "bands.yaml")).any("gpus")
    return {str(name): int(count) for name, count in runs.items()}


def _fields(place: Path) -> Fields:
    return Fields(str(place), read_yaml(place), ("share", "kinds", "gpus", "apart", "beyond"))


def with_band(estimate: IterationTime, instance: Instance, config: ParallelConfig) -> IterationTime:
    """The estimate with its band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """
    Measured over predicted time of configurations with more of something than measured runs had.

    Parameters
    ----------
    name
        Property of a configuration.
    most
        Its largest value among measured runs.
    low, high
        Ends of the band beyond that, over the predicted time; ``None`` where nobody knows.
    """

    name: str
    most: int
    low: float | None
    high: float | None

    def has(self, config: ParallelConfig) -> bool:
        """Whether a configuration is beyond."""
        return bool(getattr(config, self.name) > self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBands:
    """
    Bands of all configurations of a job: one for those like measured runs, wider ones for those beyond them.

    Parameters
    ----------
    low, high
        Ends of the former, over the predicted time.
    source, runs, apart
        As of :class:`~pipette_opt.plans.plan.Band`.
    beyond
        The latter. A configuration that is beyond in several ways has the widest of all.
    """

    low: float
    high: float
    source: str
    runs: int
    apart: float | None
    beyond: tuple[Beyond, ...]

    def of(self, config: ParallelConfig, iteration_time_s: float) -> Band | None:
        """Of one configuration; ``None`` where nobody knows."""
        farther = [one for one in self.beyond if one.has(config)]
        lows, highs = [self.low], [self.high]
        for one in farther:
            if one.low is None or one.high is None:
                return None
            lows.append(one.low)
            highs.append(one.high)
        wider = [one.name for one in farther if one.high is not None and one.high > self.high]
        less = f", with less {_words(wider)}" if wider else ""
        return Band(
            low_s=min(lows) * iteration_time_s,
            high_s=max(highs) * iteration_time_s,
            share=SHARE,
            source=f"{self.source}{less}",
            runs=self.runs,
            apart=self.apart,
        )


def job_band(instance: Instance, config: ParallelConfig, iteration_time_s: float) -> Band | None:
    """
    The band of a predicted time.

    ``None`` where too few runs of the kind were measured, or none with so many GPUs. A calibrated stack that records
    its errors on runs that its fit did not see has a band of its own.
    """
    bands = job_bands(instance)
    return None if bands is None else bands.of(config, iteration_time_s)


def job_bands(instance: Instance) -> JobBands | None:
    """The bands of a job's configurations; ``None`` where nobody knows any."""
    fitted = instance.stack.fitted or {}
    if HELD_OUT in fitted.get("p90_error", {}):
        return _own_bands(fitted)
    kind = job_kind(instance)
    row = _shipped().get(kind or "")
    if row is None or row.low is None or row.high is None:
        return None
    shipped = ", predicted by the shipped stack" if fitted else ""
    return JobBands(
        low=row.low,
        high=row.high,
        source=f"public runs like this ({kind}{shipped})",
        runs=row.runs,
        apart=_shipped_apart(),
        beyond=(
            Beyond(name="world_size", most=row.largest_gpus, low=None, high=None),
            *(row.beyond(name, stretch) for name, stretch in _beyond().items() if name in row.seen),
        ),
    )


def _own_bands(fitted: Mapping[str, Any]) -> JobBands | None:
    """From nine tenths of the errors, of predicted over measured time, of runs that a fit did not see."""
    error, ranges = float(fitted["p90_error"][HELD_OUT]), fitted.get("ranges", {})
    if not 0 <= error < 1:
        return None
    beyond = [Beyond(name="world_size", most=ranges.get("num_gpus", (0, 0))[1], low=None, high=None)]
    for column, name in COLUMN_DISTANCES.items():
        farther = fitted["p90_error"].get(f"{MORE_OF}{column}")
        if farther is not None and column in ranges:
            ends = _ends(max(error, float(farther)))
            beyond.append(Beyond(name=name, most=ranges[column][1], low=ends and ends[0], high=ends and ends[1]))
    return JobBands(
        low=1 / (1 + error),
        high=1 / (1 - error),
        source="runs that the stack was calibrated with, each predicted without those like it",
        runs=int(fitted.get("num_runs", 0)),
        apart=fitted.get("apart", {}).get(HELD_OUT),
        beyond=tuple(beyond),
    )


def _ends(error: float) -> tuple[float, float] | None:
    """Measured over predicted time, where predicted over measured time is off by at most an error."""
    return (1 / (1 + error), 1 / (1 - error)) if error < 1 else None


def _words(names: list[str]) -> str:
    """Names of ``DISTANCES``, for people."""
    words = {"num_chunks": "interleaving", "micro_batch_size": "micro-batch"}
    said = [words.get(name, name.split("_")[0] + " parallelism") for name in names]
    return " and ".join([*([", ".join(said[:-1])] if said[1:] else []), said[-1]])


@cache
def _beyond() -> dict[str, float]:
    return beyond()


@cache
def _shipped() -> dict[str, KindBand]:
    return read_bands()


@cache
def _shipped_apart() -> float | None:
    return told_apart()
