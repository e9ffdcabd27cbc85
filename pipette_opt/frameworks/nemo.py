"""
Megatron-Bridge (NeMo): overrides of a recipe, for Hydra's command line and as YAML.

Names are those of ``ConfigContainer`` (``megatron/bridge/training/config.py``) and of megatron-core, as
``data/megatron_options.csv`` has them: each option of Megatron-LM is written as the fields that it sets.

- The recipe's degrees, layout, recomputation and model are always overridden, even where the plan uses the default.
- The recipe's communication overlap and ``comm_overlap`` are kept, unless the plan needs more overlap. A comment names
  the overlap that the plan's times assume.
- Bridge keeps the activation function of the recipe, whatever an override says. A comment names the plan's.
- Launchers of other formats start the recipe: ``ARGUMENTS=./nemo_args.sh PRETRAIN=my_recipe.py`` before
  ``sbatch job.sbatch`` or ``bash launch.sh``.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, fields, replace
from types import MappingProxyType
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.export import megatron
from pipette_opt.export.checks import check_megatron_can, refuse_operations
from pipette_opt.export.megatron import TRIAL_ITERATIONS
from pipette_opt.export.recorded import recorded_model, recorded_training, refuse_unwritten, written_training
from pipette_opt.export.shell import SOURCED, array_lines, comment
from pipette_opt.export.target import Target
from pipette_opt.layers.adapters import BRIDGE_TARGETS, Adapters
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.plan import Plan
from pipette_opt.read.megatron_table import field_of, megatron_options
from pipette_opt.read.model_words import Option, check_chunks
from pipette_opt.read.recipe_overrides import ACTIVATION, ACTIVATIONS, DTYPES, MIXED_PRECISION, PEFT, PRECISIONS
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.layer_patterns import layer_frequency
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

MISSING_MODEL_FIELDS = tuple(name for name in megatron.MISSING_MODEL_FIELDS if name != "adapters")
"""Fields without an override: layers that megatron-core lacks."""

GEMMA_3_FIELDS = ("post_norms", "local_rotary_base")
"""Fields of ``MISSING_MODEL_FIELDS`` that a Gemma 3 recipe of Megatron-Bridge sets itself (``Gemma3ModelProvider``)."""

MODEL_FIELDS = tuple(field.name for field in fields(ModelSpec) if field.name not in MISSING_MODEL_FIELDS)
"""Fields of a model that are overridden."""

CONFIG_FIELDS = tuple(field.name for field in fields(ParallelConfig) if field.name != "offload")

SECTIONS: Mapping[str, str] = MappingProxyType(
    {
        "TransformerConfig": "model",
        "ModelParallelConfig": "model",
        "MLATransformerConfig": "model",
        "GPTModelConfig": "model",
        "GPTModelProvider": "model",
        "HybridModelConfig": "model",
        "TokenizerConfig": "model",  # only the vocabulary
        "DistributedDataParallelConfig": "ddp",
        "OptimizerConfig": "optimizer",
        "TrainingConfig": "train",
        "SchedulerConfig": "scheduler",
        "DistributedInitConfig": "dist",
        "CheckpointConfig": "checkpoint",
        "LoggerConfig": "logger",
        "ProfilingConfig": "profiling",
        "RNGConfig": "rng",
    }
)
"""Section of ``ConfigContainer`` by the class that has a field."""

PRECISION_FIELDS = frozenset(name for fields in PRECISIONS.values() for name in fields) | {
    "fp4_recipe",
    "fp8_amax_compute_algo",
    "fp8_amax_history_len",
    "fp8_dot_product_attention",
    "fp8_margin",
    "fp8_multi_head_attention",
    "fp8_wgrad",
}
"""Fields of ``MixedPrecisionConfig``, which replaces the fields of these names in other sections."""

PEFT_CLASS = "megatron.bridge.peft.canonical_lora.CanonicalLoRA"
"""Class whose adapters sit at each matrix of a fused product on their own, as PEFT's do."""

CLASS = "megatron.bridge.training.mixed_precision.MixedPrecisionConfig"
"""Class of a precision that has no name in Megatron-Bridge."""

