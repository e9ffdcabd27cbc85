"""Search space for changed hosts: the pinned options of the old plan, as far as the remaining hosts allow."""

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
    Return the search space that the user pinned, without the choices that the search itself made.

    A pinned number of GPUs becomes the maximum.
    """
    recorded = old.inputs.get("search")
    if not isinstance(recorded, Mapping):
        return SearchSpace()
    space, free = space_of(recorded), SearchSpace()
    found = (
        "narrowed",
        "more_splits",
        "more_layouts",
        "more_configs",
        "near",
        "world_sizes",
        "others_below_s",
        "num_gpus",
    )
    chosen = {name: getattr(free, name) for name in (*space.narrowed, *found)}
    most = space.max_gpus if "num_gpus" in space.narrowed else space.num_gpus or space.max_gpus
    return replace(space, **(chosen | {"max_gpus": most}))


def sizes_of(cluster: ClusterSpec) -> tuple[int, ...]:
    """Return the numbers of GPUs of all numbers of hosts, the largest first."""
    per_host = cluster.gpus_per_node
    return tuple(range(cluster.num_nodes * per_host, 0, -per_host))


def void_pins(old: Plan, sizes: Sequence[int]) -> tuple[str, ...]:
    """
    Return the fields of pinned degrees that no number of GPUs in ``sizes`` can satisfy.

    The pinned number of replicas is void unless the old number of GPUs is in ``sizes``. Other degrees are given up in
    the order pipeline, context, tensor, until the product of the rest divides a number of GPUs.
    """
    space = pinned_space(old)
    void = [] if old.config.world_size in sizes else ["data_parallel"]
    degrees = ["pipeline_parallel", "context_parallel", "tensor_parallel"]
    while degrees:
        choices = list(itertools.product(*(getattr(space, name) or (1,) for name in degrees)))
        if any(size % math.prod(sizes_of_degrees) == 0 for size in sizes for sizes_of_degrees in choices):
            break
        void.append(degrees.pop(0))
    return tuple(name for name in void if getattr(space, name) is not None)


def space_for(old: Plan, cluster: ClusterSpec, num_gpus: int | None = None) -> SearchSpace:
    """
    Return the search space of a plan on other hosts: the pinned options except the void ones (:func:`void_pins`).

    Overlap options stay pinned if they were pinned, or if the old plan does not record the search; otherwise they are
    searched again, since they move no parameters. The old layers per stage are added, so that hosts can keep their
    parameters.

    Parameters
    ----------
    num_gpus
        Number of GPUs to use; ``None`` for the fastest.
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
    Return the old configuration with other numbers of replicas, so that every host can keep its parameters.

    The numbers are the old one if enough hosts remain, and the largest that divides the batch. Each is returned with
    the old and with full recomputation, because fewer replicas share the optimizer states.
    """
    cluster, config = instance.cluster, old.config
    replica = config.world_size // config.data_parallel_size
    sizes = sizes_of(cluster) if num_gpus is None else (num_gpus,)
    sized = [_in_replicas(config, size // replica) for size in sizes if size % replica == 0]
    able = [other for other in sized if not broken_rules(instance.model, instance.training, other)]
    chosen = [*able[:1], *(other for other in able if other.data_parallel_size == config.data_parallel_size)]
    full = [replace(without_recomputation(other), **recomputation_fields("full")) for other in chosen]
    return tuple(dict.fromkeys((*chosen, *full)))


def _in_replicas(config: ParallelConfig, number: int) -> ParallelConfig:
    """Return the configuration with ``number`` replicas; for 1, without shared optimizer and overlap."""
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
    """Return the job with unequal micro-batches if they use GPUs that equal ones leave idle; else ``None``."""
    if instance.training.unequal_microbatches or old.config.world_size in sizes_of(instance.cluster):
        return None
    allowed = replace(instance, training=replace(instance.training, unequal_microbatches=True))
    space = space_for(old, instance.cluster)
    return allowed if choose_num_gpus(allowed, space) > choose_num_gpus(instance, space) else None
