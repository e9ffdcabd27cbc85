"""Choice of a plan by an objective other than its time, and the proof about that objective."""

from dataclasses import dataclass

from pipette_opt.base.typed import NotNegative, Positive, Share


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceStep:
    """
    One search of a choice, for the fastest plan among the configurations that may still be best by the objective.

    Parameters
    ----------
    limits
        Largest allowed values of properties of a configuration, as texts.
    plan
        Fastest configuration found, as text.
    factor
        Objective of that configuration over its iteration time. Every configuration of this search that the next search
        excludes has at least this factor.
    iteration_time_s, lower_bound_s
        Time of that configuration; lower bound on the times of all configurations of this search. Both in seconds.
    """

    limits: tuple[str, ...]
    plan: str
    factor: Positive
    iteration_time_s: Positive
    lower_bound_s: NotNegative

    @property
    def value(self) -> float:
        """Objective of the fastest plan that this search found."""
        return self.factor * self.iteration_time_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """
    Proof about the objective by which a plan was chosen.

    Parameters
    ----------
    objective
        Name of the objective; ``robust`` is the upper end of the band of the plan's time, in seconds.
    value
        Objective of the best plan found.
    lower_bound
        Lower bound on the objective of every plan in the searched space.
    gap
        ``(value - lower_bound) / value``.
    rest_factor
        Smallest ratio of objective to iteration time among the configurations that a bound excludes without a search;
        ``None`` if all were searched.
    steps
        Searches in order; each searches fewer configurations than the last.
    shown_value
        Objective of the plan, if a plainer plan was preferred to the best; ``None``: the plan is the best.
    """

    objective: str
    value: Positive
    lower_bound: NotNegative
    gap: Share
    rest_factor: float | None
    steps: tuple[ChoiceStep, ...]
    shown_value: Positive | None = None
