"""
Common slowdown of all measured runs against the starting stack, on which a fit centres its priors.

Stacks differ most by a factor that all their runs share. With priors around the starting stack itself, that factor
would go into the few constants that the runs determine, and other types of jobs would be mispredicted. Each prior is
therefore centred on the starting stack, slowed by the common factor.

Fits to six runs of a new source predicted its other runs 10.7 % off (11.8 % with priors around the starting stack,
11.4 % with the factor alone), fits to three runs 11.6 % off (13.6 and 11.7 %).
"""

from dataclasses import replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.free import FREE
from pipette_opt.specs import StackSpec

RATES = ("matmul_speed", "attention_speed", "attention_backward_speed", "streaming", "intra_node", "assumed_links")
"""Constants that a slower stack divides by the common factor."""

SECONDS = ("host_kernel_s", "micro_batch_s", "iteration_s", "collective_s")
"""Constants that a slower stack multiplies by the common factor."""

NOISE_SHARE = 0.25
"""Variance of a single run's error over the variance of the common factor among stacks. Chosen."""


def common_factor(measured_s: FloatArray, predicted_s: FloatArray) -> float:
    """Return the median of measured over predicted times, shrunk towards 1 if runs are few; needs at least one run."""
    logs = np.log(measured_s / predicted_s)
    return float(np.exp(np.median(logs) * len(logs) / (len(logs) + NOISE_SHARE)))


def slowed(stack: StackSpec, factor: float) -> StackSpec:
    """Return a stack whose times are ``factor`` times as long, within the limits of its constants."""
    largest = {constant.name: constant.largest for constant in FREE}
    rates = {name: min(getattr(stack, name) / factor, largest[name]) for name in RATES}
    return replace(stack, **rates, **{name: getattr(stack, name) * factor for name in SECONDS})
