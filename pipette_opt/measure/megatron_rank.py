"""
Peak memory of one rank of megatron-core's own model, run through its forward and backward passes.

Megatron-core's process groups stand for the other ranks, over torch's ``fake`` backend, whose collectives return at
once. On a GPU everything is computed, with Transformer Engine's layers if installed. Without a GPU the rank runs on
tensors without data (``FakeTensorMode``), and live storages are counted. Kernels that a processor lacks (fused
attention, norms) are replaced by outputs of the same size. Gradients are cleared as soon as they exist, as DDP does
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

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import ceil_div
from pipette_opt.measure.live_storages import LiveStorages
from pipette_opt.measure.stage_passes import Pass, passes_of
from pipette_opt.measure.stand_ins import DTYPES, AttentionStandIn, NormStandIn
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

ITERATIONS = 2
"""Iterations on a GPU: Adam's moments appear in the first, and placeholders of gradients remain after it."""


def measure_rank(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int, device: str = "cpu"
) -> int:
    """
    Return the peak bytes of the tensors of one rank of a stage.

    Parameters
    ----------
    device
        ``cuda``: bytes allocated on the first GPU; ``cpu``: bytes counted without a GPU.

    Raises
    ------
    InputError
        For a job that cannot be run on one rank, or without megatron-core.
    """
    _check(model, training, config, device)
    with ExitStack() as stack:
        stack.enter_context(_process_groups(config, stage))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        if device == "cpu":
            stack.enter_context(mock.patch("torch.cuda.current_device", return_value="cpu"))
            stack.enter_context(FakeTensorMode())
            storages = LiveStorages()
            stack.enter_context(storages)
            _run(model, training, config, stage, torch.device("cpu"), iterations=1)
            return int(storages.peak_bytes)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        stack.enter_context(torch.device("cuda"))
        _run(model, training, config, stage, torch.device("cuda"), iterations=ITERATIONS)
        return int(torch.cuda.max_memory_allocated())


def _check(model: ModelSpec, training: TrainingSpec, config: ParallelConfig, device: str) -> None:
    """Raise ``InputError`` for a job that cannot be run on one rank of this device, or without megatron-core."""
    never = {
        "ZeRO 2 and 3": config.sharding_stage > 1,
        "several optimizer instances": config.num_distributed_optimizer_instances > 1,
        "interleaved stages": config.num_chunks > 1,
        "layers of attention and MLP side by side": model.parallel_residual,
        f"activation {model.activation_func}": model.activation_func is not None,
    }
    not_here = {
        "experts, whose routing needs data": model.num_experts is not None,
        "context parallelism, which is Transformer Engine's": config.context_parallel_size > 1,
        "recomputation, which keeps states of a GPU's random numbers": config.recompute_granularity is not None,
        "embeddings that are the head of the same stage, whose gradients torch sums in a third tensor without data": (
            not model.untie_embeddings_and_output_weights and config.pipeline_model_parallel_size == 1
        ),
        "fp8": training.fp8,
        "unfused attention": training.attention_kernel != "flash",
    }
    for where, refused in (("profile memory --plan", never), ("--device cpu", not_here if device == "cpu" else {})):
        for feature, is_there in refused.items():
            if is_there:
                raise InputError(where, f"cannot run {feature}{'' if refused is never else '; run it on a GPU'}.")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda", "torch sees no CUDA device here; --device cpu counts without one.")
    try:
        import megatron.core  # noqa: F401
    except ImportError as error:
        problem = "needs megatron-core: pip install 'pipette-opt[megatron]'."
        raise InputError("profile memory --plan", problem) from error


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


def _run(
    model: ModelSpec,
    training: TrainingSpec,
    config: ParallelConfig,
    stage: int,
    device: torch.device,
    *,
    iterations: int,
) -> None:
    """Run the iterations that decide peak memory, with weights, gradients and optimizer state allocated."""
    module = _build(model, training, config, stage, device)
    owners = config.data_parallel_size if config.use_distributed_optimizer else 1
    kept = []
    for parameter in module.parameters():
        gradient_dtype = torch.float32 if training.gradient_bytes == 4 else parameter.dtype
        parameter.main_grad = torch.empty_like(parameter, dtype=gradient_dtype)  # type: ignore[attr-defined]
        parameter.grad_added_to_main_grad = False  # type: ignore[attr-defined]
        kept.append(
            torch.empty(
                ceil_div(training.optimizer_bytes * parameter.numel(), owners), dtype=torch.uint8, device=device
            )
        )
        parameter.register_post_accumulate_grad_hook(_clear)  # type: ignore[no-untyped-call]
    for _ in range(iterations):
        run = _Passes(module, model, training, config, stage, device)
        for stage_pass in passes_of(training, config, stage):
            run.go(stage_pass)
        del run


