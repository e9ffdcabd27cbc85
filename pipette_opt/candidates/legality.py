"""
Legality rules of megatron-core 0.16.1, one function per rule.

Each function returns the reason why a configuration breaks the rule in its docstring; ``None`` if it does not. Sources
are Megatron-Core's own checks: ``TransformerConfig``, the modules that it builds (attention, MLP), the micro-batch
calculator, ``initialize_model_parallel``, the interleaved schedule. Checks that only the launcher makes ("arguments")
are from Megatron-LM's ``megatron/training/arguments.py``. The vocabulary needs no rule: Megatron pads it to a multiple
of ``make_vocab_size_divisible_by * tp``, so every tensor rank gets an equal part.
"""

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from pipette_opt.candidates.expert_rules import (
    expert_overlap,
    expert_ranks,
    expert_sequence,
    expert_widths,
    experts,
)
from pipette_opt.layers.branch import BY_OPERATION
from pipette_opt.layers.branches import named_branches
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec
from pipette_opt.specs.activations import exchange_ranks, host_keeps, largest_micro_batch_tokens, sequence_shards

Rule = Callable[[ModelSpec, TrainingSpec, ParallelConfig], str | None]
"""Function that returns why a configuration is illegal, with its numbers; ``None`` if the rule is satisfied."""


