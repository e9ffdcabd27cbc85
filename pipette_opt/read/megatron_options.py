"""The options that are read of a Megatron-LM command line or shell script."""

import difflib
import re
from typing import Any

from pipette_opt.errors import InputError, shown
from pipette_opt.read.megatron_model import MODEL_FLAGS, MODEL_WORDS

_WHOLE = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "padded_vocab_size",
    "max_position_embeddings",
    "make_vocab_size_divisible_by",
    "seq_length",
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "num_layers_per_virtual_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "recompute_num_layers",
    "ddp_bucket_size",
    "num_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "expert_tensor_parallel_size",
)
_NUMBERS = ("hidden_dropout", "attention_dropout")
_WORDS = (
    "normalization",
    "position_embedding_type",
    "recompute_granularity",
    "recompute_method",
    "moe_layer_freq",
    "moe_token_dispatcher_type",
    "fp8_format",
    *MODEL_WORDS,
)
_FLAGS = (
    "group_query_attention",
    "swiglu",
    "untie_embeddings_and_output_weights",
    "disable_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "use_rotary_position_embeddings",
    "no_position_embedding",
    "multi_latent_attention",
    "sequence_parallel",
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "no_overlap_p2p_communication",
    "recompute_activations",
    "use_tp_pp_dp_mapping",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "bf16",
    "fp16",
    *MODEL_FLAGS,
)
_NOT_TIMED = (
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
    "moe_enable_deepep",
    "moe_shared_expert_overlap",
    "overlap_moe_expert_parallel_comm",
    "use_megatron_fsdp",
    "use_custom_fsdp",
    "use_torch_fsdp2",
    "fp4_format",
)
"""What they change is not modelled, or not read here, so they are not passed over."""

_KNOWN = (*_WHOLE, *_NUMBERS, *_WORDS, *_FLAGS)


def given_options(text: str, where: str) -> dict[str, Any]:
    """
    Values of the options that concern the model or the parallel degrees, by name with underscores.

    Whole numbers, other numbers and words are values, flags are true; the rest is ignored.

    Raises
    ------
    InputError
        If there is no option at all, a value is missing or wrong, or an option looks like one of ours misspelt or
        changes the time in a way that is not modelled.
    """
    tokens = _tokens(text)
    if not any(token.startswith("--") for token in tokens):
        raise InputError(where, f"must hold options such as --tensor-model-parallel-size 8, got {shown(text.strip())}.")
    given: dict[str, Any] = {}
    for index, token in enumerate(tokens):
        if not token.startswith("--") or token == "--":
            continue
        option, equals, value = token.partition("=")
        field = option[2:].replace("-", "_")
        if field in _NOT_TIMED:
            raise InputError(where, f"{option} is not supported: how it changes the time is not known here.")
        if field not in _KNOWN:
            _refuse_misspelt(option, field, where)
            continue
        if field in _FLAGS:
            given[field] = True
            continue
        if not equals:
            value = tokens[index + 1] if index + 1 < len(tokens) else ""
        if not value or value.startswith("--"):
            raise InputError(where, f"{option} must be followed by a value.")
        given[field] = _value(field, option, value, where)
    return given


def _tokens(text: str) -> list[str]:
    """Words of a command line or script, without the shell's punctuation."""
    text = re.sub(r"(?m)(^|\s)#.*$", " ", text)
    text = re.sub(r"\\\s*\n", " ", text)
    return re.sub(r"[\"'();\\]", " ", text).split()


def _value(field: str, option: str, text: str, where: str) -> Any:
    if text.startswith("$"):
        raise InputError(where, f"{option} is the shell variable {text}; write its value.")
    if field in _WORDS:
        return text
    wanted = "a whole number >= 1" if field in _WHOLE else "a number"
    try:
        value = int(text) if field in _WHOLE else float(text)
    except ValueError:
        raise InputError(where, f"{option} must be {wanted}, got {shown(text)}.") from None
    if field in _WHOLE and value < 1:
        raise InputError(where, f"{option} must be {wanted}, got {text}.")
    return value


def _refuse_misspelt(option: str, field: str, where: str) -> None:
    near = difflib.get_close_matches(field, _KNOWN, n=1, cutoff=0.94)
    if near:
        raise InputError(where, f"unknown option {option}. Did you mean --{near[0].replace('_', '-')}?")
