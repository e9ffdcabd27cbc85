"""
Defaults of frameworks for columns that a row lacks: overlap, and the precision of gradient reduction.

Columns ``overlap_grad_reduce`` and ``overlap_param_gather`` of a row win over the recipe.
"""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.read.runs import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """
    Defaults of a framework.

    Parameters
    ----------
    overlap_grad_reduce
        Whether gradients are reduced beside the backward pass.
    overlap_param_gather
        Whether the distributed optimizer gathers parameters beside the forward pass.
    reduces_in_fp32
        Whether gradients are summed and reduced in fp32 in bf16 training.
    fused_attention
        Whether attention is fused for every model.
    flash_version
        Newest version of fused attention that it runs, as in :class:`~pipette_opt.specs.TrainingSpec`.
    """

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reduces_in_fp32: bool = True
    fused_attention: bool = False
    flash_version: Literal[1, 2, 3] = 3


PLAIN = Recipe()
"""Megatron-LM and its forks: ``--overlap-grad-reduce`` and ``--overlap-param-gather`` are off by default."""

MEGATRON_RECIPES = Recipe(
    overlap_grad_reduce=True, overlap_param_gather=True, reduces_in_fp32=False, fused_attention=True
)
"""
Performance recipes of NeMo and Megatron-Bridge, on which MLPerf's submissions rest.

They set ``ddp.overlap_grad_reduce``, ``ddp.overlap_param_gather`` and ``grad_reduce_in_fp32 = False`` (Megatron-Bridge,
``scripts/performance``; NeMo, ``scripts/performance/llm``; MLPerf's GPT-3, ``model.optim.grad_sync_dtype: bf16``).
Their layers are Transformer Engine's, whose attention is fused.
"""

BRIDGE = Recipe(overlap_grad_reduce=True, overlap_param_gather=True, fused_attention=True)
"""Megatron-Bridge's other recipes, which reduce in fp32 (``bf16_mixed`` in ``training/mixed_precision.py``)."""

NANOTRON = Recipe(overlap_grad_reduce=True, flash_version=2)
"""
Nanotron: PyTorch's ``DistributedDataParallel`` reduces buckets while gradients are computed.

With ZeRO 1 parameters are gathered after the step. Attention is that of the package flash-attn 2.
"""

PYTORCH = Recipe(flash_version=2)
"""
torchtitan, PyTorch's own pages and LLM Foundry: PyTorch's attention or that of the package flash-attn 2.

PyTorch's fused kernel is FlashAttention 2; torchtitan takes cuDNN's on compute capability 10.0 and later only.
"""

RECIPES = {
    "mlperf": MEGATRON_RECIPES,
    "megatronbridge": MEGATRON_RECIPES,
    "nemo-launcher": MEGATRON_RECIPES,
    "dgxc": MEGATRON_RECIPES,
    "nvidia-nemo/megatron-bridge": BRIDGE,
    "hf-ultrascale-nanotron": NANOTRON,
    "torchtitan": PYTORCH,
    "pytorch": PYTORCH,
    "mosaicml/llm-foundry": PYTORCH,
}
"""Recipes by the prefix of a row's source, in lower case; every other source is ``PLAIN``."""


def recipe_of(run: MeasuredRun) -> Recipe:
    """Return the recipe of the framework that the row's source names."""
    source = run.source.lower()
    return next((recipe for start, recipe in RECIPES.items() if source.startswith(start)), PLAIN)
