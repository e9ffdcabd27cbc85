"""The passes of one stage that its memory depends on, out of the schedule that the simulator times."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pipette_opt.parallel.schedule import BACKWARD, FORWARD, Schedule


class Pass(NamedTuple):
    """One forward or backward of one model chunk for one micro-batch."""

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


def stage_passes(schedule: Schedule, stage: int) -> Iterator[Pass]:
    """
    Passes of one stage from the start of the iteration until memory can no longer grow.

    All before the first backward, then one full round: every chunk at least once in each direction, with the largest
    number in flight. The rest of 1F1B repeats that round or only frees. Backwards in halves raise ``ValueError``.
    """
    kinds = schedule.kind[stage]
    if not ((kinds == FORWARD) | (kinds == BACKWARD)).all():
        raise ValueError("memory is traced for whole backwards, not for halves of them.")
    wanted = schedule.num_stages * schedule.num_chunks + 1 if schedule.num_chunks > 1 else 2
    for kind, chunk, microbatch in zip(kinds, schedule.chunk[stage], schedule.microbatch[stage], strict=True):
        yield Pass("forward" if kind == FORWARD else "backward", int(chunk), int(microbatch))
        wanted -= int(kind == BACKWARD)
        if not wanted:
            return
