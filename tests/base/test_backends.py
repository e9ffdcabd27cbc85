"""Pieces of work on processes: all come back, also when a process is lost."""

import logging
import threading
import time
from pathlib import Path

import pytest
from backend_work import die_always, die_once, fail_on_three, sleep, square

from pipette_opt.base.backends import JoblibBackend


def stopped_after(seconds: float) -> threading.Event:
    """An event that is set later."""
    stop = threading.Event()
    threading.Timer(seconds, stop.set).start()
    return stop


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
