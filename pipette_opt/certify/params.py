"""Limits, accepted risk and objective of a search."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.types import Prefer
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs.objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeParams:
    """
    Limits, accepted risk and objective of a search.

    Parameters
    ----------
    time_limit_s
        Wall time of the whole search, seconds, from the enumeration on; kernel compilation does not count.
    gap_limit
        Stop when the gap is proven to be at most this, in [0, 1).
    workers
        Number of search threads.
    seed
        Random seed, in [0, 2^31).
    max_oom_risk
        Accepted probability of running out of memory; 1: memory does not count.
    num_alternatives
        Number of plans reported beside the best.
    regret_quantile
        (``Objective.REGRET``) Quantile of the regret over the worlds, in (0, 1); ``None``: its mean.
    to_beat_s
        Iteration time to beat, seconds: the search ends once no plan can be faster.
    prefer
        ``fastest``: the fastest plan found; ``simple``: the plainest plan within 1 % of it.
    today
        Configuration that runs today, which is plainer than others; ``None`` if unknown.
    host_order
        Host indices in the preferred order among equally fast plans; empty: as listed.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int = 2
    seed: int = 0
    max_oom_risk: float = USUAL_RISK
    num_alternatives: int = 5
    objective: Objective = Objective.TIME
    regret_quantile: float | None = None
    to_beat_s: float = float("inf")
    prefer: Prefer = "fastest"
    today: ParallelConfig | None = None
    host_order: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")
        if self.regret_quantile is not None and not 0 < self.regret_quantile < 1:
            raise ValueError(f"regret_quantile must be in (0, 1), got {self.regret_quantile}.")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2^31), got {self.seed}.")
        if not 0 < self.max_oom_risk <= 1:
            raise ValueError(f"max_oom_risk must be in (0, 1], got {self.max_oom_risk}.")
        if self.prefer not in get_args(Prefer):
            raise ValueError(f"prefer must be one of {', '.join(get_args(Prefer))}, got {self.prefer!r}.")
