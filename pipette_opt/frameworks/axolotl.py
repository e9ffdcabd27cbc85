"""
axolotl: its settings in YAML, ``axolotl train`` and ``accelerate launch -m axolotl.cli.train``.

It gives its own names to settings of transformers' trainer, which :mod:`pipette_opt.frameworks.accelerate` reads (keys
and defaults of ``utils/schemas``; read at 067b021c). Plans are written as its settings, with FSDP 2.
"""

from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.export.environment import CUDA_ORDER, nccl_settings
from pipette_opt.export.nodes import node_shares
from pipette_opt.export.recorded import recorded_model, recorded_training
from pipette_opt.export.target import Target
from pipette_opt.export.torchrun import launch_script, nodes_file
from pipette_opt.frameworks import accelerate
from pipette_opt.frameworks.accelerate import MAGNITUDES, WHOLE_MATRICES
from pipette_opt.layers.adapters import Adapters
from pipette_opt.plans.plan import Plan
from pipette_opt.read.finetune import Finetune, bitsandbytes_adapters
from pipette_opt.read.foreign import Source
from pipette_opt.read.setting_table import Row, Values, approximated, pattern_of, refused, values_of
from pipette_opt.specs import ModelSpec, NotModelled, TrainingSpec

ADAPTER, RANK, ALL_LINEAR, TARGETS = "adapter", "lora_r", "lora_target_linear", "lora_target_modules"
BITS_4, BITS_8 = "load_in_4bit", "load_in_8bit"
MICRO_BATCH, LENGTH, PACKED = "micro_batch_size", "sequence_len", "sample_packing"
RECOMPUTES, PLUGINS, OPTIMIZER, BF16 = "gradient_checkpointing", "plugins", "optimizer", "bf16"

USUAL_RANK = 8
"""Rank of adapters without ``lora_r``: PEFT's."""

TABLE = (
    *accelerate.trainer_rows(but=(accelerate.MICRO_BATCH, accelerate.OPTIMIZER, *accelerate.LENGTHS)),
    Row(ADAPTER, "word", None),
    Row(RANK, "whole", USUAL_RANK),
    Row("lora_dropout", "number", 0.0),
    Row(TARGETS, "list", None),
    Row(ALL_LINEAR, "flag", False),
    Row(BITS_4, "flag", False),
    Row(BITS_8, "flag", False),
    Row(MICRO_BATCH, "whole", None),
    Row(LENGTH, "whole", 512),
    Row(PACKED, "flag", False),
    Row(RECOMPUTES, "word", "false"),
    Row(OPTIMIZER, "word", "adamw_torch_fused"),
    Row(BF16, "word", "auto", words=("auto", "true", "false", "full")),
    Row("bfloat16", "flag", False),
    Row("dp_shard_size", "whole", None),
    Row("dp_replicate_size", "whole", 1),
    Row("tensor_parallel_size", "whole", 1),
    Row("context_parallel_size", "whole", 1, older=("sequence_parallel_degree",)),
    Row(PLUGINS, "list", []),
    *(
        Row(name, "flag", False)
        for name in (
            *("cut_cross_entropy", "liger_fused_linear_cross_entropy", "chunked_cross_entropy", "liger_rms_norm"),
            *("eager_attention", "flash_attention", "sdp_attention", "xformers_attention", "flex_attention"),
        )
    ),
    Row("chunked_cross_entropy_num_chunks", "whole", 8),
    Row("rl", "word", None),
    *(Row(name, "flag", False) for name in ("reward_model", "process_reward_model")),
    refused("float16", "flag", False, "all numbers in fp16; give bf16."),
    refused("peft_use_dora", "flag", False, MAGNITUDES),
    refused("lora_modules_to_save", "list", [], WHOLE_MATRICES),
    refused("lora_target_parameters", "list", [], "adapters at parameters of experts; give lora_target_modules."),
    refused("peft_layers_to_transform", "list", [], "adapters in some layers; all layers are alike here."),
    refused("peft_trainable_token_indices", "list", [], "trained rows of the embedding."),
    refused("peft_layer_replication", "list", [], "copies of layers."),
    refused("unfrozen_parameters", "list", [], "training of some parameters."),
    refused("gptq", "flag", False, "weights that GPTQ quantised; load_in_4bit is counted."),
    refused("relora", "flag", False, "adapters that are merged during the training."),
    refused("relora_steps", "whole", None, "adapters that are merged during the training."),
    refused("s2_attention", "flag", False, "attention in shifted groups."),
    refused("layer_offloading", "flag", False, "layers in the host's memory."),
    refused("expert_parallel_size", "whole", 1, "experts divided over GPUs."),
    refused("fp8", "flag", False, "products in fp8 by torchao."),
    refused("qat.weight_dtype", "word", None, "training that imitates quantised weights."),
    refused("peft.backend", "word", "bnb", "quantisation by torchao; load_in_4bit is counted."),
    approximated(
        "activation_offloading", "word", "false", "both", "either", "Activations on the host; none is counted."
    ),
    *(
        approximated(name, "flag", False, "both", "less", "Adapters in fused kernels; PEFT's are counted.")
        for name in (
            *("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel", "lora_embedding_kernel"),
            *("unsloth_lora_mlp", "unsloth_lora_qkv", "unsloth_lora_o"),
        )
    ),
    *(
        approximated(name, "flag", False, "both", "less", "A fused kernel; several are counted.")
        for name in (
            *("liger_rope", "liger_glu_activation", "liger_swiglu", "liger_layer_norm", "liger_cross_entropy"),
            *("unsloth_cross_entropy_loss", "unsloth_rms_norm", "unsloth_rope", "flash_attn_cross_entropy"),
            *("flash_attn_rms_norm", "flash_attn_fuse_mlp", "flash_attn_fuse_qkv"),
        )
    ),
    approximated("quantize_moe_experts", "flag", True, "memory", "more", "Experts in 16 bits; 4 or 8 are counted."),
    approximated("batch_flattening", "word", "false", "time", "less", "Padding that is left out is counted."),
    approximated("group_by_length", "flag", False, "time", "less", "Padding that is left out is counted."),
)
"""Settings that time or memory depend on, and what is made of them."""

