"""Reading and writing the parallel configuration of ``plan.json``."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, get_args

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import RecomputeGranularity, RecomputeMethod
from pipette_opt.parallel import ParallelConfig
from pipette_opt.parallel.config import OuterSharding
from pipette_opt.report.entries import Entries, damaged


def config_to_dict(config: ParallelConfig, global_batch_size: int) -> dict[str, Any]:
    """Return the configuration with its world size, batch and number of micro-batches."""
    lists = ("layers_per_stage", "recompute_modules")
    content = asdict(config) | {name: list(getattr(config, name)) for name in lists}
    return {
        **content,
        "world_size": config.world_size,
        "global_batch_size": global_batch_size,
        "num_microbatches": config.num_microbatches(global_batch_size, unequal=True),
    }


def read_config(parallel: Entries) -> tuple[ParallelConfig, int]:
    """Read the configuration and the global batch size. ``InputError`` if a derived field contradicts them."""
    degrees: dict[str, Any] = {
        name: parallel.whole(name, minimum=1)
        for name in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "data_parallel_size",
            "context_parallel_size",
            "expert_model_parallel_size",
            "micro_batch_size",
        )
    }
    global_batch_size = parallel.whole("global_batch_size", minimum=1)
    chunks = "virtual_pipeline_model_parallel_size"
    recompute: RecomputeGranularity | None = parallel.optional(
        "recompute_granularity", lambda name: parallel.choice(name, get_args(RecomputeGranularity))
    )
    try:
        config = ParallelConfig(
            **degrees,
            layers_per_stage=tuple(parallel.wholes("layers_per_stage")),
            virtual_pipeline_model_parallel_size=parallel.optional(chunks, parallel.whole),
            sequence_parallel=parallel.flag("sequence_parallel"),
            recompute_granularity=recompute,
            use_distributed_optimizer=parallel.flag("use_distributed_optimizer"),
            **_later_fields(parallel),
        )
        num_microbatches = config.num_microbatches(global_batch_size, unequal=True)
    except InputError:
        raise
    except ValueError as error:
        raise damaged(parallel.where, parallel.path, f"does not hold together: {error}") from None
    for name, expected in (("world_size", config.world_size), ("num_microbatches", num_microbatches)):
        found = parallel.whole(name)
        if found != expected:
            raise damaged(parallel.where, parallel.at(name), f"is {found}, but the degrees give {expected}.")
    return config, global_batch_size


def _later_fields(parallel: Entries) -> dict[str, Any]:
    """Read the fields that files of the current version may lack; absent fields keep their defaults."""
    readers: dict[str, Callable[[str], Any]] = {
        "recompute_method": lambda name: parallel.choice(name, get_args(RecomputeMethod)),
        "recompute_num_layers": lambda name: parallel.whole(name, minimum=1),
        "recompute_modules": lambda name: tuple(parallel.texts(name)),
        "expert_tensor_parallel_size": lambda name: parallel.optional(name, parallel.whole),
        "zero_stage": lambda name: parallel.optional(name, parallel.whole),
        "num_distributed_optimizer_instances": lambda name: parallel.whole(name, minimum=1),
        "outer_dp_sharding_strategy": lambda name: parallel.choice(name, get_args(OuterSharding)),
        "overlap_grad_reduce": parallel.flag,
        "overlap_param_gather": parallel.flag,
        "ddp_bucket_size": lambda name: parallel.optional(name, parallel.whole),
        "overlap_p2p_communication": parallel.flag,
        "offload": lambda name: parallel.optional(name, parallel.text),
        "tp_comm_overlap": parallel.flag,
        "pipeline_model_parallel_layout": lambda name: parallel.optional(name, parallel.text),
    }
    return {name: read(name) for name, read in readers.items() if name in parallel.data}
