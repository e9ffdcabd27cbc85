"""
Terms of a prediction: numbers that say how its time depends on unknown constants, and how the configuration looks.

The first terms are sensitivities, one for each group of constants in ``CHANGED``: the logarithm of the time with the
changed constants over the predicted time. The others are the ``FEATURES`` of job and configuration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2

import numpy as np

from pipette_opt.base.types import FloatArray, read_only
from pipette_opt.costs.placed import KnownCosts
from pipette_opt.costs.unplaced import costs_of
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.simulate.many import estimate_many
from pipette_opt.specs import Instance, StackSpec

CHANGED: Mapping[str, Mapping[str, float]] = {
    "matrix products": {"matmul_speed": 0.8},
    "attention": {"attention_speed": 0.7, "attention_backward_speed": 0.7, "flash1": 0.7},
    "element-wise kernels": {"elementwise": 1.5},
    "launches by the host": {"host_kernel_s": 2.0},
    "time of a micro-batch": {"micro_batch_s": 2.0},
    "start-up of collectives": {"collective_s": 2.0},
    "links inside a host": {"intra_node": 0.7},
    "links between hosts": {"inter_node": 0.7},
}
"""Factors on constants of the stack, by what they describe; a sensitivity is the effect of such a change. Chosen."""

WAIT, WAITS = "waits of tensor ranks", {"group_wait_s": 5e-7, "pipelined_wait_s": 2e-5}
"""Waits of tensor-parallel groups that a sensitivity adds; the shipped stack has none. Chosen, in seconds."""

OF_LINKS = ("start-up of collectives", "links inside a host", "links between hosts", WAIT)
"""Sensitivities to constants that change no cost but that of links."""

ITERATION = "time of an iteration"
"""Sensitivity to twice the ``iteration_s`` of the stack, which needs no simulation."""

SENSITIVITIES = (*CHANGED, WAIT, ITERATION)
"""Names of the sensitivities, in the order of the terms."""

LAYOUT = (
    "tensor parallelism",
    "pipeline parallelism",
    "data parallelism",
    "context parallelism",
    "expert parallelism",
    "micro-batch",
    "chunks",
    "full recomputation",
    "selective recomputation",
    "sharded parameters",
    "flex dispatcher",
    "overlapped experts",
)
"""Features of the layout; sizes are logarithms to base 2."""

JOB = (
    "GPUs",
    "hidden size",
    "layers",
    "sequence",
    "batch",
    "experts",
    "fp8",
    "Hopper",
    "Blackwell",
    "tuned recipes",
    "sharded outside Megatron",
)
"""Features of the job and its software; sizes are logarithms to base 2."""

OTHERS = ("constant", "other GPU", "tensor ranks over hosts", "interleaving", "allgather dispatcher")
"""Features that only have a slope."""

FEATURES = (*OTHERS, *LAYOUT, *JOB)
"""Names of the features, in the order of the terms."""

TERMS = (*SENSITIVITIES, *FEATURES)
"""Names of all terms."""

USUAL_GPUS = 16
"""Number of GPUs at which the feature of GPUs is zero, so that its slope says nothing of the constant. Chosen."""

HOPPER, BLACKWELL = "hopper", "blackwell"
USUAL_GENERATIONS = ("ampere", HOPPER, BLACKWELL)
"""Generations of GPUs that most public runs used; a GPU of any other generation, or of none, is another GPU."""


def describe(instance: Instance, placed: Sequence[tuple[ParallelConfig, Placement]]) -> tuple[FloatArray, FloatArray]:
    """
    Return predicted times and terms of placed configurations of one job.

    Returns
    -------
    tuple
        Predicted seconds, shape ``(num_configs,)``, and terms, shape ``(num_configs, num_terms)``. A time is infinite
        if the placement uses a link that was not measured; its sensitivities are zero.
    """
    costs: KnownCosts = {}
    stacks = stacks_of(instance.stack)
    times = np.empty((len(stacks), len(placed)))
    times[0] = estimate_many(instance, placed, costs)
    for number, name in enumerate(SENSITIVITIES[:-1], start=1):
        given = replace(instance, stack=stacks[number])
        known = costs
        if name not in OF_LINKS:
            known = {(config, kinds): costs_of(given, config, old, kinds) for (config, kinds), old in costs.items()}
        times[number] = estimate_many(given, placed, known)
    features = [features_of(instance, config) for config, _ in placed]
    return times[0], terms_of(times, np.full(len(placed), instance.stack.iteration_s), np.array(features))


@lru_cache(maxsize=8)
def described_plan(instance: Instance, config: ParallelConfig, placement: Placement) -> tuple[float, FloatArray]:
    """Return predicted seconds and terms, shape ``(num_terms,)``, of one placed configuration; the latest are kept."""
    times_s, terms = describe(instance, [(config, placement)])
    return float(times_s[0]), read_only(terms[0], np.float64)


def stacks_of(stack: StackSpec) -> list[StackSpec]:
    """Return the stack, and the stacks of the sensitivities that need a simulation."""
    changed = [
        {name: float(getattr(stack, name)) * factor for name, factor in factors.items()} for factors in CHANGED.values()
    ]
    waits = {name: getattr(stack, name) + added_s for name, added_s in WAITS.items()}
    return [stack, *(stack.with_constants(constants) for constants in (*changed, waits))]


def terms_of(times_s: FloatArray, iteration_s: FloatArray, features: FloatArray) -> FloatArray:
    """
    Return the terms of configurations, shape ``(num_configs, num_terms)``.

    Parameters
    ----------
    times_s
        Times by the stacks of :func:`stacks_of`, seconds, shape ``(num_stacks, num_configs)``.
    iteration_s
        Constant of that name of each configuration's stack, shape ``(num_configs,)``.
    features
        Features of each configuration, shape ``(num_configs, num_features)``.
    """
    finite = np.isfinite(times_s).all(axis=0)
    known = np.where(finite, times_s, 1.0)
    sensitivities = np.log(known[1:] / known[0])
    of_iteration = np.where(finite, np.log1p(iteration_s / known[0]), 0.0)
    return np.column_stack([sensitivities.T, of_iteration, features])


def features_of(instance: Instance, config: ParallelConfig) -> list[float]:
    """Return the ``FEATURES`` of a configuration of a job."""
    training, model, cluster = instance.training, instance.model, instance.cluster
    routed = model.num_experts is not None
    generation = cluster.nodes[0].gpu.generation
    dispatcher = training.moe_token_dispatcher_type if routed else ""
    others = (
        1.0,
        generation not in USUAL_GENERATIONS,
        config.tensor_model_parallel_size > cluster.gpus_per_node,
        config.num_chunks > 1,
        dispatcher == "allgather",
    )
    layout = (
        log2(config.tensor_model_parallel_size),
        log2(config.pipeline_model_parallel_size),
        log2(config.data_parallel_size),
        log2(config.context_parallel_size),
        log2(config.expert_model_parallel_size),
        log2(config.micro_batch_size),
        log2(config.num_chunks),
        config.recompute_granularity == "full",
        config.recompute_granularity == "selective",
        config.sharding_stage >= 3,
        dispatcher == "flex",
        routed and training.overlap_moe_expert_parallel_comm,
    )
    job = (
        log2(config.world_size / USUAL_GPUS),
        log2(model.hidden_size),
        log2(model.num_layers),
        log2(training.seq_length),
        log2(training.global_batch_size),
        routed,
        training.fp8,
        generation == HOPPER,
        generation == BLACKWELL,
        instance.stack.family == "recipes",
        instance.stack.family == "fsdp",
    )
    return [float(value) for value in (*others, *layout, *job)]
