"""Notes for people on the limits of a fit."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.left_out import named
from pipette_opt.calibrate.versions import run_version
from pipette_opt.read.runs import MEASURED, MeasuredRun
from pipette_opt.specs import StackSpec

INTERRUPTED = "cross-validation was interrupted, so the error on other groups of runs is unknown"
"""Note of a fit whose cross-validation was interrupted."""


UNEQUAL = 1.5
"""Longest over shortest time of equal jobs that causes a note; repeated runs differ by a few percent. Chosen."""

MAX_REPEATS = 5
"""Most notes on equal jobs with unequal times; the most unequal come first. Chosen."""

MIN_OF_A_SET = 3
"""Fewest runs of one source, GPU type and host size for a comparison with other sources. Chosen."""

APART = 1.1
"""Ratio between two sources, in median measured over fitted time, that causes a note. Chosen."""


def repeat_notes(runs: Sequence[MeasuredRun]) -> list[str]:
    """Return notes on equal rows with very different times; the file does not record what differs."""
    jobs: dict[frozenset[tuple[str, str]], list[MeasuredRun]] = {}
    for run in runs:
        job = frozenset((name, cell) for name, cell in run.cells.items() if name not in (*MEASURED, "mfu"))
        jobs.setdefault(job, []).append(run)
    found = []
    for members in jobs.values():
        times = [run.iter_time_s for run in members if run.iter_time_s is not None]
        if max(times) > UNEQUAL * min(times):
            rows = named(run.row for run in members)
            note = f"{rows} describe the same job and took {min(times):.4g} to {max(times):.4g} s; all are used"
            found.append((max(times) / min(times), note))
    found.sort(reverse=True)
    more = [f"{len(found) - MAX_REPEATS} more jobs like that"] if len(found) > MAX_REPEATS else []
    return [note for _, note in found[:MAX_REPEATS]] + more


def mixed_notes(runs: Sequence[MeasuredRun], residuals: FloatArray) -> list[str]:
    """
    Return notes on sources, or types of host, whose times no common set of constants fits.

    Parameters
    ----------
    residuals
        Logarithms of measured over predicted times, shape ``(num_runs,)``.
    """
    sets: dict[str, list[float]] = {}
    for run, residual in zip(runs, residuals.tolist(), strict=True):
        name = f"{run.source or 'no source'} on {run.gpu_name}, {run.gpus_per_node} a host"
        sets.setdefault(name, []).append(residual)
    middle = {name: float(np.median(logs)) for name, logs in sets.items() if len(logs) >= MIN_OF_A_SET}
    if len(middle) < 2 or max(middle.values()) - min(middle.values()) < np.log(APART):
        return []
    ratios = "; ".join(f"{name}: {np.exp(logs):.2f}" for name, logs in sorted(middle.items(), key=lambda logs: logs[1]))
    return [
        f"sources differ in measured over fitted time ({ratios}): calibrate each source separately if the "
        "clusters differ"
    ]


def version_notes(stack: StackSpec, runs: Sequence[MeasuredRun], last: str) -> list[str]:
    """Return notes on the time factors of software versions, and on versions with too few runs."""
    several = len({run_version(run) for run in runs}) > 1
    if several and not stack.versions:
        return [
            f"there are runs of several versions of the stack, but too few of {last or 'none, as in the last row'}: "
            "all are taken for one"
        ]
    return [
        f"version {name} takes {factor:.3f} of the last row's time" for name, factor in (stack.versions or {}).items()
    ]
