"""Peak memory of every stage, predicted by the trained network in numpy, with a bound for an accepted risk."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import NormalDist
from typing import Self

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.base.units import GIB
from pipette_opt.memory.columns import StageFacts, link_share, stage_columns
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.framework import NEEDED, Framework, normal_beyond
from pipette_opt.memory.overhead import DEFAULT_OVERHEAD, MemoryOverhead
from pipette_opt.memory.table import StageTable, stage_table
from pipette_opt.memory.twins import as_twins_take, work_keys
from pipette_opt.memory.weights import NetworkWeights, read_weights
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, ModelSpec, TrainingSpec

_ROWS_AT_ONCE = 1 << 16
_SPREAD_POINTS = 64

MOST_PARAMETERS = 1e14
"""Beyond this nobody has trained anything, and whole numbers may overflow."""

IGNORED_RISK = 1.0
"""Accepted risk at which memory does not count."""

USUAL_RISK = 0.01
"""Risk of the bounds that are shown where memory does not count."""

SMALLEST_FITTED_RISK = 1e-4
"""Of a normal spread nobody knows more."""


def check_size(model: ModelSpec) -> None:
    """Raise ``InputError`` for a model that is larger than any, most likely a slip of units."""
    if model.num_parameters > MOST_PARAMETERS:
        raise InputError(
            f"model {model.name}",
            f"has {model.num_parameters:.2g} parameters, more than {MOST_PARAMETERS:.0e}; check num_layers="
            f"{model.num_layers}, hidden_size={model.hidden_size}, ffn_hidden_size={model.ffn_hidden_size}, vocab_size="
            f"{model.vocab_size}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPrediction:
    """
    Memory of the stages of one configuration.

    Parameters
    ----------
    predicted_bytes
        Expected peak of one GPU of each stage, allocator fragmentation included, shape ``(pp,)``.
    upper_bytes
        Exceeded with at most the accepted risk, shape ``(pp,)``.
    extrapolates
        Whether a feature of the stage lies outside the range of the training data, shape ``(pp,)``.
    spread
        Standard deviation of ``log(real / predicted)`` with a calibrated stack, shape ``(pp,)``; 0 without one.
    """

    predicted_bytes: IntArray
    upper_bytes: IntArray
    extrapolates: BoolArray
    spread: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicted_bytes", read_only(self.predicted_bytes, np.int64))
        object.__setattr__(self, "upper_bytes", read_only(self.upper_bytes, np.int64))
        object.__setattr__(self, "extrapolates", read_only(self.extrapolates, np.bool_))
        object.__setattr__(self, "spread", read_only(self.spread))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPredictor:
    """
    The trained network, with the allowances for what it does not see.

    Parameters
    ----------
    framework
        Fitted constants of a stack, which then stand in for the allowances.
    """

    network: NetworkWeights
    overhead: MemoryOverhead = DEFAULT_OVERHEAD
    framework: Framework | None = None
    _errors: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        grid = [NormalDist().inv_cdf((k + 0.5) / _SPREAD_POINTS) for k in range(_SPREAD_POINTS)]
        spread = self.overhead.stack_spread * np.array(grid if self.overhead.stack_spread > 0 else [0.0])
        errors = np.sort((self.network.residuals[:, None] + spread).ravel())
        object.__setattr__(self, "_errors", read_only(errors))

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        *,
        overhead: MemoryOverhead = DEFAULT_OVERHEAD,
        framework: Framework | None = None,
    ) -> Self:
        """Read a weights file, the shipped one by default; raises ``InputError`` if it is damaged or foreign."""
        chosen = shipped_path("models", "memory.npz") if path is None else Path(path)
        return cls(network=read_weights(chosen), overhead=overhead, framework=framework)

    @property
    def smallest_risk(self) -> float:
        """The smallest risk that the calibration data can vouch for."""
        if self.framework is not None:
            return SMALLEST_FITTED_RISK
        return 1 / (len(self.network.residuals) + 1)

    def predict(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        configs: Sequence[ParallelConfig],
        *,
        gpus_per_node: int | None = None,
        intra_node_bytes_per_s: float | None = None,
        max_oom_risk: float = 0.01,
    ) -> list[MemoryPrediction]:
        """
        Memory of every stage of every configuration.

        Parameters
        ----------
        gpus_per_node
            GPUs of one host: collectives across hosts leave other buffers than those inside. ``None``: every tensor
            group is inside a host.
        intra_node_bytes_per_s
            Between GPUs of one host, which NCCL's buffers go with. ``None``: as NVLink of A100.
        max_oom_risk
            Accepted probability that a stage needs more than ``upper_bytes``; at least :attr:`smallest_risk`. From a
            half on that is the prediction itself; 1 (memory does not count) gives the bounds of ``USUAL_RISK``.
        """
        if not configs:
            return []
        check_size(model)
        max_oom_risk = USUAL_RISK if max_oom_risk >= IGNORED_RISK else max_oom_risk
        margin = self.risk_margin(max_oom_risk)
        table = stage_table(model, training, configs)
        predicted, outside = self._predict(table)
        spread = np.zeros(len(predicted))
        upper = predicted * margin
        if self.framework is not None:
            facts = _stage_facts(table, training, configs, gpus_per_node, intra_node_bytes_per_s)
            work = work_keys(table, facts) if self.framework.twins else ()
            predicted, spread = self._calibrated(self.framework, self._columns(table, predicted, facts), configs, work)
            upper = predicted * np.exp(NormalDist().inv_cdf(1 - max_oom_risk) * spread)
        upper = np.maximum(upper, predicted)
        whole, most = (np.ceil(values).astype(np.int64) for values in (predicted, upper))
        ends = np.cumsum([0, *(config.pipeline_model_parallel_size for config in configs)]).tolist()
        return [
            MemoryPrediction(
                predicted_bytes=whole[start:end],
                upper_bytes=most[start:end],
                extrapolates=outside[start:end],
                spread=spread[start:end],
            )
            for start, end in pairwise(ends)
        ]

    @staticmethod
    def _calibrated(
        framework: Framework, columns: FloatArray, configs: Sequence[ParallelConfig], work: Sequence[str]
    ) -> tuple[FloatArray, FloatArray]:
        """Bytes that every stage needs in its fullest moment, and the standard deviation of its logarithm."""
        constants = framework.vector() * NEEDED
        needs = np.stack([as_twins_take(framework, moment, constants, work) for moment in columns]) @ constants
        moment, rows = needs.argmax(axis=0), np.arange(needs.shape[1])
        num_gpus = np.repeat(
            np.array([config.world_size for config in configs], dtype=np.float64),
            [config.pipeline_model_parallel_size for config in configs],
        )
        return needs[moment, rows] * GIB, framework.widths(columns[moment, rows], constants, num_gpus)

    def risk_margin(self, max_oom_risk: float) -> float:
        """
        Factor over the prediction that is exceeded with at most that probability.

        Split conformal over the ``n`` calibration points that the network has not seen, each widened by the
        assumed spread over stacks: the smallest factor that at most ``(n + 1) * risk - 1`` of them exceed.
        """
        points = len(self.network.residuals)
        if not self.smallest_risk <= max_oom_risk < 1:
            raise InputError(
                "max_oom_risk",
                f"must be at least {self.smallest_risk:.4g}, what {points} calibration points can vouch for, "
                f"and below 1, got {max_oom_risk}.",
            )
        if self.framework is not None:
            return float(np.exp(NormalDist().inv_cdf(1 - max_oom_risk) * self.framework.spread))
        share = ((points + 1) * max_oom_risk - 1) / points
        exceeding = int(np.floor(share * len(self._errors) + 1e-9))
        return float(np.exp(self._errors[len(self._errors) - 1 - exceeding]))

    def oom_probability(
        self,
        predicted_bytes: IntArray | FloatArray,
        capacity_bytes: IntArray | int,
        spread: FloatArray | None = None,
    ) -> FloatArray:
        """
        Probability that a stage needs more than there is; arguments broadcast.

        Conservative: never below :attr:`smallest_risk`. At ``capacity = upper_bytes`` it is at most the accepted
        risk.

        Parameters
        ----------
        spread
            Of the prediction, with a calibrated stack.
        """
        room = np.log(np.maximum(np.asarray(capacity_bytes, dtype=np.float64), 1.0) / np.asarray(predicted_bytes))
        if self.framework is not None:
            return normal_beyond(room / (self.framework.spread if spread is None else spread))
        beyond = 1 - np.searchsorted(self._errors, room, side="right") / len(self._errors)
        points = len(self.network.residuals)
        probability: FloatArray = (1 + points * beyond) / (1 + points)
        return probability

    def at_floor(self, probability: float) -> bool:
        """Whether a probability is so small that the data can only say: at most that."""
        return bool(probability <= self.smallest_risk * (1 + 1e-9))

    def usable_bytes(self, gpu: GpuSpec) -> int:
        """What the tensors of a stage may take on a GPU."""
        return self.room_bytes(gpu.memory_bytes)

    def room_bytes(self, memory_bytes: int) -> int:
        """The same of a GPU with so much memory."""
        if self.framework is not None:
            return max(memory_bytes - int(self.framework.unusable_gib * GIB), 0)
        return max(memory_bytes - self.overhead.reserve_bytes, 0)

    def columns(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        configs: Sequence[ParallelConfig],
        *,
        gpus_per_node: int | None = None,
        intra_node_bytes_per_s: float | None = None,
    ) -> FloatArray:
        """What one unit of each constant of a framework weighs in every stage, GiB; see ``columns.stage_columns``."""
        table = stage_table(model, training, configs)
        facts = _stage_facts(table, training, configs, gpus_per_node, intra_node_bytes_per_s)
        return self._columns(table, self._predict(table)[0], facts)

    def _columns(self, table: StageTable, predicted_bytes: FloatArray, facts: StageFacts) -> FloatArray:
        """The same of a table whose rows are predicted."""
        counted = predicted_bytes / self.overhead.fragmentation
        return stage_columns(table, formula_bytes(table), counted, facts)

    def _predict(self, table: StageTable) -> tuple[FloatArray, BoolArray]:
        """Expected bytes of every row, and whether it lies outside of the training data."""
        formula = formula_bytes(table)
        features = table_features(table, formula)
        log_ratio = np.concatenate(
            [
                self.network.log_ratio(features[start : start + _ROWS_AT_ONCE])
                for start in range(0, len(features), _ROWS_AT_ONCE)
            ]
        )
        tolerance = 1e-9 + 0.01 * (self.network.highest - self.network.lowest)
        outside = (features < self.network.lowest - tolerance) | (features > self.network.highest + tolerance)
        flagged: BoolArray = np.any(outside, axis=1)
        return formula.total * np.exp(log_ratio) * self.overhead.fragmentation, flagged


def stage_works(
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    *,
    gpus_per_node: int | None = None,
) -> tuple[str, ...]:
    """A name for the work of every stage of every configuration, in order; see :func:`twins.work_keys`."""
    table = stage_table(model, training, configs)
    return work_keys(table, _stage_facts(table, training, configs, gpus_per_node, None))


def _stage_facts(
    table: StageTable,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    gpus_per_node: int | None,
    intra_node_bytes_per_s: float | None,
) -> StageFacts:
    """What the columns need besides the table."""
    stages = [config.pipeline_model_parallel_size for config in configs]
    replicas = [config.data_parallel_size * config.context_parallel_size for config in configs]
    first_flash = training.attention_kernel == "flash" and training.flash_version == 1

    def everywhere(value: float) -> FloatArray:
        return np.full(table.num_rows, float(value))

    return StageFacts(
        replicas=np.repeat(np.array(replicas, dtype=np.float64), stages),
        pipeline=np.repeat(np.array(stages, dtype=np.float64), stages),
        gpus_per_node=everywhere(np.inf if gpus_per_node is None else gpus_per_node),
        link=everywhere(link_share(intra_node_bytes_per_s)),
        unfused_norm=everywhere(not training.fused_norm),
        unfused_softmax=everywhere(not training.fused_softmax),
        flash1=everywhere(first_flash),
    )
