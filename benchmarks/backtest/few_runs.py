"""
Calibration with few runs of a source, tested on its other runs: ``python -m benchmarks.backtest.few_runs``.

Each source is a stack without a fit. Three mean errors of the other runs are printed: by the shipped stack, by the
shipped stack times the mean factor of the few runs, and by the calibrated stack.
"""

import argparse

import numpy as np

from benchmarks.backtest import bands
from benchmarks.measured import measured_folder
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, with_stack
from pipette_opt.calibrate.fit import calibrate_runs
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.stack import read_stack

SOURCES = (
    *("amp_aws16", "llm_foundry", "mlperf_training", "mlperf_v51", "nvidia_perf_tables", "published_tables"),
    *("simumax", "vtrain_a100"),
)
"""Files with enough runs, without their suffix."""

DRAWS, MAX_TESTED = 3, 60
"""Number of random draws per source, and maximum number of other runs that are predicted. Chosen."""


def main() -> None:
    """Print the errors for each number of calibration runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="*", default=[1, 3, 6])
    sizes = parser.parse_args().runs
    cases = {name: bands.cases_of(measured_folder() / f"{name}.csv") for name in SOURCES}
    for size in sizes:
        errors = np.array([errors_of(own, size, draw) for own in cases.values() for draw in range(DRAWS)])
        words = zip(("shipped", "one factor", "calibrated"), errors.mean(axis=0), strict=True)
        print(f"{size} runs: {', '.join(f'{name} {100 * error:.1f} %' for name, error in words)}", flush=True)


def errors_of(cases: list[Case], size: int, draw: int) -> tuple[float, float, float]:
    """Return the mean errors of runs that were not drawn: shipped stack, with one factor, calibrated stack."""
    order = np.random.default_rng(draw).permutation(len(cases)).tolist()
    seen, tested = ([cases[index] for index in part] for part in (order[:size], order[size : size + MAX_TESTED]))
    shipped_s, factor = predicted_times_s(tested), float(np.exp(-np.log(_ratios(seen)).mean()))
    stack = calibrate_runs([case.run for case in seen], read_stack(), validate=False).stack
    fitted_s = predicted_times_s(with_stack(tested, stack))
    measured_s = np.array([case.run.iter_time_s for case in tested])
    found = [np.abs(times / measured_s - 1).mean() for times in (shipped_s, factor * shipped_s, fitted_s)]
    return found[0], found[1], found[2]


def _ratios(cases: list[Case]) -> FloatArray:
    """Return predicted over measured times."""
    ratios: FloatArray = predicted_times_s(cases) / np.array([case.run.iter_time_s for case in cases])
    return ratios


if __name__ == "__main__":
    main()
