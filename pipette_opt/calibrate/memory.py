"""Memory of measured runs: stage and moment of each measured peak, fit of a stack's memory constants, predictions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np

from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, Skipped, make_cases
from pipette_opt.calibrate.left_out import without_copies
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_with_errors, oom_probability, upper_gib
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.memory.table import stage_table
from pipette_opt.read.run_software import software_of
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec, TrainingSpec
from pipette_opt.specs.memory_constants import KINDS, MOMENTS, MemoryConstants

FIRST, LAST = "first", "last"
"""Values of the column ``peak_mem_stage`` for the first and the last stage."""

RAN_OUT_LATER = "then an OOM"
"""Text in the notes of jobs that ran some iterations before they ran out of memory; such rows have no OOM label."""

UNFUSED: Literal["unfused"] = "unfused"
"""Attention kernel assumed to need the most memory, for runs whose kernel is not recorded."""

MEASURED_STAGE_COLUMN = "peak_mem_stage"
"""Column of ``runs.csv`` with the stage of the peak: ``first``, ``last``, ``largest`` or a number."""


VERSION_COLUMN = "stack_version"
"""Column of ``runs.csv`` with a software version, any text; each version except the last row's gets a fitted factor."""


@cache
def shipped_predictor() -> MemoryPredictor:
    """Return the shipped memory network; it is read once."""
    return MemoryPredictor.load()


def memory_run(case: Case, predictor: MemoryPredictor | None = None) -> MemoryRun:
    """Return the measured memory of a case, and the regressors of its stages by the thresholds of its stack."""
    run, config, instance = case.run, case.config, case.instance
    chosen = replace(predictor or shipped_predictor(), memory_constants=instance.stack.memory)
    assert run.gpu is not None
    link = run.gpu.intra_node_bytes_per_s

    def regressors_of(training: TrainingSpec) -> FloatArray:
        return np.concatenate(
            chosen.regressors(
                instance.model, training, [config], gpus_per_node=run.gpus_per_node, intra_node_bytes_per_s=link
            )
        )

    formula = formula_bytes(stage_table(instance.model, instance.training, [config])).total / GIB
    tp, pp = config.tensor_model_parallel_size, config.pipeline_model_parallel_size
    stages = measured_stages(run, pp)
    return MemoryRun(
        regressors=regressors_of(instance.training),
        measured_rows=np.concatenate([stages + moment * pp for moment in range(MOMENTS)]),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=out_of_memory(run),
        group=f"{run.model} {instance.training.seq_length} tp{tp} pp{pp} mbs{config.micro_batch_size}",
        work=stage_works(instance.model, instance.training, [config], gpus_per_node=run.gpus_per_node) * MOMENTS,
        num_gpus=run.num_gpus,
        version=run.cells.get(VERSION_COLUMN, ""),
        formula_gib=(float(formula[stages].max()), float(formula.max())),
        other_regressors=None
        if run.attention_kernel
        else regressors_of(replace(instance.training, attention_kernel=UNFUSED)),
    )


def measured_stages(run: MeasuredRun, pp: int) -> IntArray:
    """Return the indices of the stages whose largest memory peak is recorded for a run."""
    where = run.cells.get(MEASURED_STAGE_COLUMN, "").lower() or software_of(run.cells).peak_mem_stage
    if re.fullmatch(r"[0-9]+", where) and int(where) < pp:
        return np.array([int(where)])
    return {FIRST: np.array([0]), LAST: np.array([pp - 1])}.get(where, np.arange(pp))


def out_of_memory(run: MeasuredRun) -> bool | None:
    """Return whether the job ran out of memory; ``None`` if unknown, or if it ran some iterations first."""
    return None if ran_out_later(run) else run.oom


def ran_out_later(run: MeasuredRun) -> bool:
    """Return whether a job ran some iterations before it ran out of memory."""
    return RAN_OUT_LATER in run.notes


def usable_for_memory(run: MeasuredRun) -> bool:
    """Return whether a memory fit may use a run: not one with unexplained failures (``after_pp_fix`` false)."""
    return not (run.cells.get("after_pp_fix", "").lower() == "false" and run.launch.pipeline_model_parallel_size > 1)


