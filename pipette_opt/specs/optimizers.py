"""Optimizers by name: the bytes of their states per parameter."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

Optimizer = Literal["adam", "muon", "adam-8bit", "adafactor", "lion", "sgd", "lomo"]


class OptimizerRow(NamedTuple):
    """
    States of an optimizer.

    Parameters
    ----------
    moments
        Moments of each parameter in the formats that the training gives: 0, 1 or 2.
    state_bytes
        Bytes per parameter of further states of a fixed format.
    keeps_gradients
        Whether whole gradients exist at the step; LOMO applies each as soon as it is there.
    """

    moments: int
    state_bytes: float = 0
    keeps_gradients: bool = True


OPTIMIZERS: Mapping[str, OptimizerRow] = MappingProxyType(
    {
        "adam": OptimizerRow(2),
        "muon": OptimizerRow(2),  # of the matrices' momentum only: see the memory formula
        "adam-8bit": OptimizerRow(0, 2 * (1 + 4 / 256)),
        "adafactor": OptimizerRow(0),
        "lion": OptimizerRow(1),
        "sgd": OptimizerRow(0),
        "lomo": OptimizerRow(0, keeps_gradients=False),
    }
)
"""
States by optimizer.

8-bit Adam (Dettmers et al., arXiv 2110.02861) has two moments of a byte, with an fp32 scale for each 256 numbers
(bitsandbytes). Adafactor (arXiv 1804.04235) keeps sums of rows and columns, a thousandth of a matrix, and no first
moment. Lion (arXiv 2302.06675) has one moment. LOMO (arXiv 2306.09782) fuses the step with the backward pass.
"""
