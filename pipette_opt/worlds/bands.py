"""
Error bands of predicted times, from measured over predicted times of public runs and their spread.

``benchmarks/backtest/bands.py`` makes the table ``data/bands.yaml``. The logarithm of measured over predicted time is a
sum of four terms: the mean of the kind of job (its middle), the difference between sources, the difference between jobs
of one source, and an addition for configurations beyond all measured runs. A band extends ``reach`` standard deviations
of this sum to each side of the middle.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import ceil, exp, log, log2, sqrt
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import counted
from pipette_opt.parallel import ParallelConfig, Placement, identity_placement
from pipette_opt.plans.plan import FEW_RUNS, MEASURED_RUNS, Band, IterationTime
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.specs import Instance, ModelSpec
from pipette_opt.specs.stack import Anchor, StackSpec
from pipette_opt.worlds.terms import TERMS, describe
from pipette_opt.worlds.worlds import Observation, Worlds

SHARE = 0.9
"""Share of runs of the same kind of job whose measured time lies inside the band. Chosen."""

TABLE_FIELDS = ("share", "reach", "kinds", "beyond", "pairs", "apart")
KIND_FIELDS = ("middle", "within", "spread", "runs", "sources", "largest_gpus", "seen", "left_out", "larger")
"""Fields of a row of ``kinds`` in the table; the head of ``data/bands.yaml`` explains all fields."""

WORLD_SIZE = "world_size"
DISTANCES = (
    "tensor_model_parallel_size",
    "context_parallel_size",
    "pipeline_model_parallel_size",
    "num_chunks",
    "micro_batch_size",
)
"""
Properties of a configuration that are compared with measured runs. A value above that of all measured runs widens the
band.
"""

SMALL = 2048
"""Hidden size below which a model counts as small: kernel launches take a large share of its time. Chosen."""

WIDE, FP8, FP32 = "16 bit", "fp8", "fp32"
"""Precisions of matrix products in the names of job kinds."""

SMALL_MODEL = ", small model"
ANY_JOB = "any job"
"""Name of the row of ``data/bands.yaml`` for jobs of any kind; with ``SMALL_MODEL`` appended, for small models."""

GENERATIONS = {
    "Ampere or older": ("v100", "t4", "a100", "a800", "a10g", "a40", "l4"),
    "Hopper": ("h100", "h200", "h800", "h20", "gh200"),
    "Blackwell": ("b200", "b300", "gb200", "gb300"),
}
"""Measured GPU families by generation; a family is the part of a catalogue name before the first hyphen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindBand:
    """
    Measured over predicted times of the runs of one kind of job.

    Parameters
    ----------
    middle
        Measured over predicted time, mean over the sources of runs.
    within
        Standard deviation of the logarithm of this ratio among jobs of one source.
    spread
        Standard deviation of the logarithm of this ratio for a job from a new source.
    runs, sources
        Number of measured runs, and of their sources.
    largest_gpus
        Number of GPUs of the largest run.
    seen
        Largest value of each property in ``DISTANCES`` that several runs have; only in the rows ``any job``.
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
    Table of error bands, ``data/bands.yaml``.

    Parameters
    ----------
    reach
        Standard deviations from the middle of a band to each end.
    kinds
        Rows by kind of job.
    beyond
        Variance added for a configuration beyond the measured runs, by property; for ``WORLD_SIZE`` per doubling.
    pairs
        Variance of the logarithm of measured over predicted time ratio of two runs of one job: at a predicted ratio of
        1, and its growth with the logarithm of the predicted ratio.
    apart
        Predicted ratio of two plans' times above which public runs kept the predicted order
        (``benchmarks/backtest/order.py``); ``None`` with too few pairs.
    """

    reach: float
    kinds: Mapping[str, KindBand]
    beyond: Mapping[str, float]
    pairs: tuple[float, float]
    apart: float | None

    def row(self, kind: str) -> KindBand:
        """Return the row of a kind of job; ``any job`` of the same model size if none of this kind was measured."""
        return self.kinds.get(kind) or self.kinds[any_kind(kind)]


