"""
Megatron-Bridge (NeMo): overrides of a recipe, for Hydra's command line and as YAML.

Names are those of ``ConfigContainer`` (megatron-bridge 0.3.1, ``megatron/bridge/training/config.py``).

- The recipe's degrees, layout and recomputation are always overridden, even where the plan uses the default.
- The recipe's communication overlap and ``comm_overlap`` are kept, unless the plan needs more overlap. A comment names
  the overlap that the plan's times assume.
- Launchers of other formats start the recipe: ``ARGUMENTS=./nemo_args.sh PRETRAIN=my_recipe.py`` before
  ``sbatch job.sbatch`` or ``bash launch.sh``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export import megatron
from pipette_opt.export.checks import check_megatron_can, context_levels, expert_tensor_size, refuse_operations
from pipette_opt.export.megatron import TRIAL_ITERATIONS, layout_options
from pipette_opt.export.recorded import recorded_model, recorded_training, refuse_unwritten, written_training
from pipette_opt.export.shell import SOURCED, array_lines, comment
from pipette_opt.export.target import Target
from pipette_opt.layers.latent import LATENT_SIZES
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.recompute import CORE
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_table import megatron_options
from pipette_opt.read.model_words import check_chunks, layer_list_values
from pipette_opt.read.recipe_overrides import RECIPE_PRECISION, RecipePrecision
from pipette_opt.specs import LatentAttention, ModelSpec, TrainingSpec
from pipette_opt.specs.precision import NVFP4
from pipette_opt.specs.user_buffers import has_user_buffers

SOFTWARE = "megatron-core"

LAUNCHER = None
"""Launcher that Megatron-Bridge needs: any."""

TRAINING: Mapping[str, Any] = MappingProxyType({})
"""Fields of the training that the framework sets: none."""

SPACE: Mapping[str, Any] = MappingProxyType(
    {
        "num_distributed_optimizer_instances": (1,),
        "offload": (None,),
    }
)
"""Fields of a search space with the values that Megatron-Bridge can run."""

TRAINING_FIELDS = (
    "precision",
    "fp8",
    "fp8_recipe",
    "fp8_param_gather",
    "fp4",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "tp_comm_overlap",
    "cp_comm_type",
    "moe_token_dispatcher_type",
    "moe_flex_dispatcher_backend",
    "moe_flex_dispatcher_num_sms",
)
MISSING_MODEL_FIELDS = (*megatron.MISSING_MODEL_FIELDS, "activation_func", "other_arguments")
"""Fields without an override: functions, arguments of Megatron-LM, and layers that megatron-core lacks."""

GEMMA_3_FIELDS = ("activation_func", "post_norms", "local_rotary_base")
"""Fields of ``MISSING_MODEL_FIELDS`` that a Gemma 3 recipe of Megatron-Bridge sets itself (``Gemma3ModelProvider``)."""

MODEL_FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name not in MISSING_MODEL_FIELDS)
"""Fields of a model that are overridden; vocabulary and positions come from the recipe."""

WITHOUT_OVERRIDE = ("num_distributed_optimizer_instances", "outer_dp_sharding_strategy", "offload")
CONFIG_FIELDS = tuple(field.name for field in fields(ParallelConfig) if field.name not in WITHOUT_OVERRIDE)


def export_nemo(plan: Plan) -> dict[str, str]:
    """Return the overrides for bash and as YAML; raise ``InputError`` if Megatron-Bridge cannot express the plan."""
    sections = overrides(plan)
    recipe = "Megatron-Bridge recipe of Gemma 3" if _is_gemma3(recorded_model(plan)) else "Megatron-Bridge recipe"
    head = f"{plan.config.label()}, global batch {plan.global_batch_size}; overrides of a {recipe}."
    overlap = assumed_overlap(plan.config, has_user_buffers(recorded_training(plan), plan.config))
    bash = [
        "#!/bin/bash",
        SOURCED,
        comment(head),
        comment(overlap),
        comment("Started by the launchers of other formats:  ARGUMENTS=./nemo_args.sh PRETRAIN=my_recipe.py ..."),
        *array_lines("MEGATRON_ARGS", [[word] for word in hydra_words(sections)]),
        *array_lines("TRIAL_ARGS", [[f"train.train_iters={TRIAL_ITERATIONS}"], ["logger.log_interval=1"]]),
        "",
    ]
    text = yaml.dump(sections, Dumper=_Dumper, sort_keys=False)
    heading = comment(f"{head}\n{overlap}")
    return {"nemo_args.sh": "\n".join(bash), "overrides.yaml": f"{heading}\n{text}"}


def overrides(plan: Plan) -> dict[str, Any]:
    """Return the overridden fields by section of ``ConfigContainer``; ``None`` unsets a field."""
    model, training, config = recorded_model(plan), recorded_training(plan), plan.config
    _refuse(plan, model, training)
    refuse_operations(config)
    full = config.recompute_granularity == "full"
    sends_beside = config.num_chunks > 1 and config.overlap_p2p_communication
    return {
        "model": {
            **_blocks(model),
            **(_gemma3(model) if _is_gemma3(model) else {}),
            **_latent(model.multi_latent_attention),
            **_experts(model, training),
            **_layer_list(model, config),
            "mtp_num_layers": model.mtp_num_layers or None,
            **({"mtp_use_repeated_layer": True} if model.mtp_use_repeated_layer else {}),  # 0.3.1 has no such field
            "mtp_loss_scaling_factor": model.mtp_loss_scaling_factor,
            "seq_length": training.seq_length,
            **_fields(config, "tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
            **_context(training, config),
            "expert_model_parallel_size": config.expert_model_parallel_size,
            "expert_tensor_parallel_size": expert_tensor_size(plan, model.num_experts),
            "sequence_parallel": config.sequence_parallel,
            **layout_options(plan),
            **({"tp_comm_overlap": True} if has_user_buffers(training, config) else {}),
            "overlap_p2p_comm": sends_beside,
            "batch_p2p_comm": not sends_beside,
            "recompute_granularity": config.recompute_granularity,
            "recompute_method": config.recompute_method if full else None,
            "recompute_num_layers": config.recompute_num_layers if full else None,
            **({"recompute_modules": list(config.recompute_modules)} if config.recompute_modules != CORE else {}),
        },
        "train": {"micro_batch_size": config.micro_batch_size, "global_batch_size": plan.global_batch_size},
        "dataset": {"sequence_length": training.seq_length},
        "dist": {"use_tp_pp_dp_mapping": plan.placement.order == "tp-cp-ep-pp-dp"},
        **_optimizer(config),
        "mixed_precision": _mixed_precision(model, training),
    }


def _context(training: TrainingSpec, config: ParallelConfig) -> dict[str, Any]:
    """Return the fields of the exchange of context-parallel ranks, if it is no plain ring."""
    if config.context_parallel_size == 1 or training.cp_comm_type == "p2p":
        return {}
    sizes = context_levels(training, config)
    return {
        "cp_comm_type": training.cp_comm_type,
        **({} if sizes is None else {"hierarchical_context_parallel_sizes": list(sizes)}),
    }


def _optimizer(config: ParallelConfig) -> dict[str, Any]:
    """
    Return the fields of the distributed optimizer, and of communication overlap that the plan needs.

    Without a distributed optimizer no parameters are gathered, so the recipe's overlap of the gather is switched off.
    """
    distributed = {"use_distributed_optimizer": config.use_distributed_optimizer}
    gather: dict[str, Any] = {}
    if config.overlap_param_gather or not config.use_distributed_optimizer:
        gather["overlap_param_gather"] = config.overlap_param_gather
    reduce: dict[str, Any] = {}
    if config.sharding_stage > 1:
        strategy = {"data_parallel_sharding_strategy": config.data_parallel_sharding_strategy}
        reduce |= {"use_megatron_fsdp": True, **strategy, "overlap_grad_reduce": True}
        gather["overlap_param_gather"] = True
    if config.overlap_grad_reduce:
        reduce["overlap_grad_reduce"] = True
    if config.ddp_bucket_size is not None:
        reduce["bucket_size"] = config.ddp_bucket_size
    return {"ddp": distributed | reduce | gather, "optimizer": distributed | gather}


def assumed_overlap(config: ParallelConfig, tensor_overlap: bool) -> str:
    """Return a comment with the overlap that the plan's times assume, and the overlap that the recipe may add."""
    tensor = (
        "half of tensor-parallel communication hidden" if tensor_overlap else "tensor-parallel communication waited for"
    )
    sent = {"gradients": config.overlap_grad_reduce, "parameters": config.overlap_param_gather}
    beside = " and ".join(name for name, overlapped in sent.items() if overlapped)
    beside = beside or "neither gradients nor parameters"
    return (
        f"The plan's times have {beside} sent beside compute.\n"
        f"They have {tensor}.\n"
        "Other overlap of the recipe (ddp.overlap_*, comm_overlap) stays on; iterations are then faster than planned.\n"
        "A recipe with comm_overlap has its own bucket size and tp_comm_overlap."
    )


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

