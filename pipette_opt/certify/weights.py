"""
Objectives other than time: a factor of each configuration times its iteration time.

The factor takes few values, and the configurations below one of them are those within some limits. So the least of
factor times time is found by searches for the fastest plan alone. The first is of all configurations; the next is of
those with a smaller factor than the plan just found, and so on. What a search covers and the next does not has at least
the factor of the plan found there, and at least its lower bound of the time: their product bounds it. The least of
these products bounds the objective.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.chosen import Choice, ChoiceStep
from pipette_opt.read.bands import job_bands
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class Larger:
    """
    What configurations with more of something have as factor, at least.

    Parameters
    ----------
    name
        Property of a configuration (:data:`~pipette_opt.candidates.space.LIMITED`).
    most
        Up to this value the factor is not raised.
    """

    name: str
    most: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """
    The factor of each configuration: the largest of ``base`` and of those of ``larger`` that concern it.

    Parameters
    ----------
    base
        The least factor; positive.
    """

    base: float
    larger: tuple[Larger, ...]

    def factor(self, config: ParallelConfig) -> float:
        """The objective of a configuration over its iteration time."""
        return max([self.base, *(one.factor for one in self.larger if getattr(config, one.name) > one.most)])

    def limits_below(self, factor: float) -> tuple[str, ...] | None:
        """Limits that hold for just the configurations with a smaller factor than that; ``None`` if none has."""
        if self.base >= factor:
            return None
        return tuple(f"{one.name}<={one.most}" for one in self.larger if one.factor >= factor)

    @property
    def num_factors(self) -> int:
        """How many finite factors there are."""
        return len({self.base, *(max(one.factor, self.base) for one in self.larger)} - {float("inf")})


def robust_weights(instance: Instance) -> Weights:
    """Upper ends of the bands of a job's configurations, over the predicted time."""
    bands = job_bands(instance)
    num_gpus = sum(node.num_gpus for node in instance.cluster.nodes)
    farther = (*bands.beyond, *bands.more_gpus(num_gpus))
    return Weights(
        base=bands.ends()[1],
        larger=tuple(Larger(name=one.name, most=one.most, factor=bands.ends(one.variance)[1]) for one in farther),
    )


def choice_of(objective: Objective, weights: Weights, steps: Sequence[ChoiceStep], *, is_whole: bool) -> Choice:
    """
    What some steps prove.

    Parameters
    ----------
    is_whole
        Whether nothing is left below the factor of the last step.
    """
    values = [one.factor * one.iteration_time_s for one in steps]
    bounds = [one.factor * one.lower_bound_s for one in steps]
    rest = None if is_whole else weights.base
    if rest is not None:
        bounds.append(rest * steps[-1].lower_bound_s)
    value, bound = min(values), min([*bounds, *values])
    return Choice(
        objective=objective.value,
        value=value,
        lower_bound=bound,
        gap=(value - bound) / value,
        rest_factor=rest,
        steps=tuple(steps),
    )
