"""
Recipes of Transformer Engine for matrix products in fewer bits, as one table.

A recipe is for the products of projections, MLPs and experts. Attention, the router, embeddings and the head stay in
the training's precision; results are written in it. Names are those of Megatron-Core's ``--fp8-recipe`` and
``--fp4-recipe``.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
FP8_RECIPES: tuple[Fp8Recipe, ...] = ("delayed", "tensorwise", "blockwise", "mxfp8")

NVFP4 = "nvfp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionRecipe:
    """
    What is in which format, and what is moved to get there; bytes are those of one element, scales included.

    Parameters
    ----------
    peak
        The GPU's rate of such products in the catalogue; a GPU without it has no such products.
    law
        Which law of :class:`~pipette_opt.specs.efficiency.GpuEfficiency` they follow.
    element_bytes
        Of an operand in one direction.
    copies
        Directions in which weights are kept: by rows for one product, by columns for another.
    cast_bytes
        Read and written to cast an operand in both directions, from 16 bits.
    norm_cast_bytes
        The same of the output of a fused norm; 0 where the norm writes it so.
    gather_bytes
        Of a parameter on its way from the rank that owns it, if weights are kept in this format only.
    multiple
        Sizes of products are multiples of it.
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
"""A GPU whose products take operands in any layout has this format, too (Transformer Engine: compute capability 10)."""


def fp8_copies(peaks: Iterable[Collection[str]]) -> int:
    """
    Directions in which a matrix in fp8 with one scale is kept on GPUs with such formats, 2 or 1.

    Where every GPU's products take operands in any layout there is no transposed copy (``is_non_tn_fp8_gemm_supported``
    in Transformer Engine).
    """
    return 1 if all(ANY_LAYOUT in one for one in peaks) else 2


def _blocks(element: float, scale: float, size: int) -> float:
    """An element with its part of the scale of its block."""
    return element + scale / size


_BLOCK, _MX, _NV = _blocks(1, 4, 128), _blocks(1, 1, 32), _blocks(0.5, 1, 16)

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
All recipes by name (Transformer Engine 2.x, ``transformer_engine/common/recipe`` and ``pytorch/tensor``).

``delayed``: one scale a tensor, from the steps before: one pass that reads 16 bits and writes rows and columns.
``tensorwise``: the scale of the tensor at hand, so its largest element is looked for in a pass of its own, but for a
norm, which finds it on the way. ``blockwise``: an fp32 scale for 128 elements (of weights 128 x 128). ``mxfp8``: a
scale of one byte for 32 elements, along the inner size of each product, so rows and columns are cast from 16 bits both;
that is why parameters are gathered in 16 bits (into the buffer of gradients, ``--reuse-grad-buf-for-mxfp8-param-ag``).
``nvfp4``: half a byte, a scale of one byte for 16 elements (of weights 16 x 16, so that columns are made of rows) and
one of the tensor, which takes a pass of its own (arXiv 2509.25149).
"""
