"""
A search space that a short time limit has time for.

To enumerate a configuration, to predict its memory and to bound its work takes seven to nine times as long as to count
it, whatever the machine and its load: measured on llama-2-70b and mixtral-8x7b. So the space is counted first, and made
smaller while a share of the time limit is too short for that: one dimension after the other, those first that rarely
decide. What is left out is named in the scope of the certificate, and the recorded space has the values that were
searched, so that the plan can be verified.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pipette_opt.candidates.enumeration import is_counted
from pipette_opt.candidates.space import SearchSpace
from pipette_opt.candidates.world_sizes import world_sizes
from pipette_opt.specs import Instance

COUNTING_SHARE = 0.05
"""
Share of the time that is left in which a space can be counted, or else it is made smaller. All that comes before the
search takes about half of the time then. Chosen: with 0.1, ``replan`` of 24 hosts had 4 of 60 s left for its search.
"""

FEW_SIZES = (1, 2, 4)
"""Micro-batch sizes that stay. Chosen: larger ones seldom fit where they would be faster."""

FEW_WORLD_SIZES = 3
"""Numbers of GPUs that stay at first, those with the least bounds; at last only the first stays. Chosen."""

FEW_CHUNKS = (1, 2)
"""Model chunks per stage that stay. Chosen."""


def narrowed(instance: Instance, space: SearchSpace, time_limit_s: float) -> SearchSpace:
    """
    The space, or as much of it as a time limit has time for; what is pinned stays.

    The last step may still be too large. Recomputation, tensor, pipeline and data sizes stay free, as without them
    nothing may fit.
    """
    if time_limit_s == float("inf"):
        return space
    end_s = time.perf_counter() + time_limit_s
    sizes = world_sizes(instance, space)
    for name, values in (*_fewer_sizes(space, FEW_WORLD_SIZES), *_steps(instance, space), *_fewer_sizes(space, 1)):
        if is_counted(instance, space, space.world_sizes or sizes, _is_over(COUNTING_SHARE, end_s)):
            return space
        space = _with_values(space, name, values)
    return space


def _is_over(share: float, end_s: float) -> Callable[[], bool]:
    """Whether a share of the time from now to an end has passed."""
    now_s = time.perf_counter()
    enough_s = now_s + share * max(0.0, end_s - now_s)
    return lambda: time.perf_counter() >= enough_s


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
    if instance.model.num_experts is not None and space.expert_tensor_parallel is None:
        yield "expert_tensor_parallel", (1,)
    if space.micro_batch_size is None:
        batch = instance.training.global_batch_size
        few = tuple(one for one in FEW_SIZES if one <= space.max_micro_batch_size and batch % one == 0)
        yield "micro_batch_size", few
    if space.virtual_pipeline is None:
        yield "virtual_pipeline", tuple(one for one in FEW_CHUNKS if one <= space.max_virtual_pipeline)
