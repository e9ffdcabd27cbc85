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
from dataclasses import dataclass, fields
from functools import cache
from math import erfc
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import BoolArray, FloatArray

MAX_ERRORS = 400
_ERROR, _VERSION, _TWIN, _ANCHOR = "error_", "version_", "twin_", "anchor_"

_SEVERAL = ("errors", "versions", "twins", "anchors")
"""Fields of :class:`Framework` that hold several numbers."""

LARGEST_OFFSET = 1.0
"""Maximum of the absolute log offset between versions of a stack; a larger offset means a different stack. Chosen."""

MAX_OF_TWIN = 1.25
"""
Maximum shift of a prediction by equal-work runs, in standard deviations.

It is the bound that Student's law with 4 degrees of freedom gives.
"""

MOMENTS = 2
"""Number of moments of a stage, with one row each: passes, optimizer step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
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
        Bytes per parameter beyond the counted weights and gradients; -2 where gradients stay in 16 bits.
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
        Number of such buffers with a pipeline, where hosts are ahead of busy GPUs, or the whole job is on one host,
        whose pipeline has no network to wait for; fewer where a chunk has few layers.
    group_gib
        NCCL's buffers of each group of several ranks (tensor, data with context, pipeline), with A100's NVLink inside
        the hosts; proportionally more with faster links, up to NCCL's maximum of channels. No measurement of tensors
        shows these buffers.
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
    anchors
        Work keys of ranks that were run alone (``profile memory --plan``), each with the log of its measured over its
        counted tensors.
    """

    counted: float = 1.0
    base_gib: float = 0.0625
    parameter_bytes: float = 0.0
    placeholders: float = 1.0
    gradient_copy_bytes: float = 0.0
    step_bytes: float = 0.0
    step_state_bytes: float = 0.0
    activations: float = 0.0
    attention_copies: float = 0.0
    norm_bytes: float = 8.0
    score_bytes: float = 4.0
    fused_score_bytes: float = 0.0
    logit_bytes: float = 0.0
    loss_spare_bytes: float = 0.0
    whole_logit_bytes: float = 0.0
    table_bytes: float = 0.0
    gathered_per_layer: float = 0.0
    run_ahead_buffers: float = 0.0
    pile_up_buffers: float = 0.0
    group_gib: float = 0.667
    unusable_gib: float = 0.625
    spread: float = 0.05
    activation_spread: float = 0.0
    logit_spread: float = 0.0
    buffer_spread: float = 0.0
    step_spread: float = 0.0
    growth: float = 0.2
    shift: float = 1.25
    largest_job: float = 0.0
    errors: tuple[float, ...] = ()
    versions: tuple[tuple[str, float], ...] = ()
    alike: float = 0.0
    twins: tuple[tuple[str, float], ...] = ()
    anchors: tuple[tuple[str, float], ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name in _SEVERAL:
                continue
            value = getattr(self, field.name)
            if not np.isfinite(value) or value < LOWEST.get(field.name, 0.0):
                raise ValueError(f"{field.name} must be >= {LOWEST.get(field.name, 0.0)}, got {value}.")
            if value > HIGHEST:
                raise ValueError(f"{field.name} must be <= {HIGHEST:g}, got {value}.")
        if not np.isfinite(self.errors).all() or list(self.errors) != sorted(self.errors):
            raise ValueError("errors must be finite and ascending.")
        for version, offset in self.versions:
            if not abs(offset) <= LARGEST_OFFSET:
                raise ValueError(f"{_VERSION}{version} must be within {LARGEST_OFFSET:g} of 0, got {offset}.")
        for work, offset in self.twins:
            if not abs(offset) <= MAX_OF_TWIN:
                raise ValueError(f"{_TWIN}{work} must be within {MAX_OF_TWIN:g} of 0, got {offset}.")
        for work, offset in self.anchors:
            if not abs(offset) <= LARGEST_OFFSET:
                raise ValueError(f"{_ANCHOR}{work} must be within {LARGEST_OFFSET:g} of 0, got {offset}.")
        if self.alike > 1:
            raise ValueError(f"alike must be <= 1, got {self.alike}.")

    def vector(self) -> FloatArray:
        """Return the constants of the regressors in the order of ``REGRESSORS``."""
        return np.array([getattr(self, name) for name in REGRESSORS])

    def factor(self, version: str) -> float:
        """Return the memory of a version of the stack over that of the constants' version; 1 for an unknown version."""
        return float(np.exp(dict(self.versions).get(version, 0.0)))

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


REGRESSORS = (
    "counted",
    "base_gib",
    "parameter_bytes",
    "placeholders",
    "gradient_copy_bytes",
    "step_bytes",
    "step_state_bytes",
    "activations",
    "attention_copies",
    "norm_bytes",
    "score_bytes",
    "fused_score_bytes",
    "logit_bytes",
    "loss_spare_bytes",
    "whole_logit_bytes",
    "table_bytes",
    "gathered_per_layer",
    "run_ahead_buffers",
    "pile_up_buffers",
    "group_gib",
)
"""
Names of the regressors, each with a constant of :class:`Framework`; a stage's memory is linear in these constants.
"""

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
    "step_spread": ("step_bytes",),
}
"""Groups of regressors with correlated errors."""

