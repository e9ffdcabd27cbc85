"""What a plan is to be best at."""

from enum import StrEnum


class Objective(StrEnum):
    """
    What ``solve`` minimises or maximises.

    ``TIME``: seconds of an iteration, on all hosts or on as many as are worth it. ``TOKENS_PER_GPU``: tokens per second
    and GPU used, over every number of hosts. ``COST``: price of an iteration, by the prices of the hosts used.
    ``ROBUST``: the upper end of the band of the iteration time. ``PROGRESS``: tokens per second that are left of a job
    whose hosts are lost, over every number of hosts.
    """

    TIME = "time"
    TOKENS_PER_GPU = "tokens-per-gpu"
    COST = "cost"
    ROBUST = "robust"
    PROGRESS = "progress"

    @property
    def is_rate(self) -> bool:
        """Whether it is told as a rate, of which more is better."""
        return self in (Objective.TOKENS_PER_GPU, Objective.PROGRESS)
