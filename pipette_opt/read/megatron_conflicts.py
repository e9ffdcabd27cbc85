"""Options of a Megatron-LM launch that exclude or need each other, by its own checks, whatever the degrees."""

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from pipette_opt.base.errors import InputError


def check_conflicts(given: Mapping[str, Any], where: str) -> None:
    """Raise ``InputError`` for the first of Megatron's own checks that the options fail."""
    for problem in _conflicts(given):
        raise InputError(where, problem)


def _conflicts(given: Mapping[str, Any]) -> Iterator[str]:
    """From ``TransformerConfig.__post_init__``, ``OptimizerConfig.__post_init__`` and ``validate_args`` (0.16)."""
    if {"num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"} <= given.keys():
        yield (
            "--num-layers-per-virtual-pipeline-stage contradicts --num-virtual-stages-per-pipeline-rank; give one of "
            "them."
        )
    if given.get("recompute_granularity") == "selective":
        for name in ("recompute_method", "recompute_num_layers"):
            if name in given:
                yield f"--{name.replace('_', '-')} goes with --recompute-granularity full, got selective."
    if given.get("use_precision_aware_optimizer"):
        if not given.get("use_distributed_optimizer"):
            yield "--use-precision-aware-optimizer needs --use-distributed-optimizer."
        if given.get("optimizer", "adam") != "adam":
            yield f"--use-precision-aware-optimizer needs --optimizer adam, got {given['optimizer']}."
    if given.get("delay_wgrad_compute") and not given.get("overlap_moe_expert_parallel_comm"):
        yield "--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm."
    if given.get("overlap_moe_expert_parallel_comm") and "num_layers" in given and not given.get("num_experts"):
        yield "--overlap-moe-expert-parallel-comm needs --num-experts."
    yield from _levels_of_context(given)
    yield from _kinds_of_layers(given)
    dispatcher = given.get("moe_token_dispatcher_type", "allgather")
    if given.get("moe_shared_expert_overlap") and dispatcher != "alltoall":
        yield f"--moe-shared-expert-overlap needs --moe-token-dispatcher-type alltoall, got {dispatcher}."
    if given.get("moe_pad_expert_input_to_capacity"):
        if "moe_expert_capacity_factor" not in given:
            yield "--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor."
        if given.get("moe_enable_deepep") or given.get("moe_flex_dispatcher_backend") == "deepep":
            yield "--moe-pad-expert-input-to-capacity does not go with DeepEP (--moe-flex-dispatcher-backend deepep)."


def _kinds_of_layers(given: Mapping[str, Any]) -> Iterator[str]:
    """What layers without Transformer Engine, and products that wait for the end of a pipeline, do not go with."""
    if given.get("transformer_impl") == "local":
        for name in ("fp8_format", "fp4_format"):
            if name in given:
                yield f"--{name.replace('_', '-')} needs --transformer-impl transformer_engine, got local."
    if given.get("defer_embedding_wgrad_compute") and "num_layers" in given:
        if given.get("pipeline_model_parallel_size", 1) == 1:
            yield "--defer-embedding-wgrad-compute needs --pipeline-model-parallel-size of 2 or more."
        if given.get("gradient_accumulation_fusion") is False or given.get("no_gradient_accumulation_fusion"):
            yield "--defer-embedding-wgrad-compute does not go with --no-gradient-accumulation-fusion."


def _levels_of_context(given: Mapping[str, Any]) -> Iterator[str]:
    """Sizes of the levels in which context-parallel ranks exchange: there if need be, and a product of their number."""
    option, ranks = "--hierarchical-context-parallel-sizes", given.get("context_parallel_size", 1)
    sizes = given.get("hierarchical_context_parallel_sizes")
    if sizes is None:
        if "a2a+p2p" in given.get("cp_comm_type", ()) and ranks > 1:
            yield f"--cp-comm-type a2a+p2p needs {option}, with a product of {ranks}."
    elif not all(str(size).isdecimal() for size in sizes) or prod(map(int, sizes)) != ranks:
        yield f"{option} must be whole numbers with a product of {ranks}, got {' '.join(map(str, sizes))}."
