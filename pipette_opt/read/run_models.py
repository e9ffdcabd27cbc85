"""Models that rows of ``runs.csv`` describe by columns."""

from typing import Any

from pipette_opt.base.errors import shown
from pipette_opt.base.units import whole_number
from pipette_opt.read.measured_run import MeasuredRun
from pipette_opt.specs import ModelSpec

GATED_FAMILIES = ("llama", "mistral", "mixtral", "qwen", "internlm", "nemotron-h", "gpt-oss", "gpt oss", "deepseek")
"""Families of models with gated MLP, rotary positions, RMSNorm and no biases."""

MODEL_COLUMNS = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
"""Fields of ``ModelSpec`` that are also columns; without ``num_experts`` the others have no effect."""


def run_model(run: MeasuredRun) -> ModelSpec:
    """
    Return the model of a row: the model that it names, or a model made from its columns.

    Columns ``gated_linear_unit``, ``tied_embeddings``, ``add_bias_linear`` and ``add_qkv_bias`` count if given. Without
    them, a model with the name of a gated family is gated, and any other is a GPT. ``ValueError`` if column ``hybrid``
    names layers of another kind.
    """
    assert run.num_layers is not None
    assert run.hidden is not None
    assert run.heads is not None
    assert run.seq_len is not None
    if run.extra.get("hybrid", "") and truth_of(run.extra["hybrid"]) is not False:
        raise ValueError("hybrid: layers other than transformer layers are not supported")
    if run.spec is not None:
        return run.spec
    modern = any(family in run.model.lower() for family in GATED_FAMILIES)
    gated = run_flag(run, "gated_linear_unit", modern)
    biases = run_flag(run, "add_bias_linear", not modern)
    head_size = whole_cell(run, "kv_channels") or run.hidden // run.heads
    return ModelSpec(
        name=run.model or "unnamed",
        num_layers=run.num_layers,
        hidden_size=run.hidden,
        ffn_hidden_size=run.ffn_hidden or 4 * run.hidden,
        num_attention_heads=run.heads,
        num_query_groups=run.kv_heads or run.heads,
        kv_channels=head_size,
        vocab_size=run.vocab or 50257,
        max_position_embeddings=run.seq_len,
        gated_linear_unit=gated,
        untie_embeddings_and_output_weights=not run_flag(run, "tied_embeddings", not modern),
        add_bias_linear=biases,
        add_qkv_bias=run_flag(run, "add_qkv_bias", biases),
        position_embedding_type="rope" if modern else "learned_absolute",
        normalization="RMSNorm" if modern else "LayerNorm",
        hidden_dropout=0.0 if modern else 0.1,
        attention_dropout=0.0 if modern else 0.1,
        **expert_model_fields(run),
    )


def expert_model_fields(run: MeasuredRun) -> dict[str, Any]:
    """
    Return the fields of the experts of a row's model; empty for a dense model.

    ``ValueError`` for a value that is not a whole number, and for experts without ``moe_router_topk``.
    """
    fields = {name: whole_cell(run, name) for name in MODEL_COLUMNS}
    if fields["num_experts"] is None:
        return {}
    if fields["moe_router_topk"] is None:
        raise ValueError(f"num_experts={fields['num_experts']} needs moe_router_topk")
    return {name: value for name, value in fields.items() if value is not None}


def whole_cell(run: MeasuredRun, name: str) -> int | None:
    """Return a cell as a whole number, also if written as ``2.0``; ``None`` if empty. ``ValueError`` for other text."""
    text = run.extra.get(name, "")
    if not text:
        return None
    number = whole_number(text.removesuffix(".0"))
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {shown(text)}")
    return number


def run_flag(run: MeasuredRun, name: str, default: bool) -> bool:
    """Return a cell as true or false; ``default`` if empty. ``full_iteration`` is true."""
    text = run.extra.get(name, "").lower()
    return truth_of(text) is True or text == "full_iteration" if text else default


TRUE, FALSE = ("true", "1", "1.0", "yes", "on"), ("false", "0", "0.0", "no", "off")


def truth_of(text: str) -> bool | None:
    """Return a cell as true or false, in any case; ``None`` if empty or another word."""
    word = text.lower()
    return True if word in TRUE else False if word in FALSE else None
