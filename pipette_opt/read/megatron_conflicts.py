"""
Options of a Megatron-LM launch that exclude or need each other, by Megatron's own checks.

Each check is an entry of :data:`RULES`, with its file in Megatron-LM. A rule refuses only options that all releases
from 0.16.1 to :data:`LATEST` refuse. :func:`derived_options` makes the changes that Megatron makes silently before its
checks. :data:`NOT_PRICED` and the table of options list launches that Megatron accepts but that cannot be predicted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import whole_number
from pipette_opt.read.megatron_layers import counts_of_pattern

RELEASE, LATEST = "core_v0.16.1 (55ac708)", "d98e8a6 (2026-08-22)"
"""Oldest and newest state of NVIDIA/Megatron-LM whose checks were compared with these rules."""

PARSER = "megatron/training/arguments.py, validate_args"
TRANSLATION = "megatron/training/argument_utils.py, core_transformer_config_from_args"
TRANSFORMER = "megatron/core/transformer/transformer_config.py, TransformerConfig.__post_init__"
PARALLEL = "megatron/core/model_parallel_config.py, ModelParallelConfig.__post_init__"
OPTIMIZER = "megatron/core/optimizer/optimizer_config.py, OptimizerConfig.__post_init__"

Options = Mapping[str, Any]
"""Values of options by name with underscores."""

DEFAULTS: Options = {
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "expert_model_parallel_size": 1,
    "recompute_granularity": None,
    "recompute_modules": ("core_attn",),
    "moe_token_dispatcher_type": "allgather",
    "moe_flex_dispatcher_backend": "deepep",
    "optimizer": "adam",
    "transformer_impl": "transformer_engine",
    "gradient_accumulation_fusion": True,
    "cuda_graph_impl": "none",
    "position_embedding_type": "learned_absolute",
    "main_grads_dtype": "fp32",
    "cp_comm_type": ("p2p",),
}
"""Megatron's defaults of options that rules use; other absent options count as absent or false."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronRule:
    """
    Check of Megatron-LM on the options of a launch.

    Parameters
    ----------
    is_broken
        Function of the effective options that returns whether they break the rule.
    problem
        Error text, with names of options in braces.
    source
        File and function of the check in Megatron-LM.
    of_model
        Whether the check concerns only the model.
    """

    is_broken: Callable[[Options], bool]
    problem: str
    source: str
    of_model: bool = False


def check_conflicts(given: Options, where: str, *, of_model: bool = False) -> None:
    """
    Raise ``InputError`` for the first rule that the options break; :data:`NOT_PRICED` comes last.

    With ``of_model``, only rules on the model are checked.
    """
    options = {**DEFAULTS, **derived_options(given)}
    for rule in (*RULES, *NOT_PRICED):
        if (rule.of_model or not of_model) and rule.is_broken(options):
            raise InputError(where, rule.problem.format_map(_Words(options)))


def derived_options(given: Options) -> dict[str, Any]:
    """
    Return the options with the changes that Megatron's ``validate_args`` makes silently or with a warning.

    ``--recompute-activations`` always means selective recomputation. Without tensor parallelism there is no sequence
    parallelism. Megatron-FSDP implies the distributed optimizer. 0 experts mean a dense model. A hybrid pattern gives
    the numbers of layers and of prediction depths.
    """
    options = dict(given)
    if options.get("recompute_activations"):
        options["recompute_granularity"] = "selective"
    if options.get("tensor_model_parallel_size", 1) == 1:
        options.pop("sequence_parallel", None)
    if options.get("use_megatron_fsdp"):
        options["use_distributed_optimizer"] = True
    if options.get("use_rotary_position_embeddings"):
        options["position_embedding_type"] = "rope"
    if options.get("no_gradient_accumulation_fusion"):
        options["gradient_accumulation_fusion"] = False
    if not options.get("num_experts"):
        options.pop("num_experts", None)
    return options | counts_of_pattern(given)


class _Words(dict[str, Any]):
    """Values of options for error texts; lists become words, missing options ``none``."""

    def __missing__(self, name: str) -> str:
        return "none"

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        return " ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _is_whole(options: Options) -> bool:
    """Return whether the arguments are a complete launch, so that options that are not listed are really absent."""
    return "num_layers" in options


def _wrong_levels(options: Options) -> bool:
    """
    Return whether the sizes of hierarchical context parallelism are not numbers or have another product than
    its size.
    """
    sizes = options.get("hierarchical_context_parallel_sizes")
    if sizes is None:
        return False
    numbers = all(whole_number(str(size)) is not None for size in sizes)
    return not numbers or prod(map(int, sizes)) != options["context_parallel_size"]


