"""
Peak memory of one rank of megatron-core's own model, run through its forward and backward passes.

Megatron-core's process groups stand for the other ranks, over torch's ``fake`` backend, whose collectives return at
once. The rank runs on tensors without data (``FakeTensorMode``), and live storages are counted. Fused attention and
norms are replaced by outputs of the same size. Gradients are cleared as soon as they exist, as DDP does
after adding them to the main gradients. Main gradients and optimizer state are buffers of the right size.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import Function

from models.memory.live_storages import LiveStorages
from models.memory.stage_passes import Pass, passes_of
from models.memory.stand_ins import DTYPES, Normalise, apply
from pipette_opt.base.units import ceil_div
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


class NormStandIn(nn.Module):
    """Stand-in for a fused norm, with the constructor that megatron-core calls."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__()
        self.width, self.statistics = hidden_size, 2 if config.normalization == "LayerNorm" else 1
        self.weight = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))
        if self.statistics == 2:
            self.bias = nn.Parameter(torch.empty(hidden_size, dtype=config.params_dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return an uninitialised output of the norm's size."""
        return apply(Normalise, x, self.width, self.statistics)


class _FlashAttention(Function):
    """Stand-in for fused attention: keeps query, key, value, output, and one fp32 number per head and token."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        s, b, heads, width = query.shape
        out = query.new_empty(s, b, heads * width)
        sums = torch.empty(b, heads, s, dtype=torch.float32, device=query.device)
        ctx.save_for_backward(query.clone(), key.clone(), value.clone(), out, sums)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        query, key, value, _, _ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


class AttentionStandIn(nn.Module):
    """Stand-in for fused attention, with the constructor that megatron-core calls."""

    def __init__(self, config: Any, **_: Any) -> None:
        super().__init__()
        self.config = config

    def forward(self, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> Tensor:
        """Return an uninitialised output of the attention's size."""
        return apply(_FlashAttention, query, key, value)


def measure_rank(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int) -> int:
    """Return the peak bytes of the tensors of one rank of a stage, counted without a GPU."""
    with ExitStack() as stack:
        stack.enter_context(_process_groups(config, stage))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        stack.enter_context(mock.patch("torch.cuda.current_device", return_value="cpu"))
        stack.enter_context(FakeTensorMode())
        storages = LiveStorages()
        stack.enter_context(storages)
        _run(model, training, config, stage)
        return int(storages.peak_bytes)


@contextmanager
def _process_groups(config: ParallelConfig, stage: int) -> Iterator[None]:
    """Set up megatron-core's process groups of a replica, as the stage's first rank sees them; end them at exit."""
    from megatron.core import parallel_state
    from megatron.core.tensor_parallel.random import initialize_rng_tracker
    from torch.testing._internal.distributed.fake_pg import FakeStore

    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=stage * tp, world_size=tp * pp)
    try:
        parallel_state.initialize_model_parallel(tp, pp, create_gloo_process_groups=False)
        initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
        yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()


def _run(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int) -> None:
    """Run the passes that decide peak memory, with weights, gradients and optimizer state allocated."""
    module = _build(model, training, config, stage)
    owners = config.data_parallel_size if config.use_distributed_optimizer else 1
    kept = []
    for parameter in module.parameters():
        gradient_dtype = torch.float32 if training.gradient_bytes == 4 else parameter.dtype
        parameter.main_grad = torch.empty_like(parameter, dtype=gradient_dtype)  # type: ignore[attr-defined]
        parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        kept.append(torch.empty(ceil_div(training.optimizer_bytes * parameter.numel(), owners), dtype=torch.uint8))
        parameter.register_post_accumulate_grad_hook(_clear)  # type: ignore[no-untyped-call]
    run = _Passes(module, model, training, config, stage)
    for stage_pass in passes_of(training, config, stage):
        run.go(stage_pass)


def _clear(parameter: Tensor) -> None:
    parameter.grad = None


def _build(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int) -> nn.Module:
    """Return megatron-core's model for the stage."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig

    dtype, pp = DTYPES[training.precision], config.pipeline_model_parallel_size
    transformer = TransformerConfig(
        num_layers=model.num_layers,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.ffn_hidden_size,
        num_attention_heads=model.num_attention_heads,
        num_query_groups=model.num_query_groups,
        kv_channels=model.kv_channels,
        gated_linear_unit=model.gated_linear_unit,
        activation_func=torch.nn.functional.silu if model.gated_linear_unit else torch.nn.functional.gelu,
        add_bias_linear=model.add_bias_linear,
        add_qkv_bias=model.add_qkv_bias,
        qk_layernorm=model.qk_layernorm,
        normalization=model.normalization,
        hidden_dropout=model.hidden_dropout,
        attention_dropout=model.attention_dropout,
        bias_activation_fusion=model.gated_linear_unit or model.add_bias_linear,
        bias_dropout_fusion=True,
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=pp,
        pipeline_model_parallel_layout=_layout(config) if pp > 1 else None,
        sequence_parallel=config.sequence_parallel,
        pipeline_dtype=dtype,
        params_dtype=dtype,
        bf16=training.precision == "bf16",
        fp16=training.precision == "fp16",
        deallocate_pipeline_outputs=True,
        use_cpu_initialization=True,
        perform_initialization=False,
        gradient_accumulation_fusion=False,
    )
    built: nn.Module = GPTModel(
        transformer,
        _block(model, config, stage),
        vocab_size=model.padded_vocab_size(config.tensor_model_parallel_size),
        max_sequence_length=training.seq_length,
        pre_process=stage == 0,
        post_process=stage == pp - 1,
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        position_embedding_type="rope" if model.has_rotary_positions else model.position_embedding_type,
    )
    return built


def _layout(config: ParallelConfig) -> str:
    """Return the layers of each stage in megatron-core's layout notation."""
    stages = ["t" * layers for layers in config.layers_per_stage]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"])


def _block(model: ModelSpec, config: ParallelConfig, stage: int) -> Any:
    """Return megatron-core's layer specification with stand-ins for fused kernels."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    layer = gpt_layer_specs.get_gpt_layer_local_spec(qk_layernorm=model.qk_layernorm, normalization=model.normalization)
    parts = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = NormStandIn
    parts.self_attention.submodules.core_attention = AttentionStandIn
    if model.qk_layernorm:
        parts.self_attention.submodules.q_layernorm = parts.self_attention.submodules.k_layernorm = NormStandIn
    return TransformerBlockSubmodules(layer_specs=[layer] * config.layers_per_stage[stage], layer_norm=NormStandIn)


class _Passes:
    """Forward and backward passes of the stage, with the tensors that live between a forward and its backward."""

    def __init__(
        self, module: nn.Module, model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int
    ) -> None:
        shards = config.tensor_model_parallel_size if config.sequence_parallel else 1
        self.module, self.dtype = module, DTYPES[training.precision]
        self.batch = config.micro_batch_size, training.seq_length
        self.hidden = training.seq_length // shards, config.micro_batch_size, model.hidden_size
        self.first, self.last = stage == 0, stage == config.pipeline_model_parallel_size - 1
        self.waiting: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        self.sent: Tensor | None = None

    def go(self, stage_pass: Pass) -> None:
        """Run one forward or backward pass."""
        (self._forward if stage_pass.kind == "forward" else self._backward)((stage_pass.chunk, stage_pass.microbatch))

    def _activation(self) -> Tensor:
        return torch.empty(self.hidden, dtype=self.dtype)

    def _forward(self, key: tuple[int, int]) -> None:
        from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor

        received = None
        if not self.first:
            received = self._activation().requires_grad_()
            self.module.set_input_tensor(received)  # type: ignore[operator]
        self.sent = None
        tokens = torch.zeros(self.batch, dtype=torch.int64)
        out = self.module(tokens, tokens, None, labels=tokens if self.last else None)
        if self.last:
            out = out.mean()
        else:
            deallocate_output_tensor(out, True)
        self.waiting[key] = received, out

    def _backward(self, key: tuple[int, int]) -> None:
        from megatron.core.pipeline_parallel.schedules import custom_backward

        received, out = self.waiting.pop(key)
        if self.last:
            out.backward()  # type: ignore[no-untyped-call]
        else:
            custom_backward(out, self._activation())
        self.sent = None if received is None else received.grad
