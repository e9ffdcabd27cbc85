"""Names of attention kernels in tables of runs."""

import re
from dataclasses import dataclass
from typing import Literal

from pipette_opt.base.errors import shown

FLASH = re.compile(
    r"flash_?(attn|attention)?_?v?(?P<version>[0-9])?[0-9.]*|fa_?v?(?P<short>[0-9])[0-9.]*|fused_(attn|attention)"
    r"|te|transformer_engine|cudnn|(torch_)?sdpa|flex(_?attention)?|xformers|(mem(ory)?_)?efficient(_attention)?"
)
"""Kernels that keep no attention scores in memory: FlashAttention, cuDNN in Transformer Engine, PyTorch SDPA."""

FUSED_SOFTMAX = re.compile(r"unfused|fused(_softmax)?|core|local")
"""Names of kernels that keep the scores in memory and fuse scaling, mask and softmax, as Megatron-Core does."""

PLAIN = re.compile(r"torch|(torch_|sdpa_)?math|eager|naive")
"""Names of kernels that keep the scores in memory and compute the softmax in separate operations."""

TRITON = "triton"
"""Part of the names of kernels written in Triton."""

KNOWN = "flash, flash_attention_2, fa2, te, cudnn, sdpa, unfused, fused (the softmax only), core, torch, math, eager"
"""Names of attention kernels that an error message suggests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionWords:
    """
    Meaning of an attention kernel's name in a table of runs.

    Parameters
    ----------
    kernel
        ``flash`` keeps no scores in memory, ``unfused`` keeps them; see :class:`~pipette_opt.specs.TrainingSpec`.
    flash_version
        Version of FlashAttention; 3 if the name has none.
    fused_softmax
        Whether an unfused kernel computes its softmax in one kernel.
    """

    kernel: Literal["flash", "unfused"]
    flash_version: Literal[1, 2, 3] = 3
    fused_softmax: bool = True


def attention_words(text: str) -> AttentionWords | None:
    """
    Return the meaning of an attention kernel's name; ``None`` for an unknown name.

    Case, hyphens, blanks, and text in brackets or after a plus are ignored (``flash_attention2 + RMS kernel``). The
    exception is ``triton``: FlashAttention's Triton kernel has the algorithm and about the speed of version 1
    (``flash_attn_triton.py`` of Dao-AILab/flash-attention). Remarks may follow the name of a kernel without scores in
    memory (``TE DotProductAttention``, ``flash attention via TE``). PyTorch's ``scaled_dot_product_attention`` runs its
    copy of FlashAttention 2 (``aten/src/ATen/native/transformers/cuda``).
    """
    name = re.sub(r"[(\[][^)\]]*[)\]]?|[+;,].*", "", text.lower()).strip()
    name = re.sub(r"[\s_-]+", "_", name).removesuffix("_kernel")
    if found := FLASH.fullmatch(name):
        versions = found["version"], found["short"]
        first = "1" in versions or TRITON in text.lower()
        second = "2" in versions or name.endswith("sdpa")
        return AttentionWords(kernel="flash", flash_version=1 if first else 2 if second else 3)
    if FUSED_SOFTMAX.fullmatch(name):
        return AttentionWords(kernel="unfused")
    if PLAIN.fullmatch(name):
        return AttentionWords(kernel="unfused", fused_softmax=False)
    return _with_remarks(name)


def _with_remarks(name: str) -> AttentionWords | None:
    """Return the meaning of a flash kernel's name with remarks, such as ``te_dotproductattention``; or ``None``."""
    words = name.split("_")
    for end in range(len(words) - 1, 0, -1):
        remarks = words[end:]
        if FLASH.fullmatch("_".join(words[:end])) and not any(
            word == "unfused" or PLAIN.fullmatch(word) for word in remarks
        ):
            return attention_words("_".join(words[:end]))
    return None


def unknown_attention(text: str) -> str:
    """Return the error text for a name that :func:`attention_words` does not know."""
    return f"attention_kernel must be empty or one of {KNOWN}, got {shown(text)}."
