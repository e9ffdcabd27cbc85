"""How the solver may work."""

import os
from dataclasses import dataclass

MODEL = ("cp-sat-model",)
"""The CP-SAT model that names the hosts."""

PROVERS = ("class-assignment", *MODEL)
"""Engines that prove bounds."""

ENGINES = ("annealing", *PROVERS)
"""All engines by name; :mod:`~pipette_opt.solver.portfolio` says which works when."""

ANNEALED_SHARE = 0.2
"""Share of the time limit in which all threads anneal before anything is proven, at most. Chosen."""

ANNEALED_S_PER_HOST = 0.03
"""Seconds for each host listed, for the same. Chosen."""

MOST_ANNEALED_S = 10.0
"""Largest number of seconds for the same. Chosen."""

POLISHED_S = 0.5
"""Largest number of seconds in which the incumbent is annealed at the end. Chosen."""

POLISHED_SHARE = 0.1
"""Share of the time that has passed, for the same. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SolverParams:
    """
    Limits and reproducibility.

    Parameters
    ----------
    time_limit_s
        Wall time of annealing and proof together, model building included.
    gap_limit
        Stop when (objective - bound) / objective is at most this.
    workers
        Search threads; ``None`` for one per core. Processes of a backend have their own number.
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
        deterministic search anneals a fixed number of moves first, and then uses the CP-SAT model only, as the others
        take what time allows.
    first_s
        Seconds in which all threads anneal before anything is proven; by default as many as the number of hosts calls
        for.
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
    first_s: float | None = None
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
        if self.first_s is not None and not self.first_s >= 0:
            raise ValueError(f"first_s must be >= 0, got {self.first_s}.")
        unknown = [name for name in self.engines if name not in ENGINES]
        if unknown:
            raise ValueError(f"engines must be of {', '.join(ENGINES)}, got {', '.join(unknown)}.")

    @property
    def working(self) -> tuple[str, ...]:
        """Names of the engines that work."""
        repeatable = ("annealing", *MODEL)
        return tuple(name for name in self.engines if name in repeatable or not self.deterministic)

    @property
    def anneals(self) -> bool:
        """Whether annealing works."""
        return "annealing" in self.engines

    def first_annealing_s(self, num_nodes: int) -> float:
        """Seconds in which all threads anneal before anything is proven, by the number of hosts listed."""
        if self.first_s is not None:
            return self.first_s
        return min(ANNEALED_SHARE * self.time_limit_s, ANNEALED_S_PER_HOST * num_nodes, MOST_ANNEALED_S)

    def polishing_s(self, passed_s: float) -> float:
        """Seconds in which the incumbent is annealed at the end, after so many seconds."""
        return min(POLISHED_S, POLISHED_SHARE * passed_s) if self.anneals and not self.deterministic else 0.0

    @property
    def num_workers(self) -> int:
        """Search threads."""
        return self.workers or os.cpu_count() or 1
