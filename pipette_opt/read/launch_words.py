"""Command-line arguments of Megatron-LM for the parallel degrees of a launch."""

from collections.abc import Iterator, Mapping
from typing import Any

from pipette_opt.base.degrees import CONTEXT, CONTEXT_A2A, DEGREES
from pipette_opt.base.errors import InputError, shown

MEGATRON_NAMES = {degree.option: degree.megatron_option for degree in DEGREES}
"""Megatron-LM's names of the fields of a search space that are parallel degrees."""


def launch_words(degrees: Mapping[str, Any], megatron: Mapping[str, Any], where: str) -> list[str]:
    """
    Return the command-line arguments of a launch.

    Parameters
    ----------
    degrees
        Fields of a search space, each with the single value of the launch.
    megatron
        Other Megatron-LM options, by name with underscores. ``True`` is a flag; ``False`` and ``None`` omit the option;
        a list gives several words.
    where
        Start of the place in errors; the name of the field follows.

    Raises
    ------
    InputError
        For a field with several values, or that Megatron-LM has no single option for.
    """
    words: list[str] = []
    for name, value in degrees.items():
        several = isinstance(value, tuple)
        if several and len(value) != 1:
            raise InputError(
                f"{where}{name}", f"must be a single value, because a launch has no choice; got {shown(list(value))}."
            )
        words += _words(name, value[0] if several else value, f"{where}{name}", degrees)
    for name, value in megatron.items():
        words += option_words(name, value)
    return words


def _words(name: str, value: Any, where: str, degrees: Mapping[str, Any]) -> list[str]:
    """Return the Megatron-LM arguments of one search-space field."""
    if name in ("max_gpus", "offload"):
        problem = "has an effect on searches only; leave it out, or write the launch as Megatron's arguments in args."
        raise InputError(where, problem)
    if name == "data_parallel":
        sizes = [degrees.get(each, (1,))[0] for each in ("tensor_parallel", "pipeline_parallel", "context_parallel")]
        gpus = value * sizes[0] * sizes[1] * sizes[2]
        raise InputError(where, f"follows from the GPUs of a launch: write cluster.num_gpus: {gpus} in its place.")
    if name == "recompute":
        return _recomputation(value, where)
    if name == "data_parallel_sharding_strategy":
        return list(_sharding(value))
    if name == "overlap_p2p_communication":
        return [] if value else ["--no-overlap-p2p-communication"]
    if name == "virtual_pipeline" and value == 1:
        return []
    if name == CONTEXT_A2A.option:
        rings = degrees.get(CONTEXT.option, (1,))[0] // value
        return option_words("hierarchical_context_parallel_sizes", [value, rings])
    return option_words(MEGATRON_NAMES.get(name, name), value)


def _recomputation(value: str | None, where: str) -> list[str]:
    if value is None:
        return []
    if value == "full":
        return ["--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"]
    if value == "block":
        problem = (
            "leaves a choice, which a launch cannot have; write recompute_granularity, recompute_method "
            "and recompute_num_layers."
        )
        raise InputError(where, problem)
    modules = [] if value == "selective" else ["--recompute-modules", *value.split("+")]
    return ["--recompute-granularity", "selective", *modules]


def _sharding(strategy: str) -> Iterator[str]:
    if strategy == "optim":
        yield "--use-distributed-optimizer"
    elif strategy != "no_shard":
        yield from ("--use-megatron-fsdp", "--data-parallel-sharding-strategy", strategy)
        yield from ("--overlap-grad-reduce", "--overlap-param-gather")


def option_words(name: str, value: Any) -> list[str]:
    """Return a Megatron-LM option and its value as words; empty for ``False`` or ``None``."""
    if value in (None, False):
        return []
    values = [] if value is True else value if isinstance(value, list | tuple) else [value]
    return [f"--{name.replace('_', '-')}", *map(str, values)]