HYDRA_WORDS = ("null", "true", "false", "nan", "inf")
"""Words that Hydra reads as other types unless quoted, in any case."""


class _Dumper(yaml.SafeDumper):
    """YAML writer that quotes all text but plain names: OmegaConf reads ``1e5`` as a number, unlike YAML 1.1."""


_Dumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar(
        "tag:yaml.org,2002:str", text, style=None if _PLAIN.fullmatch(text) else "'"
    ),
)


def hydra_words(sections: Mapping[str, Any]) -> list[str]:
    """Return ``section.field=value`` for each field, in the syntax of Hydra's override parser."""
    return list(_words("", sections))


def _words(prefix: str, value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, field in value.items():
            yield from _words(f"{prefix}.{name}" if prefix else name, field)
    else:
        yield f"{prefix}={_hydra_value(value)}"


def _hydra_value(value: object) -> str:
    """Return Hydra's spelling of a value; text that is not a plain name is quoted."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{','.join(map(_hydra_value, value))}]"
    text = str(value)
    if not text.isprintable() or any(sign in text for sign in "'\\$"):
        raise InputError(
            "--format", f"{text[:60]!r} contains a quote, backslash or $, which Hydra would misread; rename it."
        )
    return text if _PLAIN.fullmatch(text) and text.lower() not in HYDRA_WORDS else f"'{text}'"


def _fields(spec: Any, *names: str) -> dict[str, Any]:
    """Return fields of a dataclass by their names in megatron-core."""
    options, values = megatron_options(), {name: getattr(spec, name) for name in names}
    renamed = {options[name].config_field if name in options else name: value for name, value in values.items()}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in renamed.items()}


def _blocks(model: ModelSpec) -> dict[str, Any]:
    """
    Return the fields of sizes, norms, biases, dropout, positions, windows and softmax; the activation is the recipe's.

    There are ``yarn_...`` fields only if the model has YaRN scaling.
    """
    yarn = {} if model.yarn is None else asdict(model.yarn)
    return {
        **_fields(model, "num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups"),
        **_fields(model, "kv_channels", "gated_linear_unit", "glu_linear_offset", "activation_func_clamp_value"),
        "share_embeddings_and_output_weights": not model.untie_embeddings_and_output_weights,
        **_fields(model, "make_vocab_size_divisible_by", "add_bias_linear"),
        "add_qkv_bias": model.add_qkv_bias and not model.add_bias_linear,
        **_fields(model, "normalization", "norm_epsilon", "layernorm_zero_centered_gamma", "qk_layernorm"),
        **_fields(model, "hidden_dropout", "attention_dropout", "init_method_std", "position_embedding_type"),
        **_fields(model, "rotary_base", "rotary_percent", "rotary_interleaved", "rotary_seq_len_interpolation_factor"),
        "rope_scaling": model.rope_scaling_factor is not None,
        "rope_scaling_factor": 1.0 if model.rope_scaling_factor is None else model.rope_scaling_factor,
        **_fields(model, "no_rope_freq", "window_size", "window_attn_skip_freq", "softmax_type"),
        **{f"yarn_{name}": value for name, value in yarn.items()},
    }


def _is_gemma3(model: ModelSpec) -> bool:
    """
    Return whether the model is a Gemma 3, which ``Gemma3ModelProvider`` builds.

    Signs: norms after each branch, gated GELU, two rotary bases, and periodic layers without a window.
    """
    is_kind = model.post_norms and model.gated_linear_unit and model.activation_func == "gelu"
    has_bases = model.local_rotary_base is not None and model.position_embedding_type == "rope"
    has_windows = model.window_size is not None and model.window_size[0] >= 0
    return is_kind and has_bases and has_windows and _windowless_every(model) is not None


def _windowless_every(model: ModelSpec) -> int | None:
    """Return N if every N-th layer has no window; ``None`` if these layers are not periodic."""
    freq = model.window_attn_skip_freq
    if not isinstance(freq, tuple):
        return freq
    every = freq.index(0) + 1 if 0 in freq else 1
    return every if all(bool(flag) is (place % every != 0) for place, flag in enumerate(freq, 1)) else None


def _gemma3(model: ModelSpec) -> dict[str, Any]:
    """
    Return windows and positions as fields of ``Gemma3ModelProvider`` (``models/gemma/gemma3_provider.py``).

    The provider counts the query's own token as part of the window. Its pattern is the number of layers with a window
    followed by the number without; only layers without a window scale positions.
    """
    every, window = _windowless_every(model), model.window_size
    assert every is not None
    assert window is not None
    return {
        "rotary_base": [model.local_rotary_base, model.rotary_base],
        "rope_scaling": False,
        "rope_scaling_factor": float(model.rotary_seq_len_interpolation_factor or 1),
        "seq_len_interpolation_factor": None,
        "window_size": window[0] + 1,
        "window_attn_skip_freq": None,
        "interleaved_attn_pattern": [every - 1, 1],
    }


def _latent(latent: LatentAttention | None) -> dict[str, Any]:
    """Return the fields of latent attention, with the names of ``MLATransformerConfig``; empty without it."""
    if latent is None:
        return {}
    scaling = {} if latent.yarn is None else asdict(latent.yarn)
    scaling.pop("correction_range_round_to_int", None)
    kind = "rope" if latent.yarn is None else "yarn"
    return {"multi_latent_attention": True, **_fields(latent, *LATENT_SIZES), "rope_type": kind, **scaling}


def _experts(model: ModelSpec, training: TrainingSpec) -> dict[str, Any]:
    if model.num_experts is None:
        return {"num_moe_experts": None}
    backend, used = training.moe_flex_dispatcher_backend, training.moe_flex_dispatcher_num_sms
    kernels = {"moe_flex_dispatcher_backend": backend, **({f"moe_{backend}_num_sms": used} if used else {})}
    return {
        **(kernels if training.moe_token_dispatcher_type == "flex" else {}),
        **_fields(model, "num_experts", "moe_router_topk", "moe_latent_size", "moe_router_num_groups"),
        **_fields(model, "moe_router_group_topk", "moe_router_pre_softmax"),
        "moe_ffn_hidden_size": model.expert_ffn_size,
        "moe_token_dispatcher_type": training.moe_token_dispatcher_type,
        "moe_grouped_gemm": True,
        "moe_shared_expert_intermediate_size": model.moe_shared_expert_intermediate_size or None,
        "moe_layer_freq": [int(kind.has_experts) for kind in model.layers],
    }


def _layer_list(model: ModelSpec, config: ParallelConfig) -> dict[str, Any]:
    """Return the fields of hybrid and linear-attention layers; empty for other models."""
    values = layer_list_values(model, config.layers_per_chunk) | _fields(model, "linear_attention_freq")
    found = {"attention_output_gate": model.attention_output_gate or None, **values}
    return {name: value for name, value in found.items() if value is not None and name != "spec"}


def _mixed_precision(model: ModelSpec, training: TrainingSpec) -> str | None:
    wide = training.accumulate_allreduce_grads_in_fp32 or training.precision == "fp32"
    recipe = NVFP4 if training.fp4 else training.fp8_recipe if training.fp8 else ""
    ends = {model.num_layers_at_start_in_bf16, model.num_layers_at_end_in_bf16} if recipe else {0}
    wanted = RecipePrecision(training.precision, recipe, training.fp8_param_gather, min(ends))
    names = [name for name, known in RECIPE_PRECISION.items() if known == wanted]
    if not names or len(ends) > 1 or wide is (training.precision == "fp16"):
        kept = "fp32" if wide else training.precision
        how = f"{training.precision}{f' and {recipe}' if recipe else ''} with gradients in {kept}"
        gathered = f", parameters {'' if training.fp8_param_gather else 'not '}gathered in fp8" if recipe else ""
        of_ends = f", {' and '.join(map(str, sorted(ends)))} layers in bf16 at the ends" if recipe else ""
        problem = f"Megatron-Bridge has no recipe precision for {how}{gathered}{of_ends}"
        raise InputError("precision", f"is {training.precision}, but {problem}.")
    return names[0]


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for a model or training that no override of Megatron-Bridge expresses."""
    refuse_unwritten("Megatron-Bridge", model, (*MODEL_FIELDS, *(GEMMA_3_FIELDS if _is_gemma3(model) else ())))
    refuse_unwritten("Megatron-Bridge", written_training(training), TRAINING_FIELDS)


def _refuse(plan: Plan, model: ModelSpec, training: TrainingSpec) -> None:
    check_megatron_can("Megatron-Bridge", plan, most_sharded=3)
    refuse_unwritten("Megatron-Bridge", model, (*MODEL_FIELDS, *(GEMMA_3_FIELDS if _is_gemma3(model) else ())))
    check_chunks(model, training)
    refuse_unwritten("Megatron-Bridge", training, TRAINING_FIELDS)
    refuse_unwritten("Megatron-Bridge", plan.config, CONFIG_FIELDS)
    if training.attention_kernel != "flash":
        raise InputError(
            "attention_kernel",
            f"is {training.attention_kernel}, but recipes of Megatron-Bridge use a fused kernel; solve with "
            "--attention-kernel flash.",
        )


TARGET = Target(export_nemo, "nemo_args.sh, overrides.yaml", any_count=True)
