"""Constants of a network are found again in times that were made with them."""

import numpy as np
import pytest

from benchmarks.curves import Curve, fit_curve
from pipette_opt.base.errors import InputError
from pipette_opt.costs.collectives import RingTraffic, all_reduce_traffic, gather_traffic

TRUE = Curve(start_s=2e-5, step_s=3e-6, bytes_per_s=2e11)
TRAFFIC = [
    make(size * 1e6, ranks)
    for size in (0.1, 1, 4, 16, 64, 256)
    for ranks in (2, 4, 8)
    for make in (all_reduce_traffic, gather_traffic)
]


def test_constants_are_found_again() -> None:
    """Start-up, step and bandwidth, from exact times of several groups and sizes."""
    assert fit_curve(TRAFFIC, TRUE.time_s(TRAFFIC)) == pytest.approx(TRUE, rel=1e-6)


def test_spoiled_runs_do_not_decide() -> None:
    """One run in twelve takes ten times as long; the constants stay within a few percent."""
    rng = np.random.default_rng(0)
    times = TRUE.time_s(TRAFFIC) * rng.uniform(0.99, 1.01, len(TRAFFIC))
    times[::12] *= 10.0
    found = fit_curve(TRAFFIC, times)
    assert found.bytes_per_s == pytest.approx(TRUE.bytes_per_s, rel=0.05)
    np.testing.assert_allclose(found.time_s(TRAFFIC), TRUE.time_s(TRAFFIC), rtol=0.15)


def test_one_group_size() -> None:
    """Messages have one step, so that start and step are one: the curve is right, and nothing is negative."""
    messages = [RingTraffic(hop_bytes=size, num_steps=1) for size in (1e5, 1e6, 1e7, 1e8)]
    found = fit_curve(messages, TRUE.time_s(messages))
    assert min(found) >= 0.0
    np.testing.assert_allclose(found.time_s(messages), TRUE.time_s(messages), rtol=1e-9)


def test_negative_constants_are_left_out() -> None:
    """Times that fall behind their bandwidth at small sizes have no latency, not a negative one."""
    messages = [RingTraffic(hop_bytes=size, num_steps=1) for size in (1e6, 2e6, 4e6)]
    found = fit_curve(messages, np.array([0.8e-3, 2e-3, 4e-3]))
    assert found.start_s == found.step_s == 0.0


def test_what_cannot_be_fitted() -> None:
    """Too little, no times, and times without bytes are refused."""
    with pytest.raises(InputError, match="at least two"):
        fit_curve(TRAFFIC[:1], np.array([1.0]))
    with pytest.raises(InputError, match="> 0"):
        fit_curve(TRAFFIC[:2], np.array([1.0, 0.0]))
    empty = [RingTraffic(hop_bytes=0.0, num_steps=1)] * 3
    with pytest.raises(InputError, match="do not grow"):
        fit_curve(empty, np.ones(3))
