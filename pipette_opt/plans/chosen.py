"""By which objective a plan was chosen, and what is proven about that."""

from dataclasses import dataclass

from pipette_opt.base.typed import Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceStep:
    """
    One search on the way: the fastest plan of the configurations that were not known to be worse by the objective.

    Parameters
    ----------
    limits
        Largest values of properties of a configuration that were searched.
    plan
        The fastest configuration of these, as text.
    factor
        Its objective over its iteration time. All configurations searched here, and not in the next step, have at least
        this factor.
    iteration_time_s, lower_bound_s
        Its time, and what no configuration searched here undercuts.
    """

    limits: tuple[str, ...]
    plan: str
    factor: float
    iteration_time_s: float
    lower_bound_s: float

    @property
    def value(self) -> float:
        """Objective of the fastest plan."""
        return self.factor * self.iteration_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    What is proven about the objective by which a plan was chosen.

    Parameters
    ----------
    objective
        ``robust``: the upper end of the band of the plan's time, in seconds.
    value
        Of the best plan found.
    lower_bound
        No plan of the steps has less.
    gap
        ``(value - lower_bound) / value``.
    rest_factor
        Least factor of the configurations that no further step searched, as their bound is enough; ``None`` where none
        are left.
    steps
        The searches, the widest first.
    shown_value
        Of the plan, where it is another than the fastest of its step; ``None``: the plan is the best.
    """

    objective: str
    value: float
    lower_bound: float
    gap: float
    rest_factor: float | None
    steps: tuple[ChoiceStep, ...]
    shown_value: Positive | None = None
