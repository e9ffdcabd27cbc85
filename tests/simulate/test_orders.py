import json
import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pipelines import pipeline, random_pipeline

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.schedule import FORWARD, build_schedule, max_in_flight
from pipette_opt.simulate.critical_path import critical_path
from pipette_opt.simulate.orders import SCHEDULES, ScheduleName, named_schedule, parse_order
from pipette_opt.simulate.schedule import check_schedule


def test_gpipe_drawing() -> None:
    """Four stages, four micro-batches: figure 2c of arXiv 1811.06965, backwards from the last micro-batch."""
    assert named_schedule("gpipe", 4, 4).text().splitlines() == ["F0 F1 F2 F3 B3 B2 B1 B0"] * 4


def test_zb_h1_drawing() -> None:
    """
    Four stages, eight micro-batches: figure 3 of arXiv 2401.10241, the first and the last device.

    The paper writes B for the input half and counts from 1.
    """
    first, *_, last = named_schedule("zb-h1", 4, 8).text().splitlines()
    assert first == ("F0 F1 F2 F3 I0 W0 F4 I1 W1 F5 I2 W2 F6 I3 W3 F7 I4 W4 I5 W5 I6 W6 I7 W7")
    assert last == "F0 I0 F1 I1 F2 I2 F3 I3 W0 F4 I4 W1 F5 I5 W2 F6 I6 W3 F7 I7 W4 W5 W6 W7"


def test_zb_v_drawing() -> None:
    """Two stages, four micro-batches, by hand: chunk 1 comes back over the stages, weight halves wait at the end."""
    first, last = named_schedule("zb-v", 2, 4).text().splitlines()
    assert first == (
        "F0.0 F1.0 F2.0 F0.1 I0.1 W0.1 F1.1 I1.1 W1.1 F3.0 I0.0 W0.0 F2.1 I2.1 W2.1 I1.0 W1.0 F3.1 I3.1 W3.1 "
        "I2.0 W2.0 I3.0 W3.0"
    )
    assert last == (
        "F0.0 F0.1 F1.0 F1.1 I0.1 W0.1 F2.0 I0.0 W0.0 F2.1 I1.1 W1.1 F3.0 I1.0 W1.0 F3.1 I2.1 W2.1 "
        "I2.0 I3.1 I3.0 W2.0 W3.1 W3.0"
    )