def _clear(parameter: Tensor) -> None:
    parameter.grad = None


def _build(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, stage: int, device: torch.device
) -> nn.Module:
    """Return megatron-core's model for the stage."""
    from megatron.core.models.gpt import GPTModel
    from megatron.core.transformer import TransformerConfig

    if model.num_recurrent_layers or model.attention_output_gate:
        raise InputError("model", "has layers with a state or gates, which cannot be run here; they are counted.")
    if model.multi_latent_attention is not None or model.mtp_num_layers:
        problem = "ranks of models with latent attention or multi-token prediction cannot be run here."
        raise InputError("model", problem)
    dtype, pp = DTYPES[training.precision], config.pipeline_model_parallel_size
    on_gpu = device.type == "cuda"
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
        use_cpu_initialization=not on_gpu,
        perform_initialization=False,
        recompute_granularity=config.recompute_granularity,
        recompute_method=config.recompute_method if config.recompute_granularity == "full" else None,
        recompute_num_layers=config.recompute_num_layers if config.recompute_granularity == "full" else None,
        gradient_accumulation_fusion=on_gpu and has_transformer_engine(),
    )
    built: nn.Module = GPTModel(
        transformer,
        _block(transformer, model, config, stage, on_gpu),
        vocab_size=model.padded_vocab_size(config.tensor_model_parallel_size),
        max_sequence_length=training.seq_length,
        pre_process=stage == 0,
        post_process=stage == pp - 1,
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        position_embedding_type="rope" if model.has_rotary_positions else model.position_embedding_type,
    )
    return built.to(device) if on_gpu else built


def _layout(config: ParallelConfig) -> str:
    """Return the layers of each stage in megatron-core's layout notation."""
    stages = ["t" * layers for layers in config.layers_per_stage]
    return "|".join(["E" + stages[0], *stages[1:-1], stages[-1] + "L"])


def has_transformer_engine() -> bool:
    """Return whether megatron-core finds Transformer Engine."""
    from megatron.core.extensions.transformer_engine import HAVE_TE

    return bool(HAVE_TE)


def _block(transformer: Any, model: ModelSpec, config: ParallelConfig, stage: int, on_gpu: bool) -> Any:
    """Return the layer specification: Transformer Engine's, or megatron-core's with stand-ins for fused kernels."""
    from megatron.core.models.gpt import gpt_layer_specs
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules

    if on_gpu and has_transformer_engine():
        return gpt_layer_specs.get_gpt_layer_with_transformer_engine_spec(
            num_experts=model.num_experts, moe_grouped_gemm=True, qk_layernorm=model.qk_layernorm
        )
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
        self,
        module: nn.Module,
        model: ModelSpec,
        training: TrainingSpec,
        config: ParallelConfig,
        stage: int,
        device: torch.device,
    ) -> None:
        shards = config.tensor_model_parallel_size if config.sequence_parallel else 1
        self.module, self.device, self.dtype = module, device, DTYPES[training.precision]
        self.batch = config.micro_batch_size, training.seq_length
        self.hidden = training.seq_length // shards, config.micro_batch_size, model.hidden_size
        self.first, self.last = stage == 0, stage == config.pipeline_model_parallel_size - 1
        self.waiting: dict[tuple[int, int], tuple[Tensor | None, Tensor]] = {}
        self.sent: Tensor | None = None

    def go(self, stage_pass: Pass) -> None:
        """Run one forward or backward pass."""
        (self._forward if stage_pass.kind == "forward" else self._backward)((stage_pass.chunk, stage_pass.microbatch))

    def _activation(self) -> Tensor:
        return torch.empty(self.hidden, dtype=self.dtype, device=self.device)

    def _forward(self, key: tuple[int, int]) -> None:
        from megatron.core.pipeline_parallel.schedules import deallocate_output_tensor

        received = None
        if not self.first:
            received = self._activation().requires_grad_()
            self.module.set_input_tensor(received)  # type: ignore[operator]
        self.sent = None
        tokens = torch.zeros(self.batch, dtype=torch.int64, device=self.device)
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
