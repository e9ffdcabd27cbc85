"""Leave-one-stack-out test of the memory formula: nothing fitted, and constants fitted to the other stacks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.memory.evaluation import known_pairs
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs.memory_constants import SHOWN, MemoryConstants

Choose = Callable[[MeasuredRun], bool]

SIMUMAX = "Megatron-LM by SimuMax, B200"
"""Stack of SimuMax's dense rows, the peaks of Megatron-Core's tensors."""


def _is_dense_test(run: MeasuredRun) -> bool:
    return "moe" not in run.model and "mla" not in run.model and run.cells.get("n_experts", "") in ("", "nan")


STACKS: Mapping[str, tuple[str, Choose]] = {
    "nanotron, H100": ("hf_ultrascale_h100.csv", lambda run: True),
    "Aceso, L4 and A10G": ("mist_stage_memory.csv", lambda run: bool(run.cells.get("params_on_rank"))),
    "Mist, L4": ("mist_stage_memory.csv", lambda run: run.source.startswith("Mist-tuned")),
    "Megatron-LM's tests, H100": ("megatron_ci_golden.csv", _is_dense_test),
    SIMUMAX: (
        "simumax.csv",
        lambda run: "llama" in run.model and run.cells.get("peak_from_same_run") == "True",
    ),
}
"""File of each stack, and the filter for its rows: dense models, with the peak of the run itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """
    Mean absolute relative errors of the peaks of one stack.

    Parameters
    ----------
    formula
        Error with Megatron-Core's constants, nothing fitted.
    others
        Error with all constants fitted to the other stacks.
    """

    stack: str
    num_peaks: int
    formula: float
    others: float


def stack_peaks(folder: Path) -> dict[str, list[MemoryRun]]:
    """Return the runs with peaks of every stack whose file exists."""
    files = {file: folder / file for file, _ in STACKS.values() if (folder / file).is_file()}
    known = {file: known_pairs(path) for file, path in files.items()}
    return {
        name: [memory for run, memory in known[file] if memory.peak_gib is not None and choose(run)]
        for name, (file, choose) in STACKS.items()
        if file in known
    }


def leave_each_out(stacks: Mapping[str, Sequence[MemoryRun]]) -> list[LeftOut]:
    """Return the errors of every stack, each predicted with nothing fitted and from the runs of the others."""
    results = []
    for name, outside in stacks.items():
        others = [run for other, runs in stacks.items() if other != name for run in runs]
        results.append(
            LeftOut(
                stack=name,
                num_peaks=len(outside),
                formula=_mean_error(log_ratios(outside)),
                others=_mean_error(log_ratios(outside, fit_constants(others, MemoryConstants()))),
            )
        )
    return results


def log_ratios(runs: Sequence[MemoryRun], memory_constants: MemoryConstants | None = None) -> FloatArray:
    """Return ``log(measured / predicted)``, with the predicted tensors not limited by the device's memory."""
    constants = (memory_constants or MemoryConstants()).vector() * SHOWN
    rows = np.array([float((run.regressors[run.measured_rows] @ constants).max()) for run in runs])
    ratio: FloatArray = np.log(np.array([run.peak_gib for run in runs], dtype=np.float64) / rows)
    return ratio


def _mean_error(log_ratio: FloatArray) -> float:
    return float(np.abs(np.expm1(-log_ratio)).mean())


def stack_rows(results: Sequence[LeftOut]) -> list[dict[str, str]]:
    """Return the table of left-out stacks as rows of text."""
    return [
        {
            "stack left out": result.stack,
            "peaks": str(result.num_peaks),
            "formula, nothing fitted": f"{result.formula:.2%}",
            "all constants from the others": f"{result.others:.2%}",
        }
        for result in results
    ]