MODEL_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "gated_linear_unit": False,
        "glu_linear_offset": 0.0,
        "activation_func_clamp_value": None,
        "share_embeddings_and_output_weights": True,
        "add_bias_linear": True,
        "add_qkv_bias": False,
        "layernorm_zero_centered_gamma": False,
        "qk_layernorm": False,
        "rotary_percent": 1.0,
        "rotary_interleaved": False,
        "seq_len_interpolation_factor": None,
        "rope_scaling": False,
        "rope_scaling_factor": 1.0,
        "no_rope_freq": None,
        "window_size": None,
        "window_attn_skip_freq": None,
        "softmax_type": "vanilla",
        "num_moe_experts": None,
        "mtp_num_layers": None,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": None,
        "sequence_parallel": False,
        "pipeline_model_parallel_layout": None,
        "virtual_pipeline_model_parallel_size": None,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "recompute_granularity": None,
        "recompute_method": None,
        "recompute_num_layers": None,
    }
)
"""Fields of the model that a recipe may set, with the values without an option of Megatron-LM."""

EXPERT_DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        "moe_latent_size": None,
        "moe_router_num_groups": None,
        "moe_router_group_topk": None,
        "moe_router_pre_softmax": False,
        "moe_shared_expert_intermediate_size": None,
        "moe_layer_freq": 1,
    }
)
"""Defaults of a model with experts, beside ``MODEL_DEFAULTS``."""

IMPLIED = (
    "--attention-backend",
    "--group-query-attention",
    "--max-position-embeddings",
    "--no-overlap-p2p-communication",
    "--quick-geglu",
    "--spec",
    "--squared-relu",
)
"""Options whose fields the recipe or other overrides set."""


def export_nemo(plan: Plan) -> dict[str, str]:
    """Return the overrides for bash and as YAML; raise ``InputError`` if Megatron-Bridge cannot express the plan."""
    sections, model = overrides(plan), recorded_model(plan)
    recipe = "Megatron-Bridge recipe of Gemma 3" if _is_gemma3(model) else "Megatron-Bridge recipe"
    head = f"{plan.config.label()}, global batch {plan.global_batch_size}; overrides of a {recipe}."
    overlap = assumed_overlap(plan.config, has_user_buffers(recorded_training(plan), plan.config))
    remarks = "\n".join([head, *_kept_by_recipe(plan), overlap])
    bash = [
        "#!/bin/bash",
        SOURCED,
        comment(remarks),
        comment("Started by the launchers of other formats:  ARGUMENTS=./nemo_args.sh PRETRAIN=my_recipe.py ..."),
        *array_lines("MEGATRON_ARGS", [[word] for word in hydra_words(sections)]),
        *array_lines("TRIAL_ARGS", [[f"train.train_iters={TRIAL_ITERATIONS}"], ["logger.log_interval=1"]]),
        "",
    ]
    text = yaml.dump(sections, Dumper=_Dumper, sort_keys=False)
    return {"nemo_args.sh": "\n".join(bash), "overrides.yaml": f"{comment(remarks)}\n{text}"}


def overrides(plan: Plan) -> dict[str, Any]:
    """Return the overridden fields by section of ``ConfigContainer``; ``None`` unsets a field."""
    model, training, config = recorded_model(plan), recorded_training(plan), plan.config
    _refuse(plan, model, training)
    sends_beside = config.num_chunks > 1 and config.overlap_p2p_communication
    found: dict[str, dict[str, Any]] = {
        "model": {
            **MODEL_DEFAULTS,
            **({} if model.num_experts is None else EXPERT_DEFAULTS),
            "num_query_groups": model.num_query_groups,
            "overlap_p2p_comm": sends_beside,
            "batch_p2p_comm": not sends_beside,
        },
        "train": {},
        "dataset": {"sequence_length": training.seq_length},
        "dist": {"use_tp_pp_dp_mapping": False},
        "ddp": {"use_distributed_optimizer": False},
        "optimizer": {"use_distributed_optimizer": False},
        MIXED_PRECISION: {},
    }
    if not config.use_distributed_optimizer:
        found["ddp"]["overlap_param_gather"] = found["optimizer"]["overlap_param_gather"] = False
    for option in _options(plan, model, training):
        for section, field, value in _fields_of(option, model):
            found.setdefault(section, {})[field] = value
    latent = model.multi_latent_attention
    if latent is not None and latent.yarn is not None:
        scaling = asdict(latent.yarn)
        scaling.pop("correction_range_round_to_int", None)
        found["model"] |= {"rope_type": "yarn", **scaling}
    if _is_gemma3(model):
        found["model"] |= _gemma3(model)
        del found["model"]["vocab_size"]  # of the recipe, as its other layers are
    elif model.activation_func in ACTIVATIONS:
        found["model"]["gated_linear_unit"] = model.gated_linear_unit
        function = f"megatron.core.activations.{model.activation_func}"
        found["model"][ACTIVATION.partition(".")[2]] = {"_target_": function, "_call_": False}
    return {
        **found,
        MIXED_PRECISION: _mixed_precision(found[MIXED_PRECISION], training),
        **({} if model.adapters is None else {PEFT: _peft(model.adapters)}),
    }


