"""Recomputation in the backward pass, as a word: none, modules of layers, first layers of chunks, or all layers."""

import re
from collections.abc import Iterable
from typing import Any

from pipette_opt.base.types import Recomputation
from pipette_opt.layers.branch import BY_OPERATION

RECOMPUTE_MODULES = ("core_attn", "moe_act", "layernorm", "mla_up_proj", "mlp", "moe", "shared_experts")
"""
Modules of a layer that Megatron-Core can recompute (``recompute_modules`` of ``TransformerConfig``), in a fixed order.

- ``core_attn``: scores, softmax, and the product with the values.
- ``moe_act``: activation of routed experts.
- ``layernorm``: norms that are not fused with the product after them (before experts and before latent attention).
- ``mla_up_proj``: up-projections and positions of latent attention.
- ``mlp``: MLP of layers without experts.
- ``moe``: the whole expert branch, including its communication.
- ``shared_experts``: shared experts of that branch only.
"""

_COUNTED = re.compile(r"(?:full )?(?P<method>block|uniform)(?P<layers>[1-9][0-9]{0,5})")

CORE = ("core_attn",)
"""Modules that ``selective`` recomputes by default."""

OPERATIONS = (BY_OPERATION,)
"""Recomputation by operation, in place of modules."""


def modules_in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Return each module once, in the order of :data:`RECOMPUTE_MODULES`; ``ValueError`` for unknown or no names."""
    found = set(names)
    unknown = sorted(found - set(RECOMPUTE_MODULES))
    if unknown or not found:
        got = ", ".join(unknown) or "none"
        raise ValueError(f"recompute_modules must be some of {', '.join(RECOMPUTE_MODULES)}; got {got}.")
    return tuple(name for name in RECOMPUTE_MODULES if name in found)


def recomputation_fields(word: Recomputation | None) -> dict[str, Any]:
    """
    Return the configuration fields for a recomputation choice; ``ValueError`` for an unknown choice.

    Choices are ``None``, ``selective`` (the attention core), ``block``, ``full``, ``ops`` (:data:`OPERATIONS`), or
    modules such as ``moe_act+layernorm``.
    """
    if word in (None, "selective", "full"):
        return {"recompute_granularity": word, "recompute_method": "uniform"}
    if word == "block":
        return {"recompute_granularity": "full", "recompute_method": "block"}
    return {
        "recompute_granularity": "selective",
        "recompute_method": "uniform",
        "recompute_modules": OPERATIONS if (word,) == OPERATIONS else modules_in_order(str(word).split("+")),
    }


def labelled_fields(text: str) -> dict[str, Any]:
    """
    Return the configuration fields for recomputation as labels of configurations have it; ``ValueError`` for others.

    Beside the choices of :func:`recomputation_fields`, these are ``block3`` and ``uniform2``, with or without ``full``
    before.
    """
    counted = _COUNTED.fullmatch(text)
    if counted is None:
        return recomputation_fields(text)
    return {
        "recompute_granularity": "full",
        "recompute_method": counted["method"],
        "recompute_num_layers": int(counted["layers"]),
    }


def known_word(word: Recomputation | None) -> Recomputation | None:
    """Return a recomputation choice with its modules in fixed order; ``ValueError`` for an unknown choice."""
    modules = recomputation_fields(word).get("recompute_modules")
    return word if modules is None else "selective" if modules == CORE else "+".join(modules)


def amount(word: Recomputation | None) -> int:
    """Return the rank of a recomputation choice by amount: none, modules by number, ``block``, ``full``."""
    if word is None:
        return 0
    ends = {"block": len(RECOMPUTE_MODULES) + 1, "full": len(RECOMPUTE_MODULES) + 2}
    return ends.get(word, len(recomputation_fields(word).get("recompute_modules", CORE)))
