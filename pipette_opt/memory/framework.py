"""
What a software stack adds to the counted tensors: a handful of named constants.

Two numbers come of them. What a stage *takes* is what a measurement shows: it includes blocks that the caching
allocator holds only because nobody asked for them (outputs of collectives that the host ran ahead of, leftovers of
the optimizer step). What it *needs* leaves these out, since the allocator returns them before it fails; running out
of memory is judged by the need.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import erf
from typing import Any

import numpy as np

from pipette_opt.errors import InputError
from pipette_opt.memory.formula import FormulaBytes, parameters
from pipette_opt.memory.table import StageTable
from pipette_opt.types import FloatArray
from pipette_opt.units import GIB

MOST_ERRORS = 400
_ERROR = "error_"

BUSY_MULTIPLY_ADDS = 5e11
"""Of one layer on one rank: with more, hosts run ahead of GPUs (seen on H100 with nanotron)."""

_BUSY_WIDTH = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """
    Constants of one stack; the defaults are Megatron-Core's.

    Parameters
    ----------
    counted
        Share of the counted tensors that is there: allocator slack above 1, tensors counted too many below.
    base_gib
        There whatever the model: workspaces, and everything that scales with nothing.
    parameter_bytes
        Per parameter beyond weights and gradients as counted; -2 where gradients stay in 16 bits.
    gradient_copy_bytes
        Per parameter, where gradients are reduced over replicas and the optimizer is not sharded: a second copy in
        buckets of the reduction.
    step_bytes
        Per parameter, with a sharded optimizer: gathered parameters and scattered gradients of the step, returned
        when memory is short.
    activations
        Stored activations beyond those counted, as a share: unfused gates, other kernels, their fragmentation.
    norm_bytes
        Per element of the inputs of unfused norms.
    score_bytes
        Per attention score, where softmax is not fused.
    logit_bytes
        Per logit of this rank beyond those counted: copies in other formats, shifted copies.
    whole_logit_bytes
        Per logit of the whole vocabulary, where tensor ranks gather their logits for the loss.
    table_bytes
        Per element of the embedding table on the first stage: its gradient in other formats.
    gathered_buffers
        Buffers of the size of one gathered micro-batch (tokens times hidden size) with tensor parallelism.
    gathered_per_layer
        The same for each layer and pass in flight, where gathered inputs are kept and not gathered again.
    run_ahead_buffers
        The same without a pipeline: outputs of collectives that wait for their turn while the host runs ahead.
    pile_up_buffers
        The same with a pipeline, busy GPUs and tensor parallelism inside hosts, for each layer and pass in flight;
        returned when memory is short. (Across hosts the collectives hold the hosts back.)
    unusable_gib
        What no tensor can have: context, libraries, NCCL's buffers.
    spread
        Standard deviation of ``log(real / predicted)``, without the outliers.
    largest_job
        GPUs of the largest job that the constants were fitted to; 0 if they were not.
    errors
        The same of runs that a fit left out, ascending; none without a fit to peaks.
    """

    counted: float = 1.04
    base_gib: float = 0.0
    parameter_bytes: float = 0.0
    gradient_copy_bytes: float = 0.0
    step_bytes: float = 0.0
    activations: float = 0.0
    norm_bytes: float = 8.0
    score_bytes: float = 4.0
    logit_bytes: float = 0.0
    whole_logit_bytes: float = 0.0
    table_bytes: float = 0.0
    gathered_buffers: float = 0.0
    gathered_per_layer: float = 0.0
    run_ahead_buffers: float = 0.0
    pile_up_buffers: float = 0.0
    unusable_gib: float = 2.625
    spread: float = 0.05
    largest_job: float = 0.0
    errors: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "errors":
                continue
            value = getattr(self, field.name)
            if not np.isfinite(value) or value < LOWEST.get(field.name, 0.0):
                raise ValueError(f"{field.name} must be >= {LOWEST.get(field.name, 0.0)}, got {value}.")

    def vector(self) -> FloatArray:
        """The constants of the columns, in their order."""
        return np.array([getattr(self, name) for name in COLUMNS])


COLUMNS = (
    "counted",
    "base_gib",
    "parameter_bytes",
    "gradient_copy_bytes",
    "step_bytes",
    "activations",
    "norm_bytes",
    "score_bytes",
    "logit_bytes",
    "whole_logit_bytes",
    "table_bytes",
    "gathered_buffers",
    "gathered_per_layer",
    "run_ahead_buffers",
    "pile_up_buffers",
)
"""Constants in which the memory of a stage is linear."""

RETURNED = ("step_bytes", "pile_up_buffers")
"""Columns whose blocks the allocator returns when memory is short."""

LOWEST: Mapping[str, float] = {
    "counted": 0.5,
    "parameter_bytes": -2.5,
    "activations": -0.5,
    "logit_bytes": -4.0,
    "spread": 0.001,
}
"""Lowest values; 0 for the others."""


def needed(constants: FloatArray) -> FloatArray:
    """The constants without those of blocks that are returned."""
    kept = np.array([name not in RETURNED for name in COLUMNS])
    vector: FloatArray = constants * kept
    return vector


def framework_of(numbers: Mapping[str, float] | None, where: str = "memory") -> Framework:
    """From the numbers in a file, ``error_000`` and so on being the errors; names nobody knows are refused."""
    values = dict(numbers or {})
    errors = sorted(float(values.pop(name)) for name in list(values) if name.startswith(_ERROR))
    known = {field.name for field in fields(Framework)} - {"errors"}
    unknown = sorted(set(values) - known)
    if unknown:
        raise InputError(where, f"has no constant {unknown[0]}; all: {', '.join(sorted(known))}.")
    constants: dict[str, Any] = {name: float(value) for name, value in values.items()}
    try:
        return Framework(**constants, errors=tuple(errors))
    except (TypeError, ValueError) as error:
        raise InputError(where, str(error).rstrip(".") + ".") from error


def numbers_of(framework: Framework) -> dict[str, float]:
    """As they stand in a file; of the errors at most a few hundred, evenly chosen."""
    names = (*COLUMNS, "unusable_gib", "spread", "largest_job")
    values = {name: float(f"{getattr(framework, name):.5g}") for name in names}
    errors = np.array(framework.errors)
    if len(errors) > MOST_ERRORS:
        errors = errors[np.linspace(0, len(errors) - 1, MOST_ERRORS).round().astype(int)]
    return values | {f"{_ERROR}{index:03d}": round(float(error), 5) for index, error in enumerate(errors)}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageFacts:
    """
    What the columns need besides the table; every field has shape ``(num_rows,)``.

    Parameters
    ----------
    replicas
        Ranks that gradients are reduced over.
    pipeline
        Stages of the pipeline.
    gpus_per_node
        GPUs of one host.
    unfused_norm, unfused_softmax
        1 where these are several kernels.
    """

    replicas: FloatArray
    pipeline: FloatArray
    gpus_per_node: FloatArray
    unfused_norm: FloatArray
    unfused_softmax: FloatArray


def stage_columns(table: StageTable, formula: FormulaBytes, counted_bytes: FloatArray, facts: StageFacts) -> FloatArray:
    """
    What one unit of each constant weighs, GiB, shape ``(num_rows, len(COLUMNS))``.

    Parameters
    ----------
    counted_bytes
        The counted tensors: formula and network, or a trace.
    """
    size = parameters(table)
    tensor = table.tensor > 1
    gathered = tensor * table.element * table.tokens * table.hidden
    stored = 1 - table.full
    inside = table.tensor <= facts.gpus_per_node
    passes = table.chunk_layers * table.in_flight * stored
    norms = 2 * passes * table.tokens / table.shards * table.hidden
    again = np.maximum(table.selective, table.full) * (table.layers > 0)
    scores = (passes * (1 - table.selective) + again) * table.scores
    sharded = table.state_shards > 1
    columns = (
        counted_bytes,
        np.full(table.num_rows, float(GIB)),
        size,
        size * (facts.replicas > 1) * ~sharded,
        size * sharded,
        formula.saved,
        norms * facts.unfused_norm,
        scores * facts.unfused_softmax,
        table.last * table.tokens * table.vocab,
        table.last * table.tokens * table.vocab * table.tensor,
        table.first * table.largest_table,
        gathered,
        gathered * passes * (table.shards > 1),
        gathered * (facts.pipeline == 1),
        gathered * passes * inside * (facts.pipeline > 1) * _busy(table),
    )
    return np.stack(columns, axis=1) / GIB


def _busy(table: StageTable) -> FloatArray:
    """How surely the GPUs are behind their hosts, 0 to 1."""
    work = table.tokens * table.layer_parameters
    doublings = np.log2(np.maximum(work, 1.0) / BUSY_MULTIPLY_ADDS)
    share: FloatArray = 1 / (1 + np.exp(-doublings / _BUSY_WIDTH))
    return share


def normal_beyond(deviations: FloatArray) -> FloatArray:
    """Probability that a normal number exceeds its mean by so many standard deviations; at least one in a million."""
    flat = [0.5 * (1 - erf(value / 2**0.5)) for value in np.ravel(deviations)]
    shares: FloatArray = np.maximum(np.array(flat).reshape(np.shape(deviations)), 1e-6)
    return shares
