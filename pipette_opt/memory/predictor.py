"""Prediction of the peak memory of each stage: counted tensors, corrected by a network, with a bound on the risk."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from operator import attrgetter
from statistics import NormalDist
from typing import Self

import numpy as np

from pipette_opt.base.degrees import DEGREES
from pipette_opt.base.errors import InputError
from pipette_opt.base.risk import IGNORED_RISK, SMALLEST_RISK, USUAL_RISK
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.base.units import GIB
from pipette_opt.memory.components import COMPONENTS, stage_components, whole_components
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import FormulaBytes, formula_bytes
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.memory.regressors import StageFacts, config_groups, link_share, narrow_copies, stage_regressors
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.memory.table import stage_table
from pipette_opt.memory.twins import as_measured, as_run, as_twins_take, rank_keys, work_keys
from pipette_opt.memory.weights import NetworkWeights, read_weights
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import GpuSpec, ModelSpec, StackSpec, TrainingSpec
from pipette_opt.specs.activations import largest_micro_batch_tokens, sequence_shards
from pipette_opt.specs.memory_constants import MEGATRON_CORE, NEEDED, MemoryConstants
from pipette_opt.specs.memory_prior import unknown_widths
from pipette_opt.specs.user_buffers import has_user_buffers

_ROWS_AT_ONCE = 1 << 16

_DEGREES = attrgetter(*(degree.number for degree in DEGREES), "num_distributed_optimizer_instances")
"""Fields of a configuration on which its communication groups depend."""

MAX_PARAMETERS = 1e14
"""Maximum number of parameters of a model; larger numbers may overflow integers."""


def check_size(model: ModelSpec) -> None:
    """Raise ``InputError`` for a model larger than any trained model, most likely an error in its units."""
    if model.num_parameters > MAX_PARAMETERS:
        raise InputError(
            f"model {model.name}",
            f"has {model.num_parameters:.2g} parameters, more than {MAX_PARAMETERS:.0e}; check num_layers="
            f"{model.num_layers}, hidden_size={model.hidden_size}, ffn_hidden_size={model.ffn_hidden_size}, vocab_size="
            f"{model.vocab_size}.",
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPrediction:
    """
    Predicted memory of the stages of one configuration.

    Parameters
    ----------
    predicted_bytes
        Expected peak of one GPU of each stage, shape ``(pp,)``.
    upper_bytes
        Bound on the peak, exceeded with at most the accepted risk, shape ``(pp,)``.
    extrapolates
        Whether a feature of the stage lies outside the range of the training data, shape ``(pp,)``.
    counted_bytes
        Bytes of weights, gradients, optimizer state and buffers of a certain size, shape ``(pp,)``. No stack needs
        less.
    spread
        Standard deviation of ``log(real / predicted)``, with all that is unknown about the stack, shape ``(pp,)``.
    own_spread
        Part of ``spread`` that the stages of one stack do not share, shape ``(pp,)``.
    components
        Bytes of each of :data:`~pipette_opt.memory.components.COMPONENTS`, shape ``(pp, len(COMPONENTS))``. Each row
        adds up to the stage's ``predicted_bytes``.
    """

    predicted_bytes: IntArray
    upper_bytes: IntArray
    extrapolates: BoolArray
    counted_bytes: IntArray
    spread: FloatArray
    own_spread: FloatArray
    components: IntArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "predicted_bytes", read_only(self.predicted_bytes, np.int64))
        object.__setattr__(self, "upper_bytes", read_only(self.upper_bytes, np.int64))
        object.__setattr__(self, "extrapolates", read_only(self.extrapolates, np.bool_))
        object.__setattr__(self, "counted_bytes", read_only(self.counted_bytes, np.int64))
        object.__setattr__(self, "spread", read_only(self.spread))
        object.__setattr__(self, "own_spread", read_only(self.own_spread))
        object.__setattr__(self, "components", read_only(self.components, np.int64))

    def of_stages(self, start: int, end: int) -> Self:
        """Return the prediction of these stages; its arrays are parts of this one's."""
        return type(self)(**{name: getattr(self, name)[start:end] for name in _FIELDS})

    def components_of(self, stage: int) -> dict[str, int]:
        """Return the bytes of each component of a stage's predicted peak, by component."""
        return dict(zip(COMPONENTS, self.components[stage].tolist(), strict=True))


