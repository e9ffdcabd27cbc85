"""How long and where to search, and how long all threads or processes anneal first."""

from collections.abc import Callable
from dataclasses import dataclass

from pipette_opt.problem.data import ProblemData

FIRST_SHARE, FIRST_S_PER_HOST, MOST_FIRST_S = 0.2, 0.03, 10.0
"""How long all threads anneal first: share of the limit, seconds per host, most seconds."""

SEED_STEP = 1000
"""Between the seeds of threads and pieces."""

OnProgress = Callable[[float, int | None, int], None]
"""Called with seconds since the start, the incumbent's ticks (``None`` before the first) and the bound's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchParams:
    """
    How long and where to search.

    Parameters
    ----------
    time_limit_s
        Wall time of annealing and proof together.
    gap_limit
        Stop when (objective - bound) / objective is at most this.
    workers
        Threads; of no effect with a backend, which has its own number.
    engines
        Names of the solver's engines that may work; all by default.
    first_s
        How long all threads anneal before anything is proven; by default as long as the number of hosts calls for.
    deterministic
        The same seed and workers give the same result wherever the time limit does not strike first: annealing is
        limited by moves and comes before the proof.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int = 2
    seed: int = 0
    deterministic: bool = False
    engines: tuple[str, ...] | None = None
    first_s: float | None = None

    def __post_init__(self) -> None:
        if not self.time_limit_s >= 0:
            raise ValueError(f"time_limit_s must be >= 0, got {self.time_limit_s}.")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")


def first_annealing_s(data: ProblemData, params: SearchParams) -> float:
    """How long all threads anneal before anything is proven."""
    if params.first_s is not None:
        return params.first_s
    return min(FIRST_SHARE * params.time_limit_s, FIRST_S_PER_HOST * data.num_nodes, MOST_FIRST_S)
