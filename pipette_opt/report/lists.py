"""Tables of configurations, for ``candidates``, and of methods, for ``benchmark``."""

from collections.abc import Iterable, Sequence
from typing import Protocol

from rich.console import RenderableType
from rich.text import Text

from pipette_opt.base.units import percent
from pipette_opt.parallel import ParallelConfig
from pipette_opt.report.cells import BAD, GOOD, QUIET, columns_table, seconds_text, spaced


class CandidateLike(Protocol):
    """A row of :func:`candidates_table`."""

    @property
    def config(self) -> ParallelConfig:
        """The configuration."""
        ...

    @property
    def fits(self) -> bool:
        """Return whether the configuration fits in memory."""
        ...

    @property
    def need_gib(self) -> float:
        """Upper bound on the peak memory of the fullest stage, GiB."""
        ...

    @property
    def fastest_s(self) -> float | None:
        """Lower bound on the iteration time, in seconds; ``None`` if the configuration fits on no hosts."""
        ...


class MethodLike(Protocol):
    """A row of :func:`benchmark_table`."""

    @property
    def method(self) -> str:
        """Name of the method."""
        ...

    @property
    def config(self) -> str:
        """Label of the configuration that the method chose."""
        ...

    @property
    def objective_s(self) -> float | None:
        """Iteration time by the analytical 1F1B model, seconds; ``None`` if the method found no plan."""
        ...

    @property
    def gap(self) -> float | None:
        """Relative gap between the method's time and the lower bound that it proves; ``None`` without a bound."""
        ...

    @property
    def iteration_time_s(self) -> float | None:
        """Simulated seconds of an iteration; ``None`` if the method found no plan."""
        ...

    @property
    def seconds(self) -> float:
        """Run time of the method, seconds."""
        ...


def candidates_table(rows: Iterable[CandidateLike]) -> RenderableType:
    """Table of legal configurations: whether each fits in memory, and a lower bound on its time."""
    table = columns_table("candidate", "GPUs >", "memory, at most >", "fits", "at best >")
    for row in rows:
        table.add_row(
            Text(row.config.label(), style="" if row.fits else QUIET),
            Text(str(row.config.world_size)),
            Text(f"{row.need_gib:.1f} GiB"),
            Text("yes", style=GOOD) if row.fits else Text("no", style=BAD),
            Text(seconds_text(row.fastest_s)),
        )
    return spaced(table)


def benchmark_table(rows: Sequence[MethodLike]) -> RenderableType:
    """Table of methods: time by the analytical 1F1B model, distance to the best method, and gap to the own bound."""
    table = columns_table("method", "configuration", "closed form >", "to best >", "gap >", "iteration >", "took >")
    best = min((row.objective_s for row in rows if row.objective_s is not None), default=None)
    for row in rows:
        winner = row.objective_s is not None and row.objective_s == best
        behind = "-" if row.objective_s is None or best is None else f"+{percent(row.objective_s / best - 1)}"
        table.add_row(
            Text(row.method, style="bold" if winner else ""),
            Text(row.config),
            Text(seconds_text(row.objective_s)),
            Text(behind, style=GOOD if winner else ""),
            Text("-" if row.gap is None else percent(row.gap)),
            Text(seconds_text(row.iteration_time_s)),
            Text(f"{row.seconds:.1f} s"),
        )
    return spaced(table)
