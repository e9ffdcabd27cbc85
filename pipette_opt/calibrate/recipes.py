"""
What frameworks do where a row does not say: what their recipes overlap, and in what they reduce gradients.

Columns ``overlap_grad_reduce`` and ``overlap_param_gather`` of a row are believed before the recipe.
"""

from dataclasses import dataclass
from typing import Literal

from pipette_opt.read.runs import MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """
    Defaults of one framework.

    Parameters
    ----------
    overlap_grad_reduce
        Whether gradients are reduced beside the backward pass.
    overlap_param_gather
        Whether the distributed optimizer gathers parameters beside the forward pass.
    reduces_in_fp32
        Whether gradients are added up and reduced in fp32 where training is in bf16.
    fused_attention
        Whether attention is fused whatever the model.
    flash_version
        Newest kernels of fused attention that it runs, as in :class:`~pipette_opt.specs.TrainingSpec`.
    """

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reduces_in_fp32: bool = True
    fused_attention: bool = False
    flash_version: Literal[1, 2, 3] = 3


PLAIN = Recipe()
"""Megatron-LM and its kin: ``--overlap-grad-reduce`` and ``--overlap-param-gather`` are off unless given."""

MEGATRON_RECIPES = Recipe(
    overlap_grad_reduce=True, overlap_param_gather=True, reduces_in_fp32=False, fused_attention=True
)
"""
Performance recipes of NeMo and Megatron-Bridge, which MLPerf's submissions are made of.

They set ``ddp.overlap_grad_reduce``, ``ddp.overlap_param_gather`` and ``grad_reduce_in_fp32 = False`` (Megatron-Bridge,
``scripts/performance``; NeMo, ``scripts/performance/llm``; MLPerf's GPT-3, ``model.optim.grad_sync_dtype: bf16``).
Their layers are Transformer Engine's, whose attention is fused.
"""

BRIDGE = Recipe(overlap_grad_reduce=True, overlap_param_gather=True, fused_attention=True)
"""Megatron-Bridge's other recipes, which reduce in fp32 (``bf16_mixed`` in ``training/mixed_precision.py``)."""

NANOTRON = Recipe(overlap_grad_reduce=True, flash_version=2)
"""
Nanotron wraps its model in PyTorch's ``DistributedDataParallel``, whose buckets are reduced as gradients are made.

With ZeRO-1 parameters are gathered after the step. Attention is that of the package flash-attn 2.
"""

PYTORCH = Recipe(flash_version=2)
"""
torchtitan, PyTorch's own pages and LLM Foundry: PyTorch's attention or that of the package flash-attn 2.

The fused kernel of PyTorch's is FlashAttention 2; torchtitan takes cuDNN's on compute capability 10.0 and later only.
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
"""By how the source of a row begins, in lower case; every other source is ``PLAIN``."""


def recipe_of(run: MeasuredRun) -> Recipe:
    """Of the framework that the row's source names."""
    source = run.source.lower()
    return next((recipe for start, recipe in RECIPES.items() if source.startswith(start)), PLAIN)
