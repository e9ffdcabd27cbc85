"""
torchtitan, both ways: TOML of 0.2, Python of 0.3, and options of its command line.

Names and defaults are those of 0.2.2 (``config/job_config.py``); the rules are those of
``distributed/parallel_dims.py`` (rank order), ``distributed/pipeline_parallel.py`` (chunks) and
``models/llama3/infra/parallelize.py`` (features that can be combined). From 0.3 on torchtitan has Python
configurations, whose names :func:`_of_python` translates; a plan is written as TOML.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import Any, NamedTuple

from pipette_opt.base.errors import InputError
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import node_shares
from pipette_opt.export.recorded import (
    recorded_model,
    recorded_training,
    refuse_async_sends,
    refuse_second_order,
    refuse_unwritten,
    tensor_overlap_remark,
    written_training,
)
from pipette_opt.export.target import Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.layout import layout_of
from pipette_opt.parallel.recompute import OPERATIONS
from pipette_opt.plans.plan import Plan
from pipette_opt.read.even_parts import EvenParts
from pipette_opt.read.foreign import Source
from pipette_opt.read.model import read_model
from pipette_opt.read.python_files import CALL, configurations, imported_modules
from pipette_opt.read.setting_table import Row, Values, approximated, nested, pattern_of, refused, values_of
from pipette_opt.read.settings_files import SettingsFile
from pipette_opt.read.sizing_words import Given
from pipette_opt.specs import ModelSpec, NotModelled, TrainingSpec
from pipette_opt.specs.activations import host_keeps
from pipette_opt.specs.training import SHARDS_ON_HOST

CONFIG_FILE = "torchtitan.toml"

SOFTWARE = "torchtitan"

LOCAL_BATCH, GLOBAL_BATCH, LENGTH = "training.local_batch_size", "training.global_batch_size", "training.seq_len"
REPLICATE, SHARD = "parallelism.data_parallel_replicate_degree", "parallelism.data_parallel_shard_degree"
RESHARD, HOST_SHARDS = "parallelism.fsdp_reshard_after_forward", "training.enable_cpu_offload"
TENSOR, CONTEXT = "parallelism.tensor_parallel_degree", "parallelism.context_parallel_degree"
PIPELINE, SCHEDULE = "parallelism.pipeline_parallel_degree", "parallelism.pipeline_parallel_schedule"
STAGE_BATCH = "parallelism.pipeline_parallel_microbatch_size"
PARTS = "parallelism.module_fqns_per_model_part"
FIRST_LESS, LAST_LESS = (f"parallelism.pipeline_parallel_{end}_stage_less_layers" for end in ("first", "last"))
CHUNK_LAYERS = "parallelism.pipeline_parallel_layers_per_stage"
ROTATION = "parallelism.context_parallel_rotate_method"
EXPERT, EXPERT_TENSOR = "parallelism.expert_parallel_degree", "parallelism.expert_tensor_parallel_degree"
DISPATCH = "parallelism.expert_parallel_comm_backend"
CHECKPOINT, CHECKPOINT_WHAT = "activation_checkpoint.mode", "activation_checkpoint.selective_ac_option"
PARAMETERS = "training.mixed_precision_param"
NAME, FLAVOR, CONVERTERS = "model.name", "model.flavor", "model.converters"
COMPILED = "compile.enable"
LOSS_CHUNKS = "loss.num_chunks"

TABLE = (
    Row(NAME, "word", "llama3"),
    Row(FLAVOR, "word", "debugmodel"),
    Row(CONVERTERS, "list", []),
    Row(LOCAL_BATCH, "whole", 8, older=("training.batch_size",)),
    Row(GLOBAL_BATCH, "whole", -1),
    Row(LENGTH, "whole", 2048),
    Row(PARAMETERS, "word", "bfloat16", words=("bfloat16", "float32")),
    Row("training.mixed_precision_reduce", "word", "float32", words=("float32",)),
    approximated(
        "training.dtype",
        "word",
        "float32",
        "memory",
        "less",
        "Shards of the parameters and the optimizer's states in 16 bits; they are counted in 32.",
    ),
    Row(HOST_SHARDS, "flag", False),
    Row(REPLICATE, "whole", 1, older=("training.data_parallel_replicate_degree",)),
    Row(SHARD, "whole", -1, older=("training.data_parallel_shard_degree", "training.data_parallel_degree")),
    Row(RESHARD, "word", "default", words=("default", "always", "never")),
    Row(TENSOR, "whole", 1, older=("training.tensor_parallel_degree",)),
    Row(CONTEXT, "whole", 1, older=("experimental.context_parallel_degree",)),
    Row(ROTATION, "word", "allgather", words=("allgather", "alltoall")),
    Row(PIPELINE, "whole", 1, older=("experimental.pipeline_parallel_degree",)),
    Row(SCHEDULE, "word", "1F1B", older=("experimental.pipeline_parallel_schedule",)),
    Row(STAGE_BATCH, "whole", 1),
    Row(PARTS, "list", None),
    *(
        refused(f"{section}.pipeline_parallel_split_points", "list", [], f"points of an older release; give {PARTS}.")
        for section in ("parallelism", "experimental")
    ),
    Row(FIRST_LESS, "whole", 1),
    Row(LAST_LESS, "whole", 1),
    Row(CHUNK_LAYERS, "whole", None),
    Row(EXPERT, "whole", 1),
    Row(EXPERT_TENSOR, "whole", 1),
    Row(DISPATCH, "word", "standard", words=("standard", "deepep", "hybridep")),
    Row(CHECKPOINT, "word", "selective", words=("selective", "full", "memory_budget", "none")),
    Row(CHECKPOINT_WHAT, "word", "2"),
    Row(COMPILED, "flag", False, older=("training.compile",)),
    Row(LOSS_CHUNKS, "whole", 1),
    approximated(
        "parallelism.disable_loss_parallel",
        "flag",
        False,
        "memory",
        "more",
        "Every tensor rank holds all logits; a share is counted.",
    ),
    refused(
        "parallelism.enable_sequence_parallel", "flag", True, "tensor ranks are counted with sequence parallelism."
    ),
    *(
        approximated(
            f"{section}.enable_async_tensor_parallel",
            "flag",
            False,
            "time",
            "less",
            "Tensor ranks send during products; they are counted one after the other.",
        )
        for section in ("parallelism", "compile", "experimental")
    ),
    approximated("optimizer.name", "word", "AdamW", "memory", "either", "The states of Adam are counted."),
    approximated(
        "optimizer.early_step_in_backward",
        "flag",
        False,
        "memory",
        "less",
        "Gradients are freed during the backward pass; all are counted.",
    ),
    refused("float8.enable_float8_linear", "flag", False, "fp8 in an older release; name the converters of 0.2."),
    Row("quantize.linear.float8.recipe_name", "word", "tensorwise"),
    Row("quantize.linear.float8.enable_fsdp_float8_all_gather", "flag", False),
    approximated(
        "fault_tolerance.enable", "flag", False, "time", "more", "Replicas that may leave take part in every step."
    ),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = pattern_of(
    *("job", "profiling", "profiler", "metrics", "checkpoint", "comm", "lr_scheduler", "validation", "validator"),
    *("debug", "dataloader", "tokenizer", "hf_assets_path", "dump_folder", "training.dataset", "training.dataset_path"),
    *("training.max_norm", "training.steps", "training.gc_freq", "training.gc_debug", "training.dataloader"),
    *("training.warmup_steps", "optimizer.lr", "optimizer.beta1", "optimizer.beta2", "optimizer.eps"),
    *("optimizer.weight_decay", "optimizer.fused", "optimizer.implementation", "model.norm_type"),
    *("model.hf_assets_path", "model.tokenizer_path", "model.print_after_conversion", "compile.components"),
    *("compile.backend", "activation_checkpoint.preserve_rng_state", "activation_checkpoint.determinism_check"),
    *("activation_checkpoint.debug", "activation_checkpoint.early_stop", "parallelism.context_parallel_load_balancer"),
    *("experimental.custom_import", "experimental.custom_args_module"),
    "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
    "parallelism.pipeline_parallel_expert_parallel_overlap",
)
"""Sections and settings on which neither time nor memory depends."""

CHUNKS_OF_SCHEDULE = MappingProxyType({"1f1b": 1, "interleaved1f1b": 2})
"""Chunks of each stage by schedule, unless the number of layers of a chunk is given (``pipeline_llm``)."""

PRESETS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "llama2": {size: f"llama-2-{size.lower()}" for size in ("7B", "13B", "70B")},
        "llama3": {"8B": "llama-3.1-8b", "70B": "llama-3.1-70b", "405B": "llama-3.1-405b"},
        "llama4": {"17bx16e": "llama-4-scout", "17bx128e": "llama-4-maverick"},
        "deepseek_v3": {"16B": "deepseek-v2-lite", "236B": "deepseek-v2", "671B": "deepseek-v3"},
        "gpt_oss": {"20b": "gpt-oss-20b", "120b": "gpt-oss-120b"},
        "qwen3": {size: f"qwen3-{size.lower()}" for size in ("0.6B", "1.7B", "4B", "8B", "14B", "32B", "30B-A3B")}
        | {"235B-A22B": "qwen3-235b-a22b"},
    }
)
"""Presets of flavors (``models/*/__init__.py``); a suffix such as ``_flex`` chooses an attention kernel."""

TRAINING_FIELDS = (
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "loss_chunks",
    "fused_norm",
    "fused_loss",
)
CONFIG_FIELDS = (
    "offload",
    "context_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "pipeline_model_parallel_layout",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_modules",
    "use_distributed_optimizer",
    "zero_stage",
    "num_distributed_optimizer_instances",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "tp_comm_overlap",
)
"""
Fields of a configuration that torchtitan expresses; its sharded data parallelism always overlaps both collectives.
"""


LAUNCHER = "replicas-first"

TRAINING: Mapping[str, Any] = MappingProxyType({})
"""Fields of the training that the framework sets: none."""

SPACE: Mapping[str, Any] = MappingProxyType(
    {
        "expert_parallel": (1,),
        "data_parallel_sharding_strategy": ("optim_grads", "optim_grads_params"),
        "outer_dp_sharding_strategy": ("no_shard",),
        "pipelined_sharding": ("optim", "optim_grads_params"),
        "needs_replicas": True,
        "overlap_grad_reduce": True,
        "overlap_param_gather": True,
        "recompute": (None, "ops", "full"),
        "offload": (None, "parameters"),
        "tp_comm_overlap": False,
    }
)
"""Fields of a search space with the values that torchtitan can run."""


class Shape(NamedTuple):
    """Sizes that identify a flavor of a torchtitan model."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    num_query_groups: int
    vocab_size: int


LLAMA_3_FLAVORS: Mapping[Shape, str] = MappingProxyType(
    {
        Shape(32, 4096, 14336, 32, 8, 128256): "8B",
        Shape(80, 8192, 28672, 64, 8, 128256): "70B",
        Shape(126, 16384, 53248, 128, 8, 128256): "405B",
    }
)
"""
Flavors of torchtitan's ``llama3`` (``models/llama3/__init__.py``), by shape; MLP widths computed from multipliers.
"""


FREE = ("name", "max_position_embeddings", "make_vocab_size_divisible_by")
"""Fields of a model that a flavor does not fix: torchtitan does not pad the vocabulary, and allows any position."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of a TOML file, a Python configuration, or a command line with its TOML file.

    Raises
    ------
    InputError
        For a value that torchtitan refuses, and for a setting that is not modelled.
    """
    given = _given(source)
    values = values_of(TABLE, given, source.where, "torchtitan", HARMLESS)
    if not any(name.partition(".")[0] in ("training", "parallelism", "model") for name in values.given):
        raise InputError(source.where, "has no setting of training, parallelism or model, which size the job.")
    tp, pp, cp = values[TENSOR], values[PIPELINE], values[CONTEXT]
    replicas, shards = values[REPLICATE], values[SHARD]
    started = None if source.launch is None else source.launch.num_processes
    if shards < 0 and started is not None:
        shards = max(started // (replicas * tp * pp * cp), 1)
    is_sharded = shards != 1 or cp > 1
    micro_batch = values[STAGE_BATCH] if pp > 1 else values[LOCAL_BATCH]
    if pp > 1 and values[LOCAL_BATCH] % micro_batch:
        raise values.error(LOCAL_BATCH, f", no multiple of {STAGE_BATCH} {micro_batch}.")
    whole = values[GLOBAL_BATCH] if values[GLOBAL_BATCH] > 0 else None
    training, kept = _training_fields(values, is_sharded)
    sharding = _sharding(values, is_sharded)
    if values[HOST_SHARDS] and sharding.get("zero_stage") != 3:
        raise values.error(HOST_SHARDS, f", which is modelled with shards and {RESHARD}: always only.")
    training |= SHARDS_ON_HOST if values[HOST_SHARDS] else {}
    return {
        "software": SOFTWARE,
        "module": "torchtitan",
        "space": SPACE,
        "model_name": _preset(values),
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "context_parallel_size": cp,
        "expert_model_parallel_size": values[EXPERT],
        "expert_tensor_parallel_size": values[EXPERT_TENSOR] if values[EXPERT] > 1 else None,
        "data_parallel_size": None if shards < 0 else replicas * shards,
        "micro_batch_size": micro_batch,
        "global_batch_size": whole,
        "replica_batch_size": None if whole else values[LOCAL_BATCH],
        "seq_length": values[LENGTH],
        "sequence_parallel": tp > 1,
        "overlap_grad_reduce": True,
        "overlap_param_gather": is_sharded,
        "moe_token_dispatcher_type": "alltoall" if values[DISPATCH] == "standard" else "flex",
        "gradients_in_fp32": True,
        **sharding,
        **_recomputation(values),
        **(_layers(values) if pp > 1 else {}),
        "precision": kept,
        "fp8": "fp8" in training,
        "training_fields": training,
        "not_modelled": (*values.not_modelled, *_not_modelled(values)),
        "notes": values.notes,
        "settings": values.given,
    }


def _given(source: Source) -> dict[str, Given]:
    """Return the settings of a launch, those of the command line before those of its file."""
    if source.file is not None:
        return _of_python(source.file) if source.file.language == "Python" else source.file.given()
    given = source.of_words()
    name = next((name for name in ("job.config_file", "job.config-file", "config_file") if name in given), None)
    if name is None and "config" in given:
        problem = f"takes its settings from {given['config'].value}, a function in Python"
        raise InputError(source.where, f"{problem}; give the file that holds it, its `config_registry.py` or a copy.")
    if name is None:
        return given
    file = given.pop(name)
    return source.named_file(str(file.value), f"--{name}").given() | given


def _of_python(file: SettingsFile) -> dict[str, Given]:
    """
    Return the settings of a configuration of 0.3, by the names of 0.2.

    Tokens of a micro-batch and of a step become sequences of ``max_context_length`` tokens; classes of recomputation
    and of the loss become words.
    """
    found = {name: value for name, value in configurations(file.text, file.where).items() if "training" in value}
    if len(found) != 1:
        several = f"several configurations, {', '.join(found)}; keep one" if found else "no configuration of a trainer"
        raise InputError(file.where, f"is a program of torchtitan with {several}.")
    ((_, config),) = found.items()
    where = file.place("torchtitan")
    training, parallelism = config.get("training") or {}, config.get("parallelism") or {}
    length = training.get("max_context_length") or training.get("seq_len") or 2048
    given: dict[str, Any] = {
        f"{section}.{name}": value
        for section in ("training", "parallelism", "compile", "optimizer")
        for name, value in (config.get(section) or {}).items()
        if value is not None and name != CALL and section != "optimizer"
    }
    tokens = given.pop("training.num_tokens_per_microbatch_per_dp_rank", None)
    if tokens is None and "training.max_context_length" in given:
        tokens = 16384
    given.pop("training.max_context_length", None)
    step = given.pop("training.num_tokens_per_train_step", -1)
    passes = given.pop("parallelism.num_pp_microbatches", 1)
    if tokens is not None:
        if tokens % length:
            raise InputError(
                where, f"num_tokens_per_microbatch_per_dp_rank {tokens} is no multiple of {length} tokens."
            )
        pipelined = parallelism.get("pipeline_parallel_degree", 1) > 1
        given |= {LENGTH: length, LOCAL_BATCH: tokens // length * (passes if pipelined else 1)}
        given |= {STAGE_BATCH: tokens // length} if pipelined else {}
        given |= {GLOBAL_BATCH: step // length} if step > 0 else {}
    given |= _classes(config)
    given |= _model_of_python(file, config)
    return {name: Given(value, file.place(name.rpartition(".")[2])) for name, value in given.items()}


def _classes(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return recomputation and loss, which 0.3 has as classes."""
    kind = str((config.get("activation_checkpoint", {CALL: "SelectiveAC"}) or {}).get(CALL, ""))
    mode = next((mode for mode in ("Full", "Selective", "MemoryBudget") if mode in kind), None)
    words = {"Full": "full", "Selective": "selective", "MemoryBudget": "memory_budget", None: "none"}
    loss = config.get("loss") or {}
    chunks = loss.get("num_chunks") or 8
    return {
        CHECKPOINT: words[mode],
        **({CHECKPOINT_WHAT: "op"} if mode == "Selective" else {}),
        **({LOSS_CHUNKS: chunks} if "Chunked" in str(loss.get(CALL, "")) else {}),
    }


def _model_of_python(file: SettingsFile, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return name, flavor and converters of the model that ``model_registry`` builds."""
    spec = config.get("model_spec") or {}
    flavor = spec.get("0") or spec.get("flavor")
    modules = [module for module, name in imported_modules(file.text) if name == "model_registry"]
    name = modules[0].rpartition(".")[2] if modules else ""
    kinds = [str(each.get(CALL, "")) for each in spec.get("converters") or () if isinstance(each, Mapping)]
    found: dict[str, Any] = {NAME: name, FLAVOR: str(flavor)} if flavor and name else {}
    return found | ({CONVERTERS: [kind.partition("Converter")[0].lower() for kind in kinds]} if kinds else {})


def _preset(values: Values) -> str:
    flavor = re.sub(r"_(flex|varlen|irope|expert_choice).*", "", values[FLAVOR])
    return PRESETS.get(values[NAME], {}).get(flavor, "") if FLAVOR in values.given else ""


def _sharding(values: Values, is_sharded: bool) -> dict[str, Any]:
    """
    Return ZeRO stage and groups of replicas.

    By default a pipeline keeps its parameters between the micro-batches (``apply_fsdp``) and reduces its gradients
    once; without a pipeline every micro-batch reduces its gradients.
    """
    if not is_sharded:
        return {"use_distributed_optimizer": False, "zero_stage": None}
    policy = values[RESHARD]
    if policy == "default":
        policy = "never" if values[PIPELINE] > 1 else "always"
    stage = 3 if policy == "always" else 1 if values[PIPELINE] > 1 else 2
    groups = values[REPLICATE]
    hybrid = {"num_distributed_optimizer_instances": groups, "outer_dp_sharding_strategy": "no_shard"}
    return {
        "zero_stage": stage,
        "num_distributed_optimizer_instances": groups,
        "groups_of_replicas": hybrid if groups > 1 else {},
    }


def _recomputation(values: Values) -> dict[str, Any]:
    """Return the fields of recomputation; ``selective`` recomputes operations, or one of so many layers whole."""
    mode, choice = values[CHECKPOINT], values[CHECKPOINT_WHAT]
    if mode == "memory_budget":
        raise values.error(CHECKPOINT, ", which lets the compiler choose and is not modelled; give selective or full.")
    if mode == "none":
        return {"recompute_granularity": None}
    if mode == "full":
        return {"recompute_granularity": "full"}
    if choice == "op":
        preset = _preset(values)
        if preset and read_model(preset).num_experts is not None:
            problem = (
                f"which is counted for layers without experts only, and {preset} has experts; give mode full or none"
            )
            raise values.error(CHECKPOINT_WHAT, f", {problem}, between which it lies.")
        return {"recompute_granularity": "selective", "recompute_modules": OPERATIONS}
    if not re.fullmatch(r"[1-9][0-9]{0,3}", choice):
        raise values.error(CHECKPOINT_WHAT, ", which must be op or a number of layers.")
    return {"recompute_granularity": "full", "recompute_method": "block", "recompute_every": int(choice)}


def _training_fields(values: Values, is_sharded: bool) -> tuple[dict[str, Any], str]:
    """
    Return fields of the training, and its precision.

    Only fully sharded data parallelism trains in bf16 (``MixedPrecisionPolicy``); plain data parallelism does by
    autocast if nothing else is parallel (``maybe_enable_amp``).
    """
    alone = values[TENSOR] * values[PIPELINE] == 1
    is_bf16 = values[PARAMETERS] == "bfloat16" and (is_sharded or alone)
    found: dict[str, Any] = {"cp_comm_type": "p2p" if values[ROTATION] == "alltoall" else "all_gather"}
    if values[CONTEXT] == 1:
        found = {}
    converters = " ".join(map(str, values[CONVERTERS]))
    if not values[COMPILED]:
        found |= {"fused_norm": False, "fused_loss": False}
    if values[LOSS_CHUNKS] > 1:
        found["loss_chunks"] = values[LOSS_CHUNKS]
    if values[DISPATCH] != "standard":
        found |= {"moe_token_dispatcher_type": "flex", "moe_flex_dispatcher_backend": values[DISPATCH]}
    if is_bf16 and "float8" in converters:
        found |= {"fp8": True, "fp8_recipe": "tensorwise"}
        if values["quantize.linear.float8.enable_fsdp_float8_all_gather"]:
            found["fp8_param_gather"] = True
    elif is_bf16 and ("mx" in converters):
        found |= {"fp8": True, "fp8_recipe": "mxfp8"}
    return found, "bf16" if is_bf16 else "fp32"


def _not_modelled(values: Values) -> list[NotModelled]:
    """Return notes on what is counted in another way than it runs."""
    found = []
    if not values[COMPILED]:
        why = "Activations and the loss are counted as torch.compile fuses them."
        found.append(NotModelled(option=f"{COMPILED}=false", effect="both", direction="more", why=why))
    recipe = values["quantize.linear.float8.recipe_name"]
    if recipe != "tensorwise" and "float8" in " ".join(map(str, values[CONVERTERS])):
        why = "Scales of rows are counted as those of whole tensors."
        name = "quantize.linear.float8.recipe_name"
        found.append(NotModelled(option=name, value=recipe, effect="time", direction="more", why=why))
    once = values[LOCAL_BATCH] * values[REPLICATE] * values[SHARD]
    if values[PIPELINE] > 1 and values[GLOBAL_BATCH] not in (-1, once):
        why = "A pipeline is filled and drained once for each local batch; once an iteration is counted."
        value = str(values[GLOBAL_BATCH])
        found.append(
            NotModelled(option=GLOBAL_BATCH, value=value, effect="time", direction="more", why=why, in_part=True)
        )
    return found


def _layers(values: Values) -> dict[str, Any]:
    """
    Return the field that says the layers of each chunk: a layout, or even parts.

    Without names of modules, chunks are even, with the embedding and the head counted as layers
    (``generate_llm_fqn_per_model_part``).
    """
    pp, schedule = values[PIPELINE], values[SCHEDULE].lower()
    if schedule not in CHUNKS_OF_SCHEDULE:
        raise values.error(SCHEDULE, ", which is not modelled; 1F1B and Interleaved1F1B are.")
    parts = values[PARTS]
    if parts is None:
        chunks = None if values[CHUNK_LAYERS] else CHUNKS_OF_SCHEDULE[schedule] * pp
        return {"even_parts": EvenParts(chunks, values[CHUNK_LAYERS], values[FIRST_LESS], values[LAST_LESS])}
    held = [sum(str(name).startswith("layers.") for name in part) for part in parts]
    if len(held) % pp:
        raise values.error(PARTS, f", {len(held)} chunks, which are no multiple of {pp} stages.")
    return {"pipeline_layout": layout_of([held[start : start + pp] for start in range(0, len(held), pp)])}


def export_torchtitan(plan: Plan) -> dict[str, str]:
    """Return configuration, node order and launch script; raise ``InputError`` if torchtitan cannot run the plan."""
    model = recorded_model(plan)
    check(model, recorded_training(plan))
    sections = nested({NAME: "llama3", FLAVOR: _flavor(model), **settings(plan)})
    shares = node_shares(plan, "torchrun, which starts torchtitan,")
    usage = (
        "Arguments override torchtitan.toml, e.g. --training.dataset c4 --model.hf_assets_path assets/.\n"
        "MASTER_ADDR and MASTER_PORT may be set."
    )
    # Parameters are gathered beside compute; a single connection, as for Megatron-LM, would serialise that.
    environment = [CUDA_ORDER, *nccl_settings(plan)]
    program = f'-m torchtitan.train --job.config_file {CONFIG_FILE} "$@"'
    return {
        CONFIG_FILE: toml_text(plan, sections),
        **nodes_file(shares),
        "launch.sh": launch_script(shares, usage=usage, settings=environment, program=program),
    }


def settings(plan: Plan) -> dict[str, Any]:
    """
    Return the settings that run a plan, by their names in :data:`TABLE`, without those of its model.

    Fully sharded data parallelism that does not reshard its parameters is ZeRO 1 with a pipeline and ZeRO 2 without.
    """
    training, config = recorded_training(plan), plan.config
    _refuse(plan, training)
    sharded, groups = config.use_distributed_optimizer, config.num_distributed_optimizer_instances
    pipelined = config.pipeline_model_parallel_size > 1
    replica_batch = plan.global_batch_size // config.data_parallel_size
    found: dict[str, Any] = {
        LOCAL_BATCH: replica_batch if pipelined else config.micro_batch_size,
        GLOBAL_BATCH: plan.global_batch_size,
        LENGTH: training.seq_length,
        "training.dtype": "float32",
        PARAMETERS: "bfloat16" if training.precision == "bf16" else "float32",
        "training.mixed_precision_reduce": "float32",
        REPLICATE: groups if sharded else config.data_parallel_size,
        SHARD: config.data_parallel_size // groups if sharded else 1,
        RESHARD: "always" if config.sharding_stage == 3 else "never",
        TENSOR: config.tensor_model_parallel_size,
        CONTEXT: config.context_parallel_size,
        PIPELINE: config.pipeline_model_parallel_size,
    }
    if host_keeps(training, config).parameters:
        found[HOST_SHARDS] = True
    if config.context_parallel_size > 1:
        found[ROTATION] = "alltoall"
    if pipelined:
        found |= {
            SCHEDULE: "1F1B" if config.num_chunks == 1 else "Interleaved1F1B",
            STAGE_BATCH: config.micro_batch_size,
            PARTS: module_names(config),
        }
    return found | {
        CHECKPOINT: config.recompute_granularity or "none",
        **({CHECKPOINT_WHAT: "op"} if config.recompute_granularity == "selective" else {}),
        COMPILED: training.fused_norm,
    }


def module_names(config: ParallelConfig) -> list[list[str]]:
    """Return the module names of each chunk in model order; torchtitan's default gives end chunks fewer layers."""
    parts: list[list[str]] = []
    layer = 0
    for chunk in config.layers_per_chunk:
        for count in chunk:
            parts.append([f"layers.{number}" for number in range(layer, layer + count)])
            layer += count
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return parts


def toml_text(plan: Plan, sections: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the text of the TOML file; numbers, names and lists of names are the same in TOML and JSON."""
    lines = [f"# {plan.config.label()}, global batch {plan.global_batch_size}; for torchtitan 0.2."]
    if plan.config.sharding_stage in (1, 2) and plan.config.data_parallel_size > 1:
        lines.append(
            "# Fully sharded data parallelism that keeps its parameters, for the plan's distributed optimizer."
        )
    lines += [f"# {line}" for line in tensor_overlap_remark("torchtitan", plan.config).splitlines()]
    for name, entries in sections.items():
        lines += ["", f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in entries.items())]
    return "\n".join(lines) + "\n"


def _flavor(model: ModelSpec) -> str:
    shape = Shape(*(getattr(model, name) for name in Shape._fields))
    if shape not in LLAMA_3_FLAVORS:
        raise InputError(
            "model",
            f"{model.name} has the shape of no torchtitan llama3 flavor "
            f"({', '.join(LLAMA_3_FLAVORS.values())}): {shape}.",
        )
    _refuse_another(model, shape, LLAMA_3_FLAVORS[shape])
    return LLAMA_3_FLAVORS[shape]


def _refuse_another(model: ModelSpec, shape: Shape, flavor: str) -> None:
    """
    Raise ``InputError`` for a model that has a flavor's shape but differs in another field.

    All flavors have Llama 3.1's positions (``models/llama3/model/args.py``): base 500,000, frequencies scaled by 8.
    """
    wanted = ModelSpec(
        name=flavor,
        **shape._asdict(),
        kv_channels=shape.hidden_size // shape.num_attention_heads,
        max_position_embeddings=model.max_position_embeddings,
        gated_linear_unit=True,
        untie_embeddings_and_output_weights=True,
        add_bias_linear=False,
        add_qkv_bias=False,
        normalization="RMSNorm",
        position_embedding_type="rope",
        norm_epsilon=1e-5,
        rotary_base=500000,
        rope_scaling_factor=8.0,
    )
    for field in fields(ModelSpec):
        found, has = getattr(model, field.name), getattr(wanted, field.name)
        if field.name not in FREE and found != has:
            raise InputError(field.name, f"is {found!r}, but torchtitan's llama3 {flavor} has {has!r}, like Llama 3.1.")


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for a model without a flavor, and for training that torchtitan does not have."""
    _flavor(model)
    _refuse_training(written_training(training))


def _refuse_training(training: TrainingSpec) -> None:
    refuse_unwritten("torchtitan", training, TRAINING_FIELDS)
    if training.attention_kernel != "flash":
        raise InputError(
            "attention_kernel",
            f"is {training.attention_kernel}, but torchtitan uses a fused kernel; solve with --attention-kernel flash.",
        )
    if training.precision == "fp16":
        raise InputError("precision", "is fp16, but torchtitan trains in bf16 or fp32; solve with --precision bf16.")
    if not training.accumulate_allreduce_grads_in_fp32 and training.precision == "bf16":
        raise InputError("accumulate_allreduce_grads_in_fp32", "is off, but torchtitan reduces gradients in fp32.")


def _refuse(plan: Plan, training: TrainingSpec) -> None:
    config = plan.config
    refuse_async_sends("torchtitan", plan)
    refuse_second_order("torchtitan", plan)
    _refuse_training(training)
    refuse_unwritten("torchtitan", config, CONFIG_FIELDS)
    tp, dp, pp = config.tensor_model_parallel_size, config.data_parallel_size, config.pipeline_model_parallel_size
    if tp > 1 and not config.sequence_parallel:
        raise InputError(
            "sequence_parallel", "is off, but torchtitan's tensor parallelism always uses sequence parallelism."
        )
    if config.recompute_granularity == "selective" and config.recompute_modules != OPERATIONS:
        raise InputError(
            "recompute_granularity",
            "is selective, but torchtitan's selective recomputation differs from Megatron's. Solve with "
            "--recompute none,ops,full.",
        )
    sharded = config.use_distributed_optimizer and dp > 1
    if dp > 1 and not sharded and config.world_size > dp:
        raise InputError(
            "use_distributed_optimizer",
            "is off, but torchtitan combines data parallelism with other parallelism only if it is sharded.",
        )
    if training.precision == "bf16" and not sharded and config.context_parallel_size == 1 and tp * pp > 1:
        raise InputError(
            "precision",
            "is bf16, but torchtitan trains this configuration in fp32: bf16 needs sharded data or context "
            "parallelism.",
        )


TARGET = Target(export_torchtitan, "torchtitan.toml, launch.sh, nodes.txt")
