"""
A search space that a short time limit has time for.

To enumerate a configuration, to predict its memory and to bound its work takes a tenth of a millisecond, and a model
with experts has a hundred thousand of them. A time limit of a second cannot look at all. Then the space is made smaller
before the search, one dimension after the other, those first that rarely decide. What is left out is named in the
scope of the certificate, and the recorded space has the values that were searched, so that the plan can be verified.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipette_opt.candidates.enumeration import has_more_than
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.candidates.world_sizes import world_sizes
from pipette_opt.specs import Instance

CONFIGURATIONS_PER_S = 10_000
"""
Legal configurations for each second of the time limit. These take about half of it. Chosen by the whole job on 128
hosts in 60 s: with half as many the space had no context parallelism, and the plan was 3.7 % slower.
"""

FEW_SIZES = (1, 2, 4)
"""Micro-batch sizes that stay. Chosen: larger ones seldom fit where they would be faster."""

FEW_WORLD_SIZES = 3
"""Numbers of GPUs that stay at first, those with the least bounds; at last only the first stays. Chosen."""

FEW_CHUNKS = (1, 2)
"""Model chunks per stage that stay. Chosen."""


def narrowed(instance: Instance, space: SearchSpace, time_limit_s: float) -> SearchSpace:
    """
    The space, or as much of it as can be enumerated in about half of a time limit; what is pinned stays.

    The last step may still be too large. Recomputation, tensor, pipeline and data sizes stay free, as without them
    nothing may fit.
    """
    if time_limit_s == float("inf"):
        return space
    most = CONFIGURATIONS_PER_S * max(time_limit_s, 0.0)
    sizes = world_sizes(instance, space)
    for name, values in (*_fewer_sizes(space, FEW_WORLD_SIZES), *_steps(instance, space), *_fewer_sizes(space, 1)):
        if not has_more_than(instance, space, most, space.world_sizes or sizes):
            return space
        space = _with_values(space, name, values)
    return space


def few_values(instance: Instance, space: SearchSpace) -> SearchSpace:
    """The space with as few values as a time limit ever leaves, but for numbers of GPUs."""
    for name, values in _steps(instance, space):
        space = _with_values(space, name, values)
    return space


def _with_values(space: SearchSpace, name: str, values: Any) -> SearchSpace:
    return replace(space, narrowed=tuple(dict.fromkeys((*space.narrowed, name))), **{name: values})


def _fewer_sizes(space: SearchSpace, most: int) -> Iterator[tuple[str, Any]]:
    """The step to fewer numbers of GPUs, if there are more; their order is that in which they may win."""
    if len(space.world_sizes) > most:
        yield "world_sizes", space.world_sizes[:most]


def _steps(instance: Instance, space: SearchSpace) -> Iterator[tuple[str, Any]]:
    """Fields that are free, each with what stays of it, the one first that decides least often."""
    if space.context_parallel is None:
        yield "context_parallel", (1,)
    if space.virtual_pipeline is None:
        yield "virtual_pipeline", tuple(one for one in FEW_CHUNKS if one <= space.max_virtual_pipeline)
    if instance.model.num_experts is not None and space.expert_tensor_parallel is None:
        yield "expert_tensor_parallel", (1,)
    if space.micro_batch_size is None:
        batch = instance.training.global_batch_size
        few = tuple(one for one in FEW_SIZES if one <= space.max_micro_batch_size and batch % one == 0)
        yield "micro_batch_size", few
