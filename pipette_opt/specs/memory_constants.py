"""
Memory constants of a software stack, for memory beyond the counted tensors.

The constants give two figures. The memory that a stage *takes* is what a measurement shows. It includes blocks that the
caching allocator holds only because no other tensor asked for them (leftovers of the optimizer step, gaps). The memory
that a stage *needs* leaves these blocks out, because the allocator returns them before it fails. Running out of memory
is predicted from the need. Outputs of collectives that wait while the host runs ahead count as needed: in theory the
allocator waits for them, but jobs that filled their GPUs with them ran out of memory.

A stage has one row for each of two moments: the passes, with activations, and the optimizer step, without.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated

import numpy as np
from msgspec import Meta

from pipette_opt.base.typed import Share, check_limits
from pipette_opt.base.types import BoolArray, FloatArray

HIGHEST = 1e4
"""Largest memory constant, in any unit. Chosen."""

Amount = Annotated[float, Meta(ge=0, le=HIGHEST)]
"""Memory constant that cannot be negative."""

LARGEST_OFFSET = 1.0
"""Maximum of the absolute log offset between versions of a stack; a larger offset means a different stack. Chosen."""

Offset = Annotated[float, Meta(ge=-LARGEST_OFFSET, le=LARGEST_OFFSET)]
"""Logarithm of a factor on memory."""

MAX_OF_TWIN = 1.25
"""
Maximum shift of a prediction by equal-work runs, in standard deviations.