@pytest.mark.search
@pytest.mark.parametrize(("num_stages", "num_microbatches"), [(2, 3), (2, 8), (4, 7), (4, 8), (8, 20), (3, 2)])
def test_zb_v_is_torchs(num_stages: int, num_microbatches: int) -> None:
    """The order of PyTorch's ``ScheduleZBVZeroBubble``, which writes a backward with both halves adjacent as one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedules = pytest.importorskip("torch.distributed.pipelining.schedules", reason="torch is not installed")
    ours = named_schedule("zb-v", num_stages, num_microbatches)
    for stage, line in enumerate(ours.text().splitlines()):
        torchs: Any = SimpleNamespace(
            pp_group_size=num_stages, num_stages=2 * num_stages, _n_microbatches=num_microbatches
        )
        actions = schedules.ScheduleZBVZeroBubble._calculate_single_rank_operations(torchs, stage)
        words = []
        for action in actions:
            if action is None or action.microbatch_index is None or action.microbatch_index >= num_microbatches:
                continue
            chunk = 0 if action.stage_index == stage else 1
            letters = {"FORWARD": "F", "BACKWARD_INPUT": "I", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "IW"}
            words += [f"{letter}{action.microbatch_index}.{chunk}" for letter in letters[action.computation_type.name]]
        assert line.split() == words


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("num_stages", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_microbatches", [1, 2, 5, 8, 20])
def test_complete_and_without_deadlock(name: ScheduleName, num_stages: int, num_microbatches: int) -> None:
    """
    Every schedule does all work and ends, and holds as many activations as its paper says.

    GPipe all; ZB-H1 as many micro-batches on every stage as the first stage of 1F1B, ``pp``; ZB-V ``2 pp`` of its half
    chunks, the same memory.
    """
    schedule = named_schedule(name, num_stages, num_microbatches, 2 if name == "zb-v" else 1)
    check_schedule(schedule)
    limits = {"gpipe": num_microbatches, "zb-h1": num_stages, "zb-v": 2 * num_stages}
    if name in limits:
        assert max_in_flight(schedule).max() <= limits[name]
    if num_microbatches >= 2 * num_stages and name in limits:
        assert max_in_flight(schedule).tolist() == [limits[name]] * num_stages
    critical_path(pipeline(*[np.ones((schedule.num_chunks, num_stages, 1))] * 2), num_microbatches, "async", schedule)


def test_bubbles_of_the_papers() -> None:
    """
    Four stages, eight micro-batches, ``F = I = W = 1``, free transfers.

    1F1B and GPipe: ``(pp - 1) (F + I + W)`` = 9 of bubble beyond 24 of work. ZB-H1: ``(pp - 1) (F + I - W)`` = 3. ZB-V:
    none; stage s starts ``s`` later and works without a hole, here on two chunks of half a stage.
    """
    whole = replace(pipeline(np.ones(4), np.full(4, 2.0)), weight_s=np.ones((1, 4, 1)))
    assert critical_path(whole, 8, "async")[0, 0] == 24 + 9
    assert critical_path(whole, 8, "async", named_schedule("gpipe", 4, 8))[0, 0] == 24 + 9
    assert critical_path(whole, 8, "async", named_schedule("zb-h1", 4, 8)).max() == 24 + 3
    half = np.full((2, 4, 1), 0.5)
    halves = replace(pipeline(half, 2 * half), weight_s=half)
    finish = critical_path(halves, 8, "async", named_schedule("zb-v", 4, 8, 2))[:, 0]
    np.testing.assert_allclose(finish, 24 + 0.5 * np.arange(4))


def test_weight_half_is_the_given_one() -> None:
    """One stage does not care how the backward is split; two do: the first waits for the input half alone."""
    times = pipeline([1.0, 1.0], [3.0, 3.0])
    schedule = named_schedule("zb-h1", 2, 1)
    for weight in (0.0, 1.0, 2.0):
        split = replace(times, weight_s=np.full((1, 2, 1), weight))
        # Forwards of both stages, input half of the second, whole backward of the first.
        assert critical_path(split, 1, "async", schedule)[0, 0] == 2 + (3 - weight) + 3


def test_second_arm_of_the_v_uses_the_other_direction() -> None:
    """
    ZB-V with one micro-batch on two stages: activations go 0, 1, 1, 0 and gradients 0, 1, 1, 0.

    Each crosses the link once in each direction, and nothing is sent inside the last stage.
    """
    times = pipeline(np.zeros((2, 2, 1)), np.zeros((2, 2, 1)), [5.0, 1000.0], [7.0, 1000.0])
    assert critical_path(times, 1, "async", named_schedule("zb-v", 2, 1, 2))[0, 0] == 5 + 7 + 5 + 7


@pytest.mark.parametrize("name", SCHEDULES)
def test_text_is_read_back(name: ScheduleName) -> None:
    """What ``text()`` writes gives the same schedule; a V must say so."""
    schedule = named_schedule(name, 3, 7, 2 if name == "zb-v" else 1)
    text = json.dumps({"stages": schedule.text().splitlines(), "layout": schedule.layout})
    again = parse_order(text)
    for field in ("kind", "microbatch", "chunk"):
        np.testing.assert_array_equal(getattr(again, field), getattr(schedule, field))
    if schedule.layout == "loop":
        assert parse_order(f"# an order\n{schedule.text()}\n").text() == schedule.text()


def test_a_backward_with_its_weights_apart_is_the_input_half() -> None:
    """Papers write B and W for the halves; a B without a W is whole."""
    assert parse_order("F0 B0 F1 B1 W0").text() == "F0 I0 F1 B1 W0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("F0 X0", "stage 0: 'X0' is no operation"),
        ("F0 B0\nF0", "same number of operations.*got 2, 1"),
        ("", "at least one"),
        ("F0 F0", "stage 0 does not do each of 1"),
        ("F0 I0", "stage 0 does not do each of 1"),
        ("F0 B0 F2 B2", "does not do each of 3"),
        ("W0 I0 F0", "deadlocks"),
        ("F0 B0 F1 B1\nF1 B1 F0 B0", "deadlocks"),
        ('{"stages": 3}', "stages: must be a list"),
        ('{"stages": ["F0 B0"], "layout": "ring"}', "'loop' or 'vee', got 'ring'"),
        ("{", "is no JSON"),
    ],
)
def test_wrong_orders_are_named(text: str, message: str) -> None:
    """What is wrong with an order is said, with the stage."""
    with pytest.raises(InputError, match=message):
        parse_order(text)


@pytest.mark.parametrize("arguments", [("gpipe", 2, 2, 2), ("zb-v", 2, 2, 1), ("zb-h1", 0, 2, 1), ("zb-h1", 2, 0, 1)])
def test_impossible_names(arguments: tuple[ScheduleName, int, int, int]) -> None:
    """Wrong numbers of chunks, stages or micro-batches are refused."""
    with pytest.raises(ValueError, match="got"):
        named_schedule(*arguments)


def test_schedule_must_match_the_times_and_the_sends() -> None:
    """Only Megatron-Core's own orders are known with blocking sends; the sizes must agree."""
    times = random_pipeline(np.random.default_rng(0), "near", 4)
    with pytest.raises(ValueError, match="give p2p 'async'"):
        critical_path(times, 8, "blocking", named_schedule("gpipe", 4, 8))
    with pytest.raises(ValueError, match="3 stages"):
        critical_path(times, 8, "async", build_schedule(3, 8))
    own = parse_order(build_schedule(4, 8).text())
    np.testing.assert_array_equal(
        critical_path(times, 8, "blocking", own), critical_path(times, 8, "blocking", build_schedule(4, 8))
    )
    assert (own.kind[:, 0] == FORWARD).all()
