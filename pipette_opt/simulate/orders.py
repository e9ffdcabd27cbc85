"""
Schedules other than 1F1B: GPipe, zero bubble, and an order given by the user.

Zero bubble splits a backward into two parts. The previous stage waits for the gradients of the inputs, and those of the
weights fill idle time. ZB-H1 (Qi et al., arXiv 2401.10241, section 2.3) keeps the order and the memory of 1F1B. It
delays the weight gradients of stage ``s`` by ``s`` micro-batches, so that every stage has ``pp`` in flight; its bubble
is ``(pp - 1) (F + I - W)``. ZB-V (section 6 there; also V-ZB in arXiv 2405.15362) gives each stage two chunks in the
shape of a V, so the last layers are on the first stage. With equal thirds, no stage is idle between its first and last
operation, and all stages need the memory of the first stage of 1F1B.
"""

import json
import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.parallel.schedule import BACKWARD, FORWARD, INPUT, LETTERS, WEIGHT, Layout, Schedule, build_schedule
from pipette_opt.simulate.schedule import check_schedule

ScheduleName = Literal["1f1b", "gpipe", "zb-h1", "zb-v"]
SCHEDULES: tuple[ScheduleName, ...] = ("1f1b", "gpipe", "zb-h1", "zb-v")

Operation = tuple[int, int, int]
"""Operation of a stage: type, micro-batch, chunk."""

_OPERATION = re.compile(r"([FBIW])([0-9]+)(?:\.([0-9]+))?")


@lru_cache(maxsize=64)
def named_schedule(
    name: ScheduleName,
    num_stages: int,
    num_microbatches: int,
    num_chunks: int | None = None,
    group_size: int | None = None,
) -> Schedule:
    """
    Return a schedule by its name; 1F1B may have any number of chunks (by default one), ZB-V has two, the others one.

    ``group_size``: micro-batch group size of interleaved 1F1B, as in
    :func:`~pipette_opt.parallel.schedule.build_schedule`.
    """
    own = 2 if name == "zb-v" else 1
    num_chunks = own if num_chunks is None else num_chunks
    if name == "1f1b":
        return build_schedule(num_stages, num_microbatches, num_chunks, group_size)
    if num_chunks != own:
        raise ValueError(f"{name} has {own} chunks per stage, got {num_chunks}.")
    if min(num_stages, num_microbatches) < 1:
        raise ValueError(f"stages and micro-batches must be >= 1, got {num_stages} and {num_microbatches}.")
    stage_order = {"gpipe": _gpipe_stage, "zb-h1": _zb_h1_stage, "zb-v": _zb_v_stage}[name]
    rows = [list(stage_order(stage, num_stages, num_microbatches)) for stage in range(num_stages)]
    return _from_rows(rows, num_microbatches, num_chunks, "vee" if name == "zb-v" else "loop")


def parse_order(text: str, name: str = "schedule") -> Schedule:
    """
    Read a schedule in the format of ``Schedule.text()``, or from JSON with equal lines.

    One line per stage, operations in order: ``F3`` the forward of micro-batch 3, ``B3`` its backward, ``I3`` and ``W3``
    the halves of a backward; with several chunks per stage ``F3.1`` is chunk 1. A ``B`` with a ``W`` is the input half,
    as papers write it. ``#`` starts a comment. JSON: ``{"stages": ["F0 F1 B0 B1", ...], "layout": "loop"}``; ``layout``
    may also be ``vee``.

    Raises
    ------
    InputError
        If a line cannot be read, an operation is missing or done twice, or the stages wait for each other.
    """
    lines, layout = _lines(text, name)
    rows = [_operations(line, f"{name}, stage {stage}") for stage, line in enumerate(lines)]
    if not rows or any(len(row) != len(rows[0]) for row in rows):
        counts = ", ".join(str(len(row)) for row in rows)
        raise InputError(name, f"every stage must have the same number of operations, at least one; got {counts or 0}.")
    operations = [operation for row in rows for operation in row]
    num_microbatches = 1 + max(microbatch for _, microbatch, _ in operations)
    num_chunks = 1 + max(chunk for _, _, chunk in operations)
    schedule = _from_rows(rows, num_microbatches, num_chunks, layout)
    try:
        check_schedule(schedule)
    except ValueError as error:
        raise InputError(name, str(error)) from None
    return schedule


def _gpipe_stage(stage: int, num_stages: int, m: int) -> Iterator[Operation]:
    """Yield all forwards, then all backwards, last micro-batch first (Huang et al., arXiv 1811.06965, figure 2c)."""
    yield from ((FORWARD, microbatch, 0) for microbatch in range(m))
    yield from ((BACKWARD, microbatch, 0) for microbatch in reversed(range(m)))


