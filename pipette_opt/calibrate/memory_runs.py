"""What is known of the memory of a run, and what the constants of a stack say that it takes and needs."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.memory.framework import HIDDEN, NEEDED, SHOWN, Framework, but, normal_beyond
from pipette_opt.memory.twins import as_twins_take

SURELY_OUT = 1.1
"""More than so many times what there is, is not there by a slip of the prediction."""

_KEPT = but(("step_bytes", "run_ahead_buffers", "pile_up_buffers")) & SHOWN
_STEPPED = but(("step_bytes",)) & SHOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRun:
    """
    What is known of the memory of one run.

    Parameters
    ----------
    columns
        What one unit of each constant weighs in each row, GiB, shape ``(num_rows, len(COLUMNS))``; a row is a stage in
        one of its moments.
    measured_rows
        Rows among which the peak was the largest.
    capacity_gib
        Memory of one GPU.
    peak_gib
        ``None`` if not measured.
    ran_out
        Whether the job ran out of memory; ``None`` if nobody knows.
    group
        Runs of one group are left out together.
    work
        What twins share, by row; see :mod:`twins`. Empty if nobody knows.
    num_gpus, version
        Of the whole job, and of the stack; empty if nobody says.
    formula_gib
        The closed formula alone, of the measured stages and of the fullest one; for comparison.
    other_columns
        The columns with the kernels that take most, where nobody says which ones ran.
    """

    columns: FloatArray
    measured_rows: IntArray
    capacity_gib: float
    peak_gib: float | None = None
    ran_out: bool | None = None
    group: str = ""
    work: tuple[str, ...] = ()
    num_gpus: int = 1
    version: str = ""
    formula_gib: tuple[float, float] | None = None
    other_columns: FloatArray | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunMemory:
    """
    What is said about one run, GiB.

    Parameters
    ----------
    taken_gib
        What the measured stages take, as far as a measurement would show.
    needed_gib
        What the fullest stage needs.
    usable_gib
        What there is.
    taken_spread, needed_spread
        Standard deviation of the logarithm of the error of each.
    shift
        By how much rare errors of the first are larger than those spreads say.
    more
        What the measured stages may take beyond the first if other kernels ran than is assumed, as a factor; a fit to
        runs has settled that.
    """

    taken_gib: float
    needed_gib: float
    usable_gib: float
    taken_spread: float
    needed_spread: float
    shift: float = 1.0
    more: float = 1.0


def predict_memory(framework: Framework, run: MemoryRun) -> RunMemory:
    """What a run takes and needs."""
    usable = run.capacity_gib - framework.unusable_gib
    constants = framework.vector()
    columns = run.columns * framework.factor(run.version)
    needs = as_twins_take(framework, columns, constants * NEEDED, run.work) @ (constants * NEEDED)
    fullest = int(needs.argmax())
    rows = as_twins_take(framework, columns, constants * SHOWN, run.work)[run.measured_rows]
    room = max(usable - float((rows @ (constants * HIDDEN)).max()), 1e-3)
    widths = framework.widths(rows, constants * SHOWN, run.num_gpus)
    taken, seen = _taken(rows, constants, room, widths)
    more = 1.0
    if run.other_columns is not None and not framework.largest_job:
        more = max(_taken(run.other_columns[run.measured_rows], constants, room, widths)[0] / taken, 1.0)
    return RunMemory(
        taken_gib=taken,
        needed_gib=float(needs[fullest]),
        usable_gib=usable,
        taken_spread=float(widths[seen]),
        needed_spread=float(framework.widths(columns[fullest], constants * NEEDED, run.num_gpus)),
        shift=framework.shift if run.num_gpus > framework.largest_job > 0 else 1.0,
        more=more,
    )


def _taken(rows: FloatArray, constants: FloatArray, usable: float, widths: FloatArray) -> tuple[float, int]:
    """
    What the fullest of some rows shows on a device that has so much, and which row that is.

    As much as it would take, if there is room; without the leftovers of the step, if there is room then. Else the
    allocator returned blocks, once or again and again, and the reserved memory that a later iteration shows is
    anything between what was in use at the last return and all there is: the geometric middle, since errors are
    relative. What was in use lies between the most that is kept, if that return was the only one, and the least of an
    iteration, its end. What cannot be at all is shown as it is.

    Whether there is room is known to the width of each row only: the mean logarithm of what may be shown.
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
    """``log(measured / predicted)`` of every run with a peak."""
    pairs = [(run.peak_gib, predict_memory(framework, run).taken_gib) for run in runs if run.peak_gib is not None]
    return np.array([np.log(measured / predicted) for measured, predicted in pairs])
