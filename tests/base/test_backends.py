"""Pieces of work on processes: all come back, also when a process or a machine is lost."""

import logging
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from backend_work import die_always, die_once, fail_on_three, note_and_sleep, sleep, square
from instances import Variant, best_by_enumeration, random_problem

from pipette_opt.base.backends import JoblibBackend, RayBackend, backend_of
from pipette_opt.base.errors import InputError
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.processes import solve_in_processes


def stopped_after(seconds: float) -> threading.Event:
    """An event that is set later."""
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    return stop


def test_threads_need_no_backend() -> None:
    """The default is this process."""
    assert backend_of("threads", 2) is None


@pytest.mark.search
def test_joblib_gives_every_piece_once() -> None:
    """Results carry the number of their piece."""
    assert dict(JoblibBackend(2).run(square, [3, 4, 5], threading.Event())) == {0: 9, 1: 16, 2: 25}


@pytest.mark.search
def test_joblib_raises_errors_of_the_work() -> None:
    """A mistake in the work is not a lost worker."""
    with pytest.raises(ValueError, match="three"):
        list(JoblibBackend(2).run(fail_on_three, [1, 3], threading.Event()))


@pytest.mark.search
def test_a_killed_worker_loses_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The process of one piece is killed in the middle; all results come, each once, and a warning says so."""
    pieces = [(number, str(tmp_path / "died") if number == 2 else "") for number in range(6)]
    with caplog.at_level(logging.WARNING):
        results = list(JoblibBackend(2).run(die_once, pieces, threading.Event()))
    assert sorted(results) == [(number, number) for number in range(6)]
    assert "a worker process died" in caplog.text


@pytest.mark.search
def test_a_piece_that_always_dies_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    """What can be done before is kept, and it ends."""
    with caplog.at_level(logging.WARNING):
        results = list(JoblibBackend(2).run(die_always, [1, 0], threading.Event()))
    assert (1, 0) not in results
    assert "are skipped" in caplog.text


@pytest.mark.search
def test_joblib_stops() -> None:
    """A stop does not wait for slow pieces."""
    started = time.perf_counter()
    assert not list(JoblibBackend(2).run(sleep, [60.0, 60.0], stopped_after(1.0)))
    assert time.perf_counter() - started < 20.0


def test_ray_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the way to install it."""
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(InputError, match=r"pipette-opt\[ray\]"):
        backend_of("ray", 2)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A Ray head without cores, so that all work is done on nodes that can be lost."""
    folders = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        patch.setenv("PYTHONPATH", os.pathsep.join(folders))  # where the nodes' workers find the work
        import ray
        from ray.cluster_utils import Cluster

        one = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        one.add_node(num_cpus=1)
        ray.init(address=one.address, log_to_driver=False)
        yield one
        ray.shutdown()
        one.shutdown()


@pytest.mark.client("ray")
@pytest.mark.filterwarnings("ignore")
def test_ray_gives_every_piece_once(cluster: Any) -> None:
    """Results and errors as from joblib; a stop ends it."""
    backend = RayBackend(cluster.address)
    assert backend.num_workers >= 1
    assert dict(backend.run(square, [3, 4, 5], threading.Event())) == {0: 9, 1: 16, 2: 25}
    with pytest.raises(ValueError, match="three"):
        list(backend.run(fail_on_three, [1, 3], threading.Event()))
    started = time.perf_counter()
    assert not list(backend.run(sleep, [60.0], stopped_after(1.0)))
    assert time.perf_counter() - started < 20.0


@pytest.mark.client("ray")
@pytest.mark.filterwarnings("ignore")
def test_a_killed_ray_worker_loses_nothing(cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The piece runs again."""
    pieces = [(number, str(tmp_path / "died") if number == 1 else "") for number in range(3)]
    with caplog.at_level(logging.WARNING):
        results = list(RayBackend(cluster.address).run(die_once, pieces, threading.Event()))
    assert sorted(results) == [(number, number) for number in range(3)]
    assert "a Ray worker or node was lost" in caplog.text


@pytest.mark.client("ray")
@pytest.mark.filterwarnings("ignore")
def test_a_lost_ray_node_loses_nothing(cluster: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A node goes away while it works; the piece runs again on another."""
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    markers = [tmp_path / f"at-work-{number}" for number in range(2)]
    pieces = [(number, str(marker), 6.0) for number, marker in enumerate(markers)]

    def lose() -> None:
        while not all(marker.exists() for marker in markers):
            time.sleep(0.1)
        cluster.remove_node(node, allow_graceful=False)

    loser = threading.Thread(target=lose, daemon=True)
    loser.start()
    started = time.perf_counter()
    with caplog.at_level(logging.WARNING):
        results = list(RayBackend(cluster.address).run(note_and_sleep, pieces, threading.Event()))
    loser.join()
    assert sorted(results) == [(0, 0), (1, 1)]
    assert "a Ray worker or node was lost" in caplog.text
    assert time.perf_counter() - started < 90.0


@pytest.mark.client("ray")
@pytest.mark.filterwarnings("ignore")
def test_a_search_over_ray_proves_the_optimum(cluster: Any) -> None:
    """The same kind of result as on threads."""
    data = random_problem(np.random.default_rng(4), [(2, 2, 1), (4, 1, 1)], 5, Variant())
    optimum = min(best_by_enumeration(data, one) for one in data.candidates)
    result = solve_in_processes(RayBackend(cluster.address), data, SolverParams(time_limit_s=300.0, workers=2))
    assert result.status == "OPTIMAL"
    assert result.lower_bound_ticks == optimum
    assert result.solution is not None
    assert result.solution.objective_ticks == optimum
