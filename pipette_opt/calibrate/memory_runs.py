"""Measured memory of a run, and the memory that the constants of a stack predict for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.memory.framework import HIDDEN, NEEDED, SHOWN, Framework, but, normal_beyond
from pipette_opt.memory.twins import as_twins_take

SURELY_OUT = 1.1
"""Ratio of need and usable memory above which a run certainly does not fit. Chosen."""

_KEPT = but(("step_bytes", "run_ahead_buffers", "pile_up_buffers")) & SHOWN
_STEPPED = but(("step_bytes",)) & SHOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRun:
    """
    Measured memory of a run, with its regressors.

    Parameters
    ----------
    regressors
        Memory of one unit of each constant in each row, GiB, shape ``(num_rows, len(REGRESSORS))``; a row is
        a stage at one of its moments.
    measured_rows
        Rows among which the measured peak is the largest.
    capacity_gib
        Memory of one GPU.
    peak_gib
        Measured peak; ``None`` without a measurement.
    ran_out
        Whether the job ran out of memory; ``None`` if not known.
    group
        Group that is left out together.
    work
        Work per rank, by row, which runs with other numbers of replicas share; see :mod:`~pipette_opt.memory.twins`.
        Empty if not known.
    num_gpus, version
        GPUs of the job, and version of the stack; empty if not known.
    formula_gib
        Formula alone, of the measured stages and of the fullest stage, for comparison.
    other_regressors
        Regressors of the kernels with the largest memory, if the row does not name its kernels.
    """

    regressors: FloatArray
    measured_rows: IntArray
    capacity_gib: float
    peak_gib: float | None = None
    ran_out: bool | None = None
    group: str = ""
    work: tuple[str, ...] = ()
    num_gpus: int = 1
    version: str = ""
    formula_gib: tuple[float, float] | None = None
    other_regressors: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunMemory:
    """
    Predicted memory of a run, GiB.

    Parameters
    ----------
    taken_gib
        Memory of the measured stages that a measurement would show.
    needed_gib
        Memory that the fullest stage needs.
    usable_gib
        Memory of the device that a job can use.
    taken_spread, needed_spread
        Standard deviations of the logarithms of the errors of ``taken_gib`` and ``needed_gib``.
    shift
        Factor on rare errors of ``taken_gib`` beyond these standard deviations.
    more
        Factor on ``taken_gib`` if other kernels ran than assumed; 1 after a fit to runs, which settles it.
    """

    taken_gib: float
    needed_gib: float
    usable_gib: float
    taken_spread: float
    needed_spread: float
    shift: float = 1.0
    more: float = 1.0


def predict_memory(framework: Framework, run: MemoryRun) -> RunMemory:
    """Predict the memory that a run shows and needs."""
    usable = run.capacity_gib - framework.unusable_gib
    constants = framework.vector()
    regressors = run.regressors * framework.factor(run.version)
    needs = as_twins_take(framework, regressors, constants * NEEDED, run.work) @ (constants * NEEDED)
    fullest = int(needs.argmax())
    rows = as_twins_take(framework, regressors, constants * SHOWN, run.work)[run.measured_rows]
    room = max(usable - float((rows @ (constants * HIDDEN)).max()), 1e-3)
    widths = framework.widths(rows, constants * SHOWN, run.num_gpus)
    taken, seen = _taken(rows, constants, room, widths)
    more = 1.0
    if run.other_regressors is not None and not framework.largest_job:
        more = max(_taken(run.other_regressors[run.measured_rows], constants, room, widths)[0] / taken, 1.0)
    return RunMemory(
        taken_gib=taken,
        needed_gib=float(needs[fullest]),
        usable_gib=usable,
        taken_spread=float(widths[seen]),
        needed_spread=float(framework.widths(regressors[fullest], constants * NEEDED, run.num_gpus)),
        shift=framework.shift if run.num_gpus > framework.largest_job > 0 else 1.0,
        more=more,
    )


def _taken(rows: FloatArray, constants: FloatArray, usable: float, widths: FloatArray) -> tuple[float, int]:
    """
    Memory that the fullest of the rows shows on a device with ``usable`` GiB, and the place of that row.

    With enough room a row shows all that it would take, or all but the leftovers of the optimizer's step. Otherwise the
    allocator returned blocks, once or repeatedly. A later iteration then shows a value between the memory in use at the
    last return and all of the device: the geometric middle is taken, as errors are relative. The memory in use lies
    between the largest kept amount, if that return was the only one, and the smallest of an iteration, its end. A need
    that cannot fit at all is shown unchanged.

    Room is known only within the standard deviation of each row, so the result is a mean of logarithms.
    """
    total, stepped, kept = (rows @ (constants * mask) for mask in (SHOWN, _STEPPED, _KEPT))
    sizes = np.maximum([total, stepped, kept], 1e-3)
    in_use = np.maximum(kept.min() + (kept - kept.min()) * np.minimum(usable / sizes[0], 1.0), 1e-3)
    chances = -np.diff(
        [np.ones(len(rows)), *normal_beyond(np.log(usable / sizes) / widths), np.zeros(len(rows))], axis=0
    )
    shown = np.minimum([sizes[0], sizes[1], np.sqrt(np.minimum(in_use, usable) * usable), sizes[2]], usable)
    taken = np.where(kept > SURELY_OUT * usable, kept, np.exp((chances * np.log(shown)).sum(axis=0)))
    fullest = int(taken.argmax())
    return float(taken[fullest]), fullest


def peak_errors(framework: Framework, runs: Sequence[MemoryRun]) -> FloatArray:
    """Return ``log(measured / predicted)`` of every run with a peak."""
    pairs = [(run.peak_gib, predict_memory(framework, run).taken_gib) for run in runs if run.peak_gib is not None]
    return np.array([np.log(measured / predicted) for measured, predicted in pairs])
