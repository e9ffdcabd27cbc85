"""What is searched when hosts change: the old plan's pins as far as the hosts that are left can keep them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipette_opt.candidates import SearchSpace, broken_rules, choose_num_gpus, space_of
from pipette_opt.parallel import OVERLAPS, ParallelConfig, without_overlap, without_recomputation
from pipette_opt.parallel.recompute import recomputation_fields
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import ClusterSpec, Instance


def pinned_space(old: Plan) -> SearchSpace:
    """
    What the user pinned when the plan was made: the recorded space without what the search itself chose.

    A pinned number of GPUs is the most that may be used.
    """
    recorded = old.inputs.get("search")
    if not isinstance(recorded, Mapping):
        return SearchSpace()
    space, free = space_of(recorded), SearchSpace()
    found = ("narrowed", "more_splits", "more_layouts", "more_configs", "world_sizes", "num_gpus")
    chosen = {name: getattr(free, name) for name in (*space.narrowed, *found)}
    most = space.max_gpus if "num_gpus" in space.narrowed else space.num_gpus or space.max_gpus
    return replace(space, **(chosen | {"max_gpus": most}))


def sizes_of(cluster: ClusterSpec) -> tuple[int, ...]:
    """Numbers of GPUs of whole hosts, the most first."""
    per_host = cluster.gpus_per_node
    return tuple(range(cluster.num_nodes * per_host, 0, -per_host))


def void_pins(old: Plan, sizes: Sequence[int]) -> tuple[str, ...]:
    """
    Pinned degrees that none of these numbers of GPUs can keep, as fields of the space.

    The number of replicas holds only as long as the number of GPUs can. Of the other degrees some are given up, the
    pipeline's first, until the rest divides a number of GPUs.
    """
    space = pinned_space(old)
    void = [] if old.config.world_size in sizes else ["data_parallel"]
    degrees = ["pipeline_parallel", "context_parallel", "tensor_parallel"]
    while degrees:
        choices = list(itertools.product(*(getattr(space, name) or (1,) for name in degrees)))
        if any(size % math.prod(some) == 0 for size in sizes for some in choices):
            break
        void.append(degrees.pop(0))
    return tuple(name for name in void if getattr(space, name) is not None)


def space_for(old: Plan, cluster: ClusterSpec, num_gpus: int | None = None) -> SearchSpace:
    """
    The space of a plan on other hosts: the pins of the old one, but for those that are void (:func:`void_pins`).

    What is sent beside compute is kept if it was pinned, or if the old plan does not say what was; else it is chosen
    again, as it moves no parameters. The layers of the old stages are among the splits, so that hosts can keep what
    they hold.

    Parameters
    ----------
    num_gpus
        GPUs to use; ``None`` for the number that is fastest.
    """
    config = old.config
    free: dict[str, Any] = dict.fromkeys(void_pins(old, sizes_of(cluster) if num_gpus is None else [num_gpus]))
    space = replace(pinned_space(old), **free)
    if num_gpus is not None:
        space = replace(space, max_gpus=None, num_gpus=num_gpus)
    if "search" not in old.inputs:
        space = replace(space, **{name: getattr(config, name) for name in (*OVERLAPS, "overlap_p2p_communication")})
    layout = config.pipeline_model_parallel_layout
    layouts = () if layout is None else (layout,)
    return replace(space, more_splits=(config.layers_per_stage,), more_layouts=layouts)


def kept_configs(instance: Instance, old: Plan, num_gpus: int | None = None) -> tuple[ParallelConfig, ...]:
    """
    The old pipeline in as many replicas as there are now, so that every host can go on with what it holds.

    The old number of replicas where there are hosts enough, and the most that the batch can be divided into; each with
    the old recomputation, and with full recomputation, as fewer replicas share the optimizer.
    """
    cluster, config = instance.cluster, old.config
    replica = config.world_size // config.data_parallel_size
    sizes = sizes_of(cluster) if num_gpus is None else (num_gpus,)
    sized = [_in_replicas(config, size // replica) for size in sizes if size % replica == 0]
    able = [one for one in sized if not broken_rules(instance.model, instance.training, one)]
    chosen = [*able[:1], *(one for one in able if one.data_parallel_size == config.data_parallel_size)]
    full = [replace(without_recomputation(one), **recomputation_fields("full")) for one in chosen]
    return tuple(dict.fromkeys((*chosen, *full)))


def _in_replicas(config: ParallelConfig, number: int) -> ParallelConfig:
    """The configuration in another number of replicas; one alone shares and overlaps nothing."""
    found = replace(config, data_parallel_size=number)
    if number * config.context_parallel_size > 1:
        return found
    unshared = None if config.zero_stage is None else 0
    return replace(
        without_overlap(found),
        use_distributed_optimizer=False,
        zero_stage=unshared,
        num_distributed_optimizer_instances=1,
        outer_dp_sharding_strategy="no_shard",
    )


def unequal_instance(instance: Instance, old: Plan) -> Instance | None:
    """The job with unequal micro-batches, if equal ones may leave GPUs idle that then would not be; else ``None``."""
    if instance.training.unequal_microbatches or old.config.world_size in sizes_of(instance.cluster):
        return None
    allowed = replace(instance, training=replace(instance.training, unequal_microbatches=True))
    space = space_for(old, instance.cluster)
    return allowed if choose_num_gpus(allowed, space) > choose_num_gpus(instance, space) else None
