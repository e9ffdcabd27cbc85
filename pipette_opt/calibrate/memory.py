"""The memory of measured runs: which stage and kind of peak a source measured, fits of a stack, predictions."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.cases import Case, Skipped, make_cases
from pipette_opt.calibrate.left_out import without_copies
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.calibrate.memory_spread import fit_framework, oom_probability, upper_gib
from pipette_opt.calibrate.stage_rows import stage_row_memory, tuned_stage
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.framework import KINDS, MOMENTS, Framework, framework_of
from pipette_opt.memory.predictor import MemoryPredictor, stage_works
from pipette_opt.memory.table import stage_table
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec, TrainingSpec

FIRST, LAST, LARGEST = "first", "last", "largest"

STAGE_MEASURED = (("hf-ultrascale", FIRST), ("megatronlm-ci", LAST))
"""Sources, by the beginning of their names, that watch one rank; the others report the largest of all."""

RAN_OUT_LATER = "then an OOM"
"""Words in the notes of jobs that logged some iterations and ran out of memory afterwards: no label says what holds."""

UNFUSED: Literal["unfused"] = "unfused"
"""The attention kernel that may have run where a row names none: libraries choose, by version and device."""

MEASURED_STAGE_COLUMN = "peak_mem_stage"
"""Column of ``runs.csv``: ``first``, ``last``, ``largest`` or the number of a stage."""


VERSION_COLUMN = "stack_version"
"""Column of ``runs.csv``: any text; what each version takes over the last row's is fitted as a factor."""


@cache
def shipped_predictor() -> MemoryPredictor:
    """The shipped network, read once."""
    return MemoryPredictor.load()


def memory_run(case: Case, predictor: MemoryPredictor | None = None) -> MemoryRun:
    """What the row of a case says about memory, and what its stages weigh."""
    run, config, instance = case.run, case.config, case.instance
    chosen = predictor or shipped_predictor()
    assert run.gpu is not None
    link = run.gpu.intra_node_bytes_per_s

    def columns_of(training: TrainingSpec) -> FloatArray:
        return np.concatenate(
            chosen.columns(
                instance.model, training, [config], gpus_per_node=run.gpus_per_node, intra_node_bytes_per_s=link
            )
        )

    formula = formula_bytes(stage_table(instance.model, instance.training, [config])).total / GIB
    pp = config.pipeline_model_parallel_size
    stages = measured_stages(run, pp)
    return MemoryRun(
        columns=columns_of(instance.training),
        measured_rows=np.concatenate([stages + moment * pp for moment in range(MOMENTS)]),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=out_of_memory(run),
        group=f"{run.model} {run.seq_len} tp{run.tp} pp{run.pp} mbs{run.mbs}",
        work=stage_works(instance.model, instance.training, [config], gpus_per_node=run.gpus_per_node) * MOMENTS,
        num_gpus=run.num_gpus,
        version=run.extra.get(VERSION_COLUMN, ""),
        formula_gib=(float(formula[stages].max()), float(formula.max())),
        other_columns=None
        if run.attention_kernel
        else columns_of(replace(instance.training, attention_kernel=UNFUSED)),
    )


def measured_stages(run: MeasuredRun, pp: int) -> IntArray:
    """Stages among which the source reports the largest peak."""
    where = run.extra.get(MEASURED_STAGE_COLUMN, "").lower()
    if not where:
        source = run.source.lower()
        where = next((stage for start, stage in STAGE_MEASURED if source.startswith(start)), LARGEST)
    if re.fullmatch(r"\d+", where) and int(where) < pp:
        return np.array([int(where)])
    return {FIRST: np.array([0]), LAST: np.array([pp - 1])}.get(where, np.arange(pp))


def out_of_memory(run: MeasuredRun) -> bool | None:
    """Whether the job ran out of memory; ``None`` if nobody knows, or if the row says both."""
    return None if RAN_OUT_LATER in run.notes else run.oom


def usable_for_memory(run: MeasuredRun) -> bool:
    """Whether a row may teach: not one of a version whose failures nobody can explain (``after_pp_fix``)."""
    return not (run.extra.get("after_pp_fix", "").lower() == "false" and (run.pp or 1) > 1)


