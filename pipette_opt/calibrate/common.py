"""
The factor that all runs share: where the priors of a fit are centred.

Stacks differ most in what all their runs have in common. Priors around the starting stack would spread that over the
constants that these few runs happen to show, and jobs of another kind would be off. So each constant begins where the
starting stack would have it if everything took as much longer as the runs did. Six runs of a source that nobody fitted
predict its others 10.7 % off (11.8 % with priors around the starting stack, 11.4 % with the factor alone), three runs
11.6 % (13.6 and 11.7 %): ``benchmarks/backtest/few_runs.py``. Choosing between factor and fit by runs left out brings
nothing more.
"""

from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.free import FREE
from pipette_opt.specs import StackSpec

RATES = ("matmul_speed", "attention_speed", "attention_backward_speed", "streaming", "intra_node", "assumed_links")
"""Constants of which a slower stack has less."""

SECONDS = ("host_kernel_s", "micro_batch_s", "iteration_s", "collective_s")
"""Constants of which a slower stack has more."""

NOISE_SHARE = 0.25
"""Variance of a single run beside what all runs of its stack share, over the variance of that among stacks. Chosen."""


def common_factor(measured_s: FloatArray, predicted_s: FloatArray) -> float:
    """Return the median of measured over predicted times, nearer to 1 with few runs; not empty."""
    logs = np.log(measured_s / predicted_s)
    return float(np.exp(np.median(logs) * len(logs) / (len(logs) + NOISE_SHARE)))


def as_slow(stack: StackSpec, factor: float) -> StackSpec:
    """Return the stack with constants for times that are so many times as long, as far as their limits allow."""
    largest = {one.name: one.largest for one in FREE}
    rates = {name: min(getattr(stack, name) / factor, largest[name]) for name in RATES}
    return replace(stack, **rates, **{name: getattr(stack, name) * factor for name in SECONDS})
