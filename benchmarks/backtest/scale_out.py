"""
Accuracy at scale, fitted on small jobs and tested on large ones: ``python -m benchmarks.backtest.scale_out [--only
NAME]``.

Every term that grows with hosts, ranks or layers must hold beyond the fitted jobs. So each source is divided by its
number of GPUs only. Measurements are read in place, from the folder in the environment variable PIPETTE_OPT_SHARED or
from ``../shared`` beside the project; a missing source is left out.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from benchmarks.backtest import vendor
from benchmarks.backtest.experiments import halves, vtrain_many, vtrain_one, want
from benchmarks.backtest.fitting import fitted_stack
from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from pipette_opt.calibrate.bands import with_bands
from pipette_opt.calibrate.metrics import job_of, measure_predictions, spearman
from pipette_opt.calibrate.predict import Prediction, predict_runs
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import StackSpec
from pipette_opt.specs.stack import CONSTANTS

Runs = list[MeasuredRun]

CLOSE = 0.1
"""
Maximum relative excess of the run predicted fastest over its job's fastest run, with which a pick counts as good.
Chosen.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleOut:
    """
    Line of the table.

    Parameters
    ----------
    part
        Function that returns the runs to fit to and the larger runs to test on; without runs to fit to, the stack is
        shipped.
    goal
        Wanted error, as text.
    """

    name: str
    file: str
    part: Callable[[Runs], tuple[Runs, Runs]]
    goal: str


def by_gpus(largest_seen: int, smallest_judged: int) -> Callable[[Runs], tuple[Runs, Runs]]:
    """Return a split: timed runs on at most ``largest_seen`` GPUs, and on at least ``smallest_judged``."""

    def part(runs: Runs) -> tuple[Runs, Runs]:
        timed = [run for run in runs if run.iter_time_s is not None]
        return (
            [run for run in timed if run.num_gpus <= largest_seen],
            [run for run in timed if run.num_gpus >= smallest_judged],
        )

    return part


def sweep(runs: Runs, largest_seen: int, *, only_seen_layouts: bool = False) -> tuple[Runs, Runs]:
    """
    Return the runs on one host (or two), and those on four.

    Rows from before the source's pipeline fix, or that also logged out of memory, are left out. ``only_seen_layouts``
    also leaves out test rows with layouts that no run on one host has: tensor ranks in a pipeline over hosts, and
    tensor groups over hosts.
    """
    usable = [
        run for run in runs if run.launch.pipeline_model_parallel_size == 1 or run.cells["after_pp_fix"] == "True"
    ]
    seen, tested = by_gpus(largest_seen, 32)([run for run in usable if "oom_error" not in run.notes])
    if only_seen_layouts:
        tested = [run for run in tested if _is_seen(run)]
    return seen, tested


def _is_seen(run: MeasuredRun) -> bool:
    """Return whether a run has no tensor ranks, or has them inside its hosts and no pipeline."""
    tp, pp = run.launch.tensor_model_parallel_size, run.launch.pipeline_model_parallel_size
    return tp == 1 or (pp == 1 and tp <= run.gpus_per_node)


def mlperf(runs: Runs) -> tuple[Runs, Runs]:
    """Return the runs on up to 256 GPUs, and on 512 to 1,024; rounds are software versions."""
    both = vendor.mlperf(runs)
    return by_gpus(256, 512)([*both[0], *both[1]])


def want_all_sizes(runs: Runs) -> tuple[Runs, Runs]:
    """
    Return a split as in a user's calibration, with half of the timed 30B runs for the test.

    The fit gets the 13B runs, the other half, and all 30B jobs that ran out of memory.
    """
    smaller, larger = want(runs)
    half, rest = halves(larger)
    return [*smaller, *[run for run in larger if run.iter_time_s is None], *half], rest


def vtrain_all_sizes(runs: Runs) -> tuple[Runs, Runs]:
    """
    Return a split as in a user's calibration, with half of the runs on one host for the test.

    The fit gets the other half and all runs on several hosts.
    """
    half, rest = vtrain_one(runs)
    return [*half, *by_gpus(0, 9)(runs)[1]], rest


def dense(runs: Runs) -> tuple[Runs, Runs]:
    """Return no runs to fit to, and all rows of dense models."""
    both = vendor.dense(runs)
    return [], [*both[0], *both[1]]