HARMLESS = "|".join(
    (
        accelerate.HARMLESS,
        pattern_of(
            *("base_model_config", "model_type", "tokenizer_type", "tokenizer_config", "is_llama_derived_model"),
            *("datasets", "test_datasets", "pretraining_dataset", "dataset_prepared_path", "dataset_processes"),
            *("val_set_size", "special_tokens", "tokens", "chat_template", "chat_template_jinja", "num_epochs"),
            *("lora_alpha", "lora_model_dir", "lora_fan_in_fan_out", "lora_on_cpu", "peft_use_rslora", "peft"),
            *("peft_init_lora_weights", "loraplus_lr_ratio", "loraplus_lr_embedding", "strict", "train_on_inputs"),
            *(
                "lr_scheduler",
                "cosine_min_lr_ratio",
                "saves_per_epoch",
                "evals_per_epoch",
                "eval_sample_packing",
                "pad_to_sequence_len",
            ),
            *("wandb_project", "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model", "wandb_run_id"),
            *("mlflow_tracking_uri", "mlflow_experiment_name", "hub_model_id", "hub_strategy", "eval_batch_size"),
            *("early_stopping_patience", "auto_resume_from_checkpoints", "flash_attn", "eval_table_size"),
            *("qlora_sharded_model_loading", "low_cpu_mem_usage", "save_safetensors", "save_only_model"),
            *("shuffle_merged_datasets", "neftune_noise_alpha", "roles_to_train", "default_system_message"),
            *(
                "fsdp_final_state_dict_type",
                "fsdp_limit_all_gathers",
                "fsdp_mixed_precision_policy",
                "embeddings_skip_upcast",
            ),
            *(
                "resize_token_embeddings_to_32x",
                "dataset_exact_deduplication",
                "debug",
                "device_map",
                "revision_of_model",
            ),
            *("merge_lora", "merge_method", "bnb_config_kwargs", "max_grad_norm", "include_tokens_per_second"),
            *("evaluate", "launcher", "multipack_real_batches", "excess_length_strategy", "use_tensorboard"),
        ),
    )
)
"""Settings on which neither time nor memory depends."""

ONE_MATRIX_LOSS = "axolotl.integrations.cut_cross_entropy.CutCrossEntropyPlugin"
LIGER_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
"""Plugins whose losses never hold all logits: always, and with ``liger_fused_linear_cross_entropy``."""


