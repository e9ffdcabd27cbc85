"""Objective other than time by which a plan was chosen, and the proof about it."""

from dataclasses import dataclass

from pipette_opt.base.typed import NotNegative, Positive, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceStep:
    """
    One search: the fastest plan of the configurations not yet known to be worse by the objective.

    Parameters
    ----------
    limits
        Largest searched values of properties of a configuration.
    plan
        Fastest configuration of these, as text.
    factor
        Its objective over its iteration time. All configurations searched here, and not in the next step, have at least
        this factor.
    iteration_time_s, lower_bound_s
        Its time, and the lower bound on all configurations searched here, seconds.
    """

    limits: tuple[str, ...]
    plan: str
    factor: Positive
    iteration_time_s: Positive
    lower_bound_s: NotNegative

    @property
    def value(self) -> float:
        """Objective of the fastest plan."""
        return self.factor * self.iteration_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    Proof about the objective by which a plan was chosen.

    Parameters
    ----------
    objective
        ``robust``: upper end of the band of the plan's time, in seconds.
    value
        Objective of the best plan found.
    lower_bound
        Lower bound on the objective of all plans of the steps.
    gap
        ``(value - lower_bound) / value``.
    rest_factor
        Least factor of the configurations that no further step searched, as their bound suffices; ``None`` where none
        are left.
    steps
        Searches, the widest first.
    shown_value
        Objective of the plan, where it is not the fastest of its step; ``None``: the plan is the best.
    """

    objective: str
    value: Positive
    lower_bound: NotNegative
    gap: Share
    rest_factor: float | None
    steps: tuple[ChoiceStep, ...]
    shown_value: Positive | None = None
