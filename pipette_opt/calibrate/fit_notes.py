"""What people should know of a fit before they use it."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.free import FREE, Free
from pipette_opt.calibrate.left_out import named
from pipette_opt.calibrate.versions import run_version
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec

INTERRUPTED = "cross-validation was interrupted: how far it can be trusted is not known"
"""Note of a fit that was kept."""


UNEQUAL = 1.5
"""Longest over shortest time of one job from which on there is a note; repeats usually differ by a few percent."""

MAX_REPEATS = 5
"""Notes on such jobs, the most unequal first."""

JOB_FIELDS = (
    "source", "gpu_name", "gpus_per_node", "num_gpus", "model", "num_layers", "hidden", "ffn_hidden", "heads",
    "kv_heads", "vocab", "seq_len", "gbs", "mbs", "tp", "pp", "dp", "vpp", "cp", "seq_parallel", "zero_stage",
    "recompute_text", "attention_kernel", "precision", "layers_per_stage", "notes",
)  # fmt: skip
"""What two rows of one job have in common, besides further columns."""


LITTLE = 0.7
"""Standard deviation of a constant after the fit, over its prior's, from which on its variance is hardly halved."""

MIN_OF_A_SET = 3
"""Runs of a source on one kind of host that are compared with those of others."""

APART = 1.1
"""Measured over fitted time of one source over that of another from which on there is a note; chosen."""


def repeat_notes(runs: Sequence[MeasuredRun]) -> list[str]:
    """Rows that say the same and took very different times: something about them is not in the file."""
    jobs: dict[tuple[object, ...], list[MeasuredRun]] = {}
    for run in runs:
        key = (*(getattr(run, name) for name in JOB_FIELDS), *sorted(run.extra.items()))
        jobs.setdefault(key, []).append(run)
    found = []
    for members in jobs.values():
        times = [run.iter_time_s for run in members if run.iter_time_s is not None]
        if max(times) > UNEQUAL * min(times):
            rows = named(run.row for run in members)
            note = f"{rows} say the same job and took {min(times):.4g} to {max(times):.4g} s: all count"
            found.append((max(times) / min(times), note))
    found.sort(reverse=True)
    more = [f"{len(found) - MAX_REPEATS} more jobs like that"] if len(found) > MAX_REPEATS else []
    return [note for _, note in found[:MAX_REPEATS]] + more


def told_notes(free: Sequence[Free], told: FloatArray, base: StackSpec) -> list[str]:
    """
    Constants that the runs say nothing, or little, of.

    Parameters
    ----------
    free
        Constants that were fitted.
    told
        Standard deviation of each after the fit, over that before, shape ``(num_free,)``.
    """
    fitted = {one.name for one in free}
    nothing = [one.name for one in FREE if one.name not in fitted]
    little = [one.name for one, left in zip(free, told.tolist(), strict=True) if left > LITTLE]
    notes = []
    if nothing:
        notes.append(f"the runs tell nothing of {', '.join(nothing)}: as in {base.name} at the speed of the runs")
    if little:
        notes.append(f"the runs tell little of {', '.join(little)}: near those of {base.name}")
    return notes


def mixed_notes(runs: Sequence[MeasuredRun], residuals: FloatArray) -> list[str]:
    """
    Runs of several sources, or kinds of host, that one set of constants does not fit together.

    Parameters
    ----------
    residuals
        Logarithms of measured over predicted times.
    """
    sets: dict[str, list[float]] = {}
    for run, residual in zip(runs, residuals.tolist(), strict=True):
        name = f"{run.source or 'no source'} on {run.gpu_name}, {run.gpus_per_node} a host"
        sets.setdefault(name, []).append(residual)
    middle = {name: float(np.median(one)) for name, one in sets.items() if len(one) >= MIN_OF_A_SET}
    if len(middle) < 2 or max(middle.values()) - min(middle.values()) < np.log(APART):
        return []
    said = "; ".join(f"{name}: {np.exp(one):.2f}" for name, one in sorted(middle.items(), key=lambda one: one[1]))
    return [f"sources differ in measured over fitted time ({said}): calibrate each alone, if they are several clusters"]


def layer_notes(stack: StackSpec) -> list[str]:
    """What was learned of layers, for people."""
    if stack.layers is None:
        return ["layers take what the formula says: what their shapes seemed to add did not help runs left out"]
    factors = [one.factor for one in stack.layers.shapes]
    return [f"layers of {len(factors)} shapes take {min(factors):.2f} to {max(factors):.2f} of what the formula says"]


def version_notes(stack: StackSpec, runs: Sequence[MeasuredRun], last: str) -> list[str]:
    """Factors of versions, for people, and what is missing of them."""
    several = len({run_version(run) for run in runs}) > 1
    if several and not stack.versions:
        return [
            f"there are runs of several versions of the stack, but too few of {last or 'none, as in the last row'}: "
            "all are taken for one"
        ]
    return [
        f"version {name} takes {factor:.3f} of the last row's time" for name, factor in (stack.versions or {}).items()
    ]