def any_kind(kind: str) -> str:
    """Return the name of the row for jobs of any kind with a model as small, or not, as that of ``kind``."""
    return f"{ANY_JOB}{SMALL_MODEL if SMALL_MODEL in kind else ''}"


def job_kind(instance: Instance) -> str:
    """Return the kind of a job: dense or experts, model size, precision and GPU generation."""
    gpus = [kind.name for kind in instance.cluster.gpu_kinds]
    training = instance.training
    precision = FP8 if training.fp8 else FP32 if training.precision == FP32 else WIDE
    return kind_of(instance.model, precision, gpus[0] if len(gpus) == 1 else "several kinds of GPU")


def kind_of(model: ModelSpec, precision: str, gpu: str) -> str:
    """Return the kind of a job, such as ``dense, 16 bit, Hopper``; a GPU without runs is its own generation."""
    family = gpu.lower().split("-")[0]
    generation = next((name for name, families in GENERATIONS.items() if family in families), gpu)
    shape = "mixture of experts" if model.num_experts is not None else "dense"
    size = SMALL_MODEL if model.hidden_size < SMALL else ""
    return f"{shape}{size}, {precision}, {generation}"


def read_bands(path: Path | None = None) -> BandTable:
    """Read a table of error bands, by default the shipped one."""
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
    """Return the shipped table of error bands; the file is read once."""
    return read_bands()


def gain_band(ratio: float, more_gpus: float = 1.0) -> tuple[float, float]:
    """
    Return the range that holds the measured ratio of two plans' times, in ``SHARE`` of pairs of public runs.

    Parameters
    ----------
    ratio
        Predicted ratio of the two plans' times, > 0.
    more_gpus
        GPUs of one plan over GPUs of the other plan, > 0. Each doubling widens the range.
    """
    table = shipped_bands()
    equal, grows = table.pairs
    doublings = abs(log2(more_gpus))
    reach = table.reach * sqrt(equal + grows * abs(log(ratio)) + table.beyond[WORLD_SIZE] * doublings)
    return ratio * exp(-reach), ratio * exp(reach)


