"""
Choice of the numbers of GPUs to search, if the job leaves it free: all numbers whose bounds allow the fastest plan.

A search in a small space over the numbers with the least bounds gives the time to beat. Numbers whose bound reaches it
cannot win. Their bounds are kept, so that a certificate covers all numbers of GPUs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from pipette_opt.candidates import SearchSpace, with_shared_parameters
from pipette_opt.costs.work import WorkBounds
from pipette_opt.plans.clock import Clock
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.solver.pruning import FirstPlan

PROMISING = 1.1
"""Numbers of GPUs with a bound up to this multiple of the least bound are searched for a time to beat. Chosen."""

MAX_PROMISING = 3
"""Largest count of different numbers of GPUs that are searched for a time to beat. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldSizes:
    """
    Numbers of GPUs to search, with their bounds.

    Parameters
    ----------
    space
        Search space with ``world_sizes``: the number of the fastest known plan first, then ascending bounds. Unchanged
        if no number of whole hosts is legal.
    first
        Fastest known plan; ``None`` if no plan is known.
    bounds_s
        Lower bound on the iteration time of each number of GPUs that was bounded, seconds.
    """

    space: SearchSpace
    first: FirstPlan | None
    bounds_s: Mapping[int, float]

    def left_out_s(self, space: SearchSpace) -> float:
        """Return a lower bound on plans with GPU numbers outside of the space, seconds; infinite if it has all."""
        return min(
            (bound_s for num_gpus, bound_s in self.bounds_s.items() if num_gpus not in space.world_sizes),
            default=float("inf"),
        )


def choose_world_sizes(
    work: WorkBounds,
    space: SearchSpace,
    clock: Clock,
    known: FirstPlan | Callable[[tuple[int, ...]], FirstPlan | None],
) -> WorldSizes:
    """
    Choose the numbers of GPUs to search, for a space that leaves them free.

    Parameters
    ----------
    work
        Cache of compute-only bounds of the job, extended by this call.
    clock
        Time limit. Numbers that it leaves without a bound, except the most promising, are left out; the space's
        ``narrowed`` then contains ``world_sizes``.
    known
        Known plan, or a function that finds a plan on one of these numbers of GPUs, or ``None``.
    """
    instance = work.instance
    least = LeastTimes(instance, with_shared_parameters(instance, space), work)
    bounds_s: dict[int, float] = {}

    def look_at(enough_s: Callable[[], float]) -> None:
        for num_gpus in least.numbers:
            if num_gpus not in bounds_s and least.at_peak_s(num_gpus) < enough_s() and not (bounds_s and clock.is_over):
                bounds_s[num_gpus] = least(num_gpus)

    if isinstance(known, FirstPlan):
        first: FirstPlan | None = known
    else:
        look_at(lambda: PROMISING * min(bounds_s.values(), default=float("inf")))
        promising = [size for size in sorted(bounds_s, key=bounds_s.__getitem__) if bounds_s[size] < float("inf")]
        first = known(tuple(promising[:MAX_PROMISING])) if promising else None
    to_beat_s = float("inf") if first is None else first.seconds
    look_at(lambda: to_beat_s)
    bounds_s |= {size: least.at_peak_s(size) for size in least.numbers if least.at_peak_s(size) >= to_beat_s}
    own = None if first is None else first.config.world_size
    able = [size for size, bound_s in bounds_s.items() if size == own or bound_s < to_beat_s]
    if not able:
        return WorldSizes(space=space, first=first, bounds_s={})
    narrowed = space.narrowed if len(bounds_s) == len(least.numbers) else (*space.narrowed, "world_sizes")
    sizes = tuple(sorted(able, key=lambda size: (size != own, bounds_s[size])))
    return WorldSizes(space=replace(space, world_sizes=sizes, narrowed=narrowed), first=first, bounds_s=bounds_s)