def known_memory(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[tuple[MeasuredRun, MemoryRun]]:
    """Return all runs that a memory fit may use, each with its measured memory and regressors."""
    chosen = [run for run in runs if usable_for_memory(run) and (run.peak_mem_bytes is not None or run.oom is not None)]
    return [(case.run, memory_run(case)) for case in make_cases(chosen, stack) if isinstance(case, Case)]


def memory_runs(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[MemoryRun]:
    """Return the measured memory and regressors of all runs that a memory fit may use."""
    return [memory for _, memory in known_memory(runs, stack)]


def fit_memory(runs: Sequence[MeasuredRun], stack: StackSpec) -> tuple[MemoryConstants, str | None]:
    """
    Fit the memory constants of a stack; also return the reason if nothing was learned, else ``None``.

    Runs that all fit, or all ran out of memory, do not show where the limit is. Constants fitted to them drift as far
    as their priors allow, up to stages with a negative need.
    """
    start = stack.memory
    known = memory_runs(without_copies(runs)[0], stack)
    if not known:
        return start, "no run has a measured peak or says whether it ran out of memory"
    if not any(run.peak_gib is not None for run in known):
        labels = {run.ran_out for run in known if run.ran_out is not None}
        if len(labels) < 2:
            outcome = "ran out of memory" if labels == {True} else "fit"
            return (
                start,
                f"no peak was measured and all {len(known)} runs {outcome}, which does not determine the constants",
            )
    found = fit_with_errors(known, start)
    needs = [predict_memory(found, run).needed_gib for run in known]
    absurd = sum(not need > 0 for need in needs)
    if absurd:
        return start, (
            f"the best-fitting constants are implausible: they predict no memory for {absurd} of {len(known)} runs"
        )
    return found, None


def memory_columns(
    case: Case | Skipped, memory_constants: MemoryConstants, max_oom_risk: float = USUAL_RISK
) -> Mapping[str, float]:
    """
    Return the memory columns of a back-test: predicted peak, its upper bound (GiB) and the probability of OOM.

    Empty if the row lacks needed columns. Peaks are of the stage and moment that the source measured, mostly memory
    reserved by the allocator. The allocator keeps its blocks until the GPU is full and then returns some, so no run
    shows more than its GPU has. The upper bound is capped there, unless the prediction itself is higher: such a run
    does not fit. The probability is about the memory that the fullest stage needs at once.
    """
    if isinstance(case, Skipped):
        return {}
    run = memory_run(case)
    memory = predict_memory(memory_constants, run)
    return {
        "predicted_peak_mem_gib": memory.taken_gib,
        "upper_peak_mem_gib": min(
            upper_gib(memory_constants, memory, max_oom_risk), max(run.capacity_gib, memory.taken_gib)
        ),
        "oom_probability": oom_probability(memory),
    }


def memory_notes(memory_constants: MemoryConstants, reason: str | None = None) -> list[str]:
    """Return notes for people on fitted memory constants; ``reason`` is the reason if nothing was learned."""
    if reason is not None or not memory_constants.largest_job:
        return [f"memory: constants unchanged: {reason or 'no run has memory'}"]
    spread = f"{100 * memory_constants.spread:.1f} %"
    notes = [f"memory: predictions are off by {spread} (standard deviation of the certain parts)"]
    kinds = {name.removesuffix("_spread"): getattr(memory_constants, name) for name in KINDS}
    if any(kinds.values()):
        parts = ", ".join(f"{name}s {100 * value:.0f} %" for name, value in kinds.items())
        notes.append(f"memory: additional standard deviation of uncertain parts: {parts}")
    for version in memory_constants.versions:
        notes.append(
            f"memory: version {version} takes {memory_constants.factor(version):.3f} times that of the last row"
        )
    if memory_constants.twins:
        notes.append(
            f"memory: runs with equal work per rank on other numbers of replicas have similar errors (correlation "
            f"{memory_constants.alike:.2f}); {len(memory_constants.twins)} works are remembered"
        )
    if memory_constants.errors:
        notes.append(
            f"memory: bounds rest on the errors of {len(memory_constants.errors)} held-out runs; beyond "
            f"{memory_constants.largest_job:.0f} GPUs they are {memory_constants.shift:.2g} times as wide"
        )
    else:
        notes.append("memory: fewer than 20 measured peaks, so bounds rest on an assumed standard deviation")
    return notes
