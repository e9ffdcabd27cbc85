import itertools
import time
from functools import cache

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.types import P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.parallel.schedule import Schedule, build_schedule
from pipette_opt.simulate.critical_path import critical_path

KINDS = ("equal", "near", "uneven", "wild", "binary")


def longest_path(times: PlacedTimes, schedule: Schedule) -> list[float]:
    """End of each stage's last backward by plain recursion over the operations; sends never occupy a stage."""
    pp, last_group = schedule.num_stages, schedule.num_stages * schedule.num_chunks - 1
    place = {}
    for stage, index in itertools.product(range(pp), range(schedule.backward.shape[1])):
        at = (stage, index)
        group = int(schedule.chunk[at]) * pp + stage
        place[bool(schedule.backward[at]), group, int(schedule.microbatch[at])] = at

    @cache
    def end(backward: bool, group: int, microbatch: int) -> float:
        stage, index = place[backward, group, microbatch]
        start = 0.0
        if index:
            before = stage, index - 1
            start = end(
                bool(schedule.backward[before]),
                int(schedule.chunk[before]) * pp + stage,
                int(schedule.microbatch[before]),
            )
        if backward and group < last_group:
            start = max(start, end(True, group + 1, microbatch) + times.send_backward_s[stage, 0])
        if not backward and group:
            start = max(start, end(False, group - 1, microbatch) + times.send_forward_s[(stage - 1) % pp, 0])
        work = times.backward_s if backward else times.forward_s
        return float(start + work[group // pp, stage, 0])

    return [end(True, stage, schedule.num_microbatches - 1) for stage in range(pp)]


def exchange_recursion(times: PlacedTimes, m: int) -> float:
    """
    End of the last backward of stage 0 in blocking 1F1B, by the recursion over rounds of exchanges.

    Round ``i`` at the border right of stage ``s`` carries forward ``pp - 1 - s + i`` and backward ``i``, as far as they
    exist; it starts when the left side has done that forward and the right side backward ``i``.
    """
    forward, backward = times.forward_s[0, :, 0], times.backward_s[0, :, 0]
    up, down = times.send_forward_s[:, 0], times.send_backward_s[:, 0]
    pp = len(forward)

    @cache
    def end(border: int, i: int) -> float:
        ahead = pp - 1 - border + i
        if border < 0:
            return 0.0 if i == -pp else end(0, i) + (backward[0] if 0 <= i < m else 0.0)
        if ahead < 0 or i >= m:
            return 0.0
        has_forward, has_backward = ahead < m, i >= 0
        left = end(border - 1, i - 1) + (forward[border] if has_forward else 0.0)
        if border == pp - 1:
            return float(left)
        right = end(border + 1, i) + (backward[border + 1] if has_backward else 0.0)
        return float(max(left, right) + max(up[border] * has_forward, down[border] * has_backward))

    return end(-1, m - 1)


def test_one_stage() -> None:
    """Without a pipeline, the iteration is all its work."""
    times = pipeline([2.0], [3.0])
    for p2p in ("blocking", "async"):
        assert critical_path(times, 4, p2p)[0, 0] == 20.0


def test_equal_stages_free_transfers() -> None:
    """``(m + pp - 1) (f + b)``, the textbook time of 1F1B; stage s is done ``s`` backwards before stage 0."""
    times = pipeline([1.0] * 4, [2.0] * 4)
    for p2p in ("blocking", "async"):
        assert critical_path(times, 8, p2p)[:, 0].tolist() == [33.0, 31.0, 29.0, 27.0]


def test_equal_chunks_free_transfers() -> None:
    """Interleaving divides the bubble by the chunks: ``m v (f + b) + (pp - 1) (f + b)`` with chunk times f and b."""
    chunk = np.ones((2, 4, 1))
    for p2p in ("blocking", "async"):
        assert critical_path(pipeline(chunk, 2 * chunk), 8, p2p)[0, 0] == 8 * 2 * 3 + 3 * 3


def test_two_stages_by_hand() -> None:
    """
    Two stages, two micro-batches, f = b = 1, one second per transfer.

    Blocking: stage 0 does F0 in [0, 1], sends to 2, does F1 in [2, 3]; stage 1 does F0 and B0 in [2, 4]; both exchange
    F1 and B0 in [4, 5]; stage 0 does B0 in [5, 6], stage 1 F1 and B1 in [5, 7], sends to 8; B1 ends at 9.
    Asynchronous: F1 is sent in [2, 3] and so stage 1 works from 2 to 6; B1 arrives at 7 and ends at 8.
    """
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [1.0, 0.0])
    assert critical_path(times, 2, "blocking")[:, 0].tolist() == [9.0, 7.0]
    assert critical_path(times, 2, "async")[:, 0].tolist() == [8.0, 6.0]


def test_exchange_takes_the_slower_direction() -> None:
    """Blocking: the exchange of the example above ends for both sides when its slower direction does."""
    times = pipeline([1.0, 1.0], [1.0, 1.0], [1.0, 0.0], [3.0, 0.0])
    # exchange in [4, 7]; stage 1: F1, B1 in [7, 9], send to 12; stage 0 ends at 13.
    assert critical_path(times, 2, "blocking")[:, 0].tolist() == [13.0, 9.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_async_is_the_longest_path(kind: str, seed: int) -> None:
    """Asynchronous: equal to a plain recursion over all operations, also interleaved."""
    rng = np.random.default_rng(seed)
    num_stages, num_chunks = int(rng.integers(2, 7)), int(rng.integers(1, 4))
    m = num_stages * int(rng.integers(1, 3)) if num_chunks > 1 else int(rng.integers(1, 15))
    times = random_pipeline(rng, kind, num_stages, num_chunks=num_chunks)
    expected = longest_path(times, build_schedule(num_stages, m, num_chunks))
    np.testing.assert_allclose(critical_path(times, m, "async")[:, 0], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(6))
def test_blocking_is_the_recursion_of_exchanges(kind: str, seed: int) -> None:
    """Blocking 1F1B: the calls of Megatron-Core, matched in pairs, give a recursion over rounds."""
    rng = np.random.default_rng(seed)
    for num_stages, m in itertools.product((2, 3, 5), (1, 2, 3, 4, 9)):
        times = random_pipeline(rng, kind, num_stages)
        found = critical_path(times, m, "blocking")[0, 0]
        assert found == pytest.approx(exchange_recursion(times, m), rel=1e-12)


@pytest.mark.parametrize("num_chunks", [1, 2])
def test_waiting_never_helps(num_chunks: int) -> None:
    """Blocking sends are never faster than asynchronous ones."""
    rng = np.random.default_rng(0)
    for kind in KINDS:
        times = random_pipeline(rng, kind, 4, 20, num_chunks)
        waiting, hiding = critical_path(times, 12, "blocking"), critical_path(times, 12, "async")
        assert (waiting >= hiding - 1e-9).all()
        assert kind == "equal" or (waiting > hiding + 1e-9).any()


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("num_chunks", [1, 3])
def test_replicas_do_not_mix(p2p: P2PMode, num_chunks: int) -> None:
    """Each replica, also one that is repeated, has the time it would have alone."""
    rng = np.random.default_rng(1)
    several = random_pipeline(rng, "uneven", 4, 3, num_chunks)
    order = [2, 0, 1, 0, 2]
    repeated = pipeline(
        several.forward_s[:, :, order],
        several.backward_s[:, :, order],
        several.send_forward_s[:, order],
        several.send_backward_s[:, order],
    )
    found = critical_path(repeated, 8, p2p)
    for column, replica in enumerate(order):
        one = pipeline(
            several.forward_s[:, :, [replica]],
            several.backward_s[:, :, [replica]],
            several.send_forward_s[:, [replica]],
            several.send_backward_s[:, [replica]],
        )
        np.testing.assert_array_equal(found[:, column], critical_path(one, 8, p2p)[:, 0])


def test_last_row_of_sends_is_ignored_without_interleaving() -> None:
    """Nothing is sent from the last stage to the first; interleaved, it is."""
    rng = np.random.default_rng(2)
    for num_chunks in (1, 2):
        times = random_pipeline(rng, "near", 3, 1, num_chunks)
        sends = times.send_forward_s.copy()
        sends[-1] += 5
        longer = pipeline(times.forward_s, times.backward_s, sends, times.send_backward_s)
        same = np.array_equal(critical_path(times, 6, "blocking"), critical_path(longer, 6, "blocking"))
        assert same == (num_chunks == 1)


def test_deadlock_is_reported() -> None:
    """An order that waits for itself is an error, not an endless loop."""
    schedule = build_schedule(2, 2)
    swapped = Schedule(
        num_microbatches=2,
        num_chunks=1,
        kind=schedule.kind[:, ::-1],
        microbatch=schedule.microbatch[:, ::-1],
        chunk=schedule.chunk,
        num_warmup=schedule.num_warmup,
    )
    with pytest.raises(ValueError, match="deadlocks"):
        critical_path(pipeline([1.0, 1.0], [1.0, 1.0]), swapped.num_microbatches, "async", swapped)


def test_a_large_plan_is_fast() -> None:
    """1,024 GPUs (16 stages x 64 replicas, all different) and 512 micro-batches: 50 ms on an idle core; 4x allowed."""
    times = random_pipeline(np.random.default_rng(3), "near", 16, 64)
    critical_path(times, 512, "blocking")  # compiles
    best = min(_seconds(times) for _ in range(5))
    assert best < 0.2


def _seconds(times: PlacedTimes) -> float:
    start = time.perf_counter()
    critical_path(times, 512, "blocking")
    return time.perf_counter() - start