def _peft(adapters: Adapters) -> dict[str, Any]:
    """Return the class of the adapters with its fields; ``alpha`` changes no figure, and stays the class's own."""
    targets = [BRIDGE_TARGETS[name] for name in adapters.targets]
    return {"_target_": PEFT_CLASS, "target_modules": targets, "dim": adapters.rank, "dropout": adapters.dropout}


def _options(plan: Plan, model: ModelSpec, training: TrainingSpec) -> list[Option]:
    """Return the plan's options of Megatron-LM; of Gemma 3, without what its provider sets."""
    if _is_gemma3(model):
        model = replace(model, activation_func=None, post_norms=False, local_rotary_base=None)
    return [option for option in megatron.options_of_plan(plan, model, training) if option[0] not in IMPLIED]


def _paths(option: str, model: ModelSpec) -> list[tuple[str, str]]:
    """Return section and name of each field that an option sets; YaRN scaling has other names in latent attention."""
    known = megatron_options().get(field_of(option))
    if known is None:
        return []
    named = [(owner, field) for owner, _, field in (name.partition(".") for name in known.config_fields) if field]
    if {"MLATransformerConfig", "GPTModelProvider"} <= {owner for owner, _ in named}:
        other = "MLATransformerConfig" if model.multi_latent_attention is None else "GPTModelProvider"
        named = [(owner, field) for owner, field in named if owner != other]
    fields = dict.fromkeys((SECTIONS[owner], field) for owner, field in named if owner in SECTIONS)
    precision = ("fp8_param_gather" if field == "fp8_param" else field for _, field in fields)
    return [(MIXED_PRECISION, field) for field in precision if field in PRECISION_FIELDS][:1] or list(fields)


def _fields_of(option: Option, model: ModelSpec) -> Iterator[tuple[str, str, Any]]:
    """Yield section, name and value of each field that an option sets; ``InputError`` for an option without any."""
    name, equals, value = option[0].partition("=")
    paths = _paths(name, model)
    if not paths and not _left_out((name,), model):
        raise InputError(name, "is an option of the plan's launch that Megatron-Bridge has no field for; leave it out.")
    for section, field in paths:
        if field != "activation_func":
            yield section, field, _value_of(name, section, (value, *option[1:]) if equals else option[1:])


def _left_out(option: Option, model: ModelSpec) -> bool:
    """Return whether an option has no field, and predictions do not depend on it."""
    known = megatron_options().get(field_of(option[0]))
    return known is not None and known.status in ("harmless", "approximated") and not _paths(option[0], model)


def _value_of(name: str, section: str, values: tuple[str, ...]) -> Any:
    """Return the value of a field as the configuration classes have it."""
    option = megatron_options()[field_of(name)]
    if option.kind == "flag":
        return not option.switches_off
    if option.field in LAYER_LISTS:
        layers = layer_frequency(values[0], name, "plan")
        return list(layers) if isinstance(layers, tuple) else layers
    if (option.kind == "list" and option.field != "cp_comm_type") or option.field == "window_size":
        return [_number(each) for each in ",".join(values).split(",")]
    types = {word: element for element, word in DTYPES.items()}
    is_element = section in ("ddp", "optimizer") and option.field.endswith("_dtype")
    return types[values[0]] if is_element else _number(values[0])


LAYER_LISTS = ("linear_attention_freq", "moe_layer_freq", "no_rope_freq", "window_attn_skip_freq")
"""Options with a value for each layer, or with a period of layers."""


