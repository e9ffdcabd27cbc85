"""Deadlines of a search and of its steps."""

import pytest

from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import ANNEALING, TIES, TIME_TO_BEAT
from pipette_opt.plans.watcher import Progress, Watcher


def clock_of(limit_s: float, watcher: Watcher | None = None) -> Clock:
    """The clock of a search that begins now."""
    return Clock(watcher=watcher or Watcher(), ends_s=limit_s, limit_s=limit_s)


def test_a_slice_is_of_the_rest_or_of_the_limit() -> None:
    """At half time; a slice with a largest time is no longer than that."""
    clock = clock_of(100.0)
    clock.watcher.started -= 50.0
    assert clock.left_s == pytest.approx(50.0, abs=0.1)
    assert clock.step(ANNEALING).left_s == pytest.approx(0.3 * 50, abs=0.1)
    assert clock.step(TIES).left_s == pytest.approx(0.05 * 100, abs=0.1)
    assert clock.step(TIME_TO_BEAT).left_s == pytest.approx(0.05 * 50, abs=0.1)
    assert clock_of(1e4).step(TIME_TO_BEAT).left_s == pytest.approx(10.0, abs=0.1)
    assert clock.keeping(TIES).left_s == pytest.approx(45.0, abs=0.1)
    assert clock.slice(0.5).step(ANNEALING).left_s == pytest.approx(0.3 * 25, abs=0.1)


def test_loading_kernels_moves_every_deadline() -> None:
    """Also deadlines of slices made before."""
    clock = clock_of(100.0)
    part = clock.slice(0.5)
    with clock.loading():
        clock.watcher.started += 30.0
    assert part.left_s == pytest.approx(80.0, abs=0.1)


def test_a_stopped_search_has_no_time_left() -> None:
    """Neither has a step that begins then, nor a clock without a limit."""
    clock, endless = clock_of(100.0), Clock()
    assert endless.left_s == float("inf")
    for each in (clock, endless):
        part = each.slice(0.5)
        assert not part.is_over
        each.stop.set()
        assert part.is_over
        assert each.after(10.0).left_s == 0.0


def test_a_quiet_clock_reports_nothing() -> None:
    """Its search does."""
    told: list[Progress] = []
    watcher = Watcher(on_progress=told.append)
    Clock(watcher=watcher, is_quiet=True).report("placing")
    assert not told
    Clock(watcher=watcher).report("placing", 2.0, 1.0)
    assert (told[0].step, told[0].objective_s, told[0].lower_bound_s) == ("placing", 2.0, 1.0)
