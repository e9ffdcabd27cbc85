"""The transformer that a row of ``runs.csv`` describes."""

from typing import TYPE_CHECKING, Any

from pipette_opt.base.errors import shown
from pipette_opt.base.units import whole_number
from pipette_opt.specs import ModelSpec

if TYPE_CHECKING:
    from pipette_opt.read.runs import MeasuredRun

GATED_FAMILIES = ("llama", "mistral", "mixtral", "qwen", "nemotron-h", "gpt-oss", "gpt oss", "deepseek")
"""Names of models whose MLP is gated, with rotary positions, RMSNorm and no biases."""

MODEL_COLUMNS = ("num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size")
"""Fields of the same name of ``ModelSpec``; the others only count beside the first."""


def run_model(run: "MeasuredRun") -> ModelSpec:
    """
    Transformer of a row: the model that it names, or one made of its columns.

    ``ValueError`` if column ``hybrid`` names layers of another kind.

    Columns ``gated_linear_unit``, ``tied_embeddings``, ``add_bias_linear`` and ``add_qkv_bias`` say what they say;
    without them a family of gated models is known by its name, and everything else is a GPT.
    """
    assert run.num_layers is not None
    assert run.hidden is not None
    assert run.heads is not None
    assert run.seq_len is not None
    if run.extra.get("hybrid", "") and truth_of(run.extra["hybrid"]) is not False:
        raise ValueError("hybrid: layers that are no transformer's have no times")
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


def expert_model_fields(run: "MeasuredRun") -> dict[str, Any]:
    """
    Fields of the experts of a row's model; none of a dense one.

    Raises ``ValueError`` for what is no whole number, and for experts of which nobody says how many a token takes.
    """
    fields = {name: whole_cell(run, name) for name in MODEL_COLUMNS}
    if fields["num_experts"] is None:
        return {}
    if fields["moe_router_topk"] is None:
        raise ValueError(f"num_experts={fields['num_experts']} needs moe_router_topk")
    return {name: value for name, value in fields.items() if value is not None}


def whole_cell(run: "MeasuredRun", name: str) -> int | None:
    """A whole number, ``2.0`` counts; ``None`` for an empty cell."""
    text = run.extra.get(name, "")
    if not text:
        return None
    number = whole_number(text.removesuffix(".0"))
    if number is None:
        raise ValueError(f"{name} must be a whole number, got {shown(text)}")
    return number


def run_flag(run: "MeasuredRun", name: str, default: bool) -> bool:
    """Value of a column that is true or false; ``default`` for an empty cell."""
    text = run.extra.get(name, "").lower()
    return truth_of(text) is True or text == "full_iteration" if text else default


TRUE, FALSE = ("true", "1", "1.0", "yes", "on"), ("false", "0", "0.0", "no", "off")


def truth_of(text: str) -> bool | None:
    """Truth that a cell says, in any case; ``None`` for an empty cell and for other words."""
    word = text.lower()
    return True if word in TRUE else False if word in FALSE else None
