"""
Leave-one-stack-out test of a network and of a formula with constants, both learnt from the other stacks.

Both have equal inputs: the memory per unit of each constant on the measured rank. The network gets these as fractions
of the counted tensors; the formula is their sum.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.memory.evaluation import Split, known_pairs, split_cases
from benchmarks.memory.residual import STEPS, learn_residual
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs.memory_constants import REGRESSORS, SHOWN, MemoryConstants
from pipette_opt.specs.memory_prior import SPREADS

Choose = Callable[[MeasuredRun], bool]


def _is_dense_test(run: MeasuredRun) -> bool:
    return "moe" not in run.model and "mla" not in run.model and run.extra.get("n_experts", "") in ("", "nan")


STACKS: Mapping[str, tuple[str, Choose]] = {
    "nanotron, H100": ("hf_ultrascale_h100.csv", lambda run: True),
    "Aceso, L4 and A10G": ("mist_stage_memory.csv", lambda run: bool(run.extra.get("params_on_rank"))),
    "Mist, L4": ("mist_stage_memory.csv", lambda run: run.source.startswith("Mist-tuned")),
    "Megatron-LM's tests, H100": ("megatron_ci_golden.csv", _is_dense_test),
    "Megatron-LM by SimuMax, B200": (
        "simumax.csv",
        lambda run: "llama" in run.model and run.extra.get("peak_from_same_run") == "True",
    ),
}
"""File of each stack, and the filter for its rows: dense models, with the peak of the run itself."""

FEW = ("counted", "base_gib", "placeholders", "activations", "logit_bytes")
"""Constants of the small formula."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """
    Mean absolute relative errors of the peaks of one stack.

    Parameters
    ----------
    formula
        Error with Megatron-Core's constants, nothing fitted.
    few, many
        Errors with five constants, and with all, fitted to the other stacks.
    network
        Error with a network on top of ``formula``, trained on the other stacks.
    """

    stack: str
    num_peaks: int
    formula: float
    few: float
    many: float
    network: float


def stack_peaks(folder: Path) -> dict[str, list[MemoryRun]]:
    """Return the runs with peaks of every stack whose file exists."""
    files = {file: folder / file for file, _ in STACKS.values() if (folder / file).is_file()}
    known = {file: known_pairs(path) for file, path in files.items()}
    return {
        name: [memory for run, memory in known[file] if memory.peak_gib is not None and choose(run)]
        for name, (file, choose) in STACKS.items()
        if file in known
    }


def leave_each_out(stacks: Mapping[str, Sequence[MemoryRun]], steps: int = STEPS) -> list[LeftOut]:
    """
    Return the errors of every stack, each predicted from the others with equal weights.

    ``steps`` are the training steps of a network.
    """
    results = []
    for name, outside in stacks.items():
        others = [runs for other, runs in stacks.items() if other != name]
        flat = [run for runs in others for run in runs]
        say = np.concatenate([np.full(len(runs), 1 / len(runs)) for runs in others])
        residual = learn_residual(_features(flat), log_ratios(flat), say, _features(outside), steps)
        off = log_ratios(outside)
        results.append(
            LeftOut(
                stack=name,
                num_peaks=len(outside),
                formula=_mean_error(off),
                few=_mean_error(log_ratios(outside, _few_constants(flat, say))),
                many=_mean_error(log_ratios(outside, fit_constants(flat, MemoryConstants()))),
                network=_mean_error(off - residual),
            )
        )
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """
    Mean errors of the peaks of a stack's larger jobs, learnt from its smaller ones.

    Parameters
    ----------
    few, many
        Errors with five constants fitted to peaks, and with all, fitted to peaks and to the jobs that ran out of
        memory.
    network
        Error with a network trained on the peaks.
    """

    split: str
    num_peaks: int
    few: float
    many: float
    network: float


def scale_out(split: Split, folder: Path) -> list[ScaleOut]:
    """Return the errors of one split; empty if it has no peaks."""
    if not (folder / split.file).is_file():
        return []
    known, tested = ([run for _, run in part] for part in split_cases(split, folder))
    small, large = ([run for run in part if run.peak_gib is not None] for part in (known, tested))
    if not small or not large:
        return []
    say = np.ones(len(small))
    residual = learn_residual(_features(small), log_ratios(small), say, _features(large))
    return [
        ScaleOut(
            split=split.name,
            num_peaks=len(large),
            few=_mean_error(log_ratios(large, _few_constants(small, say))),
            many=_mean_error(peak_errors(fit_constants(known, MemoryConstants()), large)),
            network=_mean_error(log_ratios(large) - residual),
        )
    ]


def scale_out_rows(results: Sequence[ScaleOut]) -> list[dict[str, str]]:
    """Return the table of larger jobs as rows of text."""
    return [
        {
            "runs": result.split,
            "peaks": str(result.num_peaks),
            "five constants": f"{result.few:.1%}",
            "all constants": f"{result.many:.1%}",
            "network": f"{result.network:.1%}",
        }
        for result in results
    ]


def _few_constants(runs: Sequence[MemoryRun], say: FloatArray) -> MemoryConstants:
    """Return the constants of ``FEW``, fitted by least squares of relative errors with priors."""
    base = MemoryConstants()
    rows = np.stack([_measured_row(run) for run in runs])
    peaks = np.array([run.peak_gib for run in runs], dtype=np.float64)
    chosen = [REGRESSORS.index(name) for name in FEW]
    scale = np.sqrt(say / say.mean()) / peaks / base.spread
    rest = peaks - rows @ (base.vector() * SHOWN)
    priors = np.diag([1 / SPREADS[name] for name in FEW])
    system = np.vstack([rows[:, chosen] * scale[:, None], priors])
    moved = np.linalg.lstsq(system, np.append(rest * scale, np.zeros(len(FEW))), rcond=None)[0]
    values = {name: max(getattr(base, name) + float(step), 0.0) for name, step in zip(FEW, moved, strict=True)}
    return replace(base, **values)


def _measured_row(run: MemoryRun) -> FloatArray:
    """Return the regressors of the measured row that takes most memory."""
    rows = run.regressors[run.measured_rows]
    row: FloatArray = rows[int((rows @ (MemoryConstants().vector() * SHOWN)).argmax())]
    return row


def _features(runs: Sequence[MemoryRun]) -> FloatArray:
    """
    Return the network's features, shape ``(num_runs, n)``.

    They are the regressors over the counted tensors, times the priors' widths, and the log of the counted tensors.
    """
    rows = np.stack([_measured_row(run) for run in runs])
    counted = rows[:, REGRESSORS.index("counted")]
    shares = rows[:, 1:] * np.array([SPREADS[name] for name in REGRESSORS[1:]]) / counted[:, None]
    features: FloatArray = np.column_stack([np.log1p(shares), np.log(counted)])
    return features


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
            "five constants from the others": f"{result.few:.2%}",
            "all constants from the others": f"{result.many:.2%}",
            "network from the others": f"{result.network:.2%}",
        }
        for result in results
    ]
