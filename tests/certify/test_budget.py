"""How the time limit is shared out."""

import pytest
from factories import TINY, make_cluster, make_job

from pipette_opt.certify.budget import (
    MIN_BESIDE_SHARE,
    MIN_CERTIFYING_S,
    MIN_PLACING_S,
    beside_clock,
    clock_of,
    proof_clock,
    value_clock,
)
from pipette_opt.certify.params import OptimizeParams
from pipette_opt.plans.watcher import Watcher


def test_the_proof_keeps_time_for_what_follows_it() -> None:
    """Plans beside the fastest have a little time even after the limit, and the proof enough to place a first plan."""
    watcher = Watcher()
    clock = clock_of(make_job(make_cluster(2), TINY, 8, 1024), OptimizeParams(time_limit_s=100.0), watcher)
    assert proof_clock(clock, has_plan=True).left_s == pytest.approx(85.0, rel=0.01)
    assert beside_clock(clock).left_s == pytest.approx(10.0, rel=0.01)
    assert proof_clock(clock, has_plan=True, weighs=True).left_s == pytest.approx(45.0, rel=0.01)
    assert value_clock(clock).left_s == pytest.approx(40.0, rel=0.01)
    watcher.started -= 200.0
    assert proof_clock(clock, has_plan=True).left_s == pytest.approx(MIN_CERTIFYING_S, rel=0.1)
    assert proof_clock(clock, has_plan=False).left_s == pytest.approx(MIN_PLACING_S, rel=0.1)
    assert beside_clock(clock).left_s == pytest.approx(100 * MIN_BESIDE_SHARE, rel=0.01)
    assert value_clock(clock).left_s == pytest.approx(100 * MIN_BESIDE_SHARE, rel=0.01)
    watcher.stop.set()
    assert proof_clock(clock, has_plan=False).left_s == 0.0
