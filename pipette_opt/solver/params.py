"""How the solver may work."""

import os
from dataclasses import dataclass

MODEL = ("cp-sat-by-host", "cp-sat-by-pair")
"""The CP-SAT model that names the hosts, in its two formulations."""

RELAXATIONS = ("column-types", "class-assignment")
"""Engines that merge hosts into classes, or into racks and kinds."""

SEARCHES = ("subset-dp", "tree-search")
"""Engines that name the hosts without CP-SAT."""

ENGINES = (*SEARCHES, *RELAXATIONS, *MODEL)
"""All engines by name; :mod:`~pipette_opt.solver.portfolio` says which works when."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParams:
    """
    Limits and reproducibility.

    Parameters
    ----------
    time_limit_s
        Wall time, model building included.
    gap_limit
        Stop when (objective - bound) / objective is at most this.
    workers
        Search threads; ``None`` for one per core.
    seed
        Of the search.
    deterministic
        Search in a fixed interleaving, limited by work done instead of time: the same seed and the same number of
        workers give the same result wherever ``time_limit_s`` does not strike first. Otherwise the result can
        depend on the timing of threads, and only the status of a finished proof is sure to be the same.
    batch_size
        Candidates in one model at most.
    first_slice_s
        Time of a batch's first model; it doubles each time the batch comes back.
    engines
        Names of the engines that may work, of :data:`ENGINES`. Without some less is proven, nothing wrong. A
        deterministic search uses the CP-SAT model only, as the others take what time allows.
    log
        Whether CP-SAT writes its log to standard output.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int | None = None
    seed: int = 0
    deterministic: bool = False
    batch_size: int = 4
    first_slice_s: float = 2.0
    engines: tuple[str, ...] = ENGINES
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

        unknown = [name for name in self.engines if name not in ENGINES]
        if unknown:
            raise ValueError(f"engines must be of {', '.join(ENGINES)}, got {', '.join(unknown)}.")

    @property
    def working(self) -> tuple[str, ...]:
        """Names of the engines that work."""
        return tuple(name for name in self.engines if name in MODEL or not self.deterministic)

    @property
    def num_workers(self) -> int:
        """Search threads."""
        return self.workers or os.cpu_count() or 1
