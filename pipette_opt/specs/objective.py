"""Objectives: the quantity that ``solve`` optimises."""

from enum import StrEnum


class Objective(StrEnum):
    """
    Quantity that ``solve`` minimises or maximises.

    ``TIME``: seconds per iteration, on all hosts or on fewer where that is faster. ``TOKENS_PER_GPU``: tokens per
    second and GPU used, over every number of hosts. ``COST``: price of an iteration on the hosts used. ``ROBUST``:
    upper end of the band of the iteration time, over worlds (:mod:`pipette_opt.worlds`). ``PROGRESS``: tokens per
    second after losses from failing hosts, over every number of hosts. ``REGRET``: slowdown against the best
    configuration of each world, mean or quantile over the worlds.
    """

    TIME = "time"
    TOKENS_PER_GPU = "tokens-per-gpu"
    COST = "cost"
    ROBUST = "robust"
    PROGRESS = "progress"
    REGRET = "regret"

    @property
    def is_rate(self) -> bool:
        """Return whether the objective is a rate, which is maximised."""
        return self in (Objective.TOKENS_PER_GPU, Objective.PROGRESS)

    @property
    def is_over_worlds(self) -> bool:
        """Return whether the objective weighs the time of each configuration by worlds."""
        return self in (Objective.REGRET, Objective.ROBUST)
