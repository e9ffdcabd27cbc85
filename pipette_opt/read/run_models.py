"""Models that rows of ``runs.csv`` name, or describe by columns."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_model import model_of_options
from pipette_opt.read.named_models import named_model
from pipette_opt.read.run_cells import Cells, truth_of
from pipette_opt.specs import ModelSpec

GATED_FAMILIES = ("llama", "mistral", "mixtral", "qwen", "internlm", "nemotron-h", "gpt-oss", "gpt oss", "deepseek")
"""Families of models with gated MLP, rotary positions, RMSNorm and no biases."""

EXPERT_COLUMNS = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
"""Columns of experts, with Megatron-LM's names; without ``num_experts`` the others have no effect."""

SHAPE: Mapping[str, str] = {
    "num_layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
}
"""Columns of the shape of a model, and Megatron-LM's names of them."""

Sizes = Mapping[str, int | None]
"""Numbers of a row by column; ``None`` for an empty cell."""


def is_gated(name: str) -> bool:
    """Return whether a model has the name of a gated family."""
    return any(family in name.lower() for family in GATED_FAMILIES)


def model_by_name(row: Cells, sizes: Sizes, folder: Path) -> ModelSpec | None:
    """
    Return the model that a row names; ``None`` if the row gives a complete shape, another shape, or another name.

    Parameters
    ----------
    folder
        Folder of the table, in which configs are looked for.
    """
    name, given = row.text("model"), {column: size for column in SHAPE if (size := sizes[column]) is not None}
    if not name or {"num_layers", "hidden", "heads"} <= given.keys():
        return None
    model = named_model(name, folder)
    if model is None or any(size != getattr(model, SHAPE[column]) for column, size in given.items()):
        return None
    length = max(sizes["seq_len"] or 0, model.max_position_embeddings)
    return replace(model, vocab_size=sizes["vocab"] or model.vocab_size, max_position_embeddings=length)


def model_of_row(row: Cells, sizes: Sizes, named: ModelSpec | None) -> ModelSpec | None:
    """
    Return the model of a row: the model that it names, or a model of its columns; ``None`` if its shape is not known.

    Columns ``gated_linear_unit``, ``tied_embeddings``, ``add_bias_linear`` and ``add_qkv_bias`` count if given. Without
    them, a model with the name of a gated family is gated, and any other is a GPT. A row without ``heads`` has a model
    of one head, since FLOPs do not depend on it.

    Raises
    ------
    InputError
        For a damaged cell, or if column ``hybrid`` names layers of another kind.
    """
    if row.text("hybrid") and truth_of(row.text("hybrid")) is not False:
        raise InputError(row.where, "hybrid: layers other than transformer layers are not supported.")
    if named is not None or any(sizes[column] is None for column in ("num_layers", "hidden", "seq_len")):
        return named
    return model_of_options(_options(row, sizes), row.where, row.text("model") or "unnamed")


def _options(row: Cells, sizes: Sizes) -> dict[str, Any]:
    """Return the options of Megatron-LM for the model in the columns of a row."""
    hidden, heads = sizes["hidden"] or 1, sizes["heads"] or 1
    modern = is_gated(row.text("model"))
    has_biases = row.flag_or("add_bias_linear", not modern)
    return {
        "num_layers": sizes["num_layers"],
        "hidden_size": hidden,
        "ffn_hidden_size": sizes["ffn_hidden"] or 4 * hidden,
        "num_attention_heads": heads,
        "group_query_attention": True,
        "num_query_groups": (sizes["heads"] and sizes["kv_heads"]) or heads,
        "kv_channels": row.whole("kv_channels") or hidden // heads,
        "vocab_size": sizes["vocab"] or 50257,
        "max_position_embeddings": sizes["seq_len"],
        "swiglu": row.flag_or("gated_linear_unit", modern),
        "untie_embeddings_and_output_weights": not row.flag_or("tied_embeddings", not modern),
        "disable_bias_linear": not has_biases,
        "add_qkv_bias": row.flag_or("add_qkv_bias", has_biases),
        "position_embedding_type": "rope" if modern else "learned_absolute",
        "normalization": "RMSNorm" if modern else "LayerNorm",
        "hidden_dropout": 0.0 if modern else 0.1,
        "attention_dropout": 0.0 if modern else 0.1,
        **_expert_options(row),
    }


def _expert_options(row: Cells) -> dict[str, int]:
    """Return the options of Megatron-LM for the experts of a row's model; empty for a dense model."""
    counts = {name: count for name in EXPERT_COLUMNS if (count := row.whole(name)) is not None}
    if "num_experts" not in counts:
        return {}
    if "moe_router_topk" not in counts:
        raise InputError(row.where, f"num_experts={counts['num_experts']} needs moe_router_topk.")
    return counts
