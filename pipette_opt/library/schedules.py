"""Schedules for ``estimate --schedule``, read by name or from a file, and checked."""

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from pipette_opt.base.errors import InputError, made_at
from pipette_opt.base.files import is_file

if TYPE_CHECKING:
    from pipette_opt.base.types import P2PMode
    from pipette_opt.library.current import Current
    from pipette_opt.parallel import ParallelConfig
    from pipette_opt.parallel.schedule import Schedule

OPTION = "--schedule"

GROUPS = re.compile(r"interleaved:([0-9]{1,6})")
"""Interleaved 1F1B with this group size, Megatron-Core's ``microbatch_group_size_per_vp_stage``."""

MEASURED = ("1f1b", "interleaved")
"""Schedules that the measured public runs use; only these have an error band."""


def with_schedule(current: "Current", given: str, max_oom_risk: float) -> "Current":
    """Simulate the launch with another schedule, including the memory that this schedule needs."""
    from pipette_opt.parallel import microbatches_of
    from pipette_opt.prepare import load_predictor
    from pipette_opt.simulate.estimate import estimate
    from pipette_opt.simulate.schedule_memory import schedule_memory
    from pipette_opt.worlds.bands import with_band

    instance, config = current.instance, current.config
    schedule = read_schedule(given, config, microbatches_of(instance.training, config), instance.p2p)
    predictor = load_predictor(max_oom_risk, instance)
    memory = schedule_memory(current.memory, instance, config, schedule, predictor, max_oom_risk)
    simulated = estimate(instance, config, current.placement, schedule)
    if given in MEASURED:
        simulated = with_band(simulated, instance, config, current.placement)
    return replace(
        current,
        estimate=simulated,
        memory=memory,
        schedule=schedule,
    )


def read_schedule(given: str, config: "ParallelConfig", num_microbatches: int, p2p: "P2PMode") -> "Schedule":
    """
    Return a schedule by name, or from a file with a line per stage (``data/README.md``).

    Raise ``InputError`` if stages, chunks or micro-batches differ from the configuration, if stages wait for each
    other, or if the order deadlocks with blocking sends.
    """
    from pipette_opt.read.files import read_text
    from pipette_opt.read.kinds_of_files import reads
    from pipette_opt.simulate.orders import SCHEDULES, named_schedule, parse_order
    from pipette_opt.simulate.program import schedule_program

    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    grouped = GROUPS.fullmatch(given)
    if given == "interleaved" or grouped is not None or given in SCHEDULES:
        _check_chunks("interleaved" if grouped else given, chunks)
        name = given if given in SCHEDULES else "1f1b"
        size = int(grouped[1]) if grouped else None
        schedule = made_at(f"{OPTION} {given}", named_schedule, name, pp, num_microbatches, chunks, size)
    elif is_file(given):
        schedule = reads()(lambda path: parse_order(read_text(path), path))(given)
    else:
        names = ", ".join((*SCHEDULES, "interleaved", "interleaved:8 (micro-batches of a group)"))
        raise InputError(OPTION, f"must be one of {names}, or a file, got {given!r}.")
    found = (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches)
    if found != (pp, chunks, num_microbatches):
        raise InputError(
            given,
            f"has {found[0]} stages with {found[1]} chunks and {found[2]} micro-batches, but the launch has "
            f"{pp} stages "
            f"with {chunks} chunks and {num_microbatches} micro-batches.",
        )
    try:
        schedule_program(schedule, p2p, config.overlap_p2p_communication)
    except ValueError as error:
        hint = str(error).replace(
            "give p2p 'async' for this schedule",
            "give p2p async in a job file, for the launch or for the solve that makes the plan",
        )
        raise InputError(f"{OPTION} {given}", hint) from None
    return schedule


def _check_chunks(name: str, chunks: int) -> None:
    """Raise ``InputError`` unless the launch has the number of model chunks that the schedule needs."""
    wanted = {"interleaved": "2 or more", "zb-v": "2"}.get(name, "1")
    if not (chunks > 1 if name == "interleaved" else str(chunks) == wanted):
        raise InputError(
            f"{OPTION} {name}",
            f"needs {wanted} model chunks per stage, but the launch has {chunks}; change "
            "--num-virtual-stages-per-pipeline-rank.",
        )