def read(source: Source) -> dict[str, Any]:
    """
    Return the fields of a launch: of a settings file, or of a command with the file and options behind it.

    Raises
    ------
    InputError
        If the batch of a GPU is not given, for a setting that is not modelled, and for training by preferences.
    """
    given, config = accelerate.given_settings(source)
    values = values_of(TABLE, given, source.where, source.framework.name, HARMLESS)
    _check_supervised(values)
    if values[MICRO_BATCH] is None:
        raise InputError(source.where, f"does not say {MICRO_BATCH}, the sequences of a GPU at a time; give it.")
    finetune, others = _finetune(values), _plugins(values)
    of_trainer = _of_trainer(values, is_sharded=any(name.startswith("fsdp") for name in given))
    found = accelerate.trainer_fields(of_trainer, config, source.framework.name)
    training = {**found["training_fields"], **_loss(values)}
    if values["liger_rms_norm"]:
        training.pop("fused_norm", None)
    if (values["bfloat16"] or values[BF16] == "full") and finetune.method == "full" and config is None:
        training |= accelerate.IN_16_BITS
    return {
        **found,
        "finetune": finetune,
        "training_fields": training,
        "not_modelled": (*found["not_modelled"], *others),
        "num_processes": found["num_processes"] or source.num_processes,
    }


def _check_supervised(values: Values) -> None:
    """Raise ``InputError`` for training by preferences or rewards."""
    for name in ("rl", "reward_model", "process_reward_model"):
        if values[name]:
            raise values.error(name, ", whose further models and pairs are not modelled; supervised training is.")


def _of_trainer(values: Values, *, is_sharded: bool) -> Values:
    """Return the values with the names and defaults of transformers' trainer."""
    is_16 = values["bfloat16"] or (values[BF16] != "false" and not values["fp16"])
    shard = values["dp_shard_size"]
    return accelerate.in_names_of_trainer(
        values,
        {
            accelerate.MICRO_BATCH: values[MICRO_BATCH],
            accelerate.OPTIMIZER: values[OPTIMIZER],
            "max_length": values[LENGTH],
            "packing": values[PACKED],
            accelerate.RECOMPUTES: values[RECOMPUTES] != "false",
            accelerate.ATTENTION: "eager" if values["eager_attention"] else values[accelerate.ATTENTION],
            accelerate.REPLICATE: values["dp_replicate_size"],
            accelerate.SHARD: -1 if shard is None else shard,
            accelerate.TENSOR: values["tensor_parallel_size"],
            accelerate.CONTEXT: values["context_parallel_size"],
            "use_fsdp": is_sharded or (shard or 1) > 1,
            "bf16": is_16,
        },
    )


def _loss(values: Values) -> dict[str, Any]:
    """Return the chunks of the loss, if the launch has one that never holds all logits."""
    if values["chunked_cross_entropy"]:
        return {"loss_chunks": values["chunked_cross_entropy_num_chunks"]}
    is_fused = ONE_MATRIX_LOSS in values[PLUGINS] and values.given.get("cut_cross_entropy", True)
    if is_fused or (LIGER_PLUGIN in values[PLUGINS] and values["liger_fused_linear_cross_entropy"]):
        return accelerate.loss_in_chunks(values)
    return {}


def _plugins(values: Values) -> list[NotModelled]:
    """Return notes on plugins, checkpoints on the host, and a fused loss of a model that is not known."""
    found = []
    for plugin in values[PLUGINS]:
        if plugin in (ONE_MATRIX_LOSS, LIGER_PLUGIN):
            continue
        if "kd" in plugin.lower().split("."):
            raise InputError(values.place(PLUGINS), f"{PLUGINS} has {shown(plugin)}, whose teacher is not modelled.")
        why = "A plugin that is not known here."
        found.append(NotModelled(option=PLUGINS, value=plugin, effect="both", direction="either", why=why))
    if values[RECOMPUTES] not in ("true", "false"):
        why = "Inputs of layers go to the host; they are counted on the GPU."
        entry = NotModelled(option=RECOMPUTES, value=values[RECOMPUTES], effect="both", direction="either", why=why)
        found.append(entry)
    return found


