"""The passes that are traced: a piece of the schedule that is timed, as long as memory needs."""

import pytest

from models.memory.stage_passes import stage_passes
from pipette_opt.parallel.schedule import INPUT, Schedule, build_schedule, max_in_flight


@pytest.mark.parametrize(("pp", "chunks"), [(1, 1), (2, 1), (3, 1), (8, 1), (2, 2), (3, 2), (3, 3), (8, 3)])
@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_passes_hold_exactly_the_number_in_flight(pp: int, chunks: int, rounds: int) -> None:
    """The passes reach the count and never exceed it; a backward always follows its forward; none comes twice."""
    schedule = build_schedule(pp, rounds * pp, chunks)
    for stage in range(pp):
        waiting: set[tuple[int, int]] = set()
        seen: set[tuple[str, int, int]] = set()
        most = 0
        for one in stage_passes(schedule, stage):
            assert one not in seen
            seen.add(one)
            if one.kind == "forward":
                waiting.add((one.chunk, one.microbatch))
            else:
                waiting.remove((one.chunk, one.microbatch))
            most = max(most, len(waiting))
        assert most == max_in_flight(schedule)[stage]
        assert {chunk for kind, chunk, _ in seen if kind == "backward"} == set(range(chunks))


def test_passes_are_the_beginning_of_the_schedule() -> None:
    """Stage 1 of 4: two forwards, then rounds of one each way until the second backward."""
    passes = stage_passes(build_schedule(4, 100), 1)
    assert [(one.kind[0], one.microbatch) for one in passes] == [
        ("f", 0),
        ("f", 1),
        ("f", 2),
        ("b", 0),
        ("f", 3),
        ("b", 1),
    ]


def test_halves_of_backwards_are_refused() -> None:
    """Zero-bubble orders hold what a whole backward would free; the trace says that it cannot follow."""
    whole = build_schedule(1, 1)
    halves = Schedule(
        num_microbatches=1,
        num_chunks=1,
        kind=whole.kind * INPUT,
        microbatch=whole.microbatch,
        chunk=whole.chunk,
        num_warmup=whole.num_warmup,
    )
    with pytest.raises(ValueError, match="whole backwards"):
        list(stage_passes(halves, 0))
