"""Names of number formats in tables of runs."""

import re
from collections.abc import Mapping
from typing import Literal

from pipette_opt.specs.precision import NVFP4, Fp8Recipe

Precision = Literal["bf16", "fp16", "fp32", "delayed", "tensorwise", "blockwise", "mxfp8", "nvfp4"]
"""Number format of a run's matrix products; an fp8 format has the name of its recipe."""

_FP8: Mapping[str, Fp8Recipe] = {
    "": "delayed",
    "hybrid": "delayed",
    "delayed": "delayed",
    "cs": "tensorwise",
    "tensorwise": "tensorwise",
    "rowwise": "tensorwise",
    "current-scaling": "tensorwise",
    "blockwise": "blockwise",
    "block": "blockwise",
    "mx": "mxfp8",
}
"""
Fp8 recipes by the word after ``fp8``.

PyTorch's ``rowwise`` counts as tensorwise, as both take their scales from current values.
"""

_PLAIN: Mapping[str, Precision] = {
    "": "bf16",
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "mxfp8": "mxfp8",
    NVFP4: "nvfp4",
}

KNOWN = "bf16, fp16, fp32, fp8, fp8-hybrid, fp8-cs, fp8-tensorwise, fp8-rowwise, fp8-blockwise, fp8-mx, mxfp8, nvfp4"
"""Names of number formats that an error message suggests."""


def precision_of(text: str) -> Precision | None:
    """
    Return the number format that a name means; ``None`` for an unknown name, ``bf16`` for an empty name.

    Case, hyphens, underscores, blanks, text in brackets, and Lightning's suffixes ``-mixed`` and ``-true`` do not
    matter.
    """
    word = re.sub(r"[\s_-]+", "-", text.partition("(")[0].strip().lower()).strip("-")
    word = word.removesuffix("-mixed").removesuffix("-true")
    if word in _PLAIN:
        return _PLAIN[word]
    return _FP8.get(word[3:].removeprefix("-")) if word.startswith("fp8") else None
