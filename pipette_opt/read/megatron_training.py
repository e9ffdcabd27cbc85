"""Training settings that Megatron-LM's arguments describe: number formats, kernels, offloading."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.read.megatron_fields import TRAINING, read_fields
from pipette_opt.specs.precision import FP8_RECIPES
from pipette_opt.specs.training import BACKENDS, CONTEXT_KINDS


def gradients_in_fp32(given: Mapping[str, Any]) -> bool | None:
    """
    Return whether gradients are accumulated and reduced in fp32; ``None`` if no option sets it.

    ``--grad-reduce-in-bf16`` overrides ``--accumulate-allreduce-grads-in-fp32``, and has no effect with fp16
    (Megatron's ``validate_args``).
    """
    narrow = given.get("use_precision_aware_optimizer") and given.get("main_grads_dtype") == "bf16"
    if (given.get("grad_reduce_in_bf16") and not given.get("fp16")) or narrow:
        return False
    return True if given.get("accumulate_allreduce_grads_in_fp32") else None


_ATTENTION_KERNELS = {"flash": "flash", "fused": "flash", "auto": "flash", "unfused": "unfused", "local": "unfused"}
"""Attention kernel for each ``--attention-backend``; flash and cuDNN's fused attention keep no scores in memory."""

ALL_ON_HOST = {"optimizer_offload_fraction": 1.0, "overlap_cpu_optimizer_d2h_h2d": False}
"""Megatron's defaults with ``--optimizer-cpu-offload``."""


def training_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the given fields of :class:`TrainingSpec`; formats of optimizer states count only if precision-aware."""
    backend = given.get("attention_backend", "auto")
    versioned = backend in ("flash", "auto") and "flash_attention_version" in given
    decided = {
        "cp_comm_type": _context_kind(given),
        "attention_kernel": _attention_kernel(given, backend),
        "flash_version": min(int(given["flash_attention_version"]), 3) if versioned else None,
        "optimizer": "muon" if given.get("optimizer") in ("muon", "dist_muon") else None,
    }
    return {
        **{name: value for name, value in decided.items() if value is not None},
        **(ALL_ON_HOST if given.get("optimizer_cpu_offload") else {}),
        **read_fields(TRAINING, given, where),
        **_token_fields(given),
        **_recipe_fields(given),
        **_graph_fields(given),
    }


def _attention_kernel(given: Mapping[str, Any], backend: str) -> str | None:
    """Return the given attention kernel; the backend ``auto`` leaves the choice to the implementation."""
    chosen = "unfused" if given.get("transformer_impl") == "local" else None
    chosen = "flash" if given.get("use_flash_attn") else chosen
    return chosen if backend == "auto" else _ATTENTION_KERNELS[backend]


def _token_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields of the flex dispatcher: its library, by default DeepEP, and the multiprocessors it uses.

    Of two options for the multiprocessors, the newer counts.
    """
    if given.get("moe_token_dispatcher_type") != "flex":
        return {}
    backend = given.get("moe_flex_dispatcher_backend", "deepep")
    used = given.get("moe_flex_dispatcher_num_sms", given.get(f"moe_{backend}_num_sms"))
    fields: dict[str, Any] = {} if used is None else {"moe_flex_dispatcher_num_sms": used}
    return fields | ({"moe_flex_dispatcher_backend": backend} if backend in BACKENDS else {})


def _context_kind(given: Mapping[str, Any]) -> str | None:
    """Return the kind of context-parallel exchange; ``None`` for unsupported ones (``a2a+p2p``, different by layer)."""
    words = {str(word).replace("allgather", "all_gather") for word in given.get("cp_comm_type", ())}
    return words.pop() if len(words) == 1 and words.issubset(CONTEXT_KINDS) else None


def _recipe_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of formats below 16 bits; an unknown recipe counts as Megatron's default."""
    kind = "fp4" if given.get("fp4_format") else "fp8"
    if not given.get(f"{kind}_format"):
        return {}
    recipe = given.get("fp8_recipe") if given.get("fp8_format") else None
    fields: dict[str, Any] = {kind: True} | ({"fp8_recipe": recipe} if recipe in FP8_RECIPES else {})
    gathers = given.get("fp4_param_gather" if kind == "fp4" else "fp8_param_gather")
    return fields | ({"fp8_param_gather": True} if gathers else {})


def _graph_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of CUDA graphs, from current or older options."""
    impl = given.get("cuda_graph_impl", "none")
    if impl == "none" and not given.get("enable_cuda_graph") and not given.get("external_cuda_graph"):
        return {}
    modules = tuple(
        dict.fromkeys(word for name in ("cuda_graph_modules", "cuda_graph_scope") for word in given.get(name, ()))
    )
    whole = {"full", "full_iteration"}.intersection(modules) or impl == "full_iteration"
    return {"cuda_graph": True, **({} if whole or not modules else {"cuda_graph_modules": modules})}
