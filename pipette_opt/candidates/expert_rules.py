"""
Legality rules for experts in megatron-core 0.16.1: ``MoELayer``, its modules, ``initialize_model_parallel``.

Each function returns the reason why a configuration breaks the rule in its docstring; ``None`` if it does not.
"""

from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec


def experts(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: expert-parallel ranks have equally many experts; a dense model has none such (``BaseMoELayer``)."""
    ep = config.expert_model_parallel_size
    if model.num_experts is None:
        return f"expert_model_parallel_size={ep} needs experts; the model has none" if ep > 1 else None
    if model.num_experts % ep:
        return f"num_experts={model.num_experts} is no multiple of expert_model_parallel_size={ep}"
    return None


def expert_ranks(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: the ranks of a stage divide into blocks that hold every expert once (``initialize_model_parallel``)."""
    if model.num_experts is None:
        return None
    etp, ep = config.expert_tensor_size, config.expert_model_parallel_size
    tp, cp, dp = config.tensor_model_parallel_size, config.context_parallel_size, config.data_parallel_size
    if tp * cp * dp % (etp * ep):
        return (
            f"tensor * context * data parallel size = {tp} * {cp} * {dp} is no multiple of expert tensor size * "
            f"expert_model_parallel_size = {etp} * {ep}"
        )
    return None


def expert_widths(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: expert tensor ranks split routed experts evenly (``experts.py``)."""
    etp = config.expert_tensor_size
    if model.num_experts is not None and model.expert_ffn_size % etp:
        return f"moe_ffn_hidden_size={model.expert_ffn_size} is no multiple of expert_tensor_parallel_size={etp}"
    return None


def expert_sequence(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """Rule: a model with experts and tensor parallelism needs sequence parallelism (``MoELayer.forward``)."""
    if model.num_experts is not None and config.tensor_model_parallel_size > 1 and not config.sequence_parallel:
        return f"experts with tensor_model_parallel_size={config.tensor_model_parallel_size} need sequence_parallel"
    return None


def expert_overlap(model: ModelSpec, training: TrainingSpec, config: ParallelConfig) -> str | None:
    """
    Rule: overlapped all-to-alls need several expert ranks, 16 bits, no full recomputation; in a pipeline interleaving.

    ``overlap_moe_expert_parallel_comm`` in ``TransformerConfig``.
    """
    if not training.overlap_moe_expert_parallel_comm or model.num_experts is None:
        return None
    name = "overlap_moe_expert_parallel_comm"
    if config.expert_model_parallel_size == 1:
        return f"{name} needs expert_model_parallel_size >= 2, got 1"
    if training.moe_token_dispatcher_type == "allgather":
        return f"{name} needs moe_token_dispatcher_type alltoall or flex, got allgather"
    if training.precision == "fp32":
        return f"{name} needs bf16 or fp16, got fp32"
    if config.recompute_granularity == "full":
        return f"{name} goes with selective recomputation or none, got full"
    pp = config.pipeline_model_parallel_size
    if pp > 1 and config.virtual_pipeline_model_parallel_size is None:
        return f"{name} needs virtual_pipeline_model_parallel_size with pipeline_model_parallel_size={pp}"
    return None