def _number(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _kept_by_recipe(plan: Plan) -> list[str]:
    """Return comments on what no override can say: the activation function, and options without a field."""
    model, training = recorded_model(plan), recorded_training(plan)
    words = [" ".join(option) for option in _options(plan, model, training) if _left_out(option, model)]
    backend = (training.argument("--attention-backend") or ("flash",))[0]
    words += [] if backend == "flash" else [f"--attention-backend {backend}"]
    function = model.activation_func if model.activation_func in ACTIVATIONS else None
    return [
        *([f"Bridge keeps the recipe's activation function: take a recipe with {function}."] if function else []),
        *([f"Left to the recipe, which has no such fields: {', '.join(words)}."] if words else []),
    ]


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
    if not isinstance(value, Mapping):
        yield f"{prefix}={_hydra_value(value)}"
    elif "_target_" in value:  # an object replaces what the recipe has; functions are left out of what Hydra sees
        yield from () if prefix == ACTIVATION else (f"{prefix}=null",)
        yield f"++{prefix}={_hydra_value(value)}"
    else:
        for name, field in value.items():
            yield from _words(f"{prefix}.{name}" if prefix else name, field)


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
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{_hydra_value(each)}' for name, each in value.items())}}}"
    text = str(value)
    if not text.isprintable() or any(sign in text for sign in "'\\$"):
        raise InputError(
            "--format", f"{text[:60]!r} contains a quote, backslash or $, which Hydra would misread; rename it."
        )
    return text if _PLAIN.fullmatch(text) and text.lower() not in HYDRA_WORDS else f"'{text}'"


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


def _mixed_precision(given: Mapping[str, Any], training: TrainingSpec) -> str | dict[str, Any] | None:
    """Return the name of a recipe's precision with these fields, or the fields of a ``MixedPrecisionConfig``."""
    if training.precision == "fp32" and not given:
        return None
    found = {"grad_reduce_in_fp32": training.precision == "bf16", **given}
    names = [name for name, known in PRECISIONS.items() if known == found]
    if names:
        return names[0]
    if found.get("fp8_recipe") == "mxfp8" and found.get("fp8_param_gather"):
        found["reuse_grad_buf_for_mxfp8_param_ag"] = True  # asserted by ``MixedPrecisionConfig.finalize``
    elements = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16"}[training.precision]
    kind = {"_target_": elements, "_call_": False}
    others = {"params_dtype": kind, "pipeline_dtype": kind, "autocast_dtype": None, "autocast_enabled": False}
    return {"_target_": CLASS, **found, **others}


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for a model or training that no override of Megatron-Bridge expresses."""
    refuse_unwritten("Megatron-Bridge", model, (*MODEL_FIELDS, *(GEMMA_3_FIELDS if _is_gemma3(model) else ())))
    refuse_unwritten("Megatron-Bridge", written_training(training), megatron.TRAINING_FIELDS)
    if model.adapters is None:
        return
    if model.adapters.is_quantised:
        problem = f"is {model.adapters.base}, but Megatron-Bridge's adapters sit on 16-bit weights"
        raise InputError("base_format", f"{problem}; give --finetune lora, or --for accelerate.")
    strange = [name for name in model.adapters.targets if name not in BRIDGE_TARGETS]
    if strange:
        problem = f"has {strange[0]}, at which Megatron-Bridge has no adapter"
        raise InputError("--lora-targets", f"{problem}; it has {', '.join(BRIDGE_TARGETS)}.")


def _refuse(plan: Plan, model: ModelSpec, training: TrainingSpec) -> None:
    check_megatron_can("Megatron-Bridge", plan, most_sharded=3)
    check(model, training)
    check_chunks(model, training)
    refuse_unwritten("Megatron-Bridge", plan.config, CONFIG_FIELDS)
    refuse_operations(plan.config)
    if training.attention_kernel != "flash":
        raise InputError(
            "attention_kernel",
            f"is {training.attention_kernel}, but recipes of Megatron-Bridge use a fused kernel; solve with "
            "--attention-kernel flash.",
        )


TARGET = Target(export_nemo, "nemo_args.sh, overrides.yaml", any_count=True)
