"""
Prior of the memory constants of a stack that nobody measured, and what measured runs leave open.

Stacks differ in their constants: kernels keep other tensors, allocators leave other gaps. The prior of each constant is
normal, with the standard deviation ``SPREADS`` around the starting stack. Runs move the constants to the maximum of
their posterior (:mod:`~pipette_opt.calibrate.memory_calibration`). Memory is linear in the constants, so the posterior
is nearly normal. Its covariance is the inverse of the prior's precision plus the runs' information (Laplace's
approximation; Gelman et al., Bayesian Data Analysis, 3rd edition, section 4.1). A run thus tells most of configurations
whose memory has the same parts.
"""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.specs.memory_constants import KINDS, REGRESSORS, MemoryConstants

SPREADS = {
    "counted": 0.03,
    "base_gib": 0.7,
    "parameter_bytes": 1.5,
    "fp32_shards": 0.5,
    "placeholders": 1.0,
    "gradient_copy_bytes": 1.5,
    "step_bytes": 3.0,
    "step_state_bytes": 10.0,
    "step_copy_bytes": 6.0,
    "activations": 0.4,
    "attention_copies": 0.5,
    "norm_bytes": 6.0,
    "score_bytes": 4.0,
    "fused_score_bytes": 2.0,
    "logit_bytes": 12.0,
    "loss_spare_bytes": 2.0,
    "whole_logit_bytes": 12.0,
    "table_bytes": 5.0,
    "gathered_per_layer": 1.5,
    "run_ahead_buffers": 25.0,
    "pile_up_buffers": 25.0,
    "group_gib": 0.25,
    "unusable_gib": 0.5,
}
"""Standard deviations of the priors: differences among stacks; for logits, not in traces, a copy in 16 bits."""

ALIKE = ("run_ahead_buffers", "pile_up_buffers")
"""Two constants with the same cause, the length of the launch queue; a prior keeps them similar."""

ALIKE_WITHIN = 5.0
"""Prior standard deviation of the difference of the two constants ``ALIKE``."""

MAX_UNKNOWN = 0.7
"""
Largest standard deviation that unknown constants leave. Chosen on public runs: nine in ten peaks of every publisher err
by less than 0.7; with 0.5, 4 % of the jobs that ran out of memory pass a risk of 10 %, with 0.7 less than 3 %.
"""

SMALLEST_SLOPE = 1e-3
"""Largest entry of a row of ``information`` below which the row is left out: it tells nothing. Chosen."""

SMALLEST_GIB = 1e-9
"""Least size of a stage in relative deviations, GiB."""

STATE = (*REGRESSORS, "unusable_gib")
"""Names of the constants that runs move."""


def precision_of(memory_constants: MemoryConstants) -> FloatArray:
    """Return the inverse covariance of constants that measured runs may have moved, in the order of ``STATE``."""
    return _precision(memory_constants.information)


def with_figures(memory_constants: MemoryConstants, slopes: FloatArray) -> MemoryConstants:
    """
    Return the constants with further runs in ``information``.

    Parameters
    ----------
    slopes
        Derivatives of the runs' figures by the constants of ``STATE``, each in standard deviations of its figure; shape
        ``(num_figures, len(STATE))``.
    """
    rows = np.vstack([_rows(memory_constants.information), slopes * _SCALES])
    rows = rows[np.abs(rows).max(axis=1, initial=0.0) > SMALLEST_SLOPE]
    if len(rows) > len(STATE):  # fewer rows with equal information
        rows = np.asarray(np.linalg.qr(rows, mode="r"))
    return replace(
        memory_constants, information=tuple(tuple(round(value, 4) for value in row) for row in rows.tolist())
    )


def unknown_widths(memory_constants: MemoryConstants, regressors: FloatArray, mask: BoolArray) -> FloatArray:
    """
    Return the standard deviation of ``log(real / predicted)`` of every row that the unknown constants leave.

    All rows of a stack share this error. It is 0 if errors of held-out runs were learned (:data:`KINDS`), as these
    contain it. Memory is linear in the constants; the deviation is that of the log-normal variable with equal mean and
    variance, at most :data:`MAX_UNKNOWN`.

    Parameters
    ----------
    regressors
        Regressors, shape ``(num_rows, len(REGRESSORS))``.
    mask
        Mask of the regressors that count, shape ``(len(REGRESSORS),)``.
    """
    if any(getattr(memory_constants, name) for name in KINDS):
        return np.zeros(len(regressors))
    sizes = np.maximum(regressors @ (memory_constants.vector() * mask), SMALLEST_GIB)
    slopes = regressors * mask / sizes[:, None]
    relative = np.linalg.norm(slopes @ _deviations(memory_constants.information), axis=1)
    widths: FloatArray = np.minimum(np.sqrt(np.log1p(relative**2)), MAX_UNKNOWN)
    return widths


@lru_cache(maxsize=8)
def _deviations(information: tuple[tuple[float, ...], ...]) -> FloatArray:
    """Return a square root of the covariance of the constants of ``REGRESSORS``, a row for each constant."""
    covariance = np.linalg.inv(_precision(information))
    root: FloatArray = np.linalg.cholesky(covariance)[: len(REGRESSORS)]
    return root


def _precision(information: tuple[tuple[float, ...], ...]) -> FloatArray:
    """Return the sum of the priors' precision and the information of the runs."""
    difference = np.array([float(name == ALIKE[0]) - float(name == ALIKE[1]) for name in STATE])
    slopes = np.vstack([np.diag(1 / _SCALES), difference / ALIKE_WITHIN, _rows(information) / _SCALES])
    total: FloatArray = slopes.T @ slopes
    return total


def _rows(information: tuple[tuple[float, ...], ...]) -> FloatArray:
    return np.array(information, dtype=np.float64).reshape(-1, len(STATE))


_SCALES = np.array([SPREADS[name] for name in STATE])
