"""Instance and configuration of a given Megatron-LM launch."""

from dataclasses import replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.candidates.legality import broken_rules
from pipette_opt.costs.compute import check_timed
from pipette_opt.job.models import check_tokens
from pipette_opt.job.read import Job, check_software
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.megatron_numbers import option_of
from pipette_opt.specs import ClusterSpec, Instance


def as_trained(job: Job, given: MegatronArgs) -> Instance:
    """
    Return the job's instance with the number formats, kernels and token dispatcher of a launch.

    Raises
    ------
    InputError
        If batch size, sequence length or precision of the launch differ from the job's, or the software of a launch in
        a file.
    """
    where, instance = given.where, job.instance
    check_software(instance.stack, given)
    if given.precision not in (None, instance.training.precision):
        raise InputError(
            where,
            f"train in {given.precision}, but the job trains in {instance.training.precision}; give both the "
            "same precision.",
        )
    if given.fp8 != instance.training.fp8 and (given.fp8 or given.precision is not None):
        unlike = (
            "have --fp8-format, but the job has no --fp8; give --fp8, too."
            if given.fp8
            else "have no --fp8-format, but the job has --fp8; leave --fp8 out, or add --fp8-format."
        )
        raise InputError(where, unlike)
    check_tokens(instance.training, given, "job")
    training = given.training(instance.training)
    if instance.model.num_experts is not None:
        training = replace(training, moe_token_dispatcher_type=given.moe_token_dispatcher_type or "allgather")
    return replace(instance, training=training)


def legal_config(instance: Instance, given: MegatronArgs, num_gpus: int) -> ParallelConfig:
    """
    Return the configuration of a launch on ``num_gpus`` GPUs.

    A ``--pipeline-model-parallel-layout`` may split the layers in any way.

    Raises
    ------
    InputError
        If the configuration breaks legality rules (the error lists all of them), or has no time model.
    """
    if given.are_overrides and instance.model.num_experts and "expert_model_parallel_size" not in given.options:
        problem = "does not override model.expert_model_parallel_size, which its recipe sets for a model with experts"
        raise InputError(given.where, f"{problem}; add it.")
    config = given.parallel_config(instance.model.num_layers, num_gpus)
    ours = instance.training.global_batch_size
    if given.replica_batch_size is not None and given.batch_on(num_gpus) != ours:
        problem = f"has {given.batch_on(num_gpus)} sequences an iteration on {num_gpus} GPUs, but the job has {ours}"
        raise InputError(given.where, f"{problem}; give both the same batch size.")
    broken = broken_rules(instance.model, instance.training, config)
    if given.pipeline_layout is not None or given.even_parts is not None:
        broken.pop("layers", None)
    if broken:
        reasons = "; ".join(broken.values())
        raise InputError(given.where, f"{config.label()} cannot run on {config.world_size} GPUs: {reasons}.")
    try:
        check_timed(instance.model, config)
    except InputError as error:
        raise InputError(given.where, f"{option_of(error.where)}: {error.problem}") from None
    return config


def exported_placement(given: MegatronArgs, config: ParallelConfig, cluster: ClusterSpec) -> Placement | None:
    """Return the placement that an exported launch names; ``None`` if it names none for these GPUs and hosts."""
    hosts, gpus = {host for host, _ in given.ranks}, {gpu for _, gpu in given.ranks}
    if len(set(given.ranks)) != config.world_size or len(given.ranks) != config.world_size:
        return None
    if not hosts <= set(cluster.hosts) or max(gpus) >= cluster.gpus_per_node:
        return None
    return Placement(
        order=given.rank_order,
        node=np.array([cluster.hosts.index(host) for host, _ in given.ranks]),
        local_rank=np.array([gpu for _, gpu in given.ranks]),
    )
