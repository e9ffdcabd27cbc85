"""What a backward pass computes again, as one word: nothing, parts of layers, the first layers of each chunk, all."""

from collections.abc import Iterable
from typing import Any

from pipette_opt.base.types import Recomputation

RECOMPUTE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""
Parts of a layer that Megatron-Core can compute again (``recompute_modules`` of ``TransformerConfig``), in one order.

``core_attn``: scores, softmax, their product with the values. ``moe_act``: the activation of routed experts.
``layernorm``: norms that are not fused with the product after them, before experts and before latent attention.
``mla_up_proj``: up-projections and positions of latent attention. ``mlp``: the MLP of layers without experts. ``moe``:
all that a layer has for its experts, what it sends included. ``shared_experts``: of these the shared ones.
"""

CORE = ("core_attn",)
"""What ``selective`` alone means."""


def modules_in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Each module once, in the order of :data:`RECOMPUTE_MODULES`; ``ValueError`` for an unknown one, or for none."""
    found = set(names)
    unknown = sorted(found - set(RECOMPUTE_MODULES))
    if unknown or not found:
        got = ", ".join(unknown) or "none"
        raise ValueError(f"recompute_modules must be some of {', '.join(RECOMPUTE_MODULES)}; got {got}.")
    return tuple(name for name in RECOMPUTE_MODULES if name in found)


def recomputation_fields(word: Recomputation | None) -> dict[str, Any]:
    """
    Fields of a configuration by a word of search spaces; ``ValueError`` for an unknown one.

    ``None``, ``selective`` (the attention core), ``block``, ``full``, or modules as in ``moe_act+layernorm``.
    """
    if word in (None, "selective", "full"):
        return {"recompute_granularity": word, "recompute_method": "uniform"}
    if word == "block":
        return {"recompute_granularity": "full", "recompute_method": "block"}
    return {
        "recompute_granularity": "selective",
        "recompute_method": "uniform",
        "recompute_modules": modules_in_order(str(word).split("+")),
    }


def known_word(word: Recomputation | None) -> Recomputation | None:
    """The word with its modules in order; ``ValueError`` for an unknown one."""
    modules = recomputation_fields(word).get("recompute_modules")
    return word if modules is None else "selective" if modules == CORE else "+".join(modules)


def amount(word: Recomputation | None) -> int:
    """Where a word stands from the one that computes least again: nothing, modules by their number, ``block``, all."""
    if word is None:
        return 0
    ends = {"block": len(RECOMPUTE_MODULES) + 1, "full": len(RECOMPUTE_MODULES) + 2}
    return ends.get(word, len(recomputation_fields(word).get("recompute_modules", CORE)))
