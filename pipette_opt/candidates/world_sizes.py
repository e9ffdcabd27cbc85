"""Numbers of GPUs to search, if the user does not set one."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.combinations import combinations
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.parallel import microbatches_of
from pipette_opt.specs import Instance

NEARLY_AS_BUSY = 0.9
"""Smallest share of the largest number of busy GPUs; numbers of hosts below it are not searched. Chosen."""

MAX_WORLD_SIZES = 6
"""Most numbers of GPUs that are searched together. Chosen."""


def world_sizes(instance: Instance, space: SearchSpace) -> tuple[int, ...]:
    """
    Return the numbers of GPUs to search, largest first: ``space.num_gpus``, ``space.world_sizes``, or a guess.

    The guess has at most ``MAX_WORLD_SIZES`` numbers of hosts that keep nearly as many GPUs busy as the best one, which
    :func:`choose_num_gpus` finds. Other numbers are not proven to be slower, and the certificate says so.
    """
    if space.num_gpus is None and space.world_sizes:
        return tuple(sorted(space.world_sizes, reverse=True))
    busy_gpus = _busy(instance, space)
    chosen = choose_num_gpus(instance, space, busy_gpus)
    per_host = instance.cluster.gpus_per_node
    if space.num_gpus is not None or chosen < per_host:
        return (chosen,)
    busy = {chosen: busy_gpus(chosen)}
    for num_gpus in range(_most_gpus(instance, space) // per_host * per_host, 0, -per_host):
        if num_gpus < NEARLY_AS_BUSY * busy[chosen]:
            break
        busy.setdefault(num_gpus, busy_gpus(num_gpus))
    able = [size for size in busy if busy[size] >= NEARLY_AS_BUSY * busy[chosen]]
    most = sorted(able, key=lambda size: (-busy[size], size))[:MAX_WORLD_SIZES]
    return tuple(sorted(most, reverse=True))


def choose_num_gpus(instance: Instance, space: SearchSpace, busy_gpus: Callable[[int], float] | None = None) -> int:
    """
    Return ``space.num_gpus``, or else the number of GPUs in the whole hosts that keep most GPUs busy.

    More hosts do not pay if they force uneven stages or a deep pipeline. The rating of a number of hosts is the number
    of GPUs that its best legal configuration keeps busy::

        num_gpus * num_layers / (pp * largest stage) * m / (m + pp - 1)

    The ``m`` in the denominator is that of the replica with most micro-batches. Of equal ratings, fewer hosts win. With
    17 hosts of 8 GPUs, 80 layers and a batch of 512, 136 GPUs allow only pipelines of 17, 34 or 68 uneven stages, so 16
    hosts are used. Links and memory do not count; ``space.num_gpus`` overrides the rating.

    Parts of one host are used only if no whole host is legal. If nothing is legal, all GPUs are used, so that the
    reasons refer to the whole cluster. ``space.max_gpus`` limits the number in each case.

    Parameters
    ----------
    busy_gpus
        Rating of a number of GPUs, if some are known.

    Raises
    ------
    InputError
        If ``space.num_gpus`` is more than the cluster has, or neither whole hosts nor a part of one host.
    """
    per_host, num_nodes = instance.cluster.gpus_per_node, instance.cluster.num_nodes
    if space.num_gpus is not None:
        check_num_gpus(space.num_gpus, per_host, num_nodes)
        return space.num_gpus
    most, busy_gpus = _most_gpus(instance, space), busy_gpus or _busy(instance, space)
    most_whole = most // per_host * per_host
    for counts in (range(most_whole, 0, -per_host), range(min(per_host - 1, most), 0, -1)):
        most_busy, chosen = 0.0, None
        for num_gpus in counts:
            if most_busy > num_gpus:
                break
            busy = busy_gpus(num_gpus)
            if busy > 0.0 and busy >= most_busy:
                most_busy, chosen = busy, num_gpus
        if chosen is not None:
            return chosen
    return most_whole or most


def _most_gpus(instance: Instance, space: SearchSpace) -> int:
    """Return the largest number of GPUs that the cluster has and the search space allows."""
    available = instance.cluster.num_nodes * instance.cluster.gpus_per_node
    return available if space.max_gpus is None else min(available, space.max_gpus)


def _busy(instance: Instance, space: SearchSpace) -> Callable[[int], float]:
    """Return a function from a number of GPUs to its rating, see :func:`choose_num_gpus`; cached."""
    return cache(partial(_busy_gpus, instance, _smallest(space)))


def _busy_gpus(instance: Instance, space: SearchSpace, num_gpus: int) -> float:
    """Return the most GPUs that a legal configuration keeps busy, see :func:`choose_num_gpus`; 0 if none is legal."""
    # Overlapped all-to-alls need expert ranks and chunks, which the smallest space does not have.
    instance = replace(instance, training=replace(instance.training, overlap_moe_expert_parallel_comm=False))
    busiest = 0.0
    for configs, _, broken in combinations(instance, space, num_gpus):
        if not configs or broken:
            continue
        config = configs[0]
        pp, batch = config.pipeline_model_parallel_size, instance.training.global_batch_size
        most = microbatches_of(instance.training, config)
        mean = batch / (config.data_parallel_size * config.micro_batch_size)
        evenness = instance.model.num_layers / (pp * max(config.layers_per_stage))
        busiest = max(busiest, num_gpus * evenness * mean / (most + pp - 1))
    return busiest


def check_num_gpus(num_gpus: int, per_host: int, num_nodes: int) -> None:
    """Raise ``InputError`` for a number of GPUs that exceeds the cluster, or does not fill whole hosts."""
    available = per_host * num_nodes
    if num_gpus > available:
        raise InputError(
            "--num-gpus",
            f"must be at most the {num_nodes} x {per_host} = {available} GPUs of the cluster, got {num_gpus}.",
        )
    if num_gpus > per_host and num_gpus % per_host:
        below = num_gpus - num_gpus % per_host
        raise InputError(
            "--num-gpus",
            f"must fill whole hosts of {per_host} GPUs (or part of one), got {num_gpus}; "
            f"{below} or {below + per_host} would.",
        )


def _smallest(space: SearchSpace) -> SearchSpace:
    """
    Return the search space with open choices set to their least demanding value, to decide whether degrees are legal.

    A legal configuration stays legal without interleaving and with smaller micro-batches.
    """
    return replace(
        space,
        recompute=space.recompute[:1],
        use_distributed_optimizer=(False,),
        data_parallel_sharding_strategy=None,
        num_distributed_optimizer_instances=None,
        virtual_pipeline=space.virtual_pipeline or (1,),
        expert_parallel=space.expert_parallel or (1,),
        overlap_grad_reduce=False,
        overlap_param_gather=False,
        ddp_bucket_size=None,
        max_micro_batch_size=1,
    )
