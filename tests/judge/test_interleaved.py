import itertools

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.types import P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.judge import critical_path
from pipette_opt.judge.interleaved import interleaved_lower_s, interleaved_period_s

KINDS = ("equal", "near", "uneven", "wild", "binary")
MODES: tuple[P2PMode, ...] = ("blocking", "async")


def equal_chunks(rng: np.random.Generator, kind: str, num_stages: int, num_chunks: int, scale: float) -> PlacedTimes:
    """Sixteen pipelines whose chunks are as long as the others of their stage; transfers ``scale`` times as long."""
    one = random_pipeline(rng, kind, num_stages, 16)
    return pipeline(
        np.repeat(one.forward_s, num_chunks, axis=0),
        np.repeat(one.backward_s, num_chunks, axis=0),
        one.send_forward_s * scale,
        one.send_backward_s * scale,
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_lower_form_is_never_above(kind: str, p2p: P2PMode) -> None:
    """Lower form <= critical path of every stage, for 1,600 random pipelines of each kind."""
    rng = np.random.default_rng(20)
    for _ in range(100):
        num_stages, num_chunks = int(rng.integers(2, 9)), int(rng.integers(2, 5))
        times = random_pipeline(rng, kind, num_stages, 16, num_chunks)
        m = num_stages * int(rng.integers(1, 6))
        finish = critical_path(times, m, p2p)
        assert (interleaved_lower_s(times, m, p2p) <= finish + 1e-9 * (1 + finish)).all()


@pytest.mark.parametrize("p2p", MODES)
def test_lower_form_is_exact_with_equal_stages(p2p: P2PMode) -> None:
    """Equal stages and links, transfers up to a third of a chunk's work: the lower form is the critical path."""
    rng = np.random.default_rng(21)
    for num_stages, num_chunks, groups in itertools.product((2, 3, 5, 8), (2, 3, 4), (1, 2, 5)):
        times = random_pipeline(rng, "equal", num_stages, 16, num_chunks)
        m = num_stages * groups
        np.testing.assert_allclose(interleaved_lower_s(times, m, p2p)[0], critical_path(times, m, p2p)[0], rtol=1e-9)


@pytest.mark.parametrize(("p2p", "allowed"), [("async", 0.01), ("blocking", 0.04)])
def test_lower_form_is_close(p2p: P2PMode, allowed: float) -> None:
    """Stages and links that differ by a few percent: on average within one (blocking: four) percent."""
    rng = np.random.default_rng(22)
    gaps = []
    for num_stages, num_chunks, groups in itertools.product((2, 4, 8), (2, 4), (1, 4)):
        times = random_pipeline(rng, "near", num_stages, 16, num_chunks)
        m = num_stages * groups
        gaps.append(1 - interleaved_lower_s(times, m, p2p)[0] / critical_path(times, m, p2p)[0])
    assert np.mean(gaps) < allowed


@pytest.mark.parametrize("scale", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("kind", KINDS)
def test_period(kind: str, scale: float) -> None:
    """
    One micro-batch more costs one period at the most, and exactly one where the busiest stage is the largest term.

    That is always so unless transfers are long.
    """
    rng = np.random.default_rng(24)
    for num_stages, num_chunks in itertools.product((2, 3, 5), (2, 3)):
        times = equal_chunks(rng, kind, num_stages, num_chunks, scale)
        more = 315 * num_stages  # a multiple of every cycle's chunks
        before, after = (critical_path(times, m, "async")[0] for m in (more, 2 * more))
        slope, period = (after - before) / more, interleaved_period_s(times)
        assert (slope <= period + 1e-9 * (1 + period)).all()
        busiest = (times.forward_s + times.backward_s).sum(axis=0).max(axis=0)
        exact = np.isclose(period, busiest, rtol=1e-12)
        np.testing.assert_allclose(slope[exact], period[exact], rtol=1e-9)
        assert exact.all() or kind in ("wild", "binary") or scale > 1


def test_period_by_hand() -> None:
    """
    Two stages of two chunks, each chunk 1 + 2 s: 6 s per micro-batch, also with transfers of 1 s each way.

    With 4 s each way, a round of the backwards, 2 (2 + 4) s for two chunks, is the largest: 12 s.
    """
    work = np.ones((2, 2, 1))
    assert interleaved_period_s(pipeline(work, 2 * work, [1.0, 1.0], [1.0, 1.0]))[0] == 6.0
    assert interleaved_period_s(pipeline(work, 2 * work, [4.0, 4.0], [4.0, 4.0]))[0] == 12.0
