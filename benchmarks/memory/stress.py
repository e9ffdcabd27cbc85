"""
Memory predictions of larger jobs with a model, degree or batch that no calibration run had.

Smaller jobs of the H100 sweep calibrate; those of 32 GPUs are the test. :mod:`benchmarks.memory.evaluation` defines the
terms.
"""

from pathlib import Path

from benchmarks.memory.evaluation import SWEEP, Split, coverage_of, evaluate_methods, split_cases, start_of
from pipette_opt.calibrate.memory_spread import fit_with_errors
from pipette_opt.read.runs import MeasuredRun

MODELS = ("1.34G", "3.57G", "8.86G")


def _small(run: MeasuredRun) -> bool:
    return run.num_gpus <= 16


def _large(run: MeasuredRun) -> bool:
    return run.num_gpus == 32


def _without(model: str) -> Split:
    return Split(
        name=f"without the model of {model}, to it",
        file=SWEEP,
        calibrate=lambda run: _small(run) and not run.model.endswith(model),
        is_tested=lambda run: _large(run) and run.model.endswith(model),
    )


STRESS = (
    *map(_without, MODELS),
    Split(
        name="tp up to 4, to tp from 8 on",
        file=SWEEP,
        calibrate=lambda run: _small(run) and run.launch.tensor_model_parallel_size <= 4,
        is_tested=lambda run: _large(run) and run.launch.tensor_model_parallel_size >= 8,
    ),
    Split(
        name="pp up to 2, to pp from 4 on",
        file=SWEEP,
        calibrate=lambda run: _small(run) and run.launch.pipeline_model_parallel_size <= 2,
        is_tested=lambda run: _large(run) and run.launch.pipeline_model_parallel_size >= 4,
    ),
    Split(
        name="mbs up to 2, to mbs from 4 on",
        file=SWEEP,
        calibrate=lambda run: _small(run) and (run.launch.micro_batch_size or 1) <= 2,
        is_tested=lambda run: _large(run) and (run.launch.micro_batch_size or 1) >= 4,
    ),
    Split(
        name="all, to tp up to 16",
        file=SWEEP,
        calibrate=_small,
        is_tested=lambda run: _large(run) and run.launch.tensor_model_parallel_size <= 16,
    ),
)


def stress_rows(folder: Path, max_oom_risk: float = 0.01) -> list[dict[str, str]]:
    """Return the table as rows of text; empty without the file."""
    if not (folder / SWEEP).is_file():
        return []
    rows = []
    for split in STRESS:
        known, tested = split_cases(split, folder)
        fitted = fit_with_errors([run for _, run in known], start_of(SWEEP).memory)
        result = evaluate_methods(split.name, fitted, tested, max_oom_risk)[0]
        covered = coverage_of(split.name, fitted, [run for _, run in tested])
        verdict = result.verdicts
        rows.append(
            {
                "8-16 GPUs to 32": split.name,
                "peaks": str(result.num_peaks),
                "mean error": f"{result.mean_error:.1%}",
                "median": f"{result.median_error:.1%}",
                "missed OOM": f"{verdict.missed} of {verdict.ran_out}",
                "false alarms": f"{verdict.false} of {verdict.fitted}",
                **{
                    f"bound of {1 - bound.risk:.0%}": f"{bound.covered:.1%}{'' if bound.holds else ', fails'}"
                    for bound in covered
                },
            }
        )
    return rows
