"""Forward and backward passes of one stage that decide its peak memory, from the schedule that the simulator times."""

from collections.abc import Iterator
from typing import Literal, NamedTuple

from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.parallel.schedule import BACKWARD, FORWARD, Schedule, build_schedule
from pipette_opt.specs import TrainingSpec


class Pass(NamedTuple):
    """Forward or backward pass of one model chunk for one micro-batch."""

    kind: Literal["forward", "backward"]
    chunk: int
    microbatch: int


def stage_passes(schedule: Schedule, stage: int) -> Iterator[Pass]:
    """
    Yield the passes of a stage from the start of the iteration until memory can no longer grow.

    These are all passes before the first backward, then one full round: every chunk at least once in each direction,
    with the most activations held. The rest of 1F1B repeats that round or only frees memory. Raises ``ValueError`` for
    schedules that split backward passes into halves.
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


def passes_of(
    training: TrainingSpec,
    config: ParallelConfig,
    stage: int,
    num_microbatches: int | None = None,
    schedule: Schedule | None = None,
) -> list[Pass]:
    """Return the passes of a stage to run; ``ValueError`` unless stage and schedule fit the configuration."""
    if num_microbatches is None:
        num_microbatches = microbatches_of(training, config)
    if not 0 <= stage < config.pipeline_model_parallel_size:
        raise ValueError(f"stage must be in 0..{config.pipeline_model_parallel_size - 1}, got {stage}.")
    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    if schedule is None:
        schedule = build_schedule(pp, num_microbatches, chunks)
    found = (schedule.num_stages, schedule.num_chunks, schedule.layout)
    if found != (pp, chunks, "loop"):
        raise ValueError(f"the schedule must have {pp} stages and {chunks} chunks in a loop, got {found}.")
    return list(stage_passes(schedule, stage))
