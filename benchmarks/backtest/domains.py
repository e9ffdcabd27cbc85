"""
Effect of NVLink domains on vendors' rows for GB200 and GB300: ``python -m benchmarks.backtest.domains [--out PAGE]``.

The shipped stack predicts every supported row; no constant is fitted. Three machines are compared. Hosts of four GPUs
that are connected by NICs only; the same hosts in the domains of NVL72 racks; and, as a check, one host of 64 GPUs in
place of each domain, as the rows were predicted before domains existed.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.backtest import vendor
from benchmarks.backtest.sources import measured_runs
from benchmarks.measured import completed, measured_folder
from benchmarks.page import RESULTS, run_page
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases, why_untimed
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.runs import BANDWIDTH_COLUMN, MeasuredRun
from pipette_opt.read.stack import read_stack

ROOT = Path(__file__).resolve().parents[2]

HOST, LARGE_HOST = 4, 64
"""GPUs of a host (compute tray), and of a host that stands for a domain."""


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page: every row predicted on each machine."""
    yield page(_rows(measured_folder()))


def page(groups: Sequence[tuple[str, Sequence[MeasuredRun]]]) -> str:
    """Return the page, with a table row for each group that has cases."""
    lines = [
        "# NVLink domains against vendors' rows",
        "",
        "Made by `python -m benchmarks.backtest.domains`. Rows on GB200 and GB300 of NVIDIA's tables and of MLPerf",
        "Training, shipped stack, nothing fitted. Mean of `|predicted / measured - 1|`, and median of `predicted /",
        "measured` in brackets. *NICs only*: hosts of four GPUs with NICs only, as predicted before domains existed.",
        "*Domains*: the same hosts in NVL72 racks, of which jobs use 16. *Large hosts*: 64 GPUs a host, in place of a "
        "domain.",
        "",
        "| rows | number | NICs only | domains | large hosts |",
        "|---|---|---|---|---|",
    ]
    for name, runs in groups:
        columns = [_error(machine(runs)) for machine in (_plain, _in_domains, _large)]
        if columns[0][0]:
            lines.append(f"| {name} | {columns[0][0]} | {' | '.join(text for _, text in columns)} |")
    return "\n".join(lines) + "\n"


def _rows(measured: Path) -> list[tuple[str, list[MeasuredRun]]]:
    """Return name and runs of each group, by the span of expert groups and of the job."""
    tables = measured_runs(measured / "nvidia_perf_tables.csv")
    dense = _fabric([run for part in vendor.dense(tables) for run in part])
    mixtures = _fabric([run for part in vendor.experts(tables) for run in part])
    logs = _fabric([run for part in vendor.mlperf(measured_runs(measured / "mlperf_training.csv")) for run in part])

    def chosen(runs: list[MeasuredRun], choose: Callable[[MeasuredRun], bool]) -> list[MeasuredRun]:
        return [run for run in runs if choose(run)]

    return [
        ("mixtures, expert groups inside a host", chosen(mixtures, lambda run: _experts(run) <= HOST)),
        ("mixtures, expert groups of 8", chosen(mixtures, lambda run: _experts(run) == 2 * HOST)),
        ("mixtures, expert groups of 16 to 64", chosen(mixtures, lambda run: _experts(run) > 2 * HOST)),
        ("dense, up to 64 GPUs", chosen(dense, lambda run: run.num_gpus <= LARGE_HOST)),
        ("dense, several domains", chosen(dense, lambda run: run.num_gpus > LARGE_HOST)),
        ("MLPerf, Llama 3.1 405B, several domains", logs),
    ]


def _fabric(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if any(name in run.gpu_name for name in vendor.FABRIC)]


def _experts(run: MeasuredRun) -> int:
    return run.launch.expert_model_parallel_size


def _cases(runs: Sequence[MeasuredRun]) -> list[Case]:
    found = make_cases(runs, read_stack())
    timed = [case for case in found if isinstance(case, Case) and not why_untimed(case)]
    return [case for case in timed if case.run.iter_time_s and not case.run.oom]


def _in_domains(runs: Sequence[MeasuredRun]) -> list[Case]:
    return _cases(runs)


def _plain(runs: Sequence[MeasuredRun]) -> list[Case]:
    """Return the cases on hosts without domains."""
    return [
        replace(case, instance=replace(case.instance, cluster=replace(case.instance.cluster, levels=())))
        for case in _cases(runs)
    ]


def _large(runs: Sequence[MeasuredRun]) -> list[Case]:
    """Return the cases on hosts as large as the part of a domain that a job uses."""
    sized = []
    for run in runs:
        count = min(run.num_gpus, LARGE_HOST)
        links = {BANDWIDTH_COLUMN: str(vendor.LINK_GB_PER_S * count)}
        sized.append(completed(run, {"gpus_per_node": str(count)} | links))
    return _cases(sized)


def _error(cases: Sequence[Case]) -> tuple[int, str]:
    if not cases:
        return 0, "-"
    ratios: FloatArray = predicted_times_s(cases) / np.array([case.run.iter_time_s for case in cases])
    return len(cases), f"{100 * float(np.abs(ratios - 1).mean()):.1f} % ({np.median(ratios):.2f})"


if __name__ == "__main__":
    run_page(make, out=RESULTS / "domains.md")
