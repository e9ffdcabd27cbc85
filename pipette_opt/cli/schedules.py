"""Other schedules than the plan's own, for ``estimate --schedule``: read, checked, and what they do to the memory."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from pipette_opt.base.errors import InputError

if TYPE_CHECKING:
    from pipette_opt.base.types import P2PMode
    from pipette_opt.cli.current import Current
    from pipette_opt.parallel import ParallelConfig
    from pipette_opt.parallel.schedule import Schedule
    from pipette_opt.plans.plan import StageMemory
    from pipette_opt.specs import Instance

OPTION = "--schedule"

GROUPS = re.compile(r"interleaved:(\d{1,6})")
"""Interleaved 1F1B with groups of so many micro-batches (Megatron-Core's ``microbatch_group_size_per_vp_stage``)."""

MEASURED = ("1f1b", "interleaved")
"""Schedules of the public runs that bands come from."""


def with_schedule(current: "Current", given: str, max_oom_risk: float) -> "Current":
    """The same launch with another schedule, and with what its memory loses where that is nearly full."""
    from pipette_opt.judge.estimate import estimate
    from pipette_opt.parallel import microbatches_of
    from pipette_opt.read.bands import with_band

    instance, config = current.instance, current.config
    schedule = read_schedule(given, config, microbatches_of(instance.training, config), instance.p2p)
    memory, lost_s = schedule_memory(current.memory, instance, config, schedule, max_oom_risk)
    if instance.edge_loss_s is not None:
        instance = replace(instance, edge_loss_s=lambda _: lost_s)
    judged = estimate(instance, config, current.placement, schedule)
    if given in MEASURED:
        judged = with_band(judged, instance, config)
    return replace(
        current,
        instance=instance,
        estimate=judged,
        memory=memory,
        schedule=schedule,
    )


def read_schedule(given: str, config: "ParallelConfig", num_microbatches: int, p2p: "P2PMode") -> "Schedule":
    """
    A schedule by name, or from a file with one line per stage (``data/README.md``).

    ``InputError`` if it is not one of the configuration's stages, chunks and micro-batches, if its stages wait for each
    other, or if it is none of Megatron-Core's and stages wait for their sends.
    """
    from pipette_opt.judge.orders import SCHEDULES, ScheduleName, named_schedule, parse_order
    from pipette_opt.judge.program import schedule_program
    from pipette_opt.read.files import read_text

    pp, chunks = config.pipeline_model_parallel_size, config.num_chunks
    grouped = GROUPS.fullmatch(given)
    if given == "interleaved" or grouped is not None or given in SCHEDULES:
        _check_chunks("interleaved" if grouped else given, chunks)
        name = given if given in SCHEDULES else "1f1b"
        size = int(grouped[1]) if grouped else None
        try:
            schedule = named_schedule(cast("ScheduleName", name), pp, num_microbatches, chunks, size)
        except ValueError as error:
            raise InputError(f"{OPTION} {given}", str(error)) from None
    elif Path(given).is_file():
        schedule = parse_order(read_text(given), given)
    else:
        names = ", ".join((*SCHEDULES, "interleaved", "interleaved:9 (micro-batches of a group)"))
        raise InputError(OPTION, f"must be one of {names}, or a file, got {given!r}.")
    found = (schedule.num_stages, schedule.num_chunks, schedule.num_microbatches)
    if found != (pp, chunks, num_microbatches):
        raise InputError(
            given,
            f"has {found[0]} stages of {found[1]} chunks and {found[2]} micro-batches, the launch {pp} of {chunks} and "
            f"{num_microbatches}.",
        )
    try:
        schedule_program(schedule, p2p, config.overlap_p2p_communication)
    except ValueError as error:
        hint = str(error).replace(
            "give p2p 'async' for this schedule", "give --p2p async with --args, or to the solve that makes the plan"
        )
        raise InputError(f"{OPTION} {given}", hint) from None
    return schedule


def _check_chunks(name: str, chunks: int) -> None:
    """The launch must have as many model chunks as the schedule works on."""
    wanted = {"interleaved": "2 or more", "zb-v": "2"}.get(name, "1")
    if not (chunks > 1 if name == "interleaved" else str(chunks) == wanted):
        raise InputError(
            f"{OPTION} {name}",
            f"works on {wanted} model chunks per stage, the launch has {chunks}; see "
            "--num-virtual-stages-per-pipeline-rank.",
        )


def schedule_memory(
    memory: "tuple[StageMemory, ...]",
    instance: "Instance",
    config: "ParallelConfig",
    schedule: "Schedule",
    max_oom_risk: float,
) -> "tuple[tuple[StageMemory, ...], float]":
    """
    Memory with as many activations as a schedule holds, where ``memory`` is that of 1F1B; and what is lost with it.

    The share of the activations is the closed formula's; the rest of the prediction stays.
    """
    from pipette_opt.judge.fullness import expected_loss_s
    from pipette_opt.memory.formula import formula_bytes
    from pipette_opt.memory.table import stage_table
    from pipette_opt.parallel.schedule import max_in_flight
    from pipette_opt.prepare import load_predictor

    table = stage_table(instance.model, instance.training, [config])
    formula = formula_bytes(table)
    saved = np.asarray(formula.saved) * (max_in_flight(schedule) / np.asarray(table.in_flight) - 1.0)
    grown = 1.0 + saved / np.asarray(formula.total)
    predictor = load_predictor(max_oom_risk, instance)
    (prediction,) = predictor.predict(
        instance.model,
        instance.training,
        [config],
        gpus_per_node=instance.cluster.gpus_per_node,
        intra_node_bytes_per_s=instance.cluster.intra_node_bytes_per_s,
        max_oom_risk=max_oom_risk,
    )
    predicted = np.ceil(np.array([one.predicted_bytes for one in memory]) * grown)
    capacity = np.array([one.capacity_bytes for one in memory])
    risks = predictor.oom_probability(predicted, capacity, prediction.spread)
    stages = tuple(
        replace(
            one,
            predicted_bytes=int(predicted[stage]),
            upper_bytes=int(np.ceil(one.upper_bytes * grown[stage])),
            oom_probability=float(risks[stage]),
            oom_probability_at_most=predictor.at_floor(risks[stage]),
            components=_with_activations(one.components, int(predicted[stage]) - one.predicted_bytes),
        )
        for stage, one in enumerate(memory)
    )
    return stages, expected_loss_s(instance, predictor, config, predicted, capacity, prediction.spread)


def _with_activations(components: Mapping[str, int], more_bytes: int) -> dict[str, int]:
    """Parts of a peak whose activations are so much more; none where nobody knows them."""
    return {name: size + more_bytes * (name == "activations") for name, size in components.items()}