def _capacity(options: Options) -> float | None:
    """Return the capacity factor of experts; ``None`` if it is absent, negative or no number."""
    try:
        factor = float(options.get("moe_expert_capacity_factor", -1))
    except ValueError:
        return None
    return None if factor < 0 else factor


RULES: tuple[MegatronRule, ...] = (
    MegatronRule(
        is_broken=lambda o: bool(o.get("bf16") and o.get("fp16")),
        problem="--bf16 contradicts --fp16; give one of them.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: {
            "num_layers_per_virtual_pipeline_stage",
            "num_virtual_stages_per_pipeline_rank",
        }.issubset(o),
        problem="--num-layers-per-virtual-pipeline-stage contradicts --num-virtual-stages-per-pipeline-rank; give one "
        "of them.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            "pipeline_model_parallel_layout" in o
            and not {"num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank"}.isdisjoint(o)
        ),
        problem="--pipeline-model-parallel-layout sets the number of chunks; leave "
        "--num-layers-per-virtual-pipeline-stage and --num-virtual-stages-per-pipeline-rank out.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            "num_layers_per_virtual_pipeline_stage" in o
            and not {"decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"}.isdisjoint(o)
        ),
        problem="--num-layers-per-virtual-pipeline-stage does not go with --decoder-first- or "
        "--decoder-last-pipeline-num-layers; give --num-virtual-stages-per-pipeline-rank.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: o["recompute_granularity"] == "selective" and "recompute_method" in o,
        problem="--recompute-method goes with --recompute-granularity full, got selective.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: o["recompute_granularity"] == "selective" and "recompute_num_layers" in o,
        problem="--recompute-num-layers goes with --recompute-granularity full, got selective.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            o["recompute_granularity"] == "full"
            and o.get("recompute_method") == "block"
            and "recompute_num_layers" not in o
        ),
        problem="--recompute-method block needs --recompute-num-layers, as in Megatron.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: o["recompute_granularity"] == "full" and bool(o.get("moe_layer_recompute")),
        problem="--moe-layer-recompute does not go with --recompute-granularity full, which has it.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_precision_aware_optimizer")) and not o.get("use_distributed_optimizer"),
        problem="--use-precision-aware-optimizer needs --use-distributed-optimizer.",
        source=OPTIMIZER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_precision_aware_optimizer")) and o["optimizer"] != "adam",
        problem="--use-precision-aware-optimizer needs --optimizer adam, got {optimizer}.",
        source=OPTIMIZER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("bf16") and o.get("accumulate_allreduce_grads_in_fp32"))
            and o["main_grads_dtype"] not in ("fp32", "auto")
        ),
        problem="--main-grads-dtype {main_grads_dtype} contradicts --accumulate-allreduce-grads-in-fp32.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("overlap_param_gather"))
            and not o.get("use_distributed_optimizer")
            and o["optimizer"] != "dist_muon"
        ),
        problem="--overlap-param-gather needs --use-distributed-optimizer, --use-megatron-fsdp or --optimizer "
        "dist_muon.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("overlap_param_gather")) and not o.get("overlap_grad_reduce"),
        problem="--overlap-param-gather needs --overlap-grad-reduce.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_torch_fsdp2")) and o["pipeline_model_parallel_size"] > 1,
        problem="--use-torch-fsdp2 does not go with --pipeline-model-parallel-size {pipeline_model_parallel_size}.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_torch_fsdp2")) and o["expert_model_parallel_size"] > 1,
        problem="--use-torch-fsdp2 does not go with --expert-model-parallel-size {expert_model_parallel_size}.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("use_torch_fsdp2") and o.get("use_distributed_optimizer")) and not o.get("use_megatron_fsdp")
        ),
        problem="--use-torch-fsdp2 does not go with --use-distributed-optimizer.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_torch_fsdp2") and o.get("fp16")),
        problem="--use-torch-fsdp2 does not go with --fp16.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: "fp8_format" in o and "fp4_format" in o,
        problem="--fp8-format contradicts --fp4-format; give one of them.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("tp_comm_overlap")) and _is_whole(o) and not o.get("sequence_parallel"),
        problem="--tp-comm-overlap needs --sequence-parallel with --tensor-model-parallel-size of 2 or more.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("delay_wgrad_compute")) and not o.get("overlap_moe_expert_parallel_comm"),
        problem="--delay-wgrad-compute needs --overlap-moe-expert-parallel-comm.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("overlap_moe_expert_parallel_comm")) and _is_whole(o) and not o.get("num_experts")
        ),
        problem="--overlap-moe-expert-parallel-comm needs --num-experts.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("overlap_moe_expert_parallel_comm") and o.get("moe_shared_expert_overlap")),
        problem="--overlap-moe-expert-parallel-comm does not go with --moe-shared-expert-overlap.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            "a2a+p2p" in o["cp_comm_type"]
            and o["context_parallel_size"] > 1
            and "hierarchical_context_parallel_sizes" not in o
        ),
        problem="--cp-comm-type a2a+p2p needs --hierarchical-context-parallel-sizes, with a product of "
        "{context_parallel_size}.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=_wrong_levels,
        problem="--hierarchical-context-parallel-sizes must be whole numbers with a product of "
        "{context_parallel_size}, got {hierarchical_context_parallel_sizes}.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("defer_embedding_wgrad_compute")) and _is_whole(o) and o["pipeline_model_parallel_size"] == 1
        ),
        problem="--defer-embedding-wgrad-compute needs --pipeline-model-parallel-size of 2 or more.",
        source=PARALLEL,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("defer_embedding_wgrad_compute")) and not o["gradient_accumulation_fusion"],
        problem="--defer-embedding-wgrad-compute does not go with --no-gradient-accumulation-fusion.",
        source=PARALLEL,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("moe_shared_expert_overlap"))
            and "moe_shared_expert_intermediate_size" in o
            and o["moe_token_dispatcher_type"] not in ("alltoall", "flex")
        ),
        problem="--moe-shared-expert-overlap needs --moe-token-dispatcher-type alltoall or flex, got "
        "{moe_token_dispatcher_type}.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("moe_enable_deepep")) and o["moe_token_dispatcher_type"] != "flex",
        problem="--moe-enable-deepep needs --moe-token-dispatcher-type flex, got {moe_token_dispatcher_type}.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("moe_enable_deepep")) and o["moe_flex_dispatcher_backend"] == "hybridep",
        problem="--moe-enable-deepep contradicts --moe-flex-dispatcher-backend hybridep; give one of them.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("moe_pad_expert_input_to_capacity")) and _capacity(o) is None,
        problem="--moe-pad-expert-input-to-capacity needs --moe-expert-capacity-factor.",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("moe_pad_expert_input_to_capacity"))
            and o["moe_token_dispatcher_type"] == "flex"
            and o["moe_flex_dispatcher_backend"] == "deepep"
        ),
        problem="--moe-pad-expert-input-to-capacity does not go with DeepEP (--moe-flex-dispatcher-backend deepep).",
        source=TRANSFORMER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("swiglu")) and bool(o.get("squared_relu") or o.get("quick_geglu")),
        problem="--swiglu contradicts --squared-relu and --quick-geglu; give one of them.",
        source=TRANSLATION,
        of_model=True,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("no_position_embedding")) and o["position_embedding_type"] != "rope",
        problem="--no-position-embedding is refused by Megatron; give --position-embedding-type none.",
        source=PARSER,
        of_model=True,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("group_query_attention") and o.get("multi_latent_attention")),
        problem="--group-query-attention does not go with --multi-latent-attention.",
        source=PARSER,
        of_model=True,
    ),
    MegatronRule(
        is_broken=lambda o: (
            bool(o.get("enable_cuda_graph") or o.get("external_cuda_graph")) and o["cuda_graph_impl"] != "none"
        ),
        problem="--enable-cuda-graph and --external-cuda-graph contradict --cuda-graph-impl; give one of them.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("enable_cuda_graph") and o.get("external_cuda_graph")),
        problem="--enable-cuda-graph contradicts --external-cuda-graph; give one of them.",
        source=PARSER,
    ),
    MegatronRule(
        is_broken=lambda o: bool(o.get("fine_grained_activation_offloading")) and not o.get("offload_modules"),
        problem="--fine-grained-activation-offloading needs --offload-modules.",
        source=TRANSFORMER,
    ),
)
"""All rules, in the order in which they are checked."""

NOT_PRICED: tuple[MegatronRule, ...] = (
    MegatronRule(
        is_broken=lambda o: bool(o.get("use_torch_fsdp2") and o.get("use_megatron_fsdp")),
        problem="--use-torch-fsdp2 contradicts --use-megatron-fsdp; give one of them.",
        source="PyTorch's wraps the model, and Megatron-FSDP's options change the optimizer under it.",
    ),
    MegatronRule(
        is_broken=lambda o: o["transformer_impl"] == "local" and "fp8_format" in o,
        problem="--fp8-format needs --transformer-impl transformer_engine, got local.",
        source="Megatron-LM's own layers have no fp8: the launch trains in 16 bits without a warning.",
    ),
    MegatronRule(
        is_broken=lambda o: o["transformer_impl"] == "local" and "fp4_format" in o,
        problem="--fp4-format needs --transformer-impl transformer_engine, got local.",
        source="Megatron-LM's own layers have no fp4: the launch trains in 16 bits without a warning.",
    ),
)
"""Launches that Megatron accepts but that cannot be predicted; ``source`` says why."""
