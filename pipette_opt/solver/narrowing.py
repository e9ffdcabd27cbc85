"""
Search space narrowed to fit a short time limit.

The space is counted first, at its narrowest. As long as the time limit has room for its configurations, dimensions are
freed one after the other, most important first. The certificate names the values left out, and the recorded space has
the searched values, so that the plan can be verified.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pipette_opt.candidates.enumeration import num_legal
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.candidates.world_sizes import world_sizes
from pipette_opt.plans.clock import Clock
from pipette_opt.specs import Instance

LISTED_PER_SECOND = 2000
"""
Number of configurations that a search lists for each second of its time. Chosen.

Listing one and predicting its memory takes 60 to 110 microseconds on one core (8B on 8 GPUs to 405B on 1,024), so most
of the time is left for bounds and the proof. With 5,000, the joint model of deepseek-v3 on 256 GPUs had too little.

It is a number and not a time, so that equal limits search equal spaces.
"""

FEW_SIZES = (1, 2, 4)
"""Micro-batch sizes of a narrowed space; larger sizes seldom fit where they would be faster. Chosen."""

FEW_WORLD_SIZES = 3
"""Most numbers of GPUs in a narrowed space, the largest ones; the last step keeps one. Chosen."""

FEW_CHUNKS = (1, 2)
"""Numbers of model chunks per stage in a narrowed space. Chosen."""


def narrowed(instance: Instance, space: SearchSpace, clock: Clock) -> SearchSpace:
    """
    Return the widest search space with at most ``LISTED_PER_SECOND`` configurations for each second left; pinned values
    stay.

    The most narrow space may still be too large. Recomputation and tensor, pipeline and data sizes are never narrowed,
    since otherwise possibly no configuration fits.
    """
    if clock.ends_s == float("inf"):
        return space
    sizes, most = world_sizes(instance, space), LISTED_PER_SECOND * clock.left_s
    fewer, spaces = (*_fewer_sizes(space, FEW_WORLD_SIZES), *_fewer_sizes(space, 1)), [space]
    for name, values in (*_steps(instance, space), *fewer):
        spaces.append(_with_values(spaces[-1], name, values))
    chosen = spaces.pop()
    while spaces and num_legal(instance, spaces[-1], spaces[-1].world_sizes or sizes, most) <= most:
        chosen = spaces.pop()
    return chosen


def few_values(instance: Instance, space: SearchSpace) -> SearchSpace:
    """Return the search space as narrow as :func:`narrowed` can make it, except for numbers of GPUs."""
    for name, values in _steps(instance, space):
        space = _with_values(space, name, values)
    return space


def _with_values(space: SearchSpace, name: str, values: Any) -> SearchSpace:
    return replace(space, narrowed=tuple(dict.fromkeys((*space.narrowed, name))), **{name: values})


def _fewer_sizes(space: SearchSpace, most: int) -> Iterator[tuple[str, Any]]:
    """Yield a step that keeps the first ``most`` of ``space.world_sizes``, the likeliest to be fastest first."""
    if len(space.world_sizes) > most:
        yield "world_sizes", space.world_sizes[:most]


def _steps(instance: Instance, space: SearchSpace) -> Iterator[tuple[str, Any]]:
    """Yield open fields of the space with the values to keep, least important field first."""
    if space.context_parallel is None:
        yield "context_parallel", (1,)
    if instance.model.num_experts is not None and space.expert_tensor_parallel is None:
        yield "expert_tensor_parallel", (1,)
    if space.micro_batch_size is None:
        batch = instance.training.global_batch_size
        few = tuple(size for size in FEW_SIZES if size <= space.max_micro_batch_size and batch % size == 0)
        yield "micro_batch_size", few
    if space.virtual_pipeline is None:
        yield "virtual_pipeline", tuple(chunks for chunks in FEW_CHUNKS if chunks <= space.max_virtual_pipeline)