def known_memory(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[tuple[MeasuredRun, MemoryRun]]:
    """All rows that may teach, each with what it says about memory."""
    chosen = [run for run in runs if usable_for_memory(run) and (run.peak_mem_bytes is not None or run.oom is not None)]
    pairs = [(case.run, row_memory(case)) for case in make_cases(chosen, stack)]
    return [(run, memory) for run, memory in pairs if memory is not None]


def row_memory(case: Case | Skipped) -> MemoryRun | None:
    """Of a whole job, or of one stage of an uneven one; ``None`` if the row does not tell enough."""
    stage = stage_row_memory(case.run) or tuned_row_memory(case.run)
    if stage is not None or isinstance(case, Skipped):
        return stage
    return memory_run(case)


def tuned_row_memory(run: MeasuredRun) -> MemoryRun | None:
    """The stage of one of Mist's plans; ``None`` for any other row."""
    tuned = tuned_stage(run)
    if tuned is None or run.gpu is None:
        return None
    configs, training = [tuned.config], tuned.training
    columns = shipped_predictor().columns(
        tuned.model,
        training,
        configs,
        gpus_per_node=run.gpus_per_node,
        intra_node_bytes_per_s=run.gpu.intra_node_bytes_per_s,
    )
    formula = formula_bytes(stage_table(tuned.model, training, configs, stage=tuned.stage)).total / GIB
    return MemoryRun(
        columns=columns[:, tuned.stage],
        measured_rows=np.arange(MOMENTS),
        capacity_gib=run.gpu.gpu.memory_bytes / GIB,
        peak_gib=None if run.peak_mem_bytes is None else run.peak_mem_bytes / GIB,
        ran_out=out_of_memory(run),
        group=f"{run.model} {run.attention_kernel}",
        num_gpus=run.num_gpus,
        version=run.extra.get(VERSION_COLUMN, ""),
        formula_gib=(float(formula[0]), float(formula[0])),
    )


def memory_runs(runs: Iterable[MeasuredRun], stack: StackSpec) -> list[MemoryRun]:
    """All rows that may teach."""
    return [memory for _, memory in known_memory(runs, stack)]


def calibrate_memory(runs: Sequence[MeasuredRun], stack: StackSpec, base: Framework | None = None) -> Framework:
    """The constants of a stack for its memory, from all rows that tell about it; as they were if none does."""
    return fit_memory(runs, stack, base)[0]


def fit_memory(
    runs: Sequence[MeasuredRun], stack: StackSpec, base: Framework | None = None
) -> tuple[Framework, str | None]:
    """
    The same, and why nothing was learned; ``None`` if something was.

    Runs that all fit, or all ran out of memory, do not say where the limit is: constants fitted to them wander as far
    as their priors let them, down to stages that need less than nothing.
    """
    start = base or framework_of_stack(stack)
    known = memory_runs(without_copies(runs)[0], stack)
    if not known:
        return start, "no run tells about it"
    if not any(run.peak_gib is not None for run in known):
        labels = {run.ran_out for run in known if run.ran_out is not None}
        if len(labels) < 2:
            what = "ran out of memory" if labels == {True} else "fit"
            return (
                start,
                f"no peak was measured and all {len(known)} runs {what}, which does not say where the limit is",
            )
    found = fit_framework(known, start)
    needs = [predict_memory(found, run).needed_gib for run in known]
    absurd = sum(not need > 0 for need in needs)
    if absurd:
        return start, f"the constants that suit the runs best are absurd: {absurd} of {len(known)} would need nothing"
    return found, None


def framework_of_stack(stack: StackSpec) -> Framework:
    """From the numbers in a stack's file; Megatron-Core's without any."""
    return framework_of(stack.memory, f"stack {stack.name}, memory")


def memory_columns(case: Case | Skipped, framework: Framework, max_oom_risk: float = 0.01) -> Mapping[str, float]:
    """
    Columns of a back-test; none if nobody can say.

    The peaks are those of the stage and of the kind that the source measured, mostly memory that the allocator holds:
    it keeps what it once had until the card is full, then gives blocks back and goes on. So no run shows more than its
    card has, and the bound ends there, unless the prediction itself lies above: such a run does not fit. The
    probability is of the memory that the job needs at once, on its fullest stage.
    """
    run = row_memory(case)
    if run is None:
        return {}
    memory = predict_memory(framework, run)
    return {
        "predicted_peak_mem_gib": memory.taken_gib,
        "upper_peak_mem_gib": min(upper_gib(framework, memory, max_oom_risk), max(run.capacity_gib, memory.taken_gib)),
        "oom_probability": oom_probability(memory),
    }


def memory_notes(framework: Framework, untold: str | None = None) -> list[str]:
    """What to know before using the constants, for people; ``untold`` is why nothing was learned."""
    if untold is not None or not framework.largest_job:
        return [f"memory: constants as they were: {untold or 'no run tells about it'}"]
    notes = [f"memory: predictions are off by {framework.spread:.1%} (standard deviation of what is certain)"]
    kinds = {name.removesuffix("_spread"): getattr(framework, name) for name in KINDS}
    if any(kinds.values()):
        parts = ", ".join(f"{name}s {value:.0%}" for name, value in kinds.items())
        notes.append(f"memory: of what depends on circumstances by more: {parts}")
    for version, _ in framework.versions:
        notes.append(f"memory: version {version} takes {framework.factor(version):.3f} times that of the last row")
    if framework.twins:
        notes.append(
            f"memory: runs of the same work with other numbers of replicas are off alike (correlation "
            f"{framework.alike:.2f}); {len(framework.twins)} works are remembered"
        )
    if framework.errors:
        notes.append(
            f"memory: bounds rest on the errors of {len(framework.errors)} runs left out; beyond "
            f"{framework.largest_job:.0f} GPUs they reach {framework.shift:.2g} times as far"
        )
    else:
        notes.append("memory: fewer than 20 measured peaks, so bounds rest on an assumed spread")
    return notes