def _zb_h1_stage(stage: int, num_stages: int, m: int) -> Iterator[Operation]:
    """Yield 1F1B of forwards and input halves; weight halves follow ``stage`` micro-batches later (ZB-H1)."""
    warmup = min(num_stages - 1 - stage, m)
    yield from ((FORWARD, microbatch, 0) for microbatch in range(warmup))
    for microbatch in range(m):
        if microbatch + warmup < m:
            yield FORWARD, microbatch + warmup, 0
        yield INPUT, microbatch, 0
        if microbatch >= stage:
            yield WEIGHT, microbatch - stage, 0
    yield from ((WEIGHT, microbatch, 0) for microbatch in range(max(m - stage, 0), m))


def _zb_v_stage(stage: int, num_stages: int, m: int) -> Iterator[Operation]:
    """
    Yield the operations of a stage in ZB-V, in the order for equal thirds.

    Fill: chunk 0 alone, chunks 1 and 0 in turn, then chunk 1 with its backwards at once. Steady: forward and backward
    of chunk 0, then of chunk 1. Flush: input halves of both chunks first, then weight halves. The order is that of a
    full pipeline; with fewer than ``2 pp - 1`` micro-batches, the missing ones are left out.
    """
    full = max(m, 2 * num_stages - 1)
    return (operation for operation in _full_zb_v_stage(stage, num_stages, full) if operation[1] < m)


def _full_zb_v_stage(stage: int, num_stages: int, m: int) -> Iterator[Operation]:
    behind = num_stages - stage
    done = dict.fromkeys(((kind, chunk) for kind in (FORWARD, INPUT, WEIGHT) for chunk in (0, 1)), 0)

    def step(*pieces: tuple[int, int]) -> Iterator[Operation]:
        for kind, chunk in pieces:
            if done[kind, chunk] < m:
                yield kind, done[kind, chunk], chunk
                done[kind, chunk] += 1

    for _ in range(2 * behind - 1):
        yield from step((FORWARD, 0))
    for _ in range(stage):
        yield from step((FORWARD, 1), (FORWARD, 0))
    for _ in range(behind):
        yield from step((FORWARD, 1), (INPUT, 1), (WEIGHT, 1))
    while done[FORWARD, 1] < m:
        yield from step((FORWARD, 0), (INPUT, 0), (WEIGHT, 0), (FORWARD, 1), (INPUT, 1), (WEIGHT, 1))
    for _ in range(stage):
        yield from step((INPUT, 0), (INPUT, 1))
    for _ in range(behind):
        yield from step((INPUT, 0), (WEIGHT, 0))
    for chunk in (1, 0):
        while done[WEIGHT, chunk] < m:
            yield from step((WEIGHT, chunk))


def _from_rows(rows: Sequence[Sequence[Operation]], num_microbatches: int, num_chunks: int, layout: Layout) -> Schedule:
    table = np.array(rows, dtype=np.int64)
    kind = table[:, :, 0]
    return Schedule(
        num_microbatches=num_microbatches,
        num_chunks=num_chunks,
        kind=kind,
        microbatch=table[:, :, 1],
        chunk=table[:, :, 2],
        num_warmup=np.argmax(kind != FORWARD, axis=1),
        layout=layout,
    )


def _lines(text: str, name: str) -> tuple[list[str], Layout]:
    """Return the stages' lines and the layout, from the text or the JSON format."""
    if not text.lstrip().startswith("{"):
        stripped = (line.split("#", 1)[0].strip() for line in text.splitlines())
        return [line for line in stripped if line], "loop"
    try:
        fields: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise InputError(name, f"is no JSON: {error}.") from None
    stages, layout = fields.get("stages"), fields.get("layout", "loop")
    if not isinstance(stages, list) or not all(isinstance(line, str) for line in stages):
        raise InputError(f"{name}, stages", "must be a list of one line per stage, e.g. ['F0 B0', 'F0 B0'].")
    if layout not in ("loop", "vee"):
        raise InputError(f"{name}, layout", f"must be 'loop' or 'vee', got {layout!r}.")
    return stages, layout


def _operations(line: str, where: str) -> list[Operation]:
    operations = []
    for word in line.split():
        match = _OPERATION.fullmatch(word)
        if match is None:
            raise InputError(where, f"{word!r} is no operation; write e.g. F3, B3, I3 or W3, with chunks F3.1.")
        operations.append((LETTERS.index(match[1]), int(match[2]), int(match[3] or 0)))
    split = {(microbatch, chunk) for kind, microbatch, chunk in operations if kind == WEIGHT}
    return [
        (INPUT if kind == BACKWARD and (microbatch, chunk) in split else kind, microbatch, chunk)
        for kind, microbatch, chunk in operations
    ]