It is the bound that Student's law with 4 degrees of freedom gives.
"""

GpuMemory = Annotated[float, Meta(gt=0, le=HIGHEST)]
"""Memory of a GPU, GiB."""

TwinOffset = Annotated[float, Meta(ge=-MAX_OF_TWIN, le=MAX_OF_TWIN)]
"""Expected error of an equal-work run, in standard deviations."""

MOMENTS = 2
"""Number of moments of a stage, with one row each: passes, optimizer step."""

Threshold = Annotated[float, Meta(ge=1e-3, le=1e18)]
"""Size at which a share of late buffers is a half, or the width of such a change."""

Exponent = Annotated[float, Meta(ge=-10, le=10)]
"""Power of a number of ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LateBuffers:
    """
    Thresholds of a stack on its GPUs: how many late buffers wait, and whether a step's gradients reuse freed blocks.

    A host that runs ahead of its GPU holds buffers whose collectives have not run yet.

    Parameters
    ----------
    busy_multiply_adds
        Multiply-adds of a layer on a rank above which hosts of 4 tensor ranks and 2 stages run ahead of their GPUs.
    busy_by_tensor, busy_by_pipeline
        Exponents of tensor ranks over 4 and of stages over 2 in this number. More tensor ranks wait for each other's
        hosts. More stages let the first stage start more passes before it must wait.
    busy_width
        Width of this change, in doublings of the multiply-adds.
    pile_layers
        Layers of a chunk with which a pipeline's late buffers reach 1 / sqrt(2) of their maximum.
    step_fits
        Largest fp32 matrix of a layer over its largest activation at which half of a step's gradients reuse a freed
        block.
    wire_tokens
        Tokens of a micro-batch at which collectives between hosts halve the late buffers without a pipeline, where
        gradients are reduced over replicas: they keep the hosts from running ahead.
    """

    busy_multiply_adds: Threshold
    busy_by_tensor: Exponent
    busy_by_pipeline: Exponent
    busy_width: Threshold
    pile_layers: Threshold
    step_fits: Threshold
    wire_tokens: Threshold

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryConstants:
    """
    Memory constants of one stack; the defaults are Megatron-Core's.

    Parameters
    ----------
    counted
        Real over counted tensors: above 1 for gaps of the allocator, which peaks of allocated memory do not show; below
        1 if the count includes tensors that the stack does not have.
    base_gib
        Memory that depends on neither model nor job: workspaces. Assumed: those of cuBLAS and cuBLASLt on Hopper, 32
        MiB each (github.com/pytorch/pytorch pull request 120925).
    parameter_bytes
        Bytes beyond the counted tensors per parameter whose gradient a rank holds; -2 where gradients stay in 16 bits.
    fp32_shards
        1 where sharded weights are the fp32 master copy, and gathered gradients have the format of gathered weights
        (FSDP2); 0 where a shard also has weights in 16 bits (Megatron-Core, DeepSpeed).
    placeholders
        Fraction of the empty gradients that Transformer Engine keeps, one for each shape of a layer's matrices; 0 where
        products do not add to the main gradients.
    gradient_copy_bytes
        Bytes per parameter of a second gradient copy in reduction buckets, where gradients are reduced over replicas
        and the optimizer is not sharded.
    step_bytes
        Bytes per parameter with a sharded optimizer: gathered parameters and scattered gradients of the step for which
        no freed activation is large enough; returned when memory is short.
    step_state_bytes
        Bytes per parameter with a sharded optimizer, while the step runs and activations are freed.
    step_copy_bytes
        Bytes per parameter that a rank owns, while its optimizer steps on the GPU: copies of gradients that a stack
        keeps in 16 bits, and temporary tensors of an Adam of several kernels. 0 where one kernel reads the gradients.
    activations
        Stored activations beyond the counted ones, as a fraction: unfused gates, other kernels.
    attention_copies
        Second copy of query, keys and values of every layer and pass in flight, as a fraction. It exists where the
        joint QKV product stays until the backward pass.
    norm_bytes
        Bytes per element of the inputs of unfused norms.
    score_bytes, fused_score_bytes
        Bytes per attention score beyond the counted ones, with an unfused and with a fused softmax.
    logit_bytes
        Bytes per logit of this rank beyond the counted ones: copies in other formats, shifted copies.
    loss_spare_bytes
        Bytes per logit that must be free at some moment but appear in no measurement, without a pipeline. The jobs that
        ran out of memory for lack of them had no pipeline. With a pipeline, hosts wait for their GPUs with each tensor
        that they send (nanotron reads its shape back from the device, ``P2P._send_meta``), and no late buffer is cut
        into the blocks of the last logits.
    whole_logit_bytes
        Bytes per logit of the whole vocabulary, where tensor ranks gather their logits for the loss.
    table_bytes
        Bytes per element of the embedding table on the first stage: its gradient in other formats.
    gathered_per_layer
        Number of buffers of one gathered micro-batch (tokens times hidden size) with tensor parallelism, for each layer
        and pass in flight, where gathered inputs are kept and not gathered again.
    run_ahead_buffers
        Number of such buffers without a pipeline, each with the rank's own shard. Inputs and outputs of collectives
        wait while the host runs ahead; the launch queue limits their number (1024 kernels, some 20 for each).
    pile_up_buffers
        Number of such buffers with a pipeline and tensor ranks inside hosts. With ``late_buffers``, fewer where a chunk
        has few layers, or GPUs are not busy; a job on one host has no network to wait for.
    group_gib
        NCCL's buffers of each group of several ranks (tensor, data with context, pipeline, context, experts), with
        A100's NVLink inside the hosts; proportionally more with faster links, up to NCCL's maximum of channels. An
        all-to-all has half of these for each other rank of its host. No measurement of tensors shows these buffers.
    unusable_gib
        Memory that no tensor can use: CUDA's context and libraries.
    spread
        Standard deviation of ``log(real / predicted)`` that every prediction has, without outliers.
    activation_spread, logit_spread, buffer_spread, step_spread
        Standard deviations of the constants of each kind, relative to their share of the prediction.
    growth
        Relative growth of the variance with each doubling of the job beyond the largest job of the fit.
    shift
        Factor on rare errors, in bounds of peaks, for jobs beyond the largest job of the fit. Assumed: the mean over
        the splits in ``benchmarks/memory/stress.py``.
    largest_job
        GPUs of the largest job that the constants were fitted to; 0 if they were not fitted.
    errors
        ``log(real / predicted)`` of runs that a fit left out, in units of each run's standard deviation, ascending;
        empty without a fit to peaks.
    versions
        Versions of the stack, each with the log of its memory over that of the version that the constants describe.
    alike
        Correlation of the errors of equal-work runs with other numbers of replicas; 0 if unknown.
    twins
        Work keys of measured ranks (:func:`twins.work_keys`), each with the expected error of another run with that
        key, in units of its standard deviation.
    information
        Information of measured runs about the constants (:mod:`~pipette_opt.specs.memory_prior`). A row has the
        derivatives of a measured figure, in its standard deviations, by the constants of ``REGRESSORS`` and by
        ``unusable_gib``, in standard deviations of their priors.
    ran
        Rank keys of runs that fitted (:func:`twins.rank_keys`), each with the least memory of a GPU that held such a
        rank, GiB: equal ranks fit there, whatever is predicted.
    peaks
        Keys of measured configurations (:func:`twins.config_key`), each with the largest peak that was measured, GiB:
        no prediction of such a configuration is less.
    late_buffers
        Thresholds of ``step_bytes``, ``run_ahead_buffers`` and ``pile_up_buffers``; ``None``: all of these buffers
        count, whatever the sizes.
    """

    counted: Annotated[float, Meta(ge=0.5, le=HIGHEST)] = 1.0
    base_gib: Amount = 0.0625
    parameter_bytes: Annotated[float, Meta(ge=-2, le=HIGHEST)] = 0.0
    fp32_shards: Share = 0.0
    placeholders: Amount = 1.0
    gradient_copy_bytes: Amount = 0.0
    step_bytes: Amount = 0.0
    step_state_bytes: Amount = 0.0
    step_copy_bytes: Amount = 0.0
    activations: Annotated[float, Meta(ge=-0.5, le=HIGHEST)] = 0.0
    attention_copies: Amount = 0.0
    norm_bytes: Amount = 8.0
    score_bytes: Amount = 4.0
    fused_score_bytes: Amount = 0.0
    logit_bytes: Annotated[float, Meta(ge=-4, le=HIGHEST)] = 0.0
    loss_spare_bytes: Amount = 0.0
    whole_logit_bytes: Amount = 0.0
    table_bytes: Amount = 0.0
    gathered_per_layer: Amount = 0.0
    run_ahead_buffers: Amount = 0.0
    pile_up_buffers: Amount = 0.0
    group_gib: Amount = 0.667
    unusable_gib: Amount = 0.625
    spread: Annotated[float, Meta(ge=0.001, le=HIGHEST)] = 0.05
    activation_spread: Amount = 0.0
    logit_spread: Amount = 0.0
    buffer_spread: Amount = 0.0
    step_spread: Amount = 0.0
    growth: Amount = 0.2
    shift: Amount = 1.25
    largest_job: Amount = 0.0
    errors: tuple[float, ...] = ()
    versions: Mapping[str, Offset] = field(default_factory=dict)
    alike: Share = 0.0
    twins: Mapping[str, TwinOffset] = field(default_factory=dict)
    information: tuple[tuple[float, ...], ...] = ()
    ran: Mapping[str, GpuMemory] = field(default_factory=dict)
    peaks: Mapping[str, GpuMemory] = field(default_factory=dict)
    late_buffers: LateBuffers | None = None

    def __post_init__(self) -> None:
        check_limits(self)
        if not np.isfinite(self.errors).all() or list(self.errors) != sorted(self.errors):
            raise ValueError("errors must be finite and ascending.")
        if any(len(row) != len(REGRESSORS) + 1 for row in self.information) or not np.isfinite(self.information).all():
            raise ValueError(f"each row of information must have {len(REGRESSORS) + 1} finite numbers.")
        for name, limit in (("versions", LARGEST_OFFSET), ("twins", MAX_OF_TWIN)):
            for key, offset in getattr(self, name).items():
                if not abs(offset) <= limit:
                    raise ValueError(f"{name}.{key} must be within {limit:g} of 0, got {offset}.")

    def vector(self) -> FloatArray:
        """Return the constants of the regressors in the order of ``REGRESSORS``."""
        return np.array([getattr(self, name) for name in REGRESSORS])

    def factor(self, version: str) -> float:
        """Return the memory of a version of the stack over that of the constants' version; 1 for an unknown version."""
        return float(np.exp(self.versions.get(version, 0.0)))

    def widths(self, regressors: FloatArray, constants: FloatArray, num_gpus: float | FloatArray = 1.0) -> FloatArray:
        """
        Return the standard deviation of ``log(real / predicted)`` of every row.

        Parameters
        ----------
        regressors
            Regressors, shape ``(..., len(REGRESSORS))``.
        constants
            Constants of the regressors, 0 for the excluded ones; shape ``(len(REGRESSORS),)``.
        num_gpus
            GPUs of the whole job.
        """
        parts = shares(regressors, constants)
        kinds = np.array([getattr(self, name) for name in KINDS])
        beyond = np.log2(np.maximum(num_gpus / self.largest_job, 1.0)) if self.largest_job else 0.0
        variance = (self.spread**2 + (parts**2) @ kinds**2) * (1 + self.growth * beyond)
        width: FloatArray = np.sqrt(variance)
        return width