LOWEST: Mapping[str, float] = {
    "counted": 0.5,
    "parameter_bytes": -2.5,
    "activations": -0.5,
    "logit_bytes": -4.0,
    "spread": 0.001,
}
"""Minimum of each constant; 0 for constants that are not listed."""

HIGHEST = 1e4


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


def framework_of(numbers: Mapping[str, float] | None, where: str = "memory") -> Framework:
    """
    Return the constants from the numbers of a stack file, such as ``base_gib``, ``error_000``, ``version_2.1``,
    ``twin_0a``.

    Raises ``InputError`` for unknown names.
    """
    values = dict(numbers or {})
    if "unusable_gib" in values:
        values.setdefault("group_gib", 0.0)  # older files have both in one constant
        values.setdefault("placeholders", 0.0)  # older files do not count these
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(where, f"{name} must be a number, got {value!r}.")
    errors = sorted(float(values.pop(name)) for name in list(values) if name.startswith(_ERROR))
    versions, twins, anchors = (
        tuple((name.removeprefix(kind), float(values.pop(name))) for name in list(values) if name.startswith(kind))
        for kind in (_VERSION, _TWIN, _ANCHOR)
    )
    known = {field.name for field in fields(Framework)} - set(_SEVERAL)
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(where, f"has no constant {unknown[0]}; all: {', '.join(sorted(known))}.")
    constants: dict[str, Any] = {name: float(value) for name, value in values.items()}
    try:
        return Framework(**constants, errors=tuple(errors), versions=versions, twins=twins, anchors=anchors)
    except (TypeError, ValueError) as error:
        raise InputError(where, str(error).rstrip(".") + ".") from error


def numbers_of(framework: Framework) -> dict[str, float]:
    """Return the constants as numbers of a stack file; of many errors, at most ``MAX_ERRORS`` evenly chosen ones."""
    names = [field.name for field in fields(Framework) if field.name not in _SEVERAL]
    values = {name: float(f"{getattr(framework, name):.5g}") for name in names}
    errors = np.array(framework.errors)
    if len(errors) > MAX_ERRORS:
        errors = errors[np.linspace(0, len(errors) - 1, MAX_ERRORS).round().astype(int)]
    values |= {f"{_VERSION}{version}": round(offset, 5) for version, offset in framework.versions}
    values |= {f"{_TWIN}{work}": round(offset, 5) for work, offset in framework.twins}
    values |= {f"{_ANCHOR}{work}": round(offset, 5) for work, offset in framework.anchors}
    return values | {f"{_ERROR}{index:03d}": round(float(error), 5) for index, error in enumerate(errors)}


def normal_beyond(deviations: FloatArray) -> FloatArray:
    """Return the probability that a normal variable lies ``deviations`` sigma above its mean; at least 1e-6."""
    grid, beyond = _normal_table()
    shares: FloatArray = np.interp(deviations, grid, beyond)
    return shares


@cache
def _normal_table() -> tuple[FloatArray, FloatArray]:
    """Return the table of :func:`normal_beyond`; its linear interpolation errs by less than a millionth."""
    grid = np.linspace(-6, 6, 24001)
    return grid, np.array([max(0.5 * erfc(value / 2**0.5), 1e-6) for value in grid])
