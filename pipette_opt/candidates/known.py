"""Search space extended by known configurations and their choices, and that of a single configuration."""

from dataclasses import replace
from typing import Any

from pipette_opt.candidates.coverage import DIMENSIONS
from pipette_opt.candidates.space import OF_EXPERTS, RECOMPUTATIONS, SearchSpace
from pipette_opt.parallel import ParallelConfig

SINGLE = ("num_gpus", "tp_comm_overlap", "overlap_grad_reduce", "overlap_param_gather")
"""Fields of a search space that hold a single value."""


def with_known(space: SearchSpace, config: ParallelConfig) -> SearchSpace:
    """
    Return the search space with a configuration added; unchanged if a pinned value excludes it.

    Recomputation, sharding, micro-batch size and number of chunks of the configuration are then also tried in all other
    configurations, even if the defaults leave them out.
    """
    if not agrees(space, config):
        return space
    word, tried = config.recomputation, (*space.recompute, *space.more_recompute, *OF_EXPERTS)
    is_new = space.recompute == RECOMPUTATIONS and word not in tried
    is_free = space.use_distributed_optimizer is None and space.data_parallel_sharding_strategy is None
    sharing = (config.data_parallel_sharding_strategy,) if is_free and config.sharding_stage > 1 else ()
    return replace(
        space,
        more_configs=tuple(dict.fromkeys((*space.more_configs, config))),
        more_recompute=(*space.more_recompute, word) if is_new else space.more_recompute,
        more_sharding=tuple(dict.fromkeys((*space.more_sharding, *sharing))),
        max_micro_batch_size=max(space.max_micro_batch_size, config.micro_batch_size),
        max_virtual_pipeline=max(space.max_virtual_pipeline, config.num_chunks),
    )


def only(config: ParallelConfig) -> SearchSpace:
    """Return the search space of a single configuration, of which only the placement is searched."""
    pins: dict[str, Any] = {name: getattr(config, field) for name, field in DIMENSIONS.items()}
    shares = ("data_parallel_sharding_strategy", "num_distributed_optimizer_instances")
    for name in ("use_distributed_optimizer",) if config.sharding_stage > 1 else shares:
        del pins[name]
    values: dict[str, Any] = {name: value if name in SINGLE else (value,) for name, value in pins.items()}
    return SearchSpace(
        **values,
        layers_per_stage=(config.layers_per_stage,),
        max_micro_batch_size=config.micro_batch_size,
        max_virtual_pipeline=config.num_chunks,
        more_configs=(config,),
    )


def agrees(space: SearchSpace, config: ParallelConfig) -> bool:
    """Return whether a configuration satisfies every pinned value of a search space."""
    is_pipelined = config.pipeline_model_parallel_size > 1 and space.pipelined_sharding is not None
    for name, field in DIMENSIONS.items():
        pinned, value = getattr(space, name), getattr(config, field)
        if name == "data_parallel_sharding_strategy" and is_pipelined:
            pinned = space.pipelined_sharding
        if name == "recompute" and pinned == RECOMPUTATIONS:
            continue
        if pinned is not None and value not in (pinned if isinstance(pinned, tuple) else (pinned,)):
            return False
    is_split = space.layers_per_stage is None or config.layers_per_stage in space.layers_per_stage
    has_room = space.max_gpus is None or config.world_size <= space.max_gpus
    same_buckets = space.ddp_bucket_size in (None, config.ddp_bucket_size)
    replicas = config.data_parallel_size * config.context_parallel_size
    is_alone = config.pipeline_model_parallel_size * config.tensor_model_parallel_size == 1
    has_replicas = replicas > 1 or is_alone or not space.needs_replicas
    has_outer = config.outer_dp_sharding_strategy in space.outer_dp_sharding_strategy
    return is_split and has_room and same_buckets and has_replicas and has_outer
