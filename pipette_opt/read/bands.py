"""
How far off times may be: what public runs took over what was predicted for them, and how that differs between sources.

The table is ``data/bands.yaml``; ``benchmarks/backtest/bands.py`` makes it. The logarithm of measured over predicted
time is a middle for each kind of job, plus a difference between sources, plus one between the jobs of a source, plus
what a configuration beyond every measured run adds. A band is the middle, and ``reach`` standard deviations of the sum
to each side.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, exp, log, log1p, log2, sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import FEW_RUNS, OWN_RUNS, Band, IterationTime
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import Instance, ModelSpec

SHARE = 0.9
"""Share of runs like a job whose time lies inside its band."""

TABLE_FIELDS = ("share", "reach", "kinds", "beyond", "pairs", "gpus", "apart")
KIND_FIELDS = ("middle", "within", "spread", "runs", "sources", "largest_gpus", "seen", "left_out", "larger")
"""Fields of the table and of a kind in it; its head says what they are."""

WORLD_SIZE = "world_size"
DISTANCES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "pipeline_model_parallel_size",
    "num_chunks",
    "micro_batch_size",
)
"""
Properties of a configuration whose size says how far it is from measured runs. A configuration with more of one than
runs of models of its size have is predicted with less certainty.
"""

HELD_OUT = "held_out_groups"
"""Errors of a calibrated stack on runs that its fit did not see."""

RESIDUALS = "residuals"
"""Middle and spread of measured over predicted time of a calibrated stack, and the kinds of job of its runs."""

COLUMN_DISTANCES = {
    "tp": "tensor_model_parallel_size",
    "pp": "pipeline_model_parallel_size",
    "mbs": "micro_batch_size",
}
"""Columns of measured runs by which a calibrated stack knows such properties."""

MORE_OF = "more_"
"""Prefix of the errors of a calibrated stack on runs with the most of a column, which its fit did not see."""

PRIOR_RUNS = 4
"""Runs that the shipped spread of jobs of one source weighs as much as, where a stack was calibrated; chosen."""

SMALL = 2048
"""Hidden size below which the time of launching kernels, which depends on the host, weighs much."""

WIDE, FP8, FP32 = "16 bit", "fp8", "fp32"
"""Precisions of the products of a model, as kinds of jobs name them."""

SMALL_MODEL = ", small model"
ANY_JOB = "any job"
"""Row of the table for kinds without a row of their own; small models have one with ``SMALL_MODEL`` behind."""

GENERATIONS = {
    "Ampere or older": ("v100", "t4", "a100", "a800", "a10g", "a40", "l4"),
    "Hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "Blackwell": ("b200", "b300", "gb200", "gb300"),
}
"""Families of GPUs of which runs were measured, by the first word of their names in the catalogue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindBand:
    """
    What is known of one kind of job.

    Parameters
    ----------
    middle
        Measured over predicted time of the mean source.
    within
        Standard deviation of the logarithm of that ratio between the jobs of one source.
    spread
        Standard deviation for a job of a source that nobody measured.
    runs, sources
        How many were measured.
    largest_gpus
        GPUs of the largest run.
    seen
        Largest value of each of ``DISTANCES`` that several runs have; of a row of all kinds, others have none.
    """

    middle: float
    within: float
    spread: float
    runs: int
    sources: int
    largest_gpus: int
    seen: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandTable:
    """
    The shipped table.

    Parameters
    ----------
    reach
        Standard deviations from the middle of a band to its ends.
    beyond
        Variance that configurations beyond measured runs add, by property; of ``WORLD_SIZE`` for each doubling.
    pairs
        Variance of measured over predicted ratio of two runs of one job: at a predicted ratio of 1, and how it grows
        with the logarithm of that.
    apart
        Predicted time of one plan over another's of the same job from which on public runs had that order; ``None``
        where too few pairs were compared (:func:`pipette_opt.calibrate.metrics.told_apart`).
    gpus
        Runs of each kind of GPU; kinds without any are absent.
    """

    reach: float
    kinds: Mapping[str, KindBand]
    beyond: Mapping[str, float]
    pairs: tuple[float, float]
    apart: float | None
    gpus: Mapping[str, int]

    def row(self, kind: str) -> KindBand:
        """The row of a kind, or the one of all kinds where nobody measured this one."""
        return self.kinds.get(kind) or self.kinds[any_kind(kind)]


def any_kind(kind: str) -> str:
    """Name of the row of all runs of models of the size that a kind has."""
    return f"{ANY_JOB}{SMALL_MODEL if SMALL_MODEL in kind else ''}"


def job_kind(instance: Instance) -> str:
    """The kind of a job, by what moves errors most."""
    gpus = [kind.name for kind in instance.cluster.gpu_kinds]
    training = instance.training
    precision = FP8 if training.fp8 else FP32 if training.precision == FP32 else WIDE
    return kind_of(instance.model, precision, gpus[0] if len(gpus) == 1 else "several kinds of GPU")


