"""Fit of a stack's memory constants and fine-tuning of the network on measured runs, with the benefit of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from models.memory.tune import MAX_CHANGE, Lessons, TuneParams, tune_network
from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.memory import measured_stages, memory_run, usable_for_memory
from pipette_opt.calibrate.memory_calibration import fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, peak_errors, predict_memory
from pipette_opt.calibrate.memory_spread import FOLDS, fit_with_errors
from pipette_opt.memory.features import table_features
from pipette_opt.memory.formula import formula_bytes
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.memory.table import stage_table
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec
from pipette_opt.specs.memory_constants import REGRESSORS, SHOWN, MemoryConstants

MIN_PEAKS = 5
"""Minimum number of measured peaks for a fit, and for each part of a split. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TuningErrors:
    """
    Mean absolute relative errors of predicted peaks on runs that were left out.

    Parameters
    ----------
    which
        Name of the left-out runs.
    start, constants, tuned
        Errors with the starting stack, with fitted constants, and with a fine-tuned network besides.
    """

    which: str
    num_peaks: int
    start: float
    constants: float
    tuned: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tuning:
    """
    Result of a fit to measured runs.

    Parameters
    ----------
    predictor
        Predictor with the fine-tuned network, or with the starting network if that is better on left-out runs.
    improves
        Whether the predictor has the fine-tuned network.
    """

    predictor: MemoryPredictor
    memory_constants: MemoryConstants
    errors: tuple[TuningErrors, ...]
    improves: bool
    num_runs: int


