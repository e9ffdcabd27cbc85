"""
Back-test on public measured runs: ``python -m benchmarks.backtest.run [--out PAGE]``.

The measurements are read in place, from the folder in the environment variable PIPETTE_OPT_SHARED or from ``../shared``
beside the project; none is copied. The page names each missing source. Each experiment fits the constants of a stack to
one part of a source and tests it on another part (``experiments.py``).
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

from joblib import Parallel, delayed

from benchmarks.backtest import page
from benchmarks.backtest.experiments import EXPERIMENTS, Experiment
from benchmarks.backtest.fitting import fitted_stack, predicted
from benchmarks.backtest.rivals import by_form
from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from benchmarks.page import RESULTS, option, run_page, say
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import StackSpec
from pipette_opt.specs.stack import CONSTANTS

ROOT = Path(__file__).resolve().parents[2]


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the experiments whose sources exist; yield the page after each."""
    folder, base = measured_folder(), read_stack()
    rows, details = [], []
    jobs = [delayed(_judge)(experiment, folder, base) for experiment in EXPERIMENTS if given.only in experiment.name]
    for row, detail in Parallel(n_jobs=given.jobs, return_as="generator")(jobs):
        say(row)
        rows.append(row)
        details += [detail] if detail else []
        yield "\n".join([page.head(), page.summary(rows), *details])


OPTIONS = (
    option("--jobs", type=int, default=-1, help="number of parallel experiments; by default one per core"),
    option("--only", default="", help="only experiments whose name contains this text"),
)


def _judge(experiment: Experiment, folder: Path, base: StackSpec) -> tuple[str, str]:
    if not (folder / experiment.file).is_file():
        return _not_there(experiment.name)
    seen, tested = experiment.split(measured_runs(folder / experiment.file))
    stack, seconds = base, 0.0
    if seen:
        start = time.process_time()
        stack = fitted_stack(seen, base)
        seconds = time.process_time() - start
    predictions = predicted(tested, stack)
    timed = sum(run.iter_time_s is not None and not run.oom for run in seen)
    detail = [
        f"## {experiment.name}\n",
        f"{experiment.why_bad}. Fitting took {seconds:.0f} s of one core.\n",
        *page.left_out(predictions),
        *page.forms(by_form(predictions, stack)),
    ]
    own = page.own_predictor(predictions)
    if own:
        detail.append(own)
    detail += page.group_lines(predictions)
    if seen:
        fitted = [name for name in CONSTANTS if getattr(stack, name) != getattr(base, name)]
        constants = ", ".join(f"{name} {getattr(stack, name):.3g}" for name in fitted)
        detail.append(f"\nConstants: {constants or 'kept'}.")
    return page.result_row(experiment.name, timed, predictions, experiment.target), "\n".join(detail) + "\n"


def _not_there(name: str) -> tuple[str, str]:
    return f"| {name} | not there | | | | | | | |", ""


if __name__ == "__main__":
    run_page(make, *OPTIONS, out=RESULTS / "backtest.md")
