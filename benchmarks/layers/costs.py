"""
Galvatron's cost model: seconds and megabytes of a layer, of the vocabulary, of a change of layout, of a pipeline.

Formulas as in its release: times of layers and of the pipeline in ``galvatron/core/search_engine/cost_model.py``
(AFDWang/Hetu-Galvatron at 175a7de), memory in ``cost_model/memory_costmodel_optimize.py`` and costs of changes in
``dynamic_programming.py`` (PKU-DAIR/Hetu-Galvatron at 1d27a7a and 67b224b). Apparent errors are kept, because
Galvatron's decisions rest on them. A change of layout costs a hundred times its message. Sequence parallelism over all
GPUs of a stage reduces no gradients and shards no states.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.layers.profile import LayerProfile, VocabularyMemory
from pipette_opt.base.types import FloatArray, IntArray

CONTEXT_MB = 1024
"""Memory of CUDA and PyTorch on each GPU, megabytes (``pytorch_context_mem``)."""

CHANGE_S_PER_BYTE_AND_COEFFICIENT = 1e-7
"""Galvatron's factor on the message of a change; 1e-9 would be bytes over GB/s (``inter_layer_cost``)."""

ZERO_NOISE = 0.003
"""Addition to the fraction of sharded states that a GPU holds, so that no forecast is too low (Galvatron's)."""

BACKWARD = 2.0
"""Time of a backward over that of a forward pass (``bct_fct_coe``)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """
    Distribution of a layer over the GPUs of its stage.

    Parameters
    ----------
    degree
        GPUs over which one sample is spread; the other GPUs hold other samples.
    is_sequence
        Whether samples are spread by DeepSpeed-Ulysses (whole parameters, all-to-alls), else by tensor parallelism.
    is_sharded
        Whether the other GPUs share states by ZeRO-3, else by ZeRO-2.
    is_recomputed
        Whether activations are recomputed.
    """

    degree: int
    is_sequence: bool = False
    is_sharded: bool = False
    is_recomputed: bool = False

    def __str__(self) -> str:
        spread = f"{'sp' if self.is_sequence else 'tp'}{self.degree}" if self.degree > 1 else "dp"
        return spread + (" zero3" if self.is_sharded else "") + (" recomputed" if self.is_recomputed else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Distribution of embedding, head and loss: degree, sequence or tensor parallelism, ZeRO-3 or not."""

    degree: int
    is_sequence: bool
    is_sharded: bool

    def __str__(self) -> str:
        return str(Strategy(degree=self.degree, is_sequence=self.is_sequence, is_sharded=self.is_sharded))


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """
    Properties of a pipeline that all layers share.

    Parameters
    ----------
    micro_batches
        Micro-batches of each data-parallel group (``chunks``).
    least_degree
        Minimum degree (``min_tp``); a micro-batch must divide into GPUs / stages / this degree.
    """

    profile: LayerProfile
    batch: int
    micro_batches: int
    stages: int
    least_degree: int = 1

    @property
    def gpus(self) -> int:
        """Number of GPUs of one stage."""
        return self.profile.num_gpus // self.stages

    @property
    def group_samples(self) -> float:
        """Samples of a micro-batch on as many GPUs as the least degree (``mbsz``)."""
        return self.batch / self.micro_batches * self.least_degree / self.gpus

    def layers(self) -> list[int]:
        """Return the layers of each stage: equal, with the remainder on the last stage (``pp_division_even``)."""
        equal = self.profile.num_layers // self.stages
        return [equal] * (self.stages - 1) + [self.profile.num_layers - equal * (self.stages - 1)]

    def held(self, stage: int) -> int:
        """Return the micro-batches whose activations a stage holds at the same time under 1F1B."""
        return min(self.stages - stage, self.micro_batches)


def layer_s(pipeline: Pipeline, strategy: Strategy, reduces: bool) -> float:
    """Return the forward and backward seconds of one layer and micro-batch; ``reduces`` adds the gradient reduction."""
    profile, links, degree = pipeline.profile, pipeline.profile.links, strategy.degree
    replicas = pipeline.gpus // degree
    samples = pipeline.batch / pipeline.micro_batches / replicas
    slope, start = profile.layer_ms
    forward = slope * samples / degree + start
    backward = forward * (BACKWARD + strategy.is_recomputed)
    group = pipeline.gpus if strategy.is_sequence else replicas
    per_mb = links.ms_per_mb(group, neighbours=strategy.is_sequence or 1 in (degree, replicas))
    parameters = profile.parameter_mb / (1 if strategy.is_sequence else degree)
    message = (replicas - 1) / replicas * parameters  # an all-reduce sends all twice, in bf16
    spread = 4 * (1.5 if strategy.is_recomputed else 1.0)
    spread *= links.collective_ms(degree, samples * profile.sample_mb / degree, all_to_all=strategy.is_sequence)
    beside = backward if degree == 1 or degree < pipeline.gpus // 2 else backward / 2
    if replicas == 1:
        total = forward + backward + spread
    else:
        total = forward + (backward - beside) + spread
        total += _overlapped_ms(message * reduces, per_mb, beside, links.overlap)
    if strategy.is_sharded:
        total += 0.5 * message * per_mb
    if pipeline.stages > 1:
        sent = pipeline.stages * 2 * samples * profile.sample_mb
        total += sent / links.p2p_gb_per_s[pipeline.stages] / profile.num_layers
    return total / 1000


