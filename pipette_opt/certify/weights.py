"""
Objectives other than time: the iteration time times a factor of the configuration.

The factor takes few values. The configurations with a smaller factor than a given value are those within a few limits.
So searches for the fastest plan suffice. The first search is over all configurations; each further search is over those
with a smaller factor than the plan just found. A configuration that a search covers and the next does not has at least
the factor of the plan found. Its time is at least the search's lower bound. The product of the two bounds its
objective. The least of these products bounds the objective of all configurations.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.chosen import Choice, ChoiceStep
from pipette_opt.specs import Instance
from pipette_opt.specs.objective import Objective
from pipette_opt.worlds.bands import job_bands


@dataclass(frozen=True, slots=True, kw_only=True)
class Larger:
    """
    Least factor of configurations for which a property exceeds a limit.

    Parameters
    ----------
    name
        Property of a configuration (:data:`~pipette_opt.candidates.space.LIMITED`).
    most
        Largest value at which the factor is not raised.
    factor
        Least factor above that value.
    """

    name: str
    most: int
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """
    Factor of each configuration: the largest of ``base`` and of the entries of ``larger`` whose limit it exceeds.

    Parameters
    ----------
    base
        Least factor; positive.
    """

    base: float
    larger: tuple[Larger, ...]

    def factor(self, config: ParallelConfig) -> float:
        """Return the objective of a configuration per second of iteration time."""
        return max([self.base, *(above.factor for above in self.larger if getattr(config, above.name) > above.most)])

    def limits_below(self, factor: float) -> tuple[str, ...] | None:
        """Return the limits that select exactly the configurations below ``factor``; ``None`` if none is below."""
        if self.base >= factor:
            return None
        return tuple(f"{above.name}<={above.most}" for above in self.larger if above.factor >= factor)

    @property
    def num_factors(self) -> int:
        """Number of different finite factors."""
        return len({self.base, *(max(above.factor, self.base) for above in self.larger)} - {float("inf")})


def robust_weights(instance: Instance) -> Weights:
    """Return as factors the upper ends of the error bands of a job's configurations, relative to the predicted time."""
    bands = job_bands(instance)
    num_gpus = sum(node.num_gpus for node in instance.cluster.nodes)
    farther = (*bands.beyond, *bands.more_gpus(num_gpus))
    return Weights(
        base=bands.ends()[1],
        larger=tuple(
            Larger(name=beyond.name, most=beyond.most, factor=bands.ends(beyond.variance)[1]) for beyond in farther
        ),
    )


def choice_of(objective: Objective, weights: Weights, steps: Sequence[ChoiceStep], *, is_whole: bool) -> Choice:
    """
    Return the choice among the plans of several searches, with the bound on the objective that they prove.

    Parameters
    ----------
    is_whole
        Whether no configuration has a smaller factor than those of the last search.
    """
    values = [step.factor * step.iteration_time_s for step in steps]
    bounds = [step.factor * step.lower_bound_s for step in steps]
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
