"""
Backends that run independent tasks in processes: on this machine through joblib, or on a Ray cluster.

A task whose process or machine is lost runs again, on another machine if needed. A task that is lost on every attempt
is skipped with a warning. The result is then still correct, since a task can only add bounds and plans.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from pipette_opt.base.errors import InputError

logger = logging.getLogger(__name__)

BackendName = Literal["threads", "joblib", "ray"]
"""Backend of tasks: threads of this process, processes of this machine, or a Ray cluster."""

MAX_ATTEMPTS = 3
"""Number of attempts for a task whose process or machine is lost. Chosen."""

POLL_S = 0.1
"""Seconds between checks of the stop event. Chosen."""

Work = Callable[[Any], Any]
"""Function that computes one task; it must be defined at module level, as it is pickled for other processes."""


class Backend(Protocol):
    """Interface of a backend: runs tasks in separate processes."""

    @property
    def num_workers(self) -> int:
        """Number of tasks that run at once."""

    def run(self, work: Work, tasks: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """
        Yield the index and the result of each task, in order of completion.

        Errors that ``work`` raises are raised to the caller. When ``stop`` is set, running tasks are cancelled.
        """


def backend_of(name: BackendName, workers: int, ray_address: str | None = None) -> Backend | None:
    """
    Return the backend of this name; ``None`` for ``threads``, which run in this process.

    Raises ``InputError`` if Ray is asked for but not installed or not reachable.
    """
    if name == "threads":
        return None
    return JoblibBackend(workers) if name == "joblib" else RayBackend(ray_address)


class JoblibBackend:
    """Backend of joblib: processes on this machine; with one worker the tasks run in the calling process."""

    def __init__(self, workers: int) -> None:
        self.num_workers = workers

    def run(self, work: Work, tasks: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """Yield indexes and results as :meth:`Backend.run` does."""
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


class RayBackend:
    """
    Backend of Ray: machines of a cluster, with one core per task.

    Parameters
    ----------
    address
        Address of the Ray cluster, such as ``auto`` or ``ray://head:10001``; ``None`` starts Ray on this machine.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            problem = "needs the package ray, which is not installed; install it with `pip install 'pipette-opt[ray]'`."
            raise InputError("--backend", problem) from None
        self._ray = ray
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError("--ray-address", f"no Ray cluster answers at {address!r}: {error}.") from None

    @property
    def num_workers(self) -> int:
        """Number of CPU cores that the cluster has now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, work: Work, tasks: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """Yield indexes and results as :meth:`Backend.run` does."""
        ray = self._ray
        compute = ray.remote(num_cpus=1, max_retries=0)(_numbered)
        attempts = dict.fromkeys(range(len(tasks)), 1)
        running = {compute.remote(work, number, task): number for number, task in enumerate(tasks)}
        while running and not stop.is_set():
            done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_S)
            for reference in done:
                number = running.pop(reference)
                try:
                    yield ray.get(reference)
                except ray.exceptions.RayTaskError as error:
                    raise error.as_instanceof_cause() from None
                except ray.exceptions.RayError as error:
                    if attempts[number] >= MAX_ATTEMPTS:
                        logger.warning(
                            "task %d failed %d times because Ray workers died, and is skipped", number, MAX_ATTEMPTS
                        )
                        continue
                    logger.warning(
                        "a Ray worker or node was lost (%s); task %d runs again", type(error).__name__, number
                    )
                    attempts[number] += 1
                    running[compute.remote(work, number, tasks[number])] = number
        for reference in running:
            ray.cancel(reference, force=True)
