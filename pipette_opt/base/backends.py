"""
Backends that run independent tasks in processes of this machine.

A task whose process is lost runs again. A task that is lost on every attempt is skipped with a warning. The result is
then still correct, since a task can only add bounds and plans.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
"""Number of attempts for a task whose process is lost. Chosen."""

POLL_S = 0.1
"""Seconds between checks of the stop event. Chosen."""

Work = Callable[[Any], Any]
"""Function that computes one task; it must be defined at module level, as it is pickled for other processes."""


class JoblibBackend:
    """Backend of joblib: processes on this machine; with one worker the tasks run in the calling process."""

    def __init__(self, workers: int) -> None:
        self.num_workers = workers

    def run(self, work: Work, tasks: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """
        Yield the index and the result of each task, in order of completion.

        Errors that ``work`` raises are raised to the caller. When ``stop`` is set, running tasks are cancelled.
        """
        from joblib.externals.loky.process_executor import BrokenProcessPool

        left = dict(enumerate(tasks))
        for _ in range(MAX_ATTEMPTS):
            try:
                for number, result in self._once(work, left, stop):
                    del left[number]
                    yield number, result
            except BrokenProcessPool as error:
                logger.warning("a worker process died (%s); %d tasks are run again", type(error).__name__, len(left))
                continue
            return
        if left and not stop.is_set():
            logger.warning("%d of %d tasks failed %d times and are skipped", len(left), len(tasks), MAX_ATTEMPTS)

    def _once(self, work: Work, tasks: dict[int, Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """Yield results of an attempt in order of completion; a reader thread collects them, to notice a stop."""
        from joblib import Parallel, delayed

        results: queue.SimpleQueue[tuple[int, Any] | BaseException | None] = queue.SimpleQueue()
        parallel = Parallel(
            n_jobs=self.num_workers, backend="loky", return_as="generator_unordered", pre_dispatch="all"
        )
        given_up, waiting = threading.Event(), list(tasks.items())

        def read() -> None:
            try:
                running = parallel(delayed(_numbered)(work, number, task) for number, task in waiting)
                for result in running:
                    results.put(result)
                results.put(None)
            except BaseException as error:
                if not given_up.is_set():
                    results.put(error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        while not stop.is_set():
            try:
                result = results.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if result is None:
                reader.join()
                return
            if isinstance(result, BaseException):
                raise result
            yield result
        given_up.set()
        end_joblib_workers()


def end_joblib_workers() -> None:
    """End joblib's worker processes; the next call starts new ones."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)


def _numbered(work: Work, number: int, task: Any) -> tuple[int, Any]:
    return number, work(task)
