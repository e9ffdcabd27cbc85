"""What is searched when hosts change: the hosts that are left, the old plan's pins, how many GPUs there may be."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from pipette_opt.candidates import SearchSpace, choose_num_gpus, space_of
from pipette_opt.candidates.legality import batch
from pipette_opt.parallel import OVERLAPS
from pipette_opt.plans.plan import Plan
from pipette_opt.specs import Instance


def pinned_space(old: Plan) -> SearchSpace:
    """What the user pinned when the plan was made: the recorded space without what the search itself chose."""
    recorded = old.inputs.get("search")
    if not isinstance(recorded, Mapping):
        return SearchSpace()
    space, free = space_of(recorded), SearchSpace()
    found = ("narrowed", "more_splits", "more_layouts", "num_gpus")
    chosen = {name: getattr(free, name) for name in (*space.narrowed, *found)}
    return replace(space, **chosen)


def void_pins(old: Plan, num_gpus: int) -> tuple[str, ...]:
    """
    Degrees that were pinned, or are the old plan's, and that so many GPUs cannot keep, as fields of the space.

    The number of replicas holds only as long as the number of GPUs does. Of the other degrees some are given up, the
    pipeline's first, until the rest divides the GPUs.
    """
    space = kept_space(old)
    void = [] if num_gpus == old.config.world_size else ["data_parallel"]
    degrees = ["pipeline_parallel", "context_parallel", "tensor_parallel"]
    while degrees:
        choices = itertools.product(*(getattr(space, name) or (1,) for name in degrees))
        if any(num_gpus % math.prod(some) == 0 for some in choices):
            break
        void.append(degrees.pop(0))
    return tuple(name for name in void if getattr(space, name) is not None)


def kept_space(old: Plan) -> SearchSpace:
    """The pins of the old plan, and its context parallelism."""
    space = pinned_space(old)
    return replace(space, context_parallel=space.context_parallel or (old.config.context_parallel_size,))


def space_for(old: Plan, num_gpus: int | None) -> SearchSpace:
    """
    The space of a plan on other hosts: the pins of the old one, and its context parallelism.

    Degrees that the number of GPUs makes void are free (:func:`void_pins`). What is sent beside compute is kept if it
    was pinned, or if the old plan does not say what was; else it is chosen again, as it moves no parameters. The layers
    of the old stages are among the splits, so that hosts can keep what they hold.
    """
    space, config = kept_space(old), old.config
    free: dict[str, Any] = dict.fromkeys(("data_parallel",) if num_gpus is None else void_pins(old, num_gpus))
    space = replace(space, **free)
    if "search" not in old.inputs:
        space = replace(space, **{name: getattr(config, name) for name in (*OVERLAPS, "overlap_p2p_communication")})
    layout = config.pipeline_model_parallel_layout
    layouts = () if layout is None else (layout,)
    return replace(space, num_gpus=num_gpus, more_splits=(config.layers_per_stage,), more_layouts=layouts)


def world_sizes(instance: Instance, old: Plan, num_gpus: int | None) -> list[int]:
    """
    World sizes to look at.

    The old one while there are hosts enough. Else what the search would choose for a new job, and the most replicas of
    the old pipeline that the batch can be divided into, which lets every surviving host keep what it holds.
    """
    if num_gpus is not None:
        return [num_gpus]
    cluster, config = instance.cluster, old.config
    available = cluster.num_nodes * cluster.gpus_per_node
    if config.world_size <= available:
        return [config.world_size]
    sizes = [choose_num_gpus(instance, space_for(old, None))]
    replica = config.world_size // config.data_parallel_size
    for replicas in range(available // replica, 0, -1):
        size, fewer = replicas * replica, replace(config, data_parallel_size=replicas)
        if batch(instance.model, instance.training, fewer) is None and size % cluster.gpus_per_node == 0:
            return list(dict.fromkeys([*sizes, size]))
    return sizes


def unequal_instance(instance: Instance, old: Plan, sizes: Sequence[int]) -> Instance | None:
    """The job with unequal micro-batches, if equal ones leave GPUs idle that then would not be; else ``None``."""
    if instance.training.unequal_microbatches or old.config.world_size in sizes:
        return None
    allowed = replace(instance, training=replace(instance.training, unequal_microbatches=True))
    return allowed if world_sizes(allowed, old, None)[0] > max(sizes) else None
