"""Parameters of the solver."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParams:
    """
    Limits, threads and seed of one solve.

    Parameters
    ----------
    time_limit_s
        Wall time limit, seconds; includes model building.
    gap_limit
        Stop when (objective - bound) / objective is at most this, in [0, 1).
    workers
        Search threads; ``None``: one per core.
    batch_size
        Largest number of candidate configurations in one model.
    first_slice_s
        Time limit of a batch's first model, seconds; doubles with each further model of the batch.
    log
        Whether CP-SAT writes its log to standard output.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int | None = None
    seed: int = 0
    batch_size: int = 4
    first_slice_s: float = 2.0
    log: bool = False

    def __post_init__(self) -> None:
        if not self.time_limit_s >= 0:
            raise ValueError(f"time_limit_s must be >= 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}.")
        if not self.first_slice_s > 0:
            raise ValueError(f"first_slice_s must be > 0, got {self.first_slice_s}.")

    @property
    def num_workers(self) -> int:
        """Number of search threads."""
        return self.workers or os.cpu_count() or 1