def attention_heads(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: every tensor rank has equally many attention heads (``TransformerConfig``)."""
    heads, tp = model.num_attention_heads, config.tensor_model_parallel_size
    if heads % tp:
        return f"num_attention_heads={heads} is no multiple of tensor_model_parallel_size={tp}"
    return None


def query_groups(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: tensor ranks split query groups evenly, or share each group evenly (``TransformerConfig``)."""
    groups, tp = model.num_query_groups, config.tensor_model_parallel_size
    if groups % tp and tp % groups:
        return f"num_query_groups={groups} is neither a multiple nor a divisor of tensor_model_parallel_size={tp}"
    return None


def layer_widths(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: tensor ranks split every layer evenly: fused products of attention, MLPs, heads of layers with a state."""
    tp = config.tensor_model_parallel_size
    for name, size in _split_sizes(model).items():
        if size % tp:
            return f"{name}={size} is no multiple of tensor_model_parallel_size={tp}"
    return None


@lru_cache(maxsize=256)
def _split_sizes(model: ModelSpec) -> Mapping[str, int]:
    """Return the numbers of all layers that the tensor-parallel size must divide."""
    return {name: size for branch in named_branches(model).values() for name, size in branch.split_sizes.items()}


def sequence_parallel(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: sequence parallelism needs tensor parallelism, and tensor overlap needs sequence parallelism.

    From ``ModelParallelConfig`` and the launcher's arguments.
    """
    if config.sequence_parallel and config.tensor_model_parallel_size == 1:
        return "sequence_parallel needs tensor_model_parallel_size >= 2, got 1"
    overlaps = config.tp_comm_overlap or (training.tp_comm_overlap and config.tensor_model_parallel_size > 1)
    if overlaps and not config.sequence_parallel:
        return "tp_comm_overlap needs sequence_parallel"
    return None


def sequence_length(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: every rank has an equal part of the sequence.

    Context parallelism gives each rank two chunks of the sequence (arguments). Sequence parallelism splits a rank's
    part over the tensor ranks (``tensor_parallel.mappings``).
    """
    length, cp, tp = training.seq_length, config.context_parallel_size, config.tensor_model_parallel_size
    if cp > 1 and length % (2 * cp):
        return f"seq_length={length} is no multiple of 2 * context_parallel_size={2 * cp}"
    if config.sequence_parallel and (length // cp) % tp:
        return f"seq_length / context_parallel_size = {length // cp} is no multiple of tensor_model_parallel_size={tp}"
    return None


def context_parallel(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: context parallelism needs fused attention (``DotProductAttention``), and a communication type that fits.

    Types differ in their support (Transformer Engine, ``context_parallel.py``: ``attn_forward_func_with_cp``). ``p2p``
    does not support windows. Only ``a2a`` supports other softmax types; it needs whole query groups on each rank. Only
    ``p2p`` supports values narrower than keys, as in latent attention. Layers with a state are computed with none.
    """
    cp, kind, exchange = config.context_parallel_size, training.cp_comm_type, exchange_ranks(training, config)
    if config.context_a2a_size > 1 and kind != "a2a+p2p":
        return f"context_a2a_size={config.context_a2a_size} needs cp_comm_type=a2a+p2p, got {kind}"
    if cp % exchange:
        return f"context_a2a_size={exchange} does not divide context_parallel_size={cp}"
    if cp == 1:
        return None
    if training.attention_kernel == "unfused":
        return f"context_parallel_size={cp} needs a fused attention kernel, got unfused"
    for layer in dict.fromkeys(model.layers):
        mixer = model.mixer(layer)
        if mixer is not None and not set(kind.split("+")).issubset(mixer.context_types):
            name, types = layer.mixer.replace("_", " "), " or ".join(mixer.context_types)
            wanted = f"needs cp_comm_type={types}, got {kind}" if types else "is not modelled"
            return f"context_parallel_size={cp} with {name} {wanted}"
    if model.softmax_type != "vanilla" and kind != "a2a":
        return f"context_parallel_size={cp} with softmax_type={model.softmax_type} needs cp_comm_type=a2a, got {kind}"
    groups = max(model.num_query_groups // config.tensor_model_parallel_size, 1)
    if groups % exchange:
        return f"cp_comm_type={kind} needs query groups of a tensor rank, {groups}, in {exchange} equal parts"
    return None


def position_embeddings(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: learned position embeddings cover the sequence (arguments).

    With rotary positions ``max_position_embeddings`` has no effect, and launch scripts raise it to the sequence length.
    """
    known = model.max_position_embeddings
    if model.position_embedding_type == "learned_absolute" and known < training.seq_length:
        return f"seq_length={training.seq_length} is above max_position_embeddings={known}"
    return None


def layers(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: the stages hold all layers of the model, and each stage at least one.

    ``pipeline_model_parallel_layout`` can express any such split (``PipelineParallelLayerLayout``). If only the first
    and last stage differ from the others, no layout is needed.
    """
    if sum(config.layers_per_stage) == model.num_layers and min(config.layers_per_stage) >= 1:
        return None
    return f"layers_per_stage={config.layers_per_stage} does not split {model.num_layers} layers into stages of >= 1"


def batch(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: every replica has the same whole number of micro-batches (``num_microbatches_calculator``).

    With ``unequal_microbatches`` each replica has at least one micro-batch; with interleaving, at least one whole
    group.
    """
    size, dp, mbs = training.global_batch_size, config.data_parallel_size, config.micro_batch_size
    if training.unequal_microbatches:
        group = mbs * config.microbatch_group_size
        if size % group:
            return f"global_batch_size={size} is no multiple of {group}, the sequences of one group of micro-batches"
        return f"global_batch_size={size} gives {dp} replicas less than {group} each" if size < dp * group else None
    if size % (dp * mbs):
        return f"global_batch_size={size} is no multiple of data_parallel_size * micro_batch_size = {dp} * {mbs}"
    return None


def interleaving(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: interleaving needs a number of micro-batches that is a multiple of the pipeline size.

    From ``forward_backward_pipelining_with_interleaving`` with its default ``microbatch_group_size_per_vp_stage``, the
    pipeline size.
    """
    if config.virtual_pipeline_model_parallel_size is None:
        return None
    pp, per_step = config.pipeline_model_parallel_size, config.data_parallel_size * config.micro_batch_size
    if training.unequal_microbatches or training.global_batch_size % per_step:
        return None  # the batch rule reports this
    num_microbatches = training.global_batch_size // per_step
    if num_microbatches % pp:
        return f"interleaving needs num_microbatches={num_microbatches} in whole groups of pp={pp}"
    return None


def cuda_graphs(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: CUDA graphs of parts of layers exclude full recomputation; graphs of whole iterations do not."""
    if training.cuda_graph_modules and config.recompute_granularity == "full":
        return (
            f"CUDA graphs of {', '.join(training.cuda_graph_modules)} go with selective recomputation or none, got full"
        )
    return None


def fp8_shapes(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: sizes of fp8 and fp4 matrix products are multiples of 16 (Transformer Engine, ``assert_dim_for_fp8_exec``).

    MXFP8 needs multiples of 32, its block size (``MXFP8Quantizer``). The backward pass has products along every size,
    including the tokens of a micro-batch.
    """
    recipe = training.recipe
    if recipe is None:
        return None
    tokens = largest_micro_batch_tokens(training, config)
    widths = {"hidden_size": model.hidden_size, "tokens of a micro-batch": tokens}
    of_products, multiplies_own = _product_widths(model, config.tensor_model_parallel_size, config.expert_tensor_size)
    if multiplies_own:
        widths["tokens of a micro-batch on a rank"] = tokens // sequence_shards(config)
    for name, width in (*widths.items(), *of_products.items()):
        if width % recipe.multiple:
            return f"{recipe.peak} needs multiples of {recipe.multiple}, and {name} is {width}"
    return None


@lru_cache(maxsize=1024)
def _product_widths(model: ModelSpec, tp: int, expert_tp: int) -> tuple[Mapping[str, int], bool]:
    """Return the widths of all layers' products on a rank, and whether products of its own tokens are among them."""
    branches = named_branches(model).values()
    widths = {name: width for branch in branches for name, width in branch.product_widths(tp, expert_tp).items()}
    return widths, any(product.split == "whole" for branch in branches for product in branch.products)


@lru_cache(maxsize=256)
def _modules(model: ModelSpec) -> frozenset[str]:
    """Return the modules of all layers that can be recomputed."""
    return frozenset(module for branch in named_branches(model).values() for module in branch.modules)


def recompute_modules(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: recomputed modules exist in the model, and fp8 recipe and options allow them (``TransformerConfig``)."""
    if config.recompute_granularity != "selective":
        return None
    again = "recompute_modules has"
    if config.recomputes(BY_OPERATION) and not all(branch.operations for branch in named_branches(model).values()):
        return f"{again} {BY_OPERATION}, which is known for dense layers with attention only"
    if config.recomputes("moe_act") and model.num_experts is None:
        return f"{again} moe_act, which needs grouped products of experts (--moe-grouped-gemm)"
    if config.recomputes("mla_up_proj") and "mla_up_proj" not in _modules(model):
        return f"{again} mla_up_proj, which needs latent attention"
    scaled = training.fp8 and training.fp8_recipe == "delayed"
    if scaled and (config.recomputes("moe_act") or config.recomputes("layernorm")):
        return f"{again} moe_act or layernorm, which delayed scaling of fp8 does not support"
    beside = ("--moe-shared-expert-overlap",) in (training.other_arguments or ())
    if beside and config.recomputes("shared_experts"):
        return f"{again} shared_experts, which --moe-shared-expert-overlap does not support"
    return None


def offloading(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: offloading whole layers excludes pipelines and recomputation (``TransformerConfig``).

    Offloading parameters moves shards of ZeRO 3. Offloading the optimizer uses Megatron-Core's precision-aware
    optimizer. It needs Adam and, with replicas, the distributed optimizer (``OptimizerConfig.__post_init__``). Weights
    gathered in 8 bits need delayed scaling (``validate_args``). Offloading module inputs excludes full recomputation.
    """
    offload = host_keeps(training, config)
    if offload.parameters and config.sharding_stage < 3:
        return f"offload of parameters needs zero_stage=3, got {config.sharding_stage}"
    if config.offload is not None and offload.optimizer_offload_fraction:
        chosen = f"offload={config.offload}"
        if training.optimizer != "adam":
            return f"{chosen} needs optimizer=adam, got {training.optimizer}"
        if config.sharding_stage > 1 and not offload.parameters:
            return f"{chosen} with zero_stage={config.sharding_stage} is not modelled"
        if not config.use_distributed_optimizer and config.sharing_ranks > 1:
            return f"{chosen} needs use_distributed_optimizer"
        if training.fp8_param_gather and training.fp8_recipe != "delayed":
            return f"{chosen} with fp8_param_gather needs fp8_recipe=delayed, got {training.fp8_recipe}"
    if config.offload is not None and offload.offload_modules and config.recompute_granularity == "full":
        return f"offload={config.offload} needs layers that are not recomputed whole"
    layers = offload.cpu_offloading_num_layers
    if not layers:
        return None
    if config.pipeline_model_parallel_size > 1:
        return f"cpu_offloading_num_layers={layers} needs pipeline_model_parallel_size=1"
    if config.recompute_granularity is not None:
        return f"cpu_offloading_num_layers={layers} does not go with recomputation"
    if layers >= model.num_layers:
        return f"cpu_offloading_num_layers={layers} must be less than num_layers={model.num_layers}"
    return None


def sharded_parameters(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: ZeRO stages 2 and 3 exclude Muon (``validate_args``) and interleaving, which is not timed here.

    The number of groups of replicas must divide the ranks that hold the same experts, and Muon has one
    (``layer_wise_optimizer.py``).
    """
    stage, groups = config.sharding_stage, config.num_distributed_optimizer_instances
    if config.reduces_in_one_ring:
        return None
    if stage > 1 and config.num_chunks > 1:
        return f"zero_stage={stage} with virtual_pipeline_model_parallel_size={config.num_chunks} is not modelled"
    if training.optimizer == "muon":
        refused = f"zero_stage={stage}" if stage > 1 else f"num_distributed_optimizer_instances={groups}"
        return f"{refused} does not go with optimizer=muon"
    block = config.expert_tensor_size * config.expert_model_parallel_size
    same = (
        config.world_size // config.pipeline_model_parallel_size // block if model.num_experts is not None else groups
    )
    if same % groups:
        return f"num_distributed_optimizer_instances={groups} does not go with {same} ranks of the same experts"
    return None


LEGALITY_RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "position embeddings": position_embeddings,
        "experts": experts,
        "expert ranks": expert_ranks,
        "expert widths": expert_widths,
        "expert sequence": expert_sequence,
        "expert overlap": expert_overlap,
        "attention heads": attention_heads,
        "query groups": query_groups,
        "layer widths": layer_widths,
        "sequence parallel": sequence_parallel,
        "sequence length": sequence_length,
        "context parallel": context_parallel,
        "layers": layers,
        "batch": batch,
        "interleaving": interleaving,
        "cuda graphs": cuda_graphs,
        "fp8 shapes": fp8_shapes,
        "recompute modules": recompute_modules,
        "offloading": offloading,
        "sharded parameters": sharded_parameters,
    }
)
"""All legality rules by name; counts of rejected combinations use these names."""


OF_MICRO_BATCHES = (
    *("expert overlap", "layers", "batch", "interleaving", "cuda graphs", "fp8 shapes", "recompute modules"),
    *("offloading", "sharded parameters"),
)
"""Rules on micro-batch, chunks, layers per stage, recomputation or sharding; others depend on degrees only."""


def broken_rules(
    model: ModelSpec, training: TrainingSpec, config: ParallelConfig, names: Iterable[str] = LEGALITY_RULES
) -> dict[str, str]:
    """Return the rules that a configuration breaks, each with its reason; only rules in ``names`` are checked."""
    broken = {}
    for name in names:
        rule = LEGALITY_RULES[name]
        reason = rule(model, training, config)
        if reason is not None:
            broken[name] = reason
    return broken


def check_legal(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> list[str]:
    """Return the reasons why Megatron-Core would refuse a configuration; empty if it is legal."""
    return list(broken_rules(model, training, config).values())
