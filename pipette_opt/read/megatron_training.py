"""Training settings that Megatron-LM's arguments describe: number formats, kernels, offloading."""

from collections.abc import Mapping
from typing import Any

from pipette_opt.read.megatron_fields import number
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


def training_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the given fields of :class:`TrainingSpec`; formats of optimizer states count only if precision-aware."""
    fields: dict[str, Any] = {}
    if given.get("no_masked_softmax_fusion"):
        fields["fused_softmax"] = False
    if given.get("overlap_moe_expert_parallel_comm"):
        fields["overlap_moe_expert_parallel_comm"] = True
    if given.get("tp_comm_overlap"):
        fields["tp_comm_overlap"] = True
    kind = _context_kind(given)
    if kind is not None:
        fields["cp_comm_type"] = kind
    if given.get("transformer_impl") == "local":
        fields["attention_kernel"] = "unfused"
    if given.get("use_flash_attn"):
        fields["attention_kernel"] = "flash"
    if given.get("attention_backend", "auto") != "auto":  # which leaves the choice to the implementation
        fields["attention_kernel"] = _ATTENTION_KERNELS[given["attention_backend"]]
    if "flash_attention_version" in given and given.get("attention_backend", "auto") in ("flash", "auto"):
        fields["flash_version"] = min(int(given["flash_attention_version"]), 3)
    fields |= _token_fields(given) | _recipe_fields(given) | _graph_fields(given) | _offload_fields(given, where)
    if given.get("optimizer") in ("muon", "dist_muon"):
        fields["optimizer"] = "muon"
    if given.get("use_precision_aware_optimizer"):
        fields["use_precision_aware_optimizer"] = True
        for name in ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"):
            if name in given:
                fields[name] = given[name]
    return fields


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
    fp8, fp4 = given.get("fp8_format"), given.get("fp4_format")
    if not fp8 and not fp4:
        return {}
    fields: dict[str, Any] = {"fp4" if fp4 else "fp8": True}
    if fp8 and given.get("fp8_recipe") in FP8_RECIPES:
        fields["fp8_recipe"] = given["fp8_recipe"]
    if given.get("fp4_param_gather" if fp4 else "fp8_param_gather"):
        fields["fp8_param_gather"] = True
    return fields


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


def _offload_fields(given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the fields of offloading to the host; all optimizer states are offloaded unless a fraction is given."""
    fields: dict[str, Any] = {}
    if given.get("cpu_offloading_num_layers"):
        fields["cpu_offloading_num_layers"] = given["cpu_offloading_num_layers"]
    if given.get("fine_grained_activation_offloading"):
        fields["offload_modules"] = tuple(dict.fromkeys(given["offload_modules"]))
    if given.get("optimizer_cpu_offload"):
        fields["optimizer_offload_fraction"] = number(
            given.get("optimizer_offload_fraction", 1.0), "--optimizer-offload-fraction", where
        )
        fields["overlap_cpu_optimizer_d2h_h2d"] = bool(given.get("overlap_cpu_optimizer_d2h_h2d"))
    return fields
