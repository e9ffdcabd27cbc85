"""
Defaults of training frameworks, for options that a measured run does not record.

Columns of a row override them: ``overlap_grad_reduce``, ``overlap_param_gather``, ``grad_reduce_in_fp32``,
``fused_attention``, ``peak_mem_stage``.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pipette_opt.specs.precision import Fp8Recipe
from pipette_opt.specs.stack import Family

FRAMEWORK_COLUMN = "framework"
"""Optional column: name of the training software, whose defaults fill empty cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Software:
    """
    Defaults of one training framework.

    Parameters
    ----------
    family
        Family of stacks whose public runs it is counted with.
    overlap_grad_reduce
        Whether gradients are reduced during the backward pass.
    overlap_param_gather
        Whether the distributed optimizer gathers parameters during the forward pass.
    reduces_in_fp32
        Whether gradients of bf16 training are accumulated and reduced in fp32.
    fused_attention
        Whether attention is fused for every model.
    sequence_parallel
        Whether tensor ranks also split norms, by the tokens of the sequence, unless the row says otherwise.
    flash_version
        Newest version of fused attention kernels that it runs, as in :class:`~pipette_opt.specs.TrainingSpec`.
    peak_mem_stage
        Stage whose memory peak its log shows: ``first`` or ``largest``.
    splits_by_parameters
        Whether stages get layers by parameters, including the output head, instead of equally many layers.
    fp8_recipe
        Scaling recipe of fp8 where none is named.
    changes_weights
        Whether fine-tuning changes 16-bit weights in place, without fp32 copies of them.
    fused_loss
        Whether the loss of fine-tuning needs few buffers, unless the row says otherwise.
    fused_norm
        Whether RMS norms of fine-tuning are one kernel, unless the row says otherwise.
    loss_chunks
        Parts of a micro-batch whose logits exist one after the other in fine-tuning, unless the row says otherwise.
    lora_targets
        Matrices with adapters where the row names none; empty for :data:`~pipette_opt.read.finetune.USUAL_TARGETS`.
    lora_dropout
        Dropout of the adapters' inputs; rows have no column for it.
    usual_sharding
        Sharding of fine-tuning on several GPUs, unless the row says otherwise: a word of column ``sharding``.
    flat_gradients
        Whether sharded frozen weights have gradients, as :class:`~pipette_opt.layers.adapters.Adapters` says.
    keeps_inputs
        Whether quantised products keep their inputs, as :class:`~pipette_opt.layers.adapters.Adapters` says.
    fused_step
        Whether PyTorch's optimizer is fused, as :class:`~pipette_opt.specs.TrainingSpec` says.
    alone_optimizer
        Optimizer of full fine-tuning on a single GPU, unless the row says otherwise; empty for Adam.
    recomputes
        When fine-tuning recomputes whole layers, unless the row says otherwise: ``never``, on several GPUs
        (``sharded``), or ``always``.
    """

    family: Family = "megatron"
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    reduces_in_fp32: bool = True
    fused_attention: bool = False
    sequence_parallel: bool = False
    flash_version: Literal[1, 2, 3] = 3
    peak_mem_stage: Literal["first", "largest"] = "largest"
    splits_by_parameters: bool = False
    fp8_recipe: Fp8Recipe = "delayed"
    changes_weights: bool = False
    recomputes: Literal["never", "sharded", "always"] = "never"
    fused_loss: bool = True
    fused_norm: bool = True
    loss_chunks: int = 1
    lora_targets: str = ""
    lora_dropout: float = 0.0
    usual_sharding: str = ""
    flat_gradients: bool = False
    keeps_inputs: bool = False
    fused_step: bool = False
    alone_optimizer: str = ""


MEGATRON_LM = Software()
"""Megatron-LM and its forks: ``--overlap-grad-reduce`` and ``--overlap-param-gather`` are off unless given."""

NEMO = Software(overlap_grad_reduce=True, overlap_param_gather=True, reduces_in_fp32=False, fused_attention=True)
"""
Performance recipes of NeMo and Megatron-Bridge.

They set ``ddp.overlap_grad_reduce``, ``ddp.overlap_param_gather`` and ``grad_reduce_in_fp32 = False`` (Megatron-Bridge,
``scripts/performance``; NeMo, ``scripts/performance/llm``). Their Transformer Engine layers have fused attention.
"""

NANOTRON = Software(
    family="own", overlap_grad_reduce=True, flash_version=2, peak_mem_stage="first", splits_by_parameters=True
)
"""
Nanotron: PyTorch's ``DistributedDataParallel`` reduces buckets of gradients during the backward pass.

With ZeRO-1 parameters are gathered after the step. Attention is the package flash-attn 2. The first rank logs.
"""

PYTORCH = Software(flash_version=2)
"""
LLM Foundry, and others with the first FSDP of PyTorch: PyTorch's attention or the package flash-attn 2.

PyTorch's fused kernel is FlashAttention 2; torchtitan uses cuDNN's only on compute capability 10.0 and later.
"""

OWN = Software(family="own")
"""Megatron-DeepSpeed and other forks from before Megatron-Core, and Aleph Alpha's AA-Scaling."""

