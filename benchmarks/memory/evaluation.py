"""
Evaluation of memory predictions on measured runs: errors, missed and false alarms, coverage.

Ours is calibrated on small jobs only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.backtest.sources import measured_runs
from benchmarks.backtest.stage_rows import known_rows
from benchmarks.memory.verdicts import Reliability, Verdicts, best_kept, reliability, verdicts, wilson
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors, oom_probability, upper_gib
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import DEFAULT_NAME, read_stack
from pipette_opt.specs import StackSpec
from pipette_opt.specs.memory_constants import LateBuffers, MemoryConstants

SWEEP = "hf_ultrascale_h100.csv"
"""Sweep of nanotron, which taught its stack's thresholds."""

MARGIN = 1.2
"""Factor on the formula as a usual safety margin. Chosen."""

RISKS = (0.1, 0.05, 0.02, 0.01)

EVEN = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """
    Rows of a file for calibration, and rows for the test.

    Parameters
    ----------
    calibrate
        Function that selects the rows for calibration; ``None``: nothing is fitted.
    is_tested
        Function that selects the rows for the test.
    """

    name: str
    file: str
    calibrate: Callable[[MeasuredRun], bool] | None
    is_tested: Callable[[MeasuredRun], bool]


SPLITS = (
    Split(
        name="H100, nanotron: 8 GPUs to 16",
        file=SWEEP,
        calibrate=lambda run: run.num_gpus == 8,
        is_tested=lambda run: run.num_gpus == 16,
    ),
    Split(
        name="H100, nanotron: 8-16 GPUs to 32",
        file=SWEEP,
        calibrate=lambda run: run.num_gpus <= 16,
        is_tested=lambda run: run.num_gpus > 16,
    ),
    Split(
        name="A100, WANT 13B: 64 GPUs to the rest",
        file="want_llama_a100.csv",
        calibrate=lambda run: "13B" in run.model and run.num_gpus == 64,
        is_tested=lambda run: "13B" in run.model and run.num_gpus != 64,
    ),
    Split(
        name="A100, WANT 13B at 64 GPUs to 30B",
        file="want_llama_a100.csv",
        calibrate=lambda run: "13B" in run.model and run.num_gpus == 64,
        is_tested=lambda run: "30B" in run.model,
    ),
    Split(
        name="Mist's stages (Aceso): L4 to A10G",
        file="mist_stage_memory.csv",
        calibrate=lambda run: "L4" in run.gpu_name and bool(run.cells.get("params_on_rank")),
        is_tested=lambda run: "A10G" in run.gpu_name and bool(run.cells.get("params_on_rank")),
    ),
    Split(
        name="Mist's own plans on L4, nothing fitted",
        file="mist_stage_memory.csv",
        calibrate=None,
        is_tested=lambda run: run.source.startswith("Mist-tuned"),
    ),
    Split(
        name="Megatron-LM's own tests, nothing fitted",
        file="megatron_ci_golden.csv",
        calibrate=None,
        is_tested=lambda run: (
            "moe" not in run.model and "mla" not in run.model and run.cells.get("n_experts", "") in ("", "nan")
        ),
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodResult:
    """
    Result of one method on one split.

    Parameters
    ----------
    mean_error, median_error
        Absolute relative errors of peaks; NaN without peaks.
    verdicts, even
        Verdicts at the accepted risk, and at even odds; equal for methods without a risk.
    kept, groups
        Number of groups (model and number of GPUs) whose fastest run that fits is not refused, and of all groups.
    """

    split: str
    method: str
    num_peaks: int
    mean_error: float
    median_error: float
    verdicts: Verdicts
    even: Verdicts
    kept: int
    groups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """Fraction of peaks at or below their bound, with its 95 % interval, for a stated risk."""

    split: str
    risk: float
    covered: float
    low: float
    high: float
    num_runs: int

    @property
    def holds(self) -> bool:
        """Return whether the stated coverage lies in the interval or below it."""
        return self.high >= 1 - self.risk


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """
    Results of all methods on all splits.

    Coverage and reliability are of our method; ``notes`` name what was left out.
    """

    methods: tuple[MethodResult, ...]
    coverage: tuple[Coverage, ...]
    reliability: tuple[Reliability, ...]
    notes: tuple[str, ...]


def evaluate_memory(folder: Path, max_oom_risk: float = 0.01) -> Evaluation:
    """Evaluate every split whose file exists."""
    methods: list[MethodResult] = []
    coverage: list[Coverage] = []
    bins: list[Reliability] = []
    notes: list[str] = []
    for split in SPLITS:
        if not (folder / split.file).is_file():
            notes.append(f"{split.name}: no file {split.file}, skipped")
            continue
        known, tested = split_cases(split, folder)
        known_runs, runs = [run for _, run in known], [run for _, run in tested]
        start = start_of(split.file).memory
        fitted = fit_with_errors(known_runs, start)
        methods += evaluate_methods(split.name, fitted, tested, max_oom_risk)
        notes += unlabelled_notes(split.name, fitted, tested, max_oom_risk)
        if any(run.peak_gib is not None for run in runs):
            coverage += coverage_of(split.name, fitted, runs)
        if any(run.ran_out for run in runs):
            bins += reliability(split.name, fitted, runs)
    return Evaluation(
        methods=tuple(methods),
        coverage=tuple(coverage),
        reliability=tuple(bins),
        notes=tuple(notes),
    )


def unlabelled_notes(
    name: str, memory_constants: MemoryConstants, tested: Sequence[tuple[MeasuredRun, MemoryRun]], max_oom_risk: float
) -> list[str]:
    """Return a note on rows that the file calls feasible although the job ran out of memory later."""
    runs = [memory for run, memory in tested if run.oom is False and memory.ran_out is None]
    refused = sum(oom_probability(predict_memory(memory_constants, run)) > max_oom_risk for run in runs)
    if not runs:
        return []
    return [f"{name}: {len(runs)} jobs ran and then ran out of memory: no label; {refused} of them are refused."]


def split_cases(
    split: Split, folder: Path
) -> tuple[list[tuple[MeasuredRun, MemoryRun]], list[tuple[MeasuredRun, MemoryRun]]]:
    """Return the rows for calibration and the rows for the test."""
    pairs = known_pairs(folder / split.file, start_of(split.file).memory.late_buffers)
    known = [pair for pair in pairs if split.calibrate is not None and split.calibrate(pair[0])]
    return known, [pair for pair in pairs if split.is_tested(pair[0])]


def start_of(file: str) -> StackSpec:
    """Return the stack that runs of a file calibrate; that of nanotron's sweep has what the sweep taught."""
    stack = read_stack("nanotron" if file == SWEEP else DEFAULT_NAME)
    return replace(stack, memory=MemoryConstants(late_buffers=stack.memory.late_buffers))


@lru_cache(maxsize=8)
def known_pairs(path: Path, late_buffers: LateBuffers | None = None) -> tuple[tuple[MeasuredRun, MemoryRun], ...]:
    """Return the runs of a file whose memory can be predicted; cached, since many splits share a file."""
    stack = read_stack()
    stack = replace(stack, memory=replace(stack.memory, late_buffers=late_buffers))
    return tuple(known_rows(measured_runs(path), stack))


def evaluate_methods(
    name: str,
    memory_constants: MemoryConstants,
    tested: Sequence[tuple[MeasuredRun, MemoryRun]],
    max_oom_risk: float,
) -> list[MethodResult]:
    """Return the results of ours, the formula, and the formula with a margin."""
    runs = [run for _, run in tested]
    ours = [predict_memory(memory_constants, run) for run in runs]
    formula, fullest = np.array([run.formula_gib for run in runs if run.formula_gib is not None]).T
    capacity = np.array([run.capacity_gib for run in runs])
    risks = np.array([oom_probability(prediction) for prediction in ours])
    taken = np.array([prediction.taken_gib for prediction in ours])
    return [
        _result(name, "ours", tested, taken, risks > max_oom_risk, risks > EVEN),
        _result(name, "closed formula", tested, formula, fullest > capacity),
        _result(name, "formula + 20 %", tested, formula * MARGIN, fullest * MARGIN > capacity),
    ]


def _result(
    split: str,
    method: str,
    tested: Sequence[tuple[MeasuredRun, MemoryRun]],
    predicted: FloatArray,
    refused: BoolArray,
    unlikely: BoolArray | None = None,
) -> MethodResult:
    runs = [run for _, run in tested]
    peaks = np.array([np.nan if run.peak_gib is None else run.peak_gib for run in runs])
    errors = np.abs(predicted / peaks - 1)[np.isfinite(peaks)]
    labelled = np.array([run.ran_out is not None for run in runs])
    ran_out = np.array([bool(run.ran_out) for run in runs])
    times = np.array([np.nan if run.oom or not run.iter_time_s else run.iter_time_s for run, _ in tested])
    groups = [f"{run.model} {run.launch.seq_length} {run.num_gpus}" for run, _ in tested]
    kept, seen = best_kept(times, refused, groups)
    return MethodResult(
        split=split,
        method=method,
        num_peaks=len(errors),
        mean_error=float(errors.mean()) if len(errors) else float("nan"),
        median_error=float(np.median(errors)) if len(errors) else float("nan"),
        verdicts=verdicts(refused[labelled], ran_out[labelled]),
        even=verdicts((refused if unlikely is None else unlikely)[labelled], ran_out[labelled]),
        kept=kept,
        groups=seen,
    )


def coverage_of(split: str, memory_constants: MemoryConstants, runs: Sequence[MemoryRun]) -> list[Coverage]:
    """Return the attained coverage of the upper bounds on measured peaks, for each stated risk."""
    measured = [run for run in runs if run.peak_gib is not None]
    results = []
    for risk in RISKS:
        below = sum(
            (run.peak_gib or 0.0) <= upper_gib(memory_constants, predict_memory(memory_constants, run), risk)
            for run in measured
        )
        low, high = wilson(below, len(measured))
        results.append(
            Coverage(split=split, risk=risk, covered=below / len(measured), low=low, high=high, num_runs=len(measured))
        )
    return results