def _overlapped_ms(message_mb: float, ms_per_mb: float, compute_ms: float, slowdown: float) -> float:
    """Return the milliseconds of a reduction during compute; both are slower until one of them ends."""
    together = min(message_mb * ms_per_mb, compute_ms)
    return slowdown * together + (message_mb * ms_per_mb - together) + (compute_ms - together)


def vocabulary_s(pipeline: Pipeline, option: Vocabulary) -> FloatArray:
    """Return the seconds of embedding, head and loss of one micro-batch on each stage, shape ``(stages,)``."""
    profile, found = pipeline.profile, np.zeros(pipeline.stages)
    slope, start = profile.vocabulary_ms
    compute = 3 * (slope * pipeline.group_samples / pipeline.least_degree + start)
    message = 0.0
    if not option.is_sequence:
        hidden_mb = pipeline.group_samples * profile.sample_mb
        message = profile.links.line_ms(option.degree, hidden_mb, all_to_all=False)
    group = pipeline.gpus // (1 if option.is_sequence else option.degree)
    per_mb = profile.links.ms_per_mb(group, neighbours=option.is_sequence or 1 in (option.degree, group))
    per_mb *= (group - 1) / group * (2.0 if option.is_sharded else 1.0)  # parameters are gathered twice, too
    held = 1 if option.is_sequence else option.degree
    ends = [profile.whole] if pipeline.stages == 1 else [profile.first, profile.last]
    for stage, memory in zip((0, -1), ends, strict=False):
        found[stage] = (memory.states[held] / 4 * per_mb + compute / len(ends) + message * (3 - len(ends))) / 1000
    return found


def layer_mb(pipeline: Pipeline, strategy: Strategy, stage: int) -> int:
    """Return the megabytes of one layer on one GPU of a stage, rounded up."""
    profile, degree = pipeline.profile, strategy.degree
    replicas = pipeline.gpus // degree
    states = 4 * profile.parameter_mb / (1 if strategy.is_sequence else degree)
    if replicas > 1:
        states *= _sharded(pipeline, pipeline.gpus if strategy.is_sequence else replicas, strategy.is_sharded)
    samples = pipeline.batch / replicas * pipeline.held(stage) / pipeline.micro_batches
    each = profile.recomputed_mb / degree if strategy.is_recomputed else profile.activation_mb[degree]
    return int(np.ceil(states + each * samples))


def _sharded(pipeline: Pipeline, group: int, zero3: bool) -> float:
    """Return the fraction of a layer's states on each GPU of a group; several micro-batches need whole gradients."""
    whole = (0 if zero3 else 1) + (pipeline.micro_batches > 1)
    return (8 - whole) / 8 * (1 / group + ZERO_NOISE) + whole / 8


def vocabulary_mb(pipeline: Pipeline, option: Vocabulary) -> IntArray:
    """Return the megabytes of embedding, head, loss and context on each stage, rounded up, shape ``(stages,)``."""
    profile, found = pipeline.profile, np.full(pipeline.stages, float(CONTEXT_MB))
    group = pipeline.gpus // (1 if option.is_sequence else option.degree)
    part = _sharded(pipeline, group, option.is_sharded)
    samples = pipeline.batch / pipeline.micro_batches * option.degree / pipeline.gpus
    held = 1 if option.is_sequence else option.degree

    def megabytes(memory: VocabularyMemory, micro_batches: int) -> float:
        return memory.states[held] * part + memory.activations[option.degree] * samples * micro_batches

    if pipeline.stages == 1:
        found[0] += megabytes(profile.whole, 1)
    else:
        found[0] += megabytes(profile.first, pipeline.stages)
        found[-1] += megabytes(profile.last, 1)
    rounded: IntArray = np.ceil(found).astype(np.int64)
    return rounded


def change_s(pipeline: Pipeline, before: int, after: int) -> float:
    """Return the seconds of a change between neighbouring layers spread over ``before`` and ``after`` GPUs."""
    if before == after:
        return 0.0
    message = (after - 1) / after * pipeline.group_samples * pipeline.profile.sample_mb * 2**20 / 2
    message *= (1 if after > before else 0) + 1 / after
    return message * pipeline.profile.links.ms_per_mb(after, neighbours=True) * CHANGE_S_PER_BYTE_AND_COEFFICIENT


def pipeline_terms(stages: int, micro_batches: int) -> tuple[IntArray, ...]:
    """
    Return Galvatron's time of a pipeline (``pipeline_costmodel``) as the terms of a sum of maxima.

    A stage has two times: a micro-batch without gradient reduction, with the vocabulary; and the layers of a
    micro-batch with the reduction. Each term has shape ``(alternatives, 2, stages)``.
    """
    most = np.zeros((3, 2, stages), dtype=np.int64)
    most[0, 0] = 1
    most[0, 0, -1] += micro_batches - 1
    most[1:, 0, 0] = max(0, micro_batches + 1 - stages)
    most[1, 0, 0] += min(stages, micro_batches) - 1
    most[2, 0, 1:] = 1
    exposed = np.zeros((stages + 1, 2, stages), dtype=np.int64)
    for stage in range(stages):
        exposed[stage, 1, stage] = 1
        exposed[stage, 0, : stage + 1] = -1
    return most, exposed
