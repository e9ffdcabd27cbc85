import itertools
from dataclasses import replace

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.judge import critical_path, judge_times, lower_s, period_s, upper_s
from pipette_opt.judge.closed_form import finish_lower_s, finish_upper_s

KINDS = ("equal", "near", "uneven", "wild", "binary")
MODES: tuple[P2PMode, ...] = ("blocking", "async")


def plain_upper(times: PlacedTimes, num_microbatches: int, p2p: P2PMode) -> FloatArray:
    """``round_trip + (m - 1) period`` of each replica."""
    up, down = times.send_forward_s[:-1], times.send_backward_s[:-1]
    transfers = 2 * np.maximum(up, down) if p2p == "blocking" else up + down
    round_trip = (times.forward_s + times.backward_s)[0].sum(axis=0) + transfers.sum(axis=0)
    form: FloatArray = round_trip + (num_microbatches - 1) * period_s(times, p2p)
    return form


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_forms_enclose_the_critical_path(kind: str, p2p: P2PMode) -> None:
    """Upper form >= critical path >= lower form, for every stage of 9,600 random pipelines of each kind."""
    rng = np.random.default_rng(7)
    for _ in range(300):
        times = random_pipeline(rng, kind, int(rng.integers(1, 13)), 32)
        m = int(rng.integers(1, 41))
        finish = critical_path(times, m, p2p)
        tolerance = 1e-9 * (1 + finish)
        assert (finish_upper_s(times, m, p2p) >= finish - tolerance).all()
        assert (finish_lower_s(times, m, p2p) <= finish + tolerance).all()


@pytest.mark.parametrize("p2p", MODES)
def test_ordinary_pipelines_need_the_plain_form_only(p2p: P2PMode) -> None:
    """Where backward and forward go together and links do not outweigh stages, the form is round trip plus periods."""
    rng = np.random.default_rng(8)
    for kind, _ in itertools.product(("equal", "near", "uneven"), range(50)):
        times = random_pipeline(rng, kind, int(rng.integers(1, 13)), 32)
        m = int(rng.integers(1, 41))
        np.testing.assert_allclose(finish_upper_s(times, m, p2p)[0], plain_upper(times, m, p2p), rtol=1e-12)


@pytest.mark.parametrize("p2p", MODES)
def test_forward_and_backward_of_different_stages(p2p: P2PMode) -> None:
    """
    Stage 0 only has forwards, stage 1 only backwards, of 2 s: the plain form is too small.

    Three stages, two micro-batches, no transfers. Stage 1 does both forwards before its first backward, and gets the
    second at 4; its backwards end at 6 and 8. Round trip plus one period says 4 + 2.
    """
    times = pipeline([2.0, 0.0, 0.0], [0.0, 2.0, 0.0])
    assert critical_path(times, 2, p2p)[0, 0] == 8.0
    assert plain_upper(times, 2, p2p)[0] == 6.0
    assert finish_upper_s(times, 2, p2p)[0, 0] == 8.0


def test_one_slow_link_and_blocking_sends() -> None:
    """Without work, and one slow link behind stage 0, stage 0 makes ``m + pp - 1`` exchanges one after the other."""
    times = pipeline([0.0] * 8, [0.0] * 8, [1.0] + [0.0] * 7, [1.0] + [0.0] * 7)
    assert critical_path(times, 20, "blocking")[0, 0] == 27.0
    assert plain_upper(times, 20, "blocking")[0] == 21.0
    assert finish_upper_s(times, 20, "blocking")[0, 0] >= 27.0
    assert finish_lower_s(times, 20, "blocking")[0, 0] == 27.0


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


@pytest.mark.parametrize("num_chunks", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p2p", MODES)
def test_interleaved_lower_form(num_chunks: int, kind: str, p2p: P2PMode) -> None:
    """The lower form never exceeds the interleaved critical path, and is met by equal chunks with free transfers."""
    rng = np.random.default_rng(10)
    for _ in range(60):
        num_stages = int(rng.integers(2, 9))
        times = random_pipeline(rng, kind, num_stages, 16, num_chunks)
        m = num_stages * int(rng.integers(1, 5))
        finish = critical_path(times, m, p2p)
        assert (finish_lower_s(times, m, p2p) <= finish + 1e-9 * (1 + finish)).all()
    equal = pipeline(np.ones((num_chunks, 4, 1)), np.full((num_chunks, 4, 1), 2.0))
    np.testing.assert_allclose(finish_lower_s(equal, 8, p2p), critical_path(equal, 8, p2p))


def test_interleaved_period_is_refused() -> None:
    """The explicit terms of 1F1B do not hold for interleaved schedules."""
    times = random_pipeline(np.random.default_rng(0), "near", 2, num_chunks=2)
    with pytest.raises(ValueError, match="2 chunks"):
        period_s(times, "async")
    with pytest.raises(ValueError, match="2 chunks"):
        finish_upper_s(times, 2, "async")


@pytest.mark.parametrize("p2p", MODES)
@pytest.mark.parametrize("beside", [False, True])
def test_interleaved_iteration_forms(p2p: P2PMode, beside: bool) -> None:
    """With reductions after or beside the last backwards, the forms enclose the judge's iteration time."""
    rng = np.random.default_rng(12)
    for kind, num_stages, groups in itertools.product(KINDS, range(2, 7), (1, 3, 4, 10)):
        num_chunks = int(rng.integers(2, 5))
        times = replace(
            random_pipeline(rng, kind, num_stages, 4, num_chunks),
            reduction_s=rng.uniform(0, 9, num_stages),
            optimizer_s=1.5,
            embedding_s=float(rng.uniform(0, 2)),
        )
        if beside:
            extra = rng.uniform(0, 1, times.forward_s.shape)
            times = replace(
                times,
                reduction_buckets=rng.integers(0, 2, num_stages),
                ready_s=9 * extra,
                first_extra_s=extra,
                last_extra_s=extra[::-1],
            )
        m = groups * num_stages
        judged = judge_times(times, m, p2p).iteration_time_s
        assert lower_s(times, m, p2p) <= judged * (1 + 1e-9) <= upper_s(times, m, p2p) * (1 + 2e-9)


@pytest.mark.parametrize("p2p", MODES)
def test_iteration_forms(p2p: P2PMode) -> None:
    """With reductions and optimizer, the forms enclose the judge's iteration time."""
    rng = np.random.default_rng(11)
    for kind, num_stages in itertools.product(KINDS, range(1, 9)):
        plain = random_pipeline(rng, kind, num_stages, 8)
        times = pipeline(
            plain.forward_s,
            plain.backward_s,
            plain.send_forward_s,
            plain.send_backward_s,
            rng.uniform(0, 9, num_stages),
            1.5,
        )
        m = int(rng.integers(1, 20))
        judged = judge_times(times, m, p2p).iteration_time_s
        assert lower_s(times, m, p2p) - 1e-9 <= judged <= upper_s(times, m, p2p) + 1e-9


def test_reduction_slack() -> None:
    """A reduction counts from the end of its own stage: the last stage is done two backwards before the first."""
    times = pipeline([1.0] * 3, [2.0] * 3, reduction=[0.0, 0.0, 5.0], optimizer=0.5)
    total = (4 + 2) * 3.0
    for p2p in MODES:
        assert upper_s(times, 4, p2p) == lower_s(times, 4, p2p) == total - 2 * 2 + 5 + 0.5
