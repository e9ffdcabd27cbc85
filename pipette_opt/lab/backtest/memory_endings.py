"""Measured jobs without a pipeline, replayed in nanotron's own order of allocations: peaks, and which should live."""

from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.memory.framework import Framework
from pipette_opt.memory_training.allocator import DeviceFullError
from pipette_opt.memory_training.nanotron import replay_nanotron
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """
    How a job ended, and how its replay does.

    Parameters
    ----------
    ran_out, replay_ran_out
        Whether the device was too small.
    num_waits
        How often the replay took back all that was late on a full device.
    """

    run: MeasuredRun
    ran_out: bool
    replay_ran_out: bool
    num_waits: int


def replayed_peaks(runs: Sequence[MeasuredRun], stack: StackSpec) -> list[tuple[MeasuredRun, float]]:
    """Every run with a peak and no pipeline, and what its replay reserves where there is room, GiB."""
    chosen = [run for run in runs if run.peak_mem_bytes is not None and run.pp == 1]
    return [
        (
            case.run,
            replay_nanotron(case.instance.model, case.instance.training, case.config).peaks.reserved_bytes / GIB,
        )
        for case in make_cases(chosen, stack)
        if isinstance(case, Case)
    ]


def endings(runs: Sequence[MeasuredRun], stack: StackSpec, framework: Framework) -> list[Ending]:
    """
    Of every run with a label, one replica and no pipeline.

    Nothing of the tensors is fitted; the device has what the framework says is usable, less NCCL's buffers of one
    group.
    """
    chosen = [run for run in runs if run.oom is not None and run.dp == run.pp == 1]
    return [_ending(case, framework) for case in make_cases(chosen, stack) if isinstance(case, Case)]


def _ending(case: Case, framework: Framework) -> Ending:
    run = case.run
    assert run.gpu is not None
    outside_gib = framework.unusable_gib + framework.group_gib
    try:
        replayed = replay_nanotron(
            case.instance.model,
            case.instance.training,
            case.config,
            capacity_bytes=run.gpu.gpu.memory_bytes - int(outside_gib * GIB),
        )
    except DeviceFullError:
        return Ending(run=run, ran_out=bool(run.oom), replay_ran_out=True, num_waits=0)
    return Ending(run=run, ran_out=bool(run.oom), replay_ran_out=False, num_waits=replayed.num_waits)
