"""What kernels of a kind of GPU attain of its datasheet: small laws, with constants from kernels measured alone."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

Origin = Literal["measured", "interpolated", "assumed"]
"""
Where constants of a GPU are from: its own kernels, those of another GPU of its generation, or those of another one.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductLaw:
    """
    Time of one matrix product of (m, k) by (k, n), or of several in one launch.

    It is ``start_s`` plus the longer of memory and compute. Compute takes ``FLOPs / (share * peak)``, times
    ``1 + half_inner / k`` since loops over a short inner size do not run warm, and ``1 + half_result / (m * n)`` since
    few tiles do not fill the chip.

    Parameters
    ----------
    share
        Of the dense peak that a very large product attains.
    half_inner
        Inner size at which half of the rate is reached.
    half_result
        Elements of the result at which half of the rate is reached.
    start_s
        What every product takes beside.
    """

    share: float
    half_inner: float
    half_result: float
    start_s: float

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}.")
        for name in ("half_inner", "half_result", "start_s"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} must be >= 0, got {getattr(self, name)}.")


SOFTMAX_SIZE = 64
"""
Head size whose products take as long as the softmax of a pair of tokens. Heads of 64 attain 0.75 of what heads of 128
do on H100, 0.67 on B200, 0.84 on L40S (``data/gpus.yaml``); with it 0.75.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionLaw:
    """
    Time of fused causal attention, forward.

    It is ``start_s``, plus queries, keys, values and outputs through memory, plus ``FLOPs / (share * peak)`` times
    ``1 + half_seq / seq_length``. FLOPs are those of the pairs that the mask leaves.

    Parameters
    ----------
    head_sizes, shares
        Share of the dense peak that long sequences attain, for each head size that was measured, in rising order.
        Between them it is interpolated. Of smaller ones the softmax decides more; larger ones have the largest's share.
    half_seq
        Sequence length at which half of the rate is reached.
    flash2
        Rate of FlashAttention 2 on this GPU over that of the kernels that were measured; 1 where it is one of them, or
        where nobody published it.
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
        """Of the dense peak, for long sequences."""
        smallest = self.head_sizes[0]
        if head_size < smallest:
            return self.shares[0] * head_size / (head_size + SOFTMAX_SIZE) * (smallest + SOFTMAX_SIZE) / smallest
        return float(np.interp(head_size, self.head_sizes, self.shares))


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEfficiency:
    """
    The laws of one kind of GPU.

    Parameters
    ----------
    wide
        Products in 16 bits, and in 32.
    narrow
        Products in fp8 with one scale a tensor; the start includes that of the casts before them.
    block, fp4
        Products in fp8 with scales for blocks, and in nvfp4; ``None`` where nobody measured: as ``narrow``.
    attention
        Fused attention in 16 bits.
    origin
        Where the constants are from.
    like
        The GPU whose kernels were measured, a name of the catalogue; empty where it is none of them.
    """

    wide: ProductLaw
    narrow: ProductLaw
    attention: AttentionLaw
    origin: Origin = "assumed"
    like: str = ""
    block: ProductLaw | None = None
    fp4: ProductLaw | None = None

    def law(self, name: Literal["narrow", "block", "fp4"]) -> ProductLaw:
        """Of products in fewer than 16 bits."""
        one = {"narrow": self.narrow, "block": self.block, "fp4": self.fp4}[name]
        return self.narrow if one is None else one


ASSUMED_EFFICIENCY = GpuEfficiency(
    wide=ProductLaw(share=0.79, half_inner=85, half_result=75_000, start_s=8e-6),
    narrow=ProductLaw(share=0.77, half_inner=300, half_result=0, start_s=12e-6),
    attention=AttentionLaw(head_sizes=(64, 128), shares=(0.48, 0.63), half_seq=170, start_s=35e-6),
)
"""
For GPUs that the catalogue does not know: rounded means of A100 and H100, whose constants ``data/gpus.yaml`` has.
"""
