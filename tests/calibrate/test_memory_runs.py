"""What a measurement shows of what is taken, and what is needed."""

from dataclasses import replace

import numpy as np
import pytest
from factories import make_regressors

from pipette_opt.calibrate.memory_runs import MemoryRun, RunMemory, predict_memory
from pipette_opt.calibrate.memory_spread import oom_probability
from pipette_opt.specs.memory_constants import MemoryConstants


def test_more_than_there_is_shows_as_what_there_is() -> None:
    """
    Of 80 GiB that 70 hold, 50 of them certain, a measurement shows the geometric middle of 50 and 70; all are needed.

    What the step left goes first and is not needed: without it 60 fit, and 60 are shown.
    """
    middle = np.sqrt(50 * 70)
    assert shown({"base_gib": 50.0, "pile_up_buffers": 30.0}) == pytest.approx((middle, 80.0), rel=1e-5)
    assert shown({"base_gib": 50.0, "pile_up_buffers": 10.0, "step_bytes": 20.0}) == pytest.approx(
        (60.0, 60.0), rel=1e-5
    )
    assert shown({"base_gib": 50.0, "pile_up_buffers": 10.0, "step_bytes": 5.0}) == pytest.approx(
        (65.0, 60.0), rel=1e-5
    )


def test_what_is_shown_has_no_cliff_at_a_full_device() -> None:
    """Where 70 of 70 are taken, as likely too many as not: the middle of 70 and of what would be shown of more."""
    returned = np.sqrt(50 * 70)
    assert shown({"base_gib": 50.0, "pile_up_buffers": 20.0})[0] == pytest.approx(np.sqrt(70 * returned), rel=1e-5)
    sizes = [shown({"base_gib": 50.0, "pile_up_buffers": 10 + step / 10})[0] for step in range(200)]
    assert np.abs(np.diff(sizes)).max() < 1


def test_blocks_returned_again_and_again_leave_less() -> None:
    """140 GiB where 70 are, 50 in use at most and 10 at the end: at the last return some 10 + 40 / 2 were in use."""
    taken, _ = shown({"base_gib": 50.0, "pile_up_buffers": 90.0}, {"base_gib": 10.0})
    assert taken == pytest.approx(np.sqrt(30 * 70), rel=1e-5)


def shown(*moments: dict[str, float]) -> tuple[float, float]:
    """What is taken and needed on a device of 70 GiB, where each unit is 1 GiB."""
    pile = replace(MemoryConstants(), base_gib=1.0, pile_up_buffers=1.0, step_bytes=1.0, unusable_gib=2.0, spread=0.01)
    regressors = np.stack([make_regressors(**weights) for weights in moments])
    run = MemoryRun(regressors=regressors, measured_rows=np.arange(len(regressors)), capacity_gib=72.0)
    memory = predict_memory(pile, run)
    return memory.taken_gib, memory.needed_gib


def test_groups_take_room_that_no_peak_shows() -> None:
    """Two groups of 1 GiB: 2 more are needed, and 60 of 70 and 2 GiB fit as before, 69 do not."""
    stack = replace(MemoryConstants(), base_gib=1.0, group_gib=1.0, step_bytes=1.0, unusable_gib=2.0, spread=0.001)

    def memory(base: float) -> RunMemory:
        regressors = make_regressors(base_gib=base, group_gib=2.0, step_bytes=10.0)[None]
        return predict_memory(stack, MemoryRun(regressors=regressors, measured_rows=np.array([0]), capacity_gib=72.0))

    assert (memory(50.0).taken_gib, memory(50.0).needed_gib) == pytest.approx((60.0, 52.0), rel=1e-5)
    assert (memory(59.0).taken_gib, memory(59.0).needed_gib) == pytest.approx((59.0, 61.0), rel=1e-5)


def test_a_job_that_cannot_fit_is_shown_with_its_need() -> None:
    """Far beyond the device nothing is cut off: people want to know by how much."""
    run = MemoryRun(regressors=make_regressors(base_gib=150.0)[None], measured_rows=np.array([0]), capacity_gib=80.0)
    memory = predict_memory(MemoryConstants(base_gib=1.0), run)
    assert memory.taken_gib == memory.needed_gib == 150.0
    assert oom_probability(memory) > 0.8
