"""
Common slowdown of all runs, on which the priors of a fit are centred.

Stacks differ most by a factor that all their runs share. With priors around the starting stack, that factor would go
into the few constants that the runs show, and other kinds of jobs would be mispredicted. So each prior is centred on
the starting stack slowed by the common factor. Six runs of a source that nobody fitted predict its others 10.7 % off
(11.8 % with priors around the starting stack, 11.4 % with the factor alone); three runs 11.6 % (13.6 and 11.7 %):
``benchmarks/backtest/few_runs.py``. Choosing between factor and fit by held-out runs gains nothing more.
"""

from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.free import FREE
from pipette_opt.specs import StackSpec

RATES = ("matmul_speed", "attention_speed", "attention_backward_speed", "streaming", "intra_node", "assumed_links")
"""Constants that are smaller on a slower stack."""

SECONDS = ("host_kernel_s", "micro_batch_s", "iteration_s", "collective_s")
"""Constants that are larger on a slower stack."""

NOISE_SHARE = 0.25
"""Variance of a run's own error, as a share of the variance of the common factor among stacks. Chosen."""


def common_factor(measured_s: FloatArray, predicted_s: FloatArray) -> float:
    """Return the median of measured over predicted times, drawn towards 1 if runs are few. Needs one run or more."""
    logs = np.log(measured_s / predicted_s)
    return float(np.exp(np.median(logs) * len(logs) / (len(logs) + NOISE_SHARE)))


def as_slow(stack: StackSpec, factor: float) -> StackSpec:
    """Return the stack with times ``factor`` times as long, as far as the limits of its constants allow."""
    largest = {constant.name: constant.largest for constant in FREE}
    rates = {name: min(getattr(stack, name) / factor, largest[name]) for name in RATES}
    return replace(stack, **rates, **{name: getattr(stack, name) * factor for name in SECONDS})
