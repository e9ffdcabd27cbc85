"""
Fraction of tensor communication that user buffers hide in public runs: ``python -m
benchmarks.backtest.tensor_overlap``.

NVIDIA's dense runs are predicted twice: with no tensor communication hidden, and with all of it hidden that runs beside
a product. The estimate is the fraction that explains best how runs of one source, kind of job and GPU differ. A run
with tensor ranks has the option, as in NVIDIA's recipes, unless its row has ``TP overlap off``.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.worlds.rows import timed_cases
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.costs.collectives import HIDDEN_SHARE
from pipette_opt.worlds.jobs import job_kind

SOURCES = ("mlperf_v51", "mlperf_training", "dgxc_25_05", "nvidia_perf_tables")
"""Files with runs of programs that have user buffers, without their suffix."""

WITHOUT = "TP overlap off"
"""Text in the notes of runs without user buffers."""


def main() -> None:
    """Print the fraction and its standard error, for all groups and with each group left out."""
    groups = residuals()
    share, error = share_of(list(groups.values()))
    print(f"{sum(map(len, groups.values()))} jobs in {len(groups)} groups: {share:.2f} +- {error:.2f} is hidden")
    for name in groups:
        left = [rows for other, rows in groups.items() if other != name]
        print(f"without {name}: {share_of(left)[0]:.2f} +- {share_of(left)[1]:.2f}")


def residuals() -> dict[Hashable, FloatArray]:
    """
    Return two logs for each job, by source and kind of job, shape ``(num_jobs, 2)``.

    They are measured over predicted time, and predicted time with all communication hidden over that with none.
    """
    jobs: dict[Hashable, dict[Hashable, list[tuple[float, float]]]] = defaultdict(lambda: defaultdict(list))
    for source in SOURCES:
        cases = timed_cases(measured_runs(measured_folder() / f"{source}.csv"))
        cases = [_with_sequence_parallel(case) for case in cases if case.instance.model.num_experts is None]
        shown, half = predicted_times_s(cases), predicted_times_s([_with_user_buffers(case) for case in cases])
        for case, shown_s, part_s in zip(cases, shown.tolist(), half.tolist(), strict=True):
            hidden = (shown_s - part_s) / shown_s / HIDDEN_SHARE
            row = float(np.log(case.run.iter_time_s / shown_s)), 0.0 if _is_without(case) else float(np.log1p(-hidden))
            job = case.run.model, case.config.label(), case.run.num_gpus, _is_without(case)
            jobs[source, job_kind(case.instance)][job].append(row)
    return {group: np.array([np.mean(rows, axis=0) for rows in own.values()]) for group, own in jobs.items()}


def share_of(groups: Sequence[FloatArray]) -> tuple[float, float]:
    """Return the slope of the first column over the second within the groups, and its standard error."""
    measured, hidden = np.concatenate([rows - rows.mean(axis=0) for rows in groups]).T
    share = float(measured @ hidden / (hidden @ hidden))
    left = measured - share * hidden
    return share, float(np.sqrt(left @ left / (len(left) - len(groups) - 1) / (hidden @ hidden)))


def _is_without(case: Case) -> bool:
    return WITHOUT in case.run.notes


def _with_sequence_parallel(case: Case) -> Case:
    return replace(case, config=replace(case.config, sequence_parallel=case.config.tensor_model_parallel_size > 1))


def _with_user_buffers(case: Case) -> Case:
    training = replace(case.instance.training, tp_comm_overlap=True)
    return replace(case, instance=replace(case.instance, training=training))


if __name__ == "__main__":
    main()
