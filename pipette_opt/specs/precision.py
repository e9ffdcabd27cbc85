"""
Transformer Engine's recipes for matrix products in fp8 and fp4, as one table.

A recipe applies to the products of projections, MLPs and experts. Attention, the router, embeddings and the head stay
in the training's precision, and so do results. Names are those of Megatron-Core's ``--fp8-recipe`` and
``--fp4-recipe``.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
FP8_RECIPES: tuple[Fp8Recipe, ...] = ("delayed", "tensorwise", "blockwise", "mxfp8")

NVFP4 = "nvfp4"
"""Name of the fp4 recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRecipe:
    """
    Formats and memory traffic of one recipe; all bytes are per element, scales included.

    Parameters
    ----------
    peak
        Key of the recipe's FLOP rate in the GPU catalogue; a GPU type without the key cannot use the recipe.
    law
        Field of :class:`~pipette_opt.specs.efficiency.GpuEfficiency` with the kernel constants of the recipe.
    element_bytes
        Size of an operand, in one of its directions.
    copies
        Directions in which weights are stored: by rows for one product, by columns for another.
    cast_bytes
        Read and written to cast an operand from 16 bits in both directions.
    norm_cast_bytes
        Read and written to cast the output of a fused norm; 0 if the norm writes the format itself.
    gather_bytes
        Size of a parameter in the all-gather of the distributed optimizer, if weights are kept in this format only.
    multiple
        Sizes of matrix products must be multiples of this number.
    """

    peak: str
    law: Literal["narrow", "block", "fp4"]
    element_bytes: float
    copies: int = 2
    cast_bytes: float
    norm_cast_bytes: float
    gather_bytes: float
    multiple: int = 16


ANY_LAYOUT = "mxfp8"
"""Format of GPU types whose products take operands in any layout (Transformer Engine: compute capability 10)."""


def fp8_copies(peaks: Iterable[Collection[str]]) -> int:
    """
    Return how many directions of an fp8 matrix with one scale per tensor are stored on these GPU types: 2 or 1.

    1 only if every type's products take operands in any layout, which saves the transposed copy
    (``is_non_tn_fp8_gemm_supported`` in Transformer Engine).

    Parameters
    ----------
    peaks
        Formats that each GPU type has a FLOP rate for.
    """
    return 1 if all(ANY_LAYOUT in formats for formats in peaks) else 2


def _blocks(element: float, scale: float, size: int) -> float:
    """Return the bytes of an element plus its share of the scale of a block of ``size`` elements."""
    return element + scale / size


_BLOCK, _MX, _NV = _blocks(1, 4, 128), _blocks(1, 1, 32), _blocks(0.5, 1, 16)
"""Bytes per element, scales included, of blockwise fp8, mxfp8 and nvfp4."""

PRECISION_RECIPES: Mapping[str, PrecisionRecipe] = {
    "delayed": PrecisionRecipe(
        peak="fp8", law="narrow", element_bytes=1, cast_bytes=4, norm_cast_bytes=0, gather_bytes=1
    ),
    "tensorwise": PrecisionRecipe(
        peak="fp8", law="narrow", element_bytes=1, cast_bytes=6, norm_cast_bytes=4, gather_bytes=1
    ),
    "blockwise": PrecisionRecipe(
        peak="fp8_block",
        law="block",
        element_bytes=_BLOCK,
        cast_bytes=2 + 2 * _BLOCK,
        norm_cast_bytes=2 + 2 * _BLOCK,
        gather_bytes=1,
    ),
    "mxfp8": PrecisionRecipe(
        peak="mxfp8",
        law="block",
        element_bytes=_MX,
        cast_bytes=2 + 2 * _MX,
        norm_cast_bytes=2 + 2 * _MX,
        gather_bytes=2,
        multiple=32,
    ),
    NVFP4: PrecisionRecipe(
        peak=NVFP4,
        law="fp4",
        element_bytes=_NV,
        cast_bytes=4 + 2 * _NV,
        norm_cast_bytes=4 + 2 * _NV,
        gather_bytes=_NV,
    ),
}
"""
Recipes by name (Transformer Engine 2.x, ``transformer_engine/common/recipe`` and ``pytorch/tensor``).

- ``delayed``: one scale per tensor, from earlier steps. One pass reads 16 bits and writes rows and columns.
- ``tensorwise``: one scale per tensor, from its own largest element. Finding that takes a pass, except after a norm.
- ``blockwise``: an fp32 scale per 128 elements (per 128 x 128 for weights).
- ``mxfp8``: a 1-byte scale per 32 elements along the inner size of each product. Rows and columns are therefore both
  cast from 16 bits, and parameters are gathered in 16 bits (``--reuse-grad-buf-for-mxfp8-param-ag``).
- ``nvfp4``: half a byte per element, a 1-byte scale per 16 elements (16 x 16 for weights, so columns follow from
  rows), and a scale per tensor, which takes a pass (arXiv 2509.25149).
"""
