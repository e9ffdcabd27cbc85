"""Measured memory of a run, and the memory that a stack's constants predict for it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.memory.odds import normal_beyond
from pipette_opt.memory.twins import as_twins_take
from pipette_opt.specs.memory_constants import HIDDEN, NEEDED, SHOWN, MemoryConstants, but
from pipette_opt.specs.memory_prior import unknown_widths

SURELY_OUT = 1.1
"""Need over usable memory above which a run certainly does not fit. Chosen."""

_KEPT = but(("step_bytes", "run_ahead_buffers", "pile_up_buffers")) & SHOWN
_STEPPED = but(("step_bytes",)) & SHOWN
"""Masks of shown regressors without leftovers of the optimizer's step; ``_KEPT`` also without waiting buffers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRun:
    """
    Measured memory of a run, with its regressors.

    Parameters
    ----------
    regressors
        GiB per unit of each constant, shape ``(num_rows, len(REGRESSORS))``; a row is a stage at one moment.
    measured_rows
        Rows among which the measured peak is the largest.
    capacity_gib
        Memory of one GPU.
    peak_gib
        Measured peak; ``None`` without a measurement.
    ran_out
        Whether the job ran out of memory; ``None`` if unknown.
    group
        Group of runs that cross-validation holds out together.
    work
        Key of the work per rank for each row; runs that differ only in the number of replicas share it, see
        :mod:`~pipette_opt.memory.twins`. Empty if unknown.
    num_gpus, version
        GPUs of the job, and software version; empty if unknown.
    formula_gib
        Memory by tensor sizes alone, of the measured stages and of the fullest stage, for comparison.
    other_regressors
        Regressors with the kernels that need the most memory, if the row does not name its kernels.
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
        GPU memory that a job can use.
    taken_spread, needed_spread
        Standard deviations of the logarithms of the errors of ``taken_gib`` and ``needed_gib``, on a stack with these
        constants.
    taken_unknown, needed_unknown
        Standard deviations that the unknown constants of the stack add.
    shift
        Factor on rare errors of ``taken_gib``; above 1 only for jobs larger than all fitted jobs.
    more
        Factor on ``taken_gib`` if other kernels ran than assumed; 1 with constants fitted to runs.
    """

    taken_gib: float
    needed_gib: float
    usable_gib: float
    taken_spread: float
    needed_spread: float
    taken_unknown: float = 0.0
    needed_unknown: float = 0.0
    shift: float = 1.0
    more: float = 1.0


def predict_memory(memory_constants: MemoryConstants, run: MemoryRun) -> RunMemory:
    """Return the predicted memory of a run: the peak that a measurement shows, and the need."""
    usable = run.capacity_gib - memory_constants.unusable_gib
    constants = memory_constants.vector()
    regressors = run.regressors * memory_constants.factor(run.version)
    needs = as_twins_take(memory_constants, regressors, constants * NEEDED, run.work) @ (constants * NEEDED)
    fullest = int(needs.argmax())
    rows = as_twins_take(memory_constants, regressors, constants * SHOWN, run.work)[run.measured_rows]
    room = max(usable - float((rows @ (constants * HIDDEN)).max()), 1e-3)
    widths = memory_constants.widths(rows, constants * SHOWN, run.num_gpus)
    taken, seen = _taken(rows, constants, room, widths)
    more = 1.0
    if run.other_regressors is not None and not memory_constants.largest_job:
        more = max(_taken(run.other_regressors[run.measured_rows], constants, room, widths)[0] / taken, 1.0)
    return RunMemory(
        taken_gib=taken,
        needed_gib=float(needs[fullest]),
        usable_gib=usable,
        taken_spread=float(widths[seen]),
        needed_spread=float(memory_constants.widths(regressors[fullest], constants * NEEDED, run.num_gpus)),
        taken_unknown=float(unknown_widths(memory_constants, rows[[seen]], SHOWN)[0]),
        needed_unknown=float(unknown_widths(memory_constants, regressors[[fullest]], NEEDED)[0]),
        shift=memory_constants.shift if run.num_gpus > memory_constants.largest_job > 0 else 1.0,
        more=more,
    )


def _taken(rows: FloatArray, constants: FloatArray, usable: float, widths: FloatArray) -> tuple[float, int]:
    """
    Return the memory that the fullest row shows on a GPU with ``usable`` GiB, and the index of that row.

    With enough room, a measurement shows everything that the row takes, perhaps without the leftovers of the
    optimizer's step. With less room the allocator has returned blocks, once or repeatedly. The peak then lies between
    the memory in use at the last return and the whole GPU, and their geometric mean is taken, as errors are relative.
    The memory in use lies between the largest kept amount (a single return) and the smallest kept amount, at the end of
    an iteration. A need that cannot fit at all is returned unchanged.

    Room is known only within the standard deviation of each row, so the result is a weighted mean of logarithms.
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


def peak_errors(memory_constants: MemoryConstants, runs: Sequence[MemoryRun]) -> FloatArray:
    """Return ``log(measured / predicted)`` for each run with a measured peak."""
    pairs = [
        (run.peak_gib, predict_memory(memory_constants, run).taken_gib) for run in runs if run.peak_gib is not None
    ]
    return np.array([np.log(measured / predicted) for measured, predicted in pairs])
