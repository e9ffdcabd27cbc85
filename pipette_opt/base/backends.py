"""
Where independent pieces of work run: on the cores of this machine through joblib, or on a Ray cluster.

A piece that is lost with the process or the machine that ran it is run again, elsewhere if need be. A piece that is
lost every time is left out, with a warning: pieces only add to what is known, so a run without it is still right.
"""

import logging
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

from pipette_opt.base.errors import InputError

logger = logging.getLogger(__name__)

BackendName = Literal["threads", "joblib", "ray"]

MAX_ATTEMPTS = 3
"""How often a piece is tried."""

POLL_S = 0.1
"""How often a stop is looked for."""

Work = Callable[[Any], Any]
"""What is done with a piece; a function of a module, as it is sent to other processes."""


class Backend(Protocol):
    """Runs pieces of work in processes of their own."""

    @property
    def num_workers(self) -> int:
        """Pieces that run at once."""

    def run(self, work: Work, pieces: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """
        The number and the result of each piece, as they come.

        Errors of the work itself are raised; when ``stop`` is set, what runs is given up.
        """


def backend_of(name: BackendName, workers: int, ray_address: str | None = None) -> Backend | None:
    """
    The backend of that name; ``None`` for threads of this process.

    Raises ``InputError`` if Ray is asked for and is not installed, or cannot be reached.
    """
    if name == "threads":
        return None
    return JoblibBackend(workers) if name == "joblib" else RayBackend(ray_address)


class JoblibBackend:
    """Processes of this machine; with a single worker the work is done in this one."""

    def __init__(self, workers: int) -> None:
        self.num_workers = workers

    def run(self, work: Work, pieces: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """See :class:`Backend`."""
        from joblib.externals.loky.process_executor import BrokenProcessPool

        left = dict(enumerate(pieces))
        for _ in range(MAX_ATTEMPTS):
            try:
                for number, result in self._once(work, left, stop):
                    del left[number]
                    yield number, result
            except BrokenProcessPool as error:
                logger.warning("a worker process was lost (%s); %d pieces run again", type(error).__name__, len(left))
                continue
            return
        if left and not stop.is_set():
            logger.warning("%d of %d pieces were lost %d times and are left out", len(left), len(pieces), MAX_ATTEMPTS)

    def _once(self, work: Work, pieces: dict[int, Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """Results as they come, read in a thread of its own so that a stop is seen."""
        from joblib import Parallel, delayed

        results: queue.SimpleQueue[tuple[int, Any] | BaseException | None] = queue.SimpleQueue()
        parallel = Parallel(
            n_jobs=self.num_workers, backend="loky", return_as="generator_unordered", pre_dispatch="all"
        )
        given_up, waiting = threading.Event(), list(pieces.items())

        def read() -> None:
            try:
                running = parallel(delayed(_numbered)(work, number, piece) for number, piece in waiting)
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
    """End the processes that joblib keeps for the next call, which starts others."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=False, kill_workers=True)


def _numbered(work: Work, number: int, piece: Any) -> tuple[int, Any]:
    return number, work(piece)


class RayBackend:
    """
    The machines of a Ray cluster, one core for each piece.

    Parameters
    ----------
    address
        Of the cluster, e.g. ``auto`` or ``ray://head:10001``; without one Ray starts on this machine.
    """

    def __init__(self, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            problem = "ray is not installed; `pip install 'pipette-opt[ray]'` has it."
            raise InputError("--backend", problem) from None
        self._ray = ray
        if not ray.is_initialized():
            try:
                ray.init(address=address, log_to_driver=False, include_dashboard=False if address is None else None)
            except (ConnectionError, ValueError, RuntimeError) as error:
                raise InputError("--ray-address", f"no Ray cluster at {address!r}: {error}.") from None

    @property
    def num_workers(self) -> int:
        """Cores of the cluster now."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def run(self, work: Work, pieces: Sequence[Any], stop: threading.Event) -> Iterator[tuple[int, Any]]:
        """See :class:`Backend`."""
        ray = self._ray
        task = ray.remote(num_cpus=1, max_retries=0)(_numbered)
        attempts = dict.fromkeys(range(len(pieces)), 1)
        running = {task.remote(work, number, piece): number for number, piece in enumerate(pieces)}
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
                        logger.warning("piece %d was lost %d times and is left out", number, MAX_ATTEMPTS)
                        continue
                    logger.warning(
                        "a Ray worker or node was lost (%s); piece %d runs again", type(error).__name__, number
                    )
                    attempts[number] += 1
                    running[task.remote(work, number, pieces[number])] = number
        for reference in running:
            ray.cancel(reference, force=True)