INTERNEVO = replace(OWN, reduces_in_fp32=False, flash_version=2)
"""InternEvo: gradients stay in the format of the parameters (``hybrid_zero_optim.py``), attention is flash-attn 2."""

FSDP2 = replace(PYTORCH, family="fsdp", fp8_recipe="tensorwise")
"""
torchtitan, torchao, and NeMo AutoModel: ``fully_shard`` of PyTorch.

torchao scales each tensor by its own largest element unless told otherwise (``Float8LinearConfig``).
"""

TORCHTITAN = replace(FSDP2, sequence_parallel=True)
"""torchtitan, whose plans of tensor parallelism split norms by tokens (``Shard(1)`` in ``apply_tp`` of its models)."""

DEEPSPEED = replace(FSDP2, reduces_in_fp32=False)
"""DeepSpeed: gradients stay in the format of the parameters, the default of ``grad_accum_dtype``."""

TRAINERS = replace(
    DEEPSPEED,
    recomputes="always",
    fused_loss=False,
    fused_norm=False,
    fused_attention=True,
)
"""
Fine-tuning on Hugging Face's trainer (ms-swift, axolotl, LLaMA-Factory, TRL, Unsloth), and prime-rl.

Their defaults recompute layers (``gradient_checkpointing``). Loss and norms are eager, attention is PyTorch's fused one
(``attn_implementation="sdpa"`` since transformers 4.36).
"""

TORCHTUNE = replace(
    TRAINERS,
    changes_weights=True,
    loss_chunks=8,
    fused_step=True,
    alone_optimizer="lomo",
)
"""
torchtune: recipes load 16-bit weights, which the optimizer changes (``dtype: bf16``), and recompute layers.

Their Adam is fused (``fused: True``), and quantised weights are torchao's. Their loss has 8 chunks
(``LinearCrossEntropyLoss``; from 0.3 on ``CEWithChunkedOutputLoss``). Full fine-tuning on a single GPU steps in the
backward pass (``optimizer_in_bwd: True``) with ``PagedAdamW8bit`` (``8B_full_single_device.yaml`` in
``recipes/configs/llama3_1``). Its states are pages of the host that PyTorch's allocator does not have, so the GPU keeps
what LOMO does.
"""

FMS = replace(DEEPSPEED, changes_weights=True)
"""fms-acceleration: 16-bit weights, no recomputation in its benchmarks unless they say so."""

LITGPT = replace(
    FMS,
    recomputes="sharded",
    fused_attention=True,
    fused_norm=False,
    lora_targets="q,v",
    lora_dropout=0.05,
    usual_sharding="fsdp",
    flat_gradients=True,
    keeps_inputs=True,
)
"""
litgpt: 16-bit weights, PyTorch's fused attention, norms in eager PyTorch.

Adapters are at queries and values, with dropout (``lora_dropout: float = 0.05`` in ``finetune/lora.py``).

Quantised weights are those of bitsandbytes 0.42 (``BitsandbytesPrecision``), whose products keep their inputs.

On several GPUs it is PyTorch's first FSDP, by layers with their adapters, and layers are recomputed (``FSDPStrategy``
and ``activation_checkpointing_policy`` in ``finetune/lora.py``).
"""

SOFTWARE: tuple[tuple[re.Pattern[str], Software], ...] = (
    (re.compile(r"megatron-lm\b"), MEGATRON_LM),
    (re.compile(r"megatron-?deepspeed|aa-scaling"), OWN),
    (re.compile(r"internevo"), INTERNEVO),
    (re.compile(r"megatron-?bridge"), NEMO),
    (re.compile(r"nanotron"), NANOTRON),
    (re.compile(r"(?<!nvidia-)nemo(?!tron|.?rl\b|.?automodel)"), NEMO),
    (re.compile(r"torchtitan|torchao|pytorch/ao"), TORCHTITAN),
    (re.compile(r"automodel|fsdp2"), FSDP2),
    (re.compile(r"litgpt"), LITGPT),
    (re.compile(r"torchtune"), TORCHTUNE),
    (re.compile(r"fms-acceleration"), FMS),
    (re.compile(r"megatron-?swift"), MEGATRON_LM),
    (re.compile(r"ms-?swift|axolotl|llama-?factory|\btrl\b|unsloth|prime-rl|transformers|accelerate"), TRAINERS),
    (re.compile(r"deepspeed"), DEEPSPEED),
    (re.compile(r"llm-foundry|\bpytorch|\bfms-fsdp|composer-fsdp"), PYTORCH),
)
"""
Patterns of framework names in lower case, with their defaults; the first match counts.

``nvidia-nemo`` is excluded, since it is the name of an organisation.
"""


def software_of(cells: Mapping[str, str]) -> Software:
    """Return the defaults of the framework that a row names; Megatron-LM's if it names none."""
    return named_software(cells) or MEGATRON_LM


def named_software(cells: Mapping[str, str]) -> Software | None:
    """Return the framework in a row's column ``framework``, else in its ``source``, else in its ``notes``."""
    for column in (FRAMEWORK_COLUMN, "source", "notes"):
        for name, software in SOFTWARE:
            if name.search(cells.get(column, "").lower()):
                return software
    return None