_NAMES = tuple(constant.name for constant in fields(MemoryConstants))

REGRESSORS = _NAMES[: _NAMES.index("group_gib") + 1]
"""Names of the regressors, each with a constant of :class:`MemoryConstants`; memory is linear in these constants."""

RETURNED = ("step_bytes",)
"""Regressors whose blocks the allocator returns when memory is short."""

OUTSIDE = ("group_gib",)
"""Regressors that are no tensors: their memory is on the GPU, but outside PyTorch's allocator."""

UNSEEN = ("loss_spare_bytes", *OUTSIDE)
"""Regressors whose memory must be free during a run but does not appear in a measured peak."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "activation_spread": (
        "activations",
        "attention_copies",
        "norm_bytes",
        "score_bytes",
        "fused_score_bytes",
        "gathered_per_layer",
    ),
    "logit_spread": ("logit_bytes", "loss_spare_bytes", "whole_logit_bytes", "table_bytes"),
    "buffer_spread": ("run_ahead_buffers", "pile_up_buffers"),
    "step_spread": ("step_bytes", "step_copy_bytes"),
}
"""Groups of regressors with correlated errors."""


def but(names: Iterable[str]) -> BoolArray:
    """Return the mask of every regressor except ``names``, shape ``(len(REGRESSORS),)``."""
    left_out = set(names)
    return np.array([name not in left_out for name in REGRESSORS])


NEEDED, SHOWN, HIDDEN = but(RETURNED), but(UNSEEN), ~but(OUTSIDE)
"""Masks of regressors: memory that a stage needs, memory that a measurement can show, memory outside the allocator."""


def needed(constants: FloatArray) -> FloatArray:
    """Return the constants with 0 for blocks that the allocator returns when memory is short."""
    vector: FloatArray = constants * NEEDED
    return vector


def shares(regressors: FloatArray, constants: FloatArray) -> FloatArray:
    """Return the fraction of each row's memory in each group of ``KINDS``, shape ``(..., len(KINDS))``."""
    weights = np.abs(regressors * constants)
    total = np.maximum((regressors * constants).sum(axis=-1), 1e-9)
    members = np.array([~but(names) for names in KINDS.values()], dtype=np.float64)
    parts: FloatArray = weights @ members.T / total[..., None]
    return parts


MEGATRON_CORE = MemoryConstants()
"""Memory constants of Megatron-Core: counted tensors and allowances, without any fit to runs."""