def _finetune(values: Values) -> Finetune:
    """Return the method of fine-tuning; ``InputError`` for quantised weights that are all trained."""
    adapter, bits = values[ADAPTER], next((name for name in (BITS_4, BITS_8) if values[name]), None)
    if adapter in (None, ""):
        if bits is not None:
            raise values.error(
                bits, f", but no {ADAPTER} is given: such weights cannot be trained; give lora or qlora."
            )
        return Finetune(method="full", where=values.where)
    if adapter not in ("lora", "qlora"):
        raise values.error(ADAPTER, ", which is not modelled; lora and qlora are, and none for full fine-tuning.")
    if adapter == "qlora" and bits != BITS_4:
        raise values.error(ADAPTER, f", which needs {BITS_4}: true; give it, or {ADAPTER}: lora.")
    targets = [*(values[TARGETS] or []), *(["all-linear"] if values[ALL_LINEAR] else [])]
    return bitsandbytes_adapters(
        None if bits is None else 4 if bits == BITS_4 else 8,
        rank=values[RANK],
        targets=targets or [accelerate.USUAL_TARGETS],
        dropout=values["lora_dropout"],
        where=values.place(TARGETS),
    )


SOFTWARE, LAUNCHER, TRAINING, SPACE = accelerate.SOFTWARE, accelerate.LAUNCHER, accelerate.TRAINING, accelerate.SPACE
"""Stack, order of ranks, fields of the training, and search space: those of Accelerate's sharded data parallelism."""

NOT_CHECKED = accelerate.NOT_COMPARED.format(SOFTWARE, "axolotl")
"""Note on answers for axolotl."""


def check(model: ModelSpec, training: TrainingSpec) -> None:
    """Raise ``InputError`` for training that axolotl does not have."""
    accelerate.refuse_what_trainers_lack("axolotl", model, training)
    if model.adapters is not None and model.adapters.base == "nf4":
        raise InputError("base_format", "is nf4, but axolotl quantises its constants, too; give nf4-double.")


def export_axolotl(plan: Plan) -> dict[str, str]:
    """Return settings, node order and launch script; ``InputError`` as :func:`check`."""
    model, training, config = recorded_model(plan), recorded_training(plan), plan.config
    check(model, training)
    found, adapters, groups = accelerate.settings(plan), model.adapters, config.num_distributed_optimizer_instances
    is_4_bit = adapters is not None and adapters.base == "nf4-double"
    arguments = {
        ADAPTER: None if adapters is None else "qlora" if is_4_bit else "lora",
        **({} if adapters is None else _adapter_settings(adapters)),
        BITS_4: is_4_bit or None,
        BITS_8: (adapters is not None and adapters.base == "int8") or None,
        LENGTH: training.seq_length,
        PACKED: training.packed,
        MICRO_BATCH: config.micro_batch_size,
        accelerate.STEPS: found[accelerate.STEPS],
        RECOMPUTES: False,
        OPTIMIZER: accelerate.optimizer_word(training),
        BF16: "full" if training.main_params_dtype == "none" else training.precision == "bf16",
        "fp16": training.precision == "fp16" or None,
        "eager_attention" if training.attention_kernel == "unfused" else "sdp_attention": True,
        "chunked_cross_entropy": training.loss_chunks > 1 or None,
        "chunked_cross_entropy_num_chunks": training.loss_chunks if training.loss_chunks > 1 else None,
        "dp_replicate_size": groups if groups > 1 else None,
        "dp_shard_size": config.data_parallel_size // groups if groups > 1 else None,
        "fsdp_version": 2,
        "fsdp_config": {
            "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            "state_dict_type": "SHARDED_STATE_DICT",
            "reshard_after_forward": found[accelerate.RESHARD],
            "offload_params": found[accelerate.HOST_SHARDS],
            "activation_checkpointing": found[accelerate.FSDP_RECOMPUTES],
        },
    }
    shares = node_shares(plan, "axolotl")
    yours = "base_model, datasets and, with adapters, lora_alpha; recomputation is FSDP's"
    return {
        accelerate.TRAINER_FILE: accelerate.trainer_text(plan, arguments, yours),
        **nodes_file(shares),
        "launch.sh": launch_script(
            shares,
            usage=accelerate.YOURS.format(accelerate.TRAINER_FILE),
            settings=[CUDA_ORDER, *nccl_settings(plan)],
            program=f'-m axolotl.cli.train {accelerate.TRAINER_FILE} "$@"',
        ),
    }


def _adapter_settings(adapters: Adapters) -> dict[str, Any]:
    """Return the settings of adapters."""
    return {RANK: adapters.rank, "lora_dropout": adapters.dropout, TARGETS: list(adapters.targets)}


TARGET = Target(export_axolotl, "train.yaml, launch.sh, nodes.txt")
