"""What the layers of some shapes took, beyond the formula: a table that ``calibrate`` learns from runs."""

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated

import numpy as np
from msgspec import Meta

from pipette_opt.base.typed import Count, Size, check_limits
from pipette_opt.base.types import FloatArray

WIDTH_SCALE, BATCH_SCALE = 1.0, 0.5
"""
Distance in the logarithm at which a factor says little about another shape: widths by a factor of 2.7, micro-batches
by 1.6. Which tile a library chooses, and whether the host keeps up, changes with each doubling of the tokens, less with
the width.
"""

JITTER = 1e-6

MIN_FACTOR = 0.05
"""And at most one over it; nothing that was measured is further from the formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFactor:
    """
    Measured over predicted time of a layer without experts, in compute, of one shape on one kind of GPU.

    Parameters
    ----------
    kernels
        Precision, attention and norms, as one word each.
    factor
        Shrunk towards 1 where few runs tell.
    num_runs
        Runs that tell.
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
    def family(self) -> tuple[str, str, int, bool, int]:
        """What must be equal for one shape to tell anything about another."""
        return self.gpu, self.kernels, self.tensor_model_parallel_size, self.sequence_parallel, self.seq_length

    @property
    def place(self) -> tuple[float, float, float]:
        """Where the shape lies in its family; 1 apart is far."""
        return (
            float(np.log(self.hidden_size)) / WIDTH_SCALE,
            float(np.log(self.ffn_hidden_size)) / WIDTH_SCALE,
            float(np.log(self.micro_batch_size)) / BATCH_SCALE,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class LearnedLayers:
    """
    Factors of the shapes that runs had; of a shape between or beside them by likeness, 1 far from all.

    None is beyond what the shapes of its family have, and 1.
    """

    shapes: tuple[LayerFactor, ...]

    @cached_property
    def _families(self) -> dict[tuple[str, str, int, bool, int], tuple[FloatArray, FloatArray, tuple[float, float]]]:
        """Places of each family, weights whose sum, by likeness, is the logarithm of the factor, and its limits."""
        members: dict[tuple[str, str, int, bool, int], list[LayerFactor]] = {}
        for one in self.shapes:
            members.setdefault(one.family, []).append(one)
        found = {}
        for family, ones in members.items():
            places: FloatArray = np.array([one.place for one in ones])
            alike = likeness(places, places) + JITTER * np.eye(len(ones))
            logarithms = np.log([one.factor for one in ones])
            weights: FloatArray = np.asarray(np.linalg.solve(alike, logarithms), dtype=np.float64)
            found[family] = places, weights, (min(0.0, logarithms.min()), max(0.0, logarithms.max()))
        return found

    def factor(self, shape: LayerFactor) -> float:
        """What the layer takes over what the formula says; the factor of ``shape`` itself does not count."""
        known = self._families.get(shape.family)
        if known is None:
            return 1.0
        places, weights, (least, most) = known
        logarithm = likeness(np.array([shape.place]), places)[0] @ weights
        return float(np.exp(np.clip(logarithm, least, most)))


def likeness(left: FloatArray, right: FloatArray) -> FloatArray:
    """1 for the same place, falling to 0 with distance, shape ``(len(left), len(right))``."""
    apart = ((left[:, None] - right[None]) ** 2).sum(axis=2)
    alike: FloatArray = np.exp(-0.5 * apart)
    return alike