def tune_memory(
    runs: Sequence[MeasuredRun],
    stack: StackSpec,
    start: MemoryPredictor,
    traces: Lessons,
    *,
    params: TuneParams | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """
    Fit memory constants, fine-tune the network on the remaining errors, and keep it if left-out groups improve.

    Raises ``InputError`` with fewer than five peaks of whole jobs.
    """
    chosen = [run for run in runs if usable_for_memory(run) and (run.peak_mem_bytes is not None or run.oom is not None)]
    cases = [case for case in make_cases(chosen, stack) if isinstance(case, Case)]
    peaks = [case for case in cases if case.run.peak_mem_bytes is not None]
    if len(peaks) < MIN_PEAKS:
        raise InputError(
            "--runs", f"needs at least {MIN_PEAKS} rows with peak_mem_gib that can be predicted, got {len(peaks)}."
        )
    lesson = _Lesson(base=stack.memory, start=start, traces=traces, params=params or TuneParams())
    parts = _parts(cases)
    errors = []
    for done, (which, splits) in enumerate(parts):
        errors.append(lesson.evaluate(which, splits))
        if progress is not None:
            progress(done + 1, len(parts) + 1)
    found = fit_with_errors([memory_run(case, start) for case in cases], lesson.base)
    tuned = lesson.tune(cases, found)
    improves = errors[0].tuned < errors[0].constants
    if improves:
        found = fit_with_errors([memory_run(case, tuned) for case in cases], lesson.base)
    if progress is not None:
        progress(len(parts) + 1, len(parts) + 1)
    return Tuning(
        predictor=tuned if improves else start,
        memory_constants=found,
        errors=tuple(errors),
        improves=improves,
        num_runs=len(peaks),
    )


Splits = list[tuple[list[Case], list[Case]]]


def _parts(cases: Sequence[Case]) -> list[tuple[str, Splits]]:
    """
    Return named splits into training and left-out cases: groups left out in turn, and the largest jobs.

    The largest jobs are only left out if both parts have enough peaks.
    """
    groups = sorted({_group(case) for case in cases})
    folds = min(FOLDS, len(groups))
    fold_of = {group: index % folds for index, group in enumerate(groups)}
    splits = [
        (
            [case for case in cases if fold_of[_group(case)] != fold],
            [case for case in cases if fold_of[_group(case)] == fold],
        )
        for fold in range(folds)
    ]
    largest = max(case.run.num_gpus for case in cases)
    smaller = [case for case in cases if case.run.num_gpus < largest]
    larger = [case for case in cases if case.run.num_gpus == largest]
    parts = [("groups left out", splits)]
    if min(_num_peaks(smaller), _num_peaks(larger)) >= MIN_PEAKS:
        parts.append((f"{largest} GPUs, from fewer", [(smaller, larger)]))
    return parts


def _num_peaks(cases: Sequence[Case]) -> int:
    return sum(case.run.peak_mem_bytes is not None for case in cases)


def _group(case: Case) -> str:
    run = case.run
    return f"{run.model} {run.seq_len} tp{run.tp} pp{run.pp} mbs{run.mbs}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Lesson:
    """Starting constants, predictor and traces of every fine-tuning."""

    base: MemoryConstants
    start: MemoryPredictor
    traces: Lessons
    params: TuneParams

    def evaluate(self, which: str, splits: Splits) -> TuningErrors:
        """Return the errors on the left-out cases of all splits."""
        errors: list[np.ndarray] = []
        for inside, outside in splits:
            before = [memory_run(case, self.start) for case in outside]
            known = [memory_run(case, self.start) for case in inside]
            constants = fit_constants(known, self.base)
            tuned = self.tune(inside, constants)
            after = [memory_run(case, tuned) for case in outside]
            errors.append(np.stack([_off(self.base, before), _off(constants, before), _off(constants, after)]))
        off = np.concatenate(errors, axis=1)
        start, fitted, best = off.mean(axis=1).tolist()
        return TuningErrors(which=which, num_peaks=off.shape[1], start=start, constants=fitted, tuned=best)

    def tune(self, cases: Sequence[Case], memory_constants: MemoryConstants) -> MemoryPredictor:
        """Return the predictor fine-tuned on the errors that the constants leave in these cases."""
        features, wanted = [], []
        for case in cases:
            found = self._wanted(case, memory_constants)
            if found is not None:
                features.append(found[0])
                wanted.append(found[1])
        if not features:
            return self.start
        runs = Lessons(features=np.stack(features), log_ratio=np.array(wanted))
        return replace(self.start, network=tune_network(self.start.network, runs, self.traces, self.params))

    def _wanted(self, case: Case, memory_constants: MemoryConstants) -> tuple[np.ndarray, float] | None:
        """
        Return the features of the measured stage and the wanted ``log(peak / formula)``.

        Returns ``None`` without a measured peak, or if the peak does not show the network's part.
        """
        run = memory_run(case, self.start)
        if run.peak_gib is None:
            return None
        stages = measured_stages(case.run, case.config.pipeline_model_parallel_size)
        weights = run.regressors[run.measured_rows] * (memory_constants.vector() * SHOWN)
        totals = weights.sum(axis=1)
        fullest = int(totals.argmax())
        if fullest >= len(stages) or totals[fullest] > predict_memory(memory_constants, run).usable_gib:
            return None
        share = weights[fullest, REGRESSORS.index("counted")] / totals[fullest]
        change = np.clip(np.log(run.peak_gib / totals[fullest]) / share, -MAX_CHANGE, MAX_CHANGE)
        table = stage_table(case.instance.model, case.instance.training, [case.config], stage=int(stages[fullest]))
        row = table_features(table, formula_bytes(table))
        return row[0], float(self.start.network.log_ratio(row)[0] + change)


def _off(memory_constants: MemoryConstants, runs: Sequence[MemoryRun]) -> np.ndarray:
    return np.abs(np.expm1(-peak_errors(memory_constants, runs)))


def tuning_rows(tuning: Tuning) -> list[dict[str, str]]:
    """Return the errors as text, one row for each kind of split."""
    return [
        {
            "runs": errors.which,
            "peaks": str(errors.num_peaks),
            "as shipped": f"{errors.start:.1%}",
            "constants fitted": f"{errors.constants:.1%}",
            "and network tuned": f"{errors.tuned:.1%}",
        }
        for errors in tuning.errors
    ]