def kind_of(model: ModelSpec, precision: str, gpu: str) -> str:
    """The kind of a job on a kind of GPU; GPUs of no family that was measured stand for themselves."""
    family = gpu.lower().split("-")[0]
    generation = next((name for name, families in GENERATIONS.items() if family in families), gpu)
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = SMALL_MODEL if model.hidden_size < SMALL else ""
    return f"{shape}{size}, {precision}, {generation}"


def read_bands(path: Path | None = None) -> BandTable:
    """Read a table, the shipped one by default."""
    place = path or shipped_path("data", "bands.yaml")
    table = Fields(str(place), read_yaml(place), TABLE_FIELDS)
    pairs = Fields(f"{place}, pairs", table.any("pairs"), ("equal", "grows"))
    apart = Fields(f"{place}, apart", table.any("apart"), ("ratio", "share", "pairs"))
    return BandTable(
        reach=table.positive("reach"),
        kinds={
            str(name): _kind(Fields(f"{place}, {name}", row, KIND_FIELDS)) for name, row in table.any("kinds").items()
        },
        beyond={str(name): float(variance) for name, variance in table.any("beyond").items()},
        pairs=(pairs.not_negative("equal"), pairs.not_negative("grows")),
        apart=apart.positive("ratio") if apart.has("ratio") else None,
        gpus={str(name): int(count) for name, count in table.any("gpus").items()},
    )


def _kind(row: Fields) -> KindBand:
    return KindBand(
        middle=row.positive("middle"),
        within=row.positive("within"),
        spread=row.positive("spread"),
        runs=row.whole("runs"),
        sources=row.whole("sources"),
        largest_gpus=row.whole("largest_gpus"),
        seen={str(name): int(most) for name, most in row.data.get("seen", {}).items()},
    )


@cache
def shipped_bands() -> BandTable:
    """The shipped table, read once."""
    return read_bands()


def student_reach(degrees: float) -> float:
    """
    Standard deviations within which ``SHARE`` of Student's t distribution lies.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.5; within 0.1 % from 5 degrees of freedom on.
    """
    z = NormalDist().inv_cdf((1 + SHARE) / 2)
    return (
        z
        + (z**3 + z) / (4 * degrees)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * degrees**3)
    )


def gain_band(ratio: float, more_gpus: float = 1.0) -> tuple[float, float]:
    """
    Ends of the measured ratio of the times of two plans of one job, in ``SHARE`` of such pairs of public runs.

    Parameters
    ----------
    ratio
        Predicted, positive.
    more_gpus
        GPUs of one plan over those of the other, positive; each doubling adds what it adds to a band.
    """
    table = shipped_bands()
    equal, grows = table.pairs
    doublings = abs(log2(more_gpus))
    reach = table.reach * sqrt(equal + grows * abs(log(ratio)) + table.beyond[WORLD_SIZE] * doublings)
    return ratio * exp(-reach), ratio * exp(reach)


def with_band(estimate: IterationTime, instance: Instance, config: ParallelConfig) -> IterationTime:
    """The estimate with its band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """
    What configurations with more of something than measured runs had add to the variance of the logarithm of a time.

    Parameters
    ----------
    name
        Property of a configuration.
    most
        Its largest value among measured runs.
    """

    name: str
    most: int
    variance: float

    def has(self, config: ParallelConfig) -> bool:
        """Whether a configuration is beyond."""
        return bool(getattr(config, self.name) > self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBands:
    """
    Bands of all configurations of a job: narrowest for those like measured runs, wider for those beyond them.

    Parameters
    ----------
    middle
        Expected over predicted time.
    spread, reach
        As of :class:`KindBand` and :class:`BandTable`.
    source, runs, apart
        As of :class:`~pipette_opt.plans.plan.Band`.
    largest_gpus, per_doubling
        GPUs of the largest run, and the variance that each doubling beyond adds.
    beyond
        What else adds to the variance. Of a configuration that is beyond in several ways the largest counts.
    """

    middle: float
    spread: float
    reach: float
    source: str
    runs: int
    apart: float | None
    largest_gpus: int
    per_doubling: float
    beyond: tuple[Beyond, ...]

    def more_gpus(self, num_gpus: int) -> Iterator[Beyond]:
        """Numbers of GPUs from which on the band is wider, up to some number."""
        doublings = ceil(log2(max(1.0, num_gpus / self.largest_gpus)))
        for number in range(doublings):
            yield Beyond(name=WORLD_SIZE, most=self.largest_gpus << number, variance=self.per_doubling * (number + 1))

    def ends(self, variance: float = 0.0) -> tuple[float, float]:
        """Ends of the band over the predicted time."""
        reach = self.reach * sqrt(self.spread**2 + variance)
        return self.middle * exp(-reach), self.middle * exp(reach)

    def of(self, config: ParallelConfig, iteration_time_s: float) -> Band:
        """The band of one configuration."""
        farther = [one for one in (*self.beyond, *self.more_gpus(config.world_size)) if one.has(config)]
        low, high = self.ends(max((one.variance for one in farther), default=0.0))
        names = list(dict.fromkeys(one.name for one in farther if one.variance))
        return Band(
            low_s=low * iteration_time_s,
            middle_s=self.middle * iteration_time_s,
            high_s=high * iteration_time_s,
            share=SHARE,
            source=f"{self.source}, with less {_words(names)}" if names else self.source,
            runs=self.runs,
            apart=self.apart,
        )


def job_band(instance: Instance, config: ParallelConfig, iteration_time_s: float) -> Band:
    """The band of a predicted time; a calibrated stack has its own."""
    return job_bands(instance).of(config, iteration_time_s)


def job_bands(instance: Instance) -> JobBands:
    """The bands of a job's configurations."""
    table, kind = shipped_bands(), job_kind(instance)
    row, seen = table.row(kind), table.kinds[any_kind(kind)].seen
    if instance.stack.fitted is not None:
        return _own_bands(instance.stack.fitted, row, kind, table)
    runs = row.runs if kind in table.kinds else 0
    return JobBands(
        middle=row.middle,
        spread=row.spread,
        reach=table.reach,
        source=_like_this(runs, table.kinds[any_kind(kind)].runs, kind),
        runs=runs,
        apart=table.apart,
        largest_gpus=row.largest_gpus,
        per_doubling=table.beyond[WORLD_SIZE],
        beyond=tuple(Beyond(name=name, most=most, variance=table.beyond[name]) for name, most in seen.items()),
    )