def with_band(
    estimate: IterationTime, instance: Instance, config: ParallelConfig, placement: Placement
) -> IterationTime:
    """Return the estimate with its error band."""
    return replace(estimate, band=job_band(instance, config, estimate.iteration_time_s, placement))


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """
    Extra variance of the error band, for configurations in which a property exceeds its value in all measured runs.

    Parameters
    ----------
    name
        Property of a configuration.
    most
        Largest value of the property among measured runs.
    variance
        Added variance of the logarithm of measured over predicted time.
    """

    name: str
    most: int
    variance: float

    def has(self, config: ParallelConfig) -> bool:
        """Return whether the property of a configuration exceeds its largest measured value."""
        return bool(getattr(config, self.name) > self.most)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobBands:
    """
    Error bands of all configurations of a job: wider for configurations beyond the measured runs.

    Parameters
    ----------
    middle
        Expected over predicted time.
    spread, reach
        Standard deviation as in :class:`KindBand`; number of standard deviations as in :class:`BandTable`.
    source, runs, apart
        Fields of :class:`~pipette_opt.plans.plan.Band`.
    largest_gpus, per_doubling
        GPUs of the largest measured run, and the variance added per doubling of this number.
    beyond
        Other properties that add variance. If several are exceeded, only the largest variance is added.
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
        """Yield the numbers of GPUs above which the band widens, doublings of the largest run, to ``num_gpus``."""
        doublings = ceil(log2(max(1.0, num_gpus / self.largest_gpus)))
        for number in range(doublings):
            yield Beyond(name=WORLD_SIZE, most=self.largest_gpus << number, variance=self.per_doubling * (number + 1))

    def ends(self, variance: float = 0.0) -> tuple[float, float]:
        """Return the lower and upper end of the band, each over the predicted time."""
        reach = self.reach * sqrt(self.spread**2 + variance)
        return self.middle * exp(-reach), self.middle * exp(reach)

    def of(self, config: ParallelConfig, iteration_time_s: float) -> Band:
        """Return the error band of a configuration, from its predicted iteration time in seconds."""
        farther = [exceeded for exceeded in (*self.beyond, *self.more_gpus(config.world_size)) if exceeded.has(config)]
        low, high = self.ends(max((exceeded.variance for exceeded in farther), default=0.0))
        names = list(dict.fromkeys(exceeded.name for exceeded in farther if exceeded.variance))
        return Band(
            low_s=low * iteration_time_s,
            middle_s=self.middle * iteration_time_s,
            high_s=high * iteration_time_s,
            share=SHARE,
            source=f"{self.source}, with less {_words(names)}" if names else self.source,
            runs=self.runs,
            apart=self.apart,
        )


def job_band(
    instance: Instance, config: ParallelConfig, iteration_time_s: float, placement: Placement | None = None
) -> Band:
    """
    Return the error band of a predicted time.

    From the worlds that the stack's anchors leave; without anchors, from public runs.

    Parameters
    ----------
    placement
        Placement that was timed; ``None`` for ranks in order on the first hosts.
    """
    if not instance.stack.anchors:
        return job_bands(instance).of(config, iteration_time_s)
    cluster = instance.cluster
    usual = placement or identity_placement(
        config, cluster.gpus_per_node, np.arange(cluster.num_nodes), "tp-cp-ep-dp-pp"
    )
    _, terms = describe(instance, [(config, usual)])
    low, middle, high = anchored(instance.stack).bands(terms, SHARE)[0].tolist()
    return Band(
        low_s=low * iteration_time_s,
        middle_s=middle * iteration_time_s,
        high_s=high * iteration_time_s,
        share=SHARE,
        source=f"{counted(len(instance.stack.anchors), 'run')} {MEASURED_RUNS}",
        runs=len(instance.stack.anchors),
        apart=shipped_bands().apart,
    )


def anchored(stack: StackSpec) -> Worlds:
    """Return the worlds after the measured runs of a stack; ``InputError`` for runs of another version."""
    return _anchored(stack.anchors, is_fitted=stack.is_fitted)


@lru_cache(maxsize=8)
def _anchored(anchors: tuple[Anchor, ...], *, is_fitted: bool) -> Worlds:
    for anchor in anchors:
        if len(anchor.terms) != len(TERMS):
            raise InputError(
                f"measured run {anchor.run}",
                f"has {len(anchor.terms)} terms, and this version of pipette-opt has {len(TERMS)}; solve again with "
                "--measured.",
            )
    return Worlds.load(is_fitted=is_fitted).given(observations_of(anchors))


def observations_of(anchors: Iterable[Anchor]) -> list[Observation]:
    """Return the measured runs of a stack."""
    return [Observation(factors=np.array(anchor.terms), log_ratio=anchor.log_ratio) for anchor in anchors]


def job_bands(instance: Instance) -> JobBands:
    """Return the error bands of a job's configurations."""
    table, kind = shipped_bands(), job_kind(instance)
    row, seen = table.row(kind), table.kinds[any_kind(kind)].seen
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
    """Return a text for people that counts the public runs behind a band."""
    if runs >= FEW_RUNS:
        return f"{counted(runs, 'public run')} like this ({kind})"
    return f"{counted(all_runs, 'public run')}, {runs or 'none'} of them like this ({kind})"


def _words(names: Sequence[str]) -> str:
    """Return the names of properties in ``DISTANCES`` as words for people."""
    words = {WORLD_SIZE: "GPUs", "num_chunks": "interleaving", "micro_batch_size": "micro-batch"}
    parts = [words.get(name, name.split("_")[0] + " parallelism") for name in names]
    return " and ".join([*([", ".join(parts[:-1])] if parts[1:] else []), parts[-1]])