_FIELDS = tuple(field.name for field in fields(MemoryPrediction))


def oom_probability(prediction: MemoryPrediction, capacity_bytes: IntArray | int) -> FloatArray:
    """
    Return the probability that each stage needs more than the capacity, at least ``SMALLEST_RISK``.

    Parameters
    ----------
    capacity_bytes
        Usable bytes of the GPU of each stage, or of all.
    """
    capacity = np.maximum(np.asarray(capacity_bytes, dtype=np.float64), 1.0)
    beyond = normal_beyond(np.log(capacity / prediction.predicted_bytes) / prediction.spread)
    risks: FloatArray = np.maximum(np.where(prediction.counted_bytes > capacity, 1.0, beyond), SMALLEST_RISK)
    return risks


@cache
def _shipped_network() -> NetworkWeights:
    """Return the shipped network, read once per process."""
    return read_weights(shipped_path("models", "memory.npz"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryPredictor:
    """
    Formula for the counted tensors, a network that corrects it, and memory constants for what no tensor trace shows.

    Parameters
    ----------
    network
        Network of ``log(peak / formula)``; it moves a peak by 0.31 % at most (``benchmarks/memory/effect.py``).
    memory_constants
        Memory constants, by default Megatron-Core's.
    """

    network: NetworkWeights
    memory_constants: MemoryConstants = MEGATRON_CORE

    @classmethod
    def load(cls, *, memory_constants: MemoryConstants | None = None) -> Self:
        """Return a predictor with the shipped weights."""
        return cls(network=_shipped_network(), memory_constants=memory_constants or MEGATRON_CORE)

    def predict(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        configs: Sequence[ParallelConfig],
        *,
        gpus_per_node: int | None = None,
        intra_node_bytes_per_s: float | None = None,
        max_oom_risk: float = USUAL_RISK,
    ) -> list[MemoryPrediction]:
        """
        Predict the memory of every stage of every configuration.

        Parameters
        ----------
        gpus_per_node
            GPUs of one host; collectives between hosts keep other buffers than those inside a host. ``None``: every
            tensor group is inside a host.
        intra_node_bytes_per_s
            Bandwidth between GPUs of one host, with which NCCL's buffers grow. ``None``: that of A100's NVLink.
        max_oom_risk
            Accepted probability that a stage needs more than ``upper_bytes``; at least ``SMALLEST_RISK``. From 0.5 on,
            the bound is the prediction itself; 1 (memory does not count) gives the bounds of ``USUAL_RISK``.
        """
        if not configs:
            return []
        check_size(model)
        max_oom_risk = USUAL_RISK if max_oom_risk >= IGNORED_RISK else max_oom_risk
        if not SMALLEST_RISK <= max_oom_risk < 1:
            raise InputError("max_oom_risk", f"must be at least {SMALLEST_RISK:g} and below 1, got {max_oom_risk}.")
        table = stage_table(model, training, configs)
        formula = formula_bytes(table)
        counted, outside = self._counted(table, formula)
        facts = _stage_facts(table, model, training, configs, gpus_per_node, intra_node_bytes_per_s)
        work = work_keys(table, facts) if self.memory_constants.twins else ()
        regressors = stage_regressors(table, formula, counted, facts, self.memory_constants.late_buffers)
        predicted, own_spread, unknown, parts = self._fullest(formula, counted, regressors, configs, work)
        certain = self._state_bytes(table, formula)
        lifted = np.maximum(certain / predicted, 1.0)
        predicted, parts = predicted * lifted, parts * lifted[:, None]
        sending = _sending_bytes(model, training, configs)
        spread = np.hypot(own_spread, unknown)
        for deviations in (own_spread, spread):
            deviations *= predicted / (predicted + sending)  # the sizes of these buffers are certain
        predicted, certain = predicted + sending, certain + sending
        parts[:, COMPONENTS.index("buffers")] += sending
        ends = np.cumsum([0, *(config.pipeline_model_parallel_size for config in configs)]).tolist()
        if self.memory_constants.ran or self.memory_constants.peaks:
            before, keys = predicted, rank_keys(table, facts, sending)
            predicted, spread = as_run(
                self.memory_constants.ran,
                keys,
                before,
                spread,
                unusable_gib=self.memory_constants.unusable_gib,
            )
            for start, end in pairwise(ends) if self.memory_constants.peaks else ():
                predicted[start:end], spread[start:end] = as_measured(
                    self.memory_constants,
                    keys[start:end],
                    predicted[start:end],
                    spread[start:end],
                )
            parts *= (predicted / before)[:, None]
        upper = predicted * np.exp(max(NormalDist().inv_cdf(1 - max_oom_risk), 0.0) * spread)
        whole, most = (np.ceil(values).astype(np.int64) for values in (predicted, upper))
        of_all = MemoryPrediction(
            predicted_bytes=whole,
            upper_bytes=most,
            extrapolates=outside,
            counted_bytes=certain.astype(np.int64),
            spread=spread,
            own_spread=np.minimum(own_spread, spread),
            components=whole_components(parts, whole),
        )
        return [of_all.of_stages(start, end) for start, end in pairwise(ends)]

    def _fullest(
        self,
        formula: FormulaBytes,
        counted_bytes: FloatArray,
        regressors: FloatArray,
        configs: Sequence[ParallelConfig],
        work: Sequence[str],
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """
        Return the bytes of each stage at its fullest moment, two deviations of their log, and their components.

        The first deviation is that of a stack with these constants, the second that of the unknown constants.
        """
        constants = self.memory_constants.vector() * NEEDED
        regressors = np.stack([as_twins_take(self.memory_constants, moment, constants, work) for moment in regressors])
        moment, rows = (regressors @ constants).argmax(axis=0), np.arange(regressors.shape[1])
        fullest = regressors[moment, rows]
        num_gpus = np.repeat(
            np.array([config.world_size for config in configs], dtype=np.float64),
            [config.pipeline_model_parallel_size for config in configs],
        )
        spread = self.memory_constants.widths(fullest, constants, num_gpus)
        unknown = unknown_widths(self.memory_constants, fullest, NEEDED)
        parts = stage_components(formula, counted_bytes, fullest * constants * GIB, moment)
        return fullest @ constants * GIB, spread, unknown, parts

    def _state_bytes(self, table: StageTable, formula: FormulaBytes) -> FloatArray:
        """Return the bytes of weights, gradients and optimizer state of each stage: no constant predicts less."""
        held = np.maximum(table.gradient + min(self.memory_constants.parameter_bytes, 0.0), table.element)
        state: FloatArray = formula.static + (held / table.gradient - 1) * formula.gradients
        return state - self.memory_constants.fp32_shards * narrow_copies(table)

    def usable_bytes(self, gpu: GpuSpec) -> int:
        """Return the bytes of a GPU that a stage can use: all but those of CUDA's context and libraries."""
        return max(gpu.memory_bytes - int(self.memory_constants.unusable_gib * GIB), 0)

    def regressors(
        self,
        model: ModelSpec,
        training: TrainingSpec,
        configs: Sequence[ParallelConfig],
        *,
        gpus_per_node: int | None = None,
        intra_node_bytes_per_s: float | None = None,
    ) -> FloatArray:
        """Return the memory per unit of each memory constant in every stage, GiB; see :func:`stage_regressors`."""
        table = stage_table(model, training, configs)
        formula = formula_bytes(table)
        facts = _stage_facts(table, model, training, configs, gpus_per_node, intra_node_bytes_per_s)
        counted = self._counted(table, formula)[0]
        return stage_regressors(table, formula, counted, facts, self.memory_constants.late_buffers)

    def _counted(self, table: StageTable, formula: FormulaBytes) -> tuple[FloatArray, BoolArray]:
        """Return the tensor bytes of every row, and the mask of rows outside the range of the training data."""
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
        return formula.total * np.exp(log_ratio), flagged


def stack_predictor(stack: StackSpec) -> MemoryPredictor:
    """Load the shipped memory predictor with the memory constants of the stack."""
    return MemoryPredictor.load(memory_constants=stack.memory)


def token_buffer_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """
    Return the bytes that HybridEP registers on a rank for arriving tokens of its expert-parallel group.

    The rule is HybridEP's: ``max_num_of_tokens_per_rank`` x ranks x width (github.com/deepseek-ai/DeepEP, hybrid-ep
    branch,
    ``docs/Hybrid-EP_Implementation.md``, section 4.2); one buffer for all layers. Buffers for other hosts, an eighth of
    these bytes for 8 hosts, and DeepEP's smaller buffers are not counted.
    """
    ranks = config.expert_model_parallel_size
    kernels = training.moe_token_dispatcher_type, training.moe_flex_dispatcher_backend
    if model.num_experts is None or kernels != ("flex", "hybridep") or ranks == 1:
        return 0.0
    return (
        largest_micro_batch_tokens(training, config)
        // sequence_shards(config)
        * ranks
        * config.expert_tensor_size
        * model.expert_hidden_size
        * training.parameter_bytes
    )


def user_buffer_bytes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> float:
    """
    Return the bytes of a rank's user buffers for tensor overlap; 0 without tensor overlap.

    Each buffer holds the hidden states of a whole micro-batch. Six buffers are gathered into, in the format of the
    matrix products; four are reduced from (Transformer Engine, ``initialize_ub``; Megatron-LM gives the shape,
    ``_initialize_tp_communicators``).
    """
    if not has_user_buffers(training, config):
        return 0.0
    recipe = training.recipe
    gathered = training.parameter_bytes if recipe is None else recipe.element_bytes
    tokens = largest_micro_batch_tokens(training, config)
    return tokens * model.hidden_size * (6 * gathered + 4 * training.parameter_bytes)


def stage_works(
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    *,
    gpus_per_node: int | None = None,
) -> tuple[str, ...]:
    """Return the work key of every stage of every configuration, in order; see :func:`twins.work_keys`."""
    table = stage_table(model, training, configs)
    return work_keys(table, _stage_facts(table, model, training, configs, gpus_per_node, None))


def stage_ranks(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    *,
    gpus_per_node: int,
    intra_node_bytes_per_s: float,
) -> tuple[str, ...]:
    """Return the rank key of every stage of a configuration; see :func:`twins.rank_keys`."""
    table = stage_table(model, training, [config])
    facts = _stage_facts(table, model, training, [config], gpus_per_node, intra_node_bytes_per_s)
    return rank_keys(table, facts, _sending_bytes(model, training, [config]))


def _sending_bytes(model: ModelSpec, training: TrainingSpec, configs: Sequence[ParallelConfig]) -> FloatArray:
    """Return the bytes of every stage's buffers for arriving tokens and for tensor overlap; their sizes are certain."""
    sizes = [
        token_buffer_bytes(model, training, config) + user_buffer_bytes(model, training, config) for config in configs
    ]
    return np.repeat(np.array(sizes), [config.pipeline_model_parallel_size for config in configs])


def _stage_facts(
    table: StageTable,
    model: ModelSpec,
    training: TrainingSpec,
    configs: Sequence[ParallelConfig],
    gpus_per_node: int | None,
    intra_node_bytes_per_s: float | None,
) -> StageFacts:
    """Return the inputs of the regressors that the stage table lacks."""
    stages = [config.pipeline_model_parallel_size for config in configs]
    replicas = [config.data_parallel_size * config.context_parallel_size for config in configs]
    of_degrees = {_DEGREES(config): config for config in configs}
    found = {key: config_groups(model, training, config, gpus_per_node) for key, config in of_degrees.items()}
    groups = [found[_DEGREES(config)] for config in configs]

    def everywhere(value: float) -> FloatArray:
        return np.full(table.num_rows, float(value))

    return StageFacts(
        replicas=np.repeat(np.array(replicas, dtype=np.float64), stages),
        pipeline=np.repeat(np.array(stages, dtype=np.float64), stages),
        gpus_per_node=everywhere(np.inf if gpus_per_node is None else gpus_per_node),
        groups=np.repeat(np.array(groups), stages),
        link=everywhere(link_share(intra_node_bytes_per_s)),
        unfused_norm=everywhere(not training.fused_norm),
        unfused_softmax=everywhere(not training.fused_softmax),
    )
