"""Components of a stage's peak memory: weights, gradients, optimizer, activations, buffers, and other."""

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.memory.formula import FormulaBytes
from pipette_opt.specs.memory_constants import REGRESSORS

COMPONENTS = ("weights", "gradients", "optimizer", "activations", "buffers", "other")
"""
Names of the components of a peak.

Weights, gradients and optimizer include the tensors that ZeRO gathers. Activations: kept for the backward passes in
flight, restored by recomputation, and logits. Buffers: of the running pass or the optimizer step, placeholders of
gradients, outputs of collectives. Other: workspaces, gaps of the allocator, NCCL's buffers. CUDA's context is in no
component, because a GPU's capacity excludes it.
"""

_COMPONENT_REGRESSORS = {
    "gradients": ("parameter_bytes", "fp32_shards", "gradient_copy_bytes"),
    "buffers": (
        "placeholders",
        "step_bytes",
        "step_state_bytes",
        "step_copy_bytes",
        "table_bytes",
        "run_ahead_buffers",
        "pile_up_buffers",
    ),
    "other": ("base_gib", "group_gib"),
}
"""Regressors of each component; a regressor that is not listed belongs to the activations."""


def stage_components(
    formula: FormulaBytes, counted_bytes: FloatArray, contributions: FloatArray, moment: IntArray
) -> FloatArray:
    """
    Return the bytes of each component of every row, shape ``(num_rows, len(COMPONENTS))``; none is negative.

    Parameters
    ----------
    counted_bytes
        Bytes of the tensors of the passes, from formula and network or from a trace; shape ``(num_rows,)``.
    contributions
        Bytes of each of ``REGRESSORS`` at the fullest moment, shape ``(num_rows, len(REGRESSORS))``.
    moment
        0 where the passes are fullest, 1 where the optimizer step is; shape ``(num_rows,)``.
    """
    in_step = (moment == 1) | formula.step_is_fullest
    total = np.where(moment == 1, formula.static + formula.step_work, counted_bytes - formula.placeholders)
    activations = np.where(in_step, 0.0, formula.saved + np.maximum(formula.recomputed, formula.head))
    held = np.stack([formula.weights, formula.gradients, formula.optimizer, activations], axis=1)
    parts: FloatArray = np.column_stack([held, total - held.sum(axis=1), np.zeros(len(total))])
    counted = contributions[:, REGRESSORS.index("counted")]
    scale = counted / total
    parts *= np.minimum(scale, 1.0)[:, None]
    parts[:, COMPONENTS.index("other")] += np.maximum(counted - total, 0.0)
    for number, name in enumerate(REGRESSORS):
        if name != "counted":
            component = next((part for part, names in _COMPONENT_REGRESSORS.items() if name in names), "activations")
            parts[:, COMPONENTS.index(component)] += contributions[:, number]
    lacking = np.minimum(parts, 0.0).sum(axis=1)  # e.g. gradients that stay in 16 bits
    parts = np.maximum(parts, 0.0)
    parts[np.arange(len(parts)), parts.argmax(axis=1)] += lacking
    return parts


def whole_components(parts: FloatArray, predicted_bytes: IntArray) -> IntArray:
    """Round components to whole bytes that add up to the predicted peak; the last component takes the rounding."""
    whole = np.floor(parts).astype(np.int64)
    whole[:, -1] += predicted_bytes - whole.sum(axis=1)
    return whole