def _like_this(runs: int, all_runs: int, kind: str) -> str:
    """Which public runs make a band, for people."""
    if runs >= FEW_RUNS:
        return f"{counted(runs, 'public run')} like this ({kind})"
    return f"{counted(all_runs, 'public run')}, {runs or 'none'} of them like this ({kind})"


def _own_bands(fitted: Mapping[str, Any], row: KindBand, kind: str, table: BandTable) -> JobBands:
    """
    Bands of a calibrated stack, by the residuals of its runs.

    What two jobs of one source differ by in the shipped table, as one run says of another, counts as ``PRIOR_RUNS``
    runs, so that one run makes a band, too. A job of another kind than the runs is as uncertain as one of a source that
    nobody measured.
    """
    runs, ranges = int(fitted.get("num_runs", 0)), fitted.get("ranges", {})
    middle, spread, kinds = _residuals(fitted)
    variance = (PRIOR_RUNS * 2 * row.within**2 + runs * spread**2) / (PRIOR_RUNS + runs)
    between = row.spread**2 - row.within**2 if kinds and kind not in kinds else 0.0
    beyond = []
    for column, name in COLUMN_DISTANCES.items():
        farther = fitted.get("p90_error", {}).get(f"{MORE_OF}{column}")
        if farther is not None and column in ranges:
            more = max(0.0, _spread_of(float(farther)) ** 2 - variance)
            beyond.append(Beyond(name=name, most=ranges[column][1], variance=more))
    return JobBands(
        middle=middle,
        spread=sqrt(variance + between),
        reach=student_reach(PRIOR_RUNS + runs),
        source=f"{counted(runs, 'run')} {OWN_RUNS}" + (", of another kind of job" if between else ""),
        runs=runs,
        apart=fitted.get("apart", {}).get(HELD_OUT),
        largest_gpus=ranges.get("num_gpus", (1, 1))[1],
        per_doubling=table.beyond[WORLD_SIZE],
        beyond=tuple(beyond),
    )


def _residuals(fitted: Mapping[str, Any]) -> tuple[float, float, Sequence[str]]:
    """Middle, spread and kinds of the runs of a fit; files of older versions have nine tenths of the errors only."""
    if RESIDUALS in fitted:
        found = fitted[RESIDUALS]
        return float(found["middle"]), float(found["spread"]), found["kinds"]
    errors = fitted.get("p90_error", {})
    return 1.0, _spread_of(float(errors.get(HELD_OUT, errors.get("fit", 0.0)))), ()


def _spread_of(p90_error: float) -> float:
    """Standard deviation of normal logarithms of which nine tenths are less than an error."""
    return log1p(p90_error) / NormalDist().inv_cdf((1 + SHARE) / 2)


def _words(names: Sequence[str]) -> str:
    """Names of ``DISTANCES``, for people."""
    words = {WORLD_SIZE: "GPUs", "num_chunks": "interleaving", "micro_batch_size": "micro-batch"}
    said = [words.get(name, name.split("_")[0] + " parallelism") for name in names]
    return " and ".join([*([", ".join(said[:-1])] if said[1:] else []), said[-1]])
