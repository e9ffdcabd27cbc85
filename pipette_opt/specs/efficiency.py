"""Time of GPU kernels as shares of the datasheet's peaks: short formulas with constants from kernels measured alone."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Origin = Literal["measured", "interpolated", "assumed"]
"""Origin of a GPU type's constants: its own kernels, those of a GPU of its generation, or of another generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLaw:
    """
    Constants for the time of one matrix product of (m, k) by (k, n), or of several in one launch.

    Time is ``start_s`` plus the longer of memory traffic and compute. Compute takes ``FLOPs / (share * peak)``, times
    ``1 + half_inner / k`` and ``1 + half_result / (m * n)``. The first factor is for loops over a short inner size, the
    second for few tiles, which do not fill the GPU.

    Parameters
    ----------
    share
        Share of the dense peak that a very large product attains.
    half_inner
        Inner size at which half of the rate is reached.
    half_result
        Elements of the result at which half of the rate is reached.
    start_s
        Fixed cost of each launch.
    """

    share: float
    half_inner: float
    half_result: float
    start_s: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share, the attained fraction of the peak, must be in (0, 1], got {self.share}.")
        for name in ("half_inner", "half_result", "start_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")


SOFTMAX_SIZE = 64
"""
Head size at which attention's matrix products take as long as its softmax, for heads below the smallest measured size.

Heads of 64 attain 0.75 of the rate of heads of 128 on H100, 0.67 on B200, 0.84 on L40S (``data/gpus.yaml``); this
constant gives 0.75.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw:
    """
    Constants for the forward time of fused causal attention.

    Time is ``start_s``, plus memory traffic of queries, keys, values and outputs, plus ``FLOPs / (share * peak)`` times
    ``1 + half_seq / seq_length``. Only pairs of tokens inside the mask count as FLOPs.

    Parameters
    ----------
    head_sizes, shares
        Share of the dense peak that long sequences attain, for each measured head size, in rising order. Shares between
        two sizes are interpolated. Below the smallest size the softmax lowers the share; above the largest it is
        constant.
    half_seq
        Sequence length at which half of the rate is reached.
    flash2
        Rate of FlashAttention 2 on this GPU, over that of the measured kernels; 1 if they are FlashAttention 2, or if
        no figure is published.
    """

    head_sizes: tuple[int, ...]
    shares: tuple[float, ...]
    half_seq: float
    start_s: float
    flash2: float = 1.0

    def __post_init__(self) -> None:
        if not self.head_sizes or list(self.head_sizes) != sorted(set(self.head_sizes)) or self.head_sizes[0] < 1:
            raise ValueError(f"head_sizes must be whole numbers >= 1 that rise, got {self.head_sizes}.")
        if len(self.shares) != len(self.head_sizes) or not all(0 < share <= 1 for share in self.shares):
            raise ValueError(f"shares must be one in (0, 1] for each head size, got {self.shares}.")
        for name in ("half_seq", "start_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")
        if not 0 < self.flash2 <= 1:
            raise ValueError(f"flash2 must be in (0, 1], got {self.flash2}.")

    def share(self, head_size: float) -> float:
        """Return the share of the dense peak that long sequences attain with this head size."""
        smallest = self.head_sizes[0]
        if head_size < smallest:
            return self.shares[0] * head_size / (head_size + SOFTMAX_SIZE) * (smallest + SOFTMAX_SIZE) / smallest
        return float(np.interp(head_size, self.head_sizes, self.shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEfficiency:
    """
    Kernel constants of one GPU type.

    Parameters
    ----------
    wide
        Matrix products in 16 and 32 bits.
    narrow
        Matrix products in fp8 with one scale per tensor; ``start_s`` includes the casts before them.
    block, fp4
        Matrix products in fp8 with scales per block, and in nvfp4; ``None`` to use ``narrow``, where no kernel was
        measured.
    attention
        Fused attention in 16 bits.
    origin
        Origin of the constants.
    like
        Catalogue name of the GPU whose kernels were measured; empty if none was.
    """

    wide: ProductLaw
    narrow: ProductLaw
    attention: AttentionLaw
    origin: Origin = "assumed"
    like: str = ""
    block: ProductLaw | None = None
    fp4: ProductLaw | None = None

    def law(self, name: Literal["narrow", "block", "fp4"]) -> ProductLaw:
        """Return the constants of matrix products in fp8 or fp4 by name; ``narrow`` if none were measured."""
        law = {"narrow": self.narrow, "block": self.block, "fp4": self.fp4}[name]
        return self.narrow if law is None else law


ASSUMED_EFFICIENCY = GpuEfficiency(
    wide=ProductLaw(share=0.79, half_inner=85, half_result=75_000, start_s=8e-6),
    narrow=ProductLaw(share=0.77, half_inner=300, half_result=0, start_s=12e-6),
    attention=AttentionLaw(head_sizes=(64, 128), shares=(0.48, 0.63), half_seq=170, start_s=35e-6),
)
"""Constants for GPUs without measured kernels: rounded means of A100's and H100's in ``data/gpus.yaml``."""
