"""Progress bar of a long command."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress as Bar

from pipette_opt.cli.output import is_quiet, say_progress

Progress = Callable[[int, int], None]
"""Function that takes the number of finished parts of the work, and the number of all parts."""


@contextmanager
def shown_progress(task_name: str) -> Iterator[Progress]:
    """Yield a function that draws a progress bar on a terminal, or else writes a line now and then."""
    console = Console(stderr=True)
    if is_quiet() or not console.is_terminal:
        yield lambda done, total: say_progress(f"{task_name}: {done} of {total}")
        return
    with Bar(console=console) as bar:
        task = bar.add_task(task_name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
