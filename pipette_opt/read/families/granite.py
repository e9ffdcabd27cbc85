"""Readers of Granite in Hugging Face's ``config.json``: Llama with constant factors, and hybrids with Mamba-2."""

from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.family import family
from pipette_opt.read.hugging_face_common import biases, count, llama_like
from pipette_opt.read.hugging_face_keys import Keys
from pipette_opt.read.hugging_face_positions import windowed_layers
from pipette_opt.specs import Mamba
from pipette_opt.specs.model_checks import ROTARY_FIELDS

_MULTIPLIERS = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
"""Keys of Granite's constant factors, which change neither time nor memory."""


@family("granite")
def granite(keys: Keys) -> dict[str, Any]:
    """Return the fields of Granite 3: Llama with constant factors."""
    return _granite(keys) | biases(keys)


@family("granitemoe", "granitemoeshared", has_experts=True)
def granite_moe(keys: Keys) -> dict[str, Any]:
    """Return the fields of Granite 3 MoE: experts in every layer, optionally a shared expert."""
    return _granite(keys) | _experts(keys)


@family("granitemoehybrid", has_experts=True)
def granite_hybrid(keys: Keys) -> dict[str, Any]:
    """
    Return the fields of Granite 4: Mamba-2 or attention in each layer, then a dense MLP or experts with a shared
    expert.

    A hybrid becomes a layer pattern with one branch per layer. Without experts, the shared MLP is the only MLP.
    """
    layers = keys.whole("num_hidden_layers")
    with_mamba = windowed_layers(keys, layers, [True] * layers, "mamba", "attention")
    found = _granite(keys) | _mlp(keys)
    if keys.text("position_embedding_type", "rope") == "nope":
        found = {name: value for name, value in found.items() if name not in ROTARY_FIELDS}
        found["position_embedding_type"] = "none"
    sizes = _mamba_sizes(keys)
    if not any(with_mamba):
        return found
    mlp = "-" if "num_experts" not in found else "E"
    pattern = "".join(("M" if is_mamba else "*") + mlp for is_mamba in with_mamba)
    return found | {"num_layers": len(pattern), "hybrid_layer_pattern": pattern, "mamba": Mamba(**sizes)}


def _granite(keys: Keys) -> dict[str, Any]:
    """Return sizes, positions and constant factors of any Granite model."""
    factors = tuple((name, f"{keys.positive(name):g}") for name in _MULTIPLIERS if keys.has(name))
    if keys.text("normalization_function", "rmsnorm") != "rmsnorm":
        raise keys.wrong("normalization_function", "this family has rmsnorm")
    if keys.text("position_embedding_type", "rope") not in ("rope", "nope"):
        raise keys.wrong("position_embedding_type", "this family has rope or nope")
    return llama_like(keys) | {"multipliers": factors or None}


def _experts(keys: Keys) -> dict[str, Any]:
    """Return the expert fields: experts as wide as ``intermediate_size``, softmax over the chosen experts."""
    shared = count(keys, "shared_intermediate_size")
    return {
        "num_experts": keys.whole("num_local_experts", 8),
        "moe_router_topk": keys.whole("num_experts_per_tok", 2),
        "moe_ffn_hidden_size": keys.whole("intermediate_size"),
        "moe_shared_expert_intermediate_size": shared,
    }


def _mlp(keys: Keys) -> dict[str, Any]:
    experts, topk = keys.value("num_local_experts"), keys.value("num_experts_per_tok")
    if experts:
        return _experts(keys)
    if experts is None:
        raise InputError(keys.where, "the field num_local_experts is missing; 0 for a dense model.")
    if topk:
        raise keys.wrong("num_experts_per_tok", "with num_local_experts 0 it must be 0")
    return {"ffn_hidden_size": keys.whole("shared_intermediate_size", 1024)}


def _mamba_sizes(keys: Keys) -> dict[str, int]:
    """Return the sizes of Mamba-2 layers; a file may have these keys without such layers."""
    if keys.whole("mamba_d_conv", 4) != 4 or not keys.flag("mamba_conv_bias", True):
        raise keys.wrong("mamba_d_conv", "Megatron-Core's convolution sees four tokens and has a bias")
    if keys.flag("mamba_proj_bias", False):
        raise keys.wrong("mamba_proj_bias", "this family has no such biases")
    keys.ignore("mamba_chunk_size")  # of the scan's computation
    heads = keys.whole("mamba_n_heads", 128)
    width = keys.whole("mamba_expand", 2) * keys.whole("hidden_size")
    head = keys.value("mamba_d_head")
    return {
        "num_heads": heads,
        "head_dim": width // heads if head in (None, "auto") else keys.whole("mamba_d_head"),
        "num_groups": keys.whole("mamba_n_groups", 1),
        "state_dim": keys.whole("mamba_d_state", 256),
    }
