import itertools
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from factories import TINY, make_cluster, make_config, make_job
from pipelines import random_pipeline
from test_gradients import overlapped

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import P2PMode
from pipette_opt.costs.placed import PlacedTimes
from pipette_opt.parallel import identity_placement
from pipette_opt.parallel.schedule import Schedule
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.orders import named_schedule
from pipette_opt.simulate.trace import COMPUTE, as_json, trace_events, write_trace


def case(name: str) -> tuple[PlacedTimes, int, P2PMode, Schedule | None]:
    """Times, micro-batches, sends and schedule."""
    rng = np.random.default_rng(3)
    if name == "v":
        return random_pipeline(rng, "near", 4, 2, 2), 8, "async", named_schedule("zb-v", 4, 8)
    if name == "h1":
        return random_pipeline(rng, "uneven", 3, 2), 7, "async", named_schedule("zb-h1", 3, 7)
    if name == "hidden":
        return random_pipeline(rng, "wild", 5, 3), 9, "async", None
    if name == "interleaved":
        return random_pipeline(rng, "near", 3, 2, 2), 6, "blocking", None
    if name == "one stage":
        return random_pipeline(rng, "near", 1, 2), 4, "blocking", None
    return random_pipeline(rng, "uneven", 4, 3), 10, "blocking", None


def gradients(name: str, times: PlacedTimes) -> PlacedTimes:
    """What comes after the backwards."""
    ones = np.ones(times.forward_s.shape[1])
    return {
        "after": replace(times, reduction_s=ones, optimizer_s=0.5, embedding_s=0.25),
        "buckets": replace(times, reduction_s=4 * ones, reduction_buckets=np.full(len(ones), 3), optimizer_s=0.5),
        "overlapped": overlapped(replace(times, reduction_s=ones, optimizer_s=0.5), [2] * len(ones), 0.5 * ones, 0.1),
    }[name]


@pytest.mark.parametrize("after", ["after", "buckets", "overlapped"])
@pytest.mark.parametrize("name", ["blocking", "hidden", "interleaved", "v", "h1", "one stage"])
def test_a_trace_has_everything_once_and_ends_with_the_iteration(name: str, after: str) -> None:
    """
    Events of a row do not overlap, the last end is the estimate, and every operation and message is there.

    A message is sent after its operation and received before the one that needs it.
    """
    plain, m, p2p, schedule = case(name)
    times = gradients(after, plain)
    found = as_json(trace_events(times, m, p2p, schedule))["traceEvents"]
    complete = [event for event in found if event["ph"] == "X"]
    rows = defaultdict(list)
    for event in complete:
        assert event["dur"] >= 0
        assert event["ts"] >= -1e-6
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in rows.values():
        spans.sort()
        assert all(after[0] >= before[1] - 1e-3 for before, after in itertools.pairwise(spans))
    last = max(end for spans in rows.values() for _, end in spans) / 1e6
    simulated = simulate_times(times, m, p2p, schedule)
    assert last == pytest.approx(simulated.iteration_time_s, rel=1e-12)
    chunks, pp, _ = times.forward_s.shape
    work = [event for event in complete if event["tid"] == COMPUTE]
    assert len(work) == chunks * pp * m * (2 if schedule is None else 3)
    assert {event["args"]["microbatch"] for event in work} == set(range(m))
    assert {event["args"]["chunk"] for event in work} == set(range(chunks))
    sends = [event for event in complete if event["cat"] == "send"]
    borders = chunks * pp - 1 - (name == "v")  # a V does not send from the last stage to itself
    assert len(sends) == len([event for event in complete if event["cat"] == "receive"]) == 2 * borders * m
    _check_order(complete)


def _check_order(complete: list[dict]) -> None:
    """Sends follow their operation, operations their receives."""
    ends = {}
    starts = {}
    for event in complete:
        if event["tid"] == COMPUTE and "weights" not in event["cat"]:
            key = (event["pid"], event["cat"] == "forward", event["args"]["microbatch"], event["args"]["chunk"])
            ends[key], starts[key] = event["ts"] + event["dur"], event["ts"]
    for event in complete:
        if event["cat"] in ("send", "receive"):
            key = (event["pid"], "activation" in event["name"], event["args"]["microbatch"], event["args"]["chunk"])
            if event["cat"] == "send":
                assert event["ts"] >= ends[key] - 1e-3
            else:
                assert event["ts"] + event["dur"] <= starts[key] + 1e-3


def test_rows_have_names() -> None:
    """Stages and rows are named for the viewer."""
    times, m, p2p, _ = case("blocking")
    named = [event for event in as_json(trace_events(times, m, p2p))["traceEvents"] if event["ph"] == "M"]
    assert {event["args"]["name"] for event in named} >= {"stage 0", "stage 3", "computation", "sends", "receives"}


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    """The user is told which file."""
    given = make_job(make_cluster(1, gpus=1), replace(TINY, num_layers=1), 1, 8)
    config = make_config(num_layers=1)
    placement = identity_placement(config, 1, np.arange(1), "tp-cp-ep-dp-pp")
    write_trace(tmp_path / "trace.json", given, config, placement)
    assert (tmp_path / "trace.json").read_text().startswith('{"displayTimeUnit"')
    write_trace(tmp_path / "expected.json", given, config, placement, factor=1.5)
    plain, expected = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("trace", "expected"))
    ends = [
        max(event["ts"] + event["dur"] for event in found["traceEvents"] if "ts" in event)
        for found in (plain, expected)
    ]
    assert ends[1] == pytest.approx(1.5 * ends[0])
    assert expected["otherData"] == {"clock": "expected times: simulated times x 1.5"}
    with pytest.raises(InputError, match="nowhere"):
        write_trace(tmp_path / "nowhere" / "trace.json", given, config, placement)
