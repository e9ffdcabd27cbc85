"""Correction factors of layer compute time by layer shape, from stack files of older versions of ``calibrate``."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta

from pipette_opt.base.typed import Count, Size, check_limits
from pipette_opt.base.types import FloatArray

WIDTH_SCALE, BATCH_SCALE = 1.0, 0.5
"""
Scale of distance between shapes, in natural logarithm: a factor of 2.7 for widths, of 1.6 for micro-batches.

Shapes further apart say little about each other. The tile that a library chooses, and whether the host keeps up, change
with each doubling of the tokens, less with the width.
"""

JITTER = 1e-6
"""Term on the diagonal of the similarity matrix that keeps it invertible. Chosen."""

MIN_FACTOR = 0.05
"""Smallest correction factor; the largest is its inverse. No measured layer is further from the formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFactor:
    """
    Measured over predicted compute time of a layer without experts, for one shape on one GPU type.

    Parameters
    ----------
    kernels
        Precision, attention kernel and norm kernel, one word each.
    factor
        Measured over predicted time, shrunk towards 1 if few runs have the shape.
    num_runs
        Number of measured runs with the shape.
    """

    gpu: str
    kernels: str
    tensor_model_parallel_size: Size
    sequence_parallel: bool
    seq_length: Size
    hidden_size: Size
    ffn_hidden_size: Size
    micro_batch_size: Size
    factor: Annotated[float, Meta(ge=MIN_FACTOR, le=1 / MIN_FACTOR)] = 1.0
    num_runs: Count = 0

    def __post_init__(self) -> None:
        check_limits(self)

    @property
    def comparison_key(self) -> tuple[str, str, int, bool, int]:
        """Fields that two shapes must have in common for the factor of one to say anything about the other."""
        return self.gpu, self.kernels, self.tensor_model_parallel_size, self.sequence_parallel, self.seq_length

    @property
    def coordinates(self) -> tuple[float, float, float]:
        """Coordinates of the shape among comparable shapes (scaled logarithms); a distance of 1 is far."""
        return (
            float(np.log(self.hidden_size)) / WIDTH_SCALE,
            float(np.log(self.ffn_hidden_size)) / WIDTH_SCALE,
            float(np.log(self.micro_batch_size)) / BATCH_SCALE,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedLayers:
    """
    Correction factors of measured shapes, and their interpolation for other shapes.

    Comparable shapes have the same GPU type, kernels, tensor-parallel size and sequence length. An interpolated factor
    stays in the range of the comparable shapes and 1; far from all of them it is 1.
    """

    shapes: tuple[LayerFactor, ...]

    @cached_property
    def _groups(self) -> dict[tuple[str, str, int, bool, int], tuple[FloatArray, FloatArray, tuple[float, float]]]:
        """
        Interpolation data by group of comparable shapes: coordinates, weights, and limits of the factor's logarithm.

        The sum of the weights, each times the similarity to its shape, is the logarithm of the factor.
        """
        members: dict[tuple[str, str, int, bool, int], list[LayerFactor]] = {}
        for shape in self.shapes:
            members.setdefault(shape.comparison_key, []).append(shape)
        found = {}
        for key, shapes in members.items():
            coordinates: FloatArray = np.array([shape.coordinates for shape in shapes])
            alike = likeness(coordinates, coordinates) + JITTER * np.eye(len(shapes))
            logarithms = np.log([shape.factor for shape in shapes])
            weights: FloatArray = np.asarray(np.linalg.solve(alike, logarithms), dtype=np.float64)
            found[key] = coordinates, weights, (min(0.0, logarithms.min()), max(0.0, logarithms.max()))
        return found

    def factor(self, shape: LayerFactor) -> float:
        """Return the interpolated correction factor of a shape; ``shape.factor`` is not read."""
        known = self._groups.get(shape.comparison_key)
        if known is None:
            return 1.0
        coordinates, weights, (least, most) = known
        logarithm = likeness(np.array([shape.coordinates]), coordinates)[0] @ weights
        return float(np.exp(np.clip(logarithm, least, most)))


def likeness(left: FloatArray, right: FloatArray) -> FloatArray:
    """
    Return the similarity of shapes by their coordinates: 1 at distance 0, falling to 0.

    Shape ``(len(left), len(right))``.
    """
    apart = ((left[:, None] - right[None]) ** 2).sum(axis=2)
    alike: FloatArray = np.exp(-0.5 * apart)
    return alike