LINES = (
    ScaleOut(
        name="H100 sweep: 8 GPUs, tested on 32",
        file="hf_ultrascale_h100.csv",
        part=partial(sweep, largest_seen=8),
        goal="median 8 %, mean 20 %",
    ),
    ScaleOut(
        name="H100 sweep: 8 GPUs, tested on layouts that they have on 32",
        file="hf_ultrascale_h100.csv",
        part=partial(sweep, largest_seen=8, only_seen_layouts=True),
        goal="",
    ),
    ScaleOut(
        name="H100 sweep: 8-16 GPUs, tested on 32",
        file="hf_ultrascale_h100.csv",
        part=partial(sweep, largest_seen=16),
        goal="",
    ),
    ScaleOut(
        name="MLPerf: 64-256 GPUs, tested on 512-1,024",
        file="mlperf_training.csv",
        part=mlperf,
        goal="10 %, no trend",
    ),
    ScaleOut(name="vTrain: 2-8 GPUs, tested on 64-256", file="vtrain_a100.csv", part=by_gpus(8, 64), goal=""),
    ScaleOut(
        name="vTrain: half of 2-8 GPUs and ten larger runs, tested on 64-256",
        file="vtrain_a100.csv",
        part=vtrain_many,
        goal="4 %",
    ),
    ScaleOut(
        name="WANT: 13B on 32-128 GPUs, tested on 30B on 256",
        file="want_llama_a100.csv",
        part=want,
        goal="5.5 %",
    ),
    ScaleOut(
        name="WANT: all sizes, tested on half of 30B",
        file="want_llama_a100.csv",
        part=want_all_sizes,
        goal="5.5 %",
    ),
    ScaleOut(
        name="vTrain: all sizes, tested on half of 2-8 GPUs",
        file="vtrain_a100.csv",
        part=vtrain_all_sizes,
        goal="4 %",
    ),
    ScaleOut(
        name="LLM Foundry (FSDP): 8 GPUs, tested on 16-64",
        file="llm_foundry.csv",
        part=by_gpus(8, 16),
        goal="22 %",
    ),
    ScaleOut(
        name="LLM Foundry (FSDP), shipped stack",
        file="llm_foundry.csv",
        part=lambda runs: ([], runs),
        goal="22 %",
    ),
    ScaleOut(name="Vendor's dense rows, shipped stack", file="nvidia_perf_tables.csv", part=dense, goal="10 %"),
)


def main() -> None:
    """Print the table, and below it the fitted constants of each line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="only lines whose name contains this text")
    parser.add_argument("--rows", action="store_true", help="also print each test row to standard error")
    options, folder, base = parser.parse_args(), measured_folder(), read_stack()
    print(
        "| fitted on, tested on | goal | fitted | tested | mean | median | ratio | rank | good picks | ratio by GPUs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    fits = []
    for line in LINES:
        if options.only not in line.name:
            continue
        if not (folder / line.file).is_file():
            print(f"| {line.name} | not there | | | | | | | | |")
            continue
        seen, tested = line.part(measured_runs(folder / line.file))
        stack = fitted_stack(seen, base) if seen else base
        found = with_bands(predict_runs(tested, stack), stack, None)
        predictions = [prediction for prediction in found if prediction.error is not None]
        print(table_row(line, len(seen), predictions), flush=True)
        if options.rows:
            _show_rows(predictions)
        if seen:
            fits.append(f"{line.name}: {constants(stack, base)}")
    print("", *fits, sep="\n")


def table_row(line: ScaleOut, num_seen: int, predictions: Sequence[Prediction]) -> str:
    """Return a table row: errors of the test runs, good picks, and the median ratio for each number of GPUs."""
    predicted = np.array([prediction.iter_time_s for prediction in predictions])
    measured = np.array([prediction.measured_s for prediction in predictions])
    gpus = np.array([prediction.run.num_gpus for prediction in predictions])
    ratio = predicted / measured
    error = 100 * np.abs(ratio - 1)
    order = spearman(predicted, measured)
    sizes = ", ".join(f"{size}: {np.median(ratio[gpus == size]):.2f}" for size in np.unique(gpus))
    return (
        f"| {line.name} | {line.goal} | {num_seen or 'none'} | {len(predictions)} | {error.mean():.1f} % "
        f"| {np.median(error):.1f} % | {np.median(ratio):.2f} | {order:.2f} | {picks(predictions)} | {sizes} |"
    )


def picks(predictions: Sequence[Prediction]) -> str:
    """Return the number of jobs with several layouts whose pick is good, and the worst pick, as text."""
    jobs: dict[object, list[Prediction]] = {}
    for prediction in predictions:
        jobs.setdefault(job_of(prediction.run), []).append(prediction)
    regrets = [found.regret for rows in jobs.values() if len(rows) > 1 and (found := measure_predictions(rows))]
    if not regrets:
        return ""
    return f"{sum(regret <= CLOSE for regret in regrets)} of {len(regrets)}, +{100 * max(regrets):.1f} %"


def constants(stack: StackSpec, base: StackSpec) -> str:
    """Return the constants that were fitted, with their values."""
    fitted = [name for name in CONSTANTS if getattr(stack, name) != getattr(base, name)]
    return ", ".join(f"{name} {getattr(stack, name):.3g}" for name in fitted)


def _show_rows(predictions: Sequence[Prediction]) -> None:
    for prediction in sorted(predictions, key=lambda prediction: prediction.error or 0.0):
        run, error = prediction.run, prediction.error or 0.0
        layout = " ".join(
            name + run.cells.get(name, "") for name in ("tp", "pp", "dp", "cp", "mbs", "gbs", "zero_stage")
        )
        print(f"{1 + error:.3f} {prediction.measured_s:.3f} s {run.num_gpus} {run.model} {layout}", file=sys.stderr)


if __name__ == "__main__":
    main()
