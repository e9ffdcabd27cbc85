"""Advice on screens: options that pass Megatron's own checks beside the other options of a launch or plan."""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.export.checks import refuse_operations
from pipette_opt.export.training_options import further_options, offload_options, precision_options
from pipette_opt.parallel import ParallelConfig
from pipette_opt.read.megatron_conflicts import check_conflicts
from pipette_opt.read.megatron_options import option_values
from pipette_opt.read.model_words import model_options, options_of
from pipette_opt.simulate.paying import PayingOption
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import ON_MEGATRON_CORE


def lawful(paying: Sequence[PayingOption], instance: Instance, config: ParallelConfig) -> tuple[PayingOption, ...]:
    """
    Return the options that Megatron accepts in a launch; see :mod:`~pipette_opt.read.megatron_conflicts`.

    All options, if Megatron's options cannot express the launch; none for software that is not on Megatron-Core.
    """
    if instance.stack.family not in ON_MEGATRON_CORE:
        return ()
    try:
        ours = _options(instance, config)
    except InputError:
        return tuple(paying)
    return tuple(paid for paid in paying if _is_accepted(paid.option, ours))


def _is_accepted(option: str, ours: Mapping[str, Any]) -> bool:
    try:
        check_conflicts({**ours, **option_values(option, "the advice")}, "the advice")
    except InputError:
        return False
    return True


def _options(instance: Instance, config: ParallelConfig) -> dict[str, Any]:
    """Return the values of a launch's options by name; ``InputError`` if Megatron's options cannot express it."""
    model, training = instance.model, instance.training
    refuse_operations(config)
    options = options_of(
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        sequence_parallel=config.sequence_parallel,
        use_distributed_optimizer=config.use_distributed_optimizer,
        use_megatron_fsdp=config.sharding_stage > 1,
        overlap_grad_reduce=config.overlap_grad_reduce,
        overlap_param_gather=config.overlap_param_gather,
        tp_comm_overlap=config.tp_comm_overlap,
        recompute_granularity=config.recompute_granularity,
    )
    if config.recompute_granularity == "selective":
        options.append(("--recompute-modules", *config.recompute_modules))
    options += [*model_options(model, training), *precision_options(training, config)]
    options += offload_options(training, config)
    words = [word for option in [*options, *further_options(training, config, options)] for word in option]
    return option_values(shlex.join(words), "the launch")
