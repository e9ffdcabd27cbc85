"""
Back-test on public measured runs: ``python -m benchmarks.backtest.run [--out PAGE]``.

The measurements are read in place, from the folder in the environment variable PIPETTE_OPT_SHARED or from ``../shared``
beside the project; none is copied. The page names each missing source. Each experiment fits the constants of a stack to
one part of a source and tests it on another part (``experiments.py``).
"""

import argparse
import time
from datetime import UTC, datetime
from pathlib import Path

from joblib import Parallel, delayed

from benchmarks.backtest import page
from benchmarks.backtest.experiments import EXPERIMENTS, Experiment
from benchmarks.backtest.fitting import fitted_stack, predicted
from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import measured_folder
from pipette_opt.base.files import write_atomically
from pipette_opt.read.stack import read_stack
from pipette_opt.specs import StackSpec
from pipette_opt.specs.stack import CONSTANTS

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Run the experiments whose sources exist, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    today = datetime.now(UTC).date().isoformat()
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / f"{today}-backtest.md")
    parser.add_argument("--jobs", type=int, default=-1, help="number of parallel experiments; by default one per core")
    parser.add_argument("--only", default="", help="only experiments whose name contains this text")
    options, folder = parser.parse_args(), measured_folder()
    base = read_stack()
    parts = [page.head(today)]
    rows = []
    jobs = [delayed(_judge)(experiment, folder, base) for experiment in EXPERIMENTS if options.only in experiment.name]
    for summary, detail in Parallel(n_jobs=options.jobs, return_as="generator")(jobs):
        print(summary, flush=True)
        rows.append(summary)
        parts += [detail] if detail else []
    parts.insert(1, page.summary(rows))
    write_atomically(options.out, "\n".join(parts))


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
        *page.forms(predictions),
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
    main()
