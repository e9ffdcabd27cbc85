"""Search space of a job, with the dimensions that options pin."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.offload import offload_of
from pipette_opt.candidates import SearchSpace, with_known
from pipette_opt.candidates.pins import given_text
from pipette_opt.job.read import Job
from pipette_opt.options.description import SpaceOptions, fields_of
from pipette_opt.options.names import option_name
from pipette_opt.specs.stack import ON_MEGATRON_CORE


def search_space(job: Job, options: SpaceOptions, base: SearchSpace | None = None) -> SearchSpace:
    """
    Return the search space of a job: the configurations to search, with those of the job's measured runs.

    Parameters
    ----------
    base
        Search space whose fields hold where an option is not given; ``None`` for the default space.

    Raises
    ------
    InputError
        For an option that has no effect on the job's model.
    """
    given = {
        name: value
        for name, field in fields_of(SpaceOptions).items()
        if (value := getattr(options, name)) != field.default
    }
    given |= _of_framework(job, given)
    _check_expert_sizes(job, options)
    if base is None:
        space = SearchSpace(**{"num_gpus": job.num_gpus, "tp_comm_overlap": job.tp_comm_overlap} | given)
    else:
        space = replace(base, num_gpus=job.num_gpus if base.num_gpus is None else base.num_gpus, **given)
    has_shards = any(offload_of(word).parameters for word in space.offload or ())
    if has_shards and job.instance.stack.family in ON_MEGATRON_CORE:
        problem = f"has parameters, which {job.instance.stack.name} does not keep in the hosts' memory"
        raise InputError(
            "--offload", f"{problem}; give --for accelerate, torchtitan or deepspeed; or --offload none,optimizer."
        )
    return functools.reduce(with_known, job.measured_configs, space)


def _of_framework(job: Job, given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the pins of what a framework can express, where options pin nothing.

    Raises ``InputError`` for an option with a value that the framework cannot express.
    """
    found: dict[str, Any] = dict(job.can_run)
    for name, value in given.items():
        allowed = found.pop(name, value)
        values = value if isinstance(value, tuple) else (value,)
        wrong = [each for each in values if each not in (allowed if isinstance(allowed, tuple) else (allowed,))]
        if wrong:
            can = f"it can have {given_text(allowed)}"
            raise InputError(
                option_name(name), f"has {given_text(tuple(wrong))}, which {job.framework} cannot run; {can}."
            )
    found.pop("offload", None)  # by default a search tries none beside the job's own
    return found


def _check_expert_sizes(job: Job, options: SpaceOptions) -> None:
    """Raise ``InputError`` for an expert size without effect, or that does not divide the experts or their columns."""
    model = job.instance.model
    limits = (
        ("--expert-parallel", options.expert_parallel, model.num_experts, "experts"),
        ("--expert-tensor-parallel", options.expert_tensor_parallel, model.expert_ffn_size, "columns of an expert"),
    )
    for option, sizes, whole, parts in limits:
        for size in sizes or ():
            if model.num_experts is None and size > 1:
                raise InputError(option, f"has no effect, because model {model.name} has no experts.")
            if model.num_experts is not None and whole is not None and whole % size:
                raise InputError(option, f"must divide the {whole} {parts} of model {model.name}, got {size}.")
