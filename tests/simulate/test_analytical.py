"""The closed form of 1F1B beside the critical path."""

import itertools

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.types import P2PMode
from pipette_opt.simulate.analytical import analytical_s, period_s
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.estimate import simulate_times

KINDS = ("equal", "near", "uneven", "wild", "binary")
MODES: tuple[P2PMode, ...] = ("blocking", "async")


@pytest.mark.search
@pytest.mark.parametrize("p2p", MODES)
def test_it_is_above_the_simulator_of_ordinary_pipelines(p2p: P2PMode) -> None:
    """Where backward and forward go together and links do not outweigh stages, reductions included."""
    rng = np.random.default_rng(8)
    for kind, _ in itertools.product(("equal", "near", "uneven"), range(50)):
        num_stages = int(rng.integers(1, 13))
        plain = random_pipeline(rng, kind, num_stages, 32)
        sends = plain.send_forward_s, plain.send_backward_s
        times = pipeline(plain.forward_s, plain.backward_s, *sends, rng.uniform(0, 9, num_stages), 1.5)
        m = int(rng.integers(1, 41))
        assert analytical_s(times, m, p2p) >= simulate_times(times, m, p2p).iteration_time_s * (1 - 1e-9)


def test_forward_and_backward_of_different_stages() -> None:
    """
    Stage 0 only has forwards, stage 1 only backwards, of 2 s: the form is too small.

    Three stages, two micro-batches, no transfers. Stage 1 does both forwards before its first backward, and gets the
    second at 4; its backwards end at 6 and 8. Round trip plus one period says 4 + 2.
    """
    times = pipeline([2.0, 0.0, 0.0], [0.0, 2.0, 0.0])
    for p2p in MODES:
        assert critical_path(times, 2, p2p)[0, 0] == 8.0
        assert analytical_s(times, 2, p2p) == 6.0


def test_one_slow_link_and_blocking_sends() -> None:
    """Without work, and one slow link behind stage 0, stage 0 makes ``m + pp - 1`` exchanges one after the other."""
    times = pipeline([0.0] * 8, [0.0] * 8, [1.0] + [0.0] * 7, [1.0] + [0.0] * 7)
    assert critical_path(times, 20, "blocking")[0, 0] == 27.0
    assert analytical_s(times, 20, "blocking") == 21.0


@pytest.mark.search
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_period_is_exact(kind: str, p2p: P2PMode) -> None:
    """In the long run, one micro-batch more costs one period; 60 is a multiple of every cycle of up to six stages."""
    rng = np.random.default_rng(9)
    for num_stages in range(1, 7):
        times = random_pipeline(rng, kind, num_stages, 16)
        slope = (critical_path(times, 6000, p2p)[0] - critical_path(times, 5940, p2p)[0]) / 60
        np.testing.assert_allclose(slope, period_s(times, p2p), rtol=1e-9, atol=1e-9)


def test_period_by_hand() -> None:
    """Blocking: the middle stage waits for both links; asynchronous: all stages and links share the cycle."""
    times = pipeline([1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [0.5, 1.0, 0.0], [1.0, 0.25, 0.0])
    assert period_s(times, "blocking")[0] == 3 + 1 + 1
    assert period_s(times, "async")[0] == pytest.approx((3 + 1.5 + 3 + 1.25 + 3) / 3)


def test_interleaved_schedules_are_refused() -> None:
    """The terms of 1F1B do not hold for them."""
    times = random_pipeline(np.random.default_rng(0), "near", 2, num_chunks=2)
    for form in (period_s, lambda times, p2p: analytical_s(times, 2, p2p)):
        with pytest.raises(ValueError, match="2 chunks"):
            form(times, "async")


def test_reduction_slack() -> None:
    """A reduction counts from the end of its own stage: the last stage is done two backwards before the first."""
    times = pipeline([1.0] * 3, [2.0] * 3, reduction=[0.0, 0.0, 5.0], optimizer=0.5)
    total = (4 + 2) * 3.0
    for p2p in MODES:
        assert analytical_s(times, 4, p2p) == total - 2 * 2 + 5 + 0.5
