from dataclasses import replace

import numpy as np
import pytest

from pipette_opt.parallel.schedule import Schedule, build_schedule, max_in_flight
from pipette_opt.simulate.schedule import check_schedule


def test_1f1b_drawing() -> None:
    """Four stages, eight micro-batches: 1F1B (PipeDream-flush) as figure 4 (top) of arXiv 2104.04473 draws it."""
    assert build_schedule(4, 8).text().splitlines() == [
        "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7",
        "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7",
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7",
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7",
    ]


def test_interleaved_drawing() -> None:
    """
    Four stages of two chunks, eight micro-batches: the order of figure 4 (bottom) of arXiv 2104.04473.

    Stage 0 warms up with 2 * 3 + 4 = 10 forwards, the last stage with 4.
    """
    first, *_, last = build_schedule(4, 8, 2).text().splitlines()
    warmup = "F0.0 F1.0 F2.0 F3.0 F0.1 F1.1 F2.1 F3.1 F4.0 F5.0"
    steady = "F6.0 B0.1 F7.0 B1.1 F4.1 B2.1 F5.1 B3.1 F6.1 B0.0 F7.1 B1.0"
    flush = "B2.0 B3.0 B4.1 B5.1 B6.1 B7.1 B4.0 B5.0 B6.0 B7.0"
    assert first == f"{warmup} {steady} {flush}"
    assert last.startswith("F0.0 F1.0 F2.0 F3.0 F0.1 B0.1 F1.1 B1.1 F2.1 B2.1 F3.1 B3.1 F4.0 B0.0")
    assert last.endswith("F7.1 B7.1 B4.0 B5.0 B6.0 B7.0")


def test_fewer_microbatches_than_stages() -> None:
    """With two micro-batches, four stages never have more than two in flight; early ones only fill and flush."""
    schedule = build_schedule(4, 2)
    assert schedule.text().splitlines() == ["F0 F1 B0 B1"] * 3 + ["F0 B0 F1 B1"]
    assert schedule.num_warmup.tolist() == [2, 2, 1, 0]


def test_as_many_microbatches_as_stages_interleaved() -> None:
    """``m == pp``: the first stage does all its forwards first, the last still alternates (Megatron-Core 0.16.1)."""
    schedule = build_schedule(2, 2, 2)
    assert schedule.text().splitlines() == [
        "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0",
        "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0",
    ]


@pytest.mark.parametrize("num_stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 7, 8, 20])
def test_1f1b_is_complete_and_has_no_deadlock(num_stages: int, num_microbatches: int) -> None:
    """Each stage does everything once; stage s has at most ``min(pp - s, m)`` micro-batches in flight."""
    schedule = build_schedule(num_stages, num_microbatches)
    check_schedule(schedule)
    expected = np.minimum(num_stages - np.arange(num_stages), num_microbatches)
    assert max_in_flight(schedule).tolist() == expected.tolist()


@pytest.mark.parametrize("num_stages", [2, 3, 4, 8])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("num_chunks", [2, 3, 4])
def test_interleaved_is_complete_and_has_no_deadlock(num_stages: int, groups: int, num_chunks: int) -> None:
    """The same for interleaving; in flight are the warm-up forwards and one more, unless all are in the warm-up."""
    schedule = build_schedule(num_stages, groups * num_stages, num_chunks)
    check_schedule(schedule)
    total = groups * num_stages * num_chunks
    assert max_in_flight(schedule).tolist() == np.minimum(schedule.num_warmup + 1, total).tolist()


@pytest.mark.parametrize("arguments", [(0, 1, 1), (2, 0, 1), (1, 4, 2), (4, 6, 2)])
def test_impossible_schedules(arguments: tuple[int, int, int]) -> None:
    """No stage, no micro-batch, interleaving on one stage or with a broken group: refused."""
    with pytest.raises(ValueError, match="got"):
        build_schedule(*arguments)


def _broken(stage: int, first: int, second: int) -> Schedule:
    """1F1B on 2 stages and 3 micro-batches with two operations of a stage exchanged."""
    schedule = build_schedule(2, 3)
    arrays = {name: getattr(schedule, name).copy() for name in ("kind", "microbatch", "chunk")}
    for array in arrays.values():
        array[stage, [first, second]] = array[stage, [second, first]]
    return replace(schedule, **arrays)


def test_deadlock_is_found() -> None:
    """A stage that wants its backward before its own forward waits for ever; a harmless exchange does not."""
    with pytest.raises(ValueError, match=r"deadlocks: stages \[0, 1\]"):
        check_schedule(_broken(1, 0, 1))
    check_schedule(_broken(0, 0, 1))


def test_missing_work_is_found() -> None:
    """A stage that does one micro-batch twice and another never is refused."""
    schedule = build_schedule(2, 3)
    microbatch = schedule.microbatch.copy()
    microbatch[0, 0] = 1
    with pytest.raises(ValueError, match="stage 0 does not do each of 3"):
        check_schedule(replace(schedule, microbatch=microbatch))


def test_arrays_must_match() -> None:
    """Arrays of different shapes are refused, and those of a schedule cannot be changed."""
    schedule = build_schedule(2, 3)
    with pytest.raises(ValueError, match="one shape"):
        replace(schedule, chunk=schedule.chunk[:, 1:])
    with pytest.raises(ValueError, match="read-only"):
        schedule.microbatch[0, 0] = 1
