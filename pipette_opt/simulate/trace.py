"""
Predicted schedule of the slowest replica as a trace for Chrome (``chrome://tracing``) or Perfetto.

A stage is a process with rows for its compute, its concurrent transfers and its gradients. The format is the Trace
Event Format's JSON object with complete events (``ph`` X), in microseconds.
"""

import json
from collections.abc import Iterable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.types import FloatArray, P2PMode
from pipette_opt.costs.placed import placed_times
from pipette_opt.costs.times import PlacedBatch, PlacedTimes
from pipette_opt.parallel import ParallelConfig, Placement, microbatches_of
from pipette_opt.parallel.schedule import FORWARD, LETTERS, Schedule, build_schedule
from pipette_opt.simulate.critical_path import Walked, events, walk
from pipette_opt.simulate.estimate import (
    is_split,
    last_backward,
    layout_of,
    reduction_ends,
    reduction_parts_s,
    simulate_times,
)
from pipette_opt.specs import Instance

COMPUTE, GRADIENTS, TRANSFERS = 0, 1, 2
ROUNDING_S = 1e-12
_CATEGORIES = ("forward", "backward", "backward (inputs)", "backward (weights)")


class Event(NamedTuple):
    """Event on a row of a stage; times in seconds."""

    stage: int
    row: int
    name: str
    category: str
    start_s: float
    end_s: float
    microbatch: int | None = None
    chunk: int | None = None


def write_trace(
    path: Path,
    instance: Instance,
    config: ParallelConfig,
    placement: Placement,
    schedule: Schedule | None = None,
    *,
    factor: float = 1.0,
) -> None:
    """
    Write the trace of a placed configuration, in 1F1B by default.

    Parameters
    ----------
    factor
        Expected over simulated time; the trace ends at the expected time, and its ``otherData`` says so.
    """
    times = placed_times(instance, config, placement, layout_of(schedule))
    found = trace_events(times, microbatches_of(instance.training, config), instance.p2p, schedule)
    try:
        scaled = [event._replace(start_s=factor * event.start_s, end_s=factor * event.end_s) for event in found]
        clock = f"expected times: simulated times x {factor:.6g}"
        write_atomically(path, json.dumps(as_json(scaled) | {"otherData": {"clock": clock}}))
    except OSError as error:
        raise InputError(str(path), f"cannot be written: {error.strerror}.") from None


def trace_events(
    times: PlacedTimes, num_microbatches: int, p2p: P2PMode, schedule: Schedule | None = None
) -> list[Event]:
    """Return all events of the slowest replica; no two events on a row overlap."""
    chunks, pp, _ = times.forward_s.shape
    order = build_schedule(pp, num_microbatches, chunks) if schedule is None else schedule
    replica = simulate_times(times, num_microbatches, p2p, schedule).critical_replica
    durations, ends, arrivals, program = events(times, num_microbatches, p2p, replica, schedule)
    hops = np.concatenate([times.send_forward_s, times.send_backward_s, np.zeros_like(times.send_forward_s[:1])])
    hop_s = np.repeat(hops[program.hop_link, replica], num_microbatches)
    found = list(_computation(order, durations, ends))
    for direction, table in (("send", program.outgoing), ("receive", program.incoming)):
        found += _in_rows(_transfers(order, direction, table, arrivals - hop_s, arrivals), direction)
    found += _gathers(times, order, ends - durations, ends)
    found += _gradients(times, walk(times, num_microbatches, p2p, schedule), split_backward=is_split(schedule))
    return found


def as_json(found: Iterable[Event]) -> dict[str, Any]:
    """Convert events to the Trace Event Format."""
    listed = sorted(found, key=lambda event: (event.stage, event.row, event.start_s))
    rows = sorted({(event.stage, event.row) for event in listed})
    names = {COMPUTE: "computation", GRADIENTS: "gradients, parameters, optimizer"}
    meta = [_named("process_name", stage, 0, f"stage {stage}") for stage in sorted({stage for stage, _ in rows})]
    meta += [_named("thread_name", stage, row, names.get(row, _transfer_row(row))) for stage, row in rows]
    return {"displayTimeUnit": "ms", "traceEvents": meta + [_complete(event) for event in listed]}


def _computation(order: Schedule, durations: FloatArray, ends: FloatArray) -> Iterator[Event]:
    for stage, at in np.ndindex(*order.kind.shape):
        kind, microbatch, chunk = (int(array[stage, at]) for array in (order.kind, order.microbatch, order.chunk))
        end = float(ends[stage, at])
        yield Event(
            stage=stage,
            row=COMPUTE,
            name=f"{LETTERS[kind]}{microbatch}" + (f".{chunk}" if order.num_chunks > 1 else ""),
            category=_CATEGORIES[kind],
            start_s=end - float(durations[stage, at]),
            end_s=end,
            microbatch=microbatch,
            chunk=chunk,
        )


def _transfers(
    order: Schedule, direction: str, table: Any, starts: FloatArray, arrivals: FloatArray
) -> Iterator[Event]:
    """Yield each message as an event of its sender (``send``) or of its receiver (``receive``)."""
    for stage, at in np.argwhere(table >= 0):
        message = table[stage, at]
        microbatch, chunk = int(order.microbatch[stage, at]), int(order.chunk[stage, at])
        content = "gradient" if order.backward[stage, at] else "activation"
        yield Event(
            stage=int(stage),
            row=TRANSFERS,
            name=f"{direction} {content} {microbatch}" + (f".{chunk}" if order.num_chunks > 1 else ""),
            category=direction,
            start_s=float(starts[message]),
            end_s=float(arrivals[message]),
            microbatch=microbatch,
            chunk=chunk,
        )


