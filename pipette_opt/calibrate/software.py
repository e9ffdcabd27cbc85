"""
Defaults of training software, for what a measured run does not say.

Columns of a row are believed first: ``overlap_grad_reduce``, ``overlap_param_gather``, ``grad_reduce_in_fp32``,
``fused_attention``, ``peak_mem_stage``.
"""

import re
from dataclasses import dataclass
from typing import Literal

from pipette_opt.read.runs import FRAMEWORK_COLUMN, MeasuredRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """
    Defaults of one training framework.

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
    peak_mem_stage
        Stages whose peak its log shows: ``first`` or ``largest``.
    splits_by_parameters
        Whether stages get layers by parameters, the head counted, in place of equal numbers of layers.
    """

    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reduces_in_fp32: bool = True
    fused_attention: bool = False
    flash_version: Literal[1, 2, 3] = 3
    peak_mem_stage: Literal["first", "largest"] = "largest"
    splits_by_parameters: bool = False


MEGATRON_LM = Software()
"""Megatron-LM and its kin: ``--overlap-grad-reduce`` and ``--overlap-param-gather`` are off unless given."""

NEMO = Software(overlap_grad_reduce=True, overlap_param_gather=True, reduces_in_fp32=False, fused_attention=True)
"""
Performance recipes of NeMo and Megatron-Bridge.

They set ``ddp.overlap_grad_reduce``, ``ddp.overlap_param_gather`` and ``grad_reduce_in_fp32 = False`` (Megatron-Bridge,
``scripts/performance``; NeMo, ``scripts/performance/llm``). Their layers are Transformer Engine's, whose attention is
fused.
"""

NANOTRON = Software(overlap_grad_reduce=True, flash_version=2, peak_mem_stage="first", splits_by_parameters=True)
"""
Nanotron wraps its model in PyTorch's ``DistributedDataParallel``, whose buckets are reduced as gradients are made.

With ZeRO-1 parameters are gathered after the step. Attention is that of the package flash-attn 2. The first rank logs.
"""

PYTORCH = Software(flash_version=2)
"""
torchtitan, PyTorch itself and LLM Foundry: PyTorch's attention or that of the package flash-attn 2.

The fused kernel of PyTorch's is FlashAttention 2; torchtitan takes cuDNN's on compute capability 10.0 and later only.
"""

SOFTWARE: tuple[tuple[re.Pattern[str], Software], ...] = (
    (re.compile(r"megatron-lm\b"), MEGATRON_LM),
    (re.compile(r"megatron-?bridge"), NEMO),
    (re.compile(r"nanotron"), NANOTRON),
    (re.compile(r"(?<!nvidia-)nemo(?!tron|.?rl\b|.?automodel)"), NEMO),
    (re.compile(r"torchtitan|llm-foundry|\bpytorch"), PYTORCH),
)
"""Names of software in lower case, and its defaults; the first that is found counts. NVIDIA-NeMo is an organisation."""


def software_of(run: MeasuredRun) -> Software:
    """Return the defaults of the software that a row names: in ``framework``, else in ``source``, else in ``notes``."""
    for text in (run.extra.get(FRAMEWORK_COLUMN, ""), run.source, run.notes):
        for name, software in SOFTWARE:
            if name.search(text.lower()):
                return software
    return MEGATRON_LM