def _in_rows(transfers: Iterable[Event], direction: str) -> Iterator[Event]:
    """Yield events with concurrent ones on different rows: even rows for sends, odd rows for receives."""
    free: dict[int, list[float]] = {}
    for event in sorted(transfers, key=attrgetter("start_s")):
        ends = free.setdefault(event.stage, [])
        lane = next((lane for lane, end in enumerate(ends) if end <= event.start_s + ROUNDING_S), len(ends))
        ends[lane : lane + 1] = [event.end_s]
        yield event._replace(row=TRANSFERS + 2 * lane + (direction == "receive"))


def _gathers(times: PlacedTimes, order: Schedule, starts: FloatArray, ends: FloatArray) -> Iterator[Event]:
    """
    Yield parameter gathers that overlap with the first forwards.

    With one chunk, the first forward waits for each bucket and then requests the next one. With several chunks, all are
    gathered from the start.
    """
    if times.gather_s is None or times.reduction_buckets is None:
        return
    chunks = len(times.forward_s)
    for stage, whole in enumerate(times.gather_s.tolist()):
        pieces = int(times.reduction_buckets[stage]) if chunks == 1 else chunks
        shares = np.full(pieces, 1.0 / pieces)
        if chunks > 1 and times.reduction_shares is not None:
            shares = times.reduction_shares[:, stage]
        first = int((order.kind[stage] == FORWARD).argmax())
        start = float(starts[stage, first]) if chunks == 1 else 0.0
        wait = (float(ends[stage, first]) - start - whole / pieces) / max(pieces - 1, 1) if chunks == 1 else 0.0
        for piece in range(pieces if whole else 0):
            name = f"gather {piece}" if pieces > 1 else "gather"
            seconds = whole * float(shares[piece])
            yield Event(stage, GRADIENTS, name, "gather", start, start + seconds)
            start += seconds if chunks > 1 else max(seconds, wait)


def _gradients(times: PlacedTimes, walked: Walked, *, split_backward: bool) -> Iterator[Event]:
    """Yield reduction, tied embeddings, optimizer, and the parameter gather that overlaps with the next forwards."""
    done = np.zeros(len(times.reduction_s))
    for stage in range(len(done)):
        ends = _piece_ends(times, walked, stage, split_backward=split_backward)
        pieces = np.full(len(ends), float(times.reduction_s[stage]) / len(ends))
        if len(ends) == len(times.forward_s) > 1:  # in the order of their starts
            order = np.argsort(walked.launch_s.max(axis=2)[:, stage], kind="stable")
            pieces = reduction_parts_s(PlacedBatch.of(times))[0, order, stage]
        done[stage] = ends[-1]
        for index, (at, seconds) in enumerate(zip(ends, pieces.tolist(), strict=True)):
            name = f"reduction {index}" if len(ends) > 1 else "reduction"
            if seconds:
                yield Event(stage, GRADIENTS, name, "reduction", at - seconds, at)
    if times.embedding_s:
        start = float(max(done[0], done[-1]))
        done[[0, -1]] = start + times.embedding_s
        for stage in sorted({0, len(done) - 1}):
            yield Event(stage, GRADIENTS, "embedding", "reduction", start, start + times.embedding_s)
    for stage, start in enumerate(done.tolist()):
        yield Event(stage, GRADIENTS, "optimizer", "optimizer", start, start + times.optimizer_s)


def _piece_ends(times: PlacedTimes, walked: Walked, stage: int, *, split_backward: bool) -> list[float]:
    """Return the ends of the parts of a stage's reduction, seconds: equal buckets, or one part for each chunk."""
    batch, walks = PlacedBatch.of(times), Walked(walked.launch_s[None], walked.finish_s[None])
    ends = reduction_ends(batch, walks, split_backward=split_backward)[:, 0, stage].tolist()
    buckets = 0 if times.reduction_buckets is None else int(times.reduction_buckets[stage])
    if buckets < 1:
        return [float(ends[-1])]
    if len(times.forward_s) > 1:
        return [float(end) for end in ends]
    work = last_backward(batch, split_backward=split_backward)[0, 0, stage]
    share, end, pieces = float(times.reduction_s[stage]) / buckets, 0.0, []
    for left in range(buckets - 1, -1, -1):
        end = max(end, float((walked.finish_s[stage] - left / buckets * work).max())) + share
        pieces.append(end)
    return pieces


def _transfer_row(row: int) -> str:
    lane, receive = divmod(row - TRANSFERS, 2)
    return f"{'receives' if receive else 'sends'} {lane}" if lane else ("receives" if receive else "sends")


def _named(sort: str, stage: int, row: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": sort, "pid": stage, "tid": row, "args": {"name": name}}


def _complete(event: Event) -> dict[str, Any]:
    details = {"microbatch": event.microbatch, "chunk": event.chunk}
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.category,
        "pid": event.stage,
        "tid": event.row,
        "ts": event.start_s * 1e6,
        "dur": (event.end_s - event.start_s) * 1e6,
        "args": {key: value for key, value in details.items() if value is not None},
    }
