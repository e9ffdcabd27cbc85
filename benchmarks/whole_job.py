"""
Proven gap of whole jobs: ``python -m benchmarks.whole_job [--hosts 16,32] [--kinds tree,unif] [--seconds 60]``.

Makes clusters by kind, number of hosts and seed, and solves on each with the default space: no degree is pinned. Each
run is a process of its own, so that time and memory are those of the whole command. Results go to a CSV file, in which
a run replaces an earlier run of the same job, and then to ``benchmarks/results/whole-job.md``. Run it on a machine
without other work; the machine's load is recorded with each run.
"""

import argparse
import csv
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from io import StringIO
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.page import RESULTS, option, run_page
from benchmarks.placement.clusters import cluster_of, link_gb_per_s, num_flows
from pipette_opt import __version__
from pipette_opt.base.files import write_atomically
from pipette_opt.read.cluster import write_cluster

MIN_BATCH, BATCH_PER_HOST = 512, 4
"""Sequences of an iteration: the maximum of a constant, and of a number per host. Chosen."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """
    Job of one run.

    Parameters
    ----------
    kind
        Kind of cluster, as in :mod:`benchmarks.placement.clusters`.
    limit_s
        Time limit of the command, seconds.
    """

    hosts: int
    kind: str
    seed: int
    model: str
    limit_s: float

    @property
    def batch(self) -> int:
        """Sequences of an iteration."""
        return max(MIN_BATCH, BATCH_PER_HOST * self.hosts)


@dataclass(frozen=True, kw_only=True)
class Row:
    """
    Result of a run.

    Parameters
    ----------
    gap
        (iteration - bound) / iteration.
    seconds, counted_s
        Seconds of the whole command; and those that count for the limit, without compiling, reading and writing.
    peak_gib
        Largest resident memory of the process.
    load
        Mean load of the machine in the minute before the run.
    ended
        Last line of the command's output if it made no plan.
    """

    hosts: int
    kind: str
    seed: int
    model: str
    limit_s: float
    iteration_s: float | None
    bound_s: float | None
    gap: float | None
    seconds: float
    counted_s: float | None
    peak_gib: float
    load: float
    date: str
    ended: str = ""

    @property
    def job(self) -> tuple[int, str, int, str, float]:
        """Key of the job that was run."""
        return self.hosts, self.kind, self.seed, self.model, self.limit_s


def run(job: Job) -> Row:
    """Make the cluster, solve on it, and return the result."""
    with TemporaryDirectory() as folder:
        cluster, plan = Path(folder) / "cluster.yaml", Path(folder) / "plan.json"
        rates = link_gb_per_s(job.kind, job.hosts, job.seed)
        write_cluster(cluster_of(rates, num_flows(job.kind), "a100-80gb"), cluster)
        command = [sys.executable, "-m", "pipette_opt", "solve", "--cluster", str(cluster), "--model", job.model]
        command += ["--global-batch-size", str(job.batch), "--seq-length", "4096", "--seed", str(job.seed)]
        command += ["--time-limit", f"{job.limit_s:g}", "--num-gpus", str(8 * job.hosts), "-o", str(plan)]
        command += ["--prefer", "fastest", "--gap-limit", "1e-4"]
        load, begun = os.getloadavg()[0], time.perf_counter()
        with (Path(folder) / "said.txt").open("w+") as output:
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
            _, _, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - begun
            output.seek(0)
            lines = output.read().split("\n")
        found = json.loads(plan.read_text()) if plan.exists() else None
    return Row(
        hosts=job.hosts,
        kind=job.kind,
        seed=job.seed,
        model=job.model,
        limit_s=job.limit_s,
        iteration_s=None if found is None else found["estimate"]["iteration_time_s"],
        bound_s=None if found is None else found["certificate"]["lower_bound_s"],
        gap=None if found is None else found["certificate"]["gap"],
        seconds=seconds,
        counted_s=None if found is None else found["certificate"]["wall_time_s"],
        peak_gib=usage.ru_maxrss / 2**20,
        load=load,
        date=datetime.now(UTC).date().isoformat(),
        ended="" if found is not None else next((line for line in reversed(lines) if line.strip()), ""),
    )


def read_rows(path: Path) -> list[Row]:
    """Return the rows of earlier runs; an empty field is ``None``, except in fields of text."""
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return [
            Row(**{field.name: _value(field.name, row[field.name]) for field in fields(Row)})
            for row in csv.DictReader(file)
        ]


def _value(name: str, text: str) -> Any:
    if name in ("kind", "model", "date", "ended"):
        return text
    if text == "":
        return None
    return int(text) if name in ("hosts", "seed") else float(text)


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write all rows to a CSV file."""
    text = StringIO()
    writer = csv.DictWriter(text, [field.name for field in fields(Row)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    write_atomically(path, text.getvalue())


def page(rows: Sequence[Row]) -> str:
    """Return the page with the table."""
    lines = [
        "# Proven gap of whole jobs",
        "",
        f"pipette-opt {__version__}, Python {platform.python_version()}, {os.cpu_count()} cores. Made by `python -m "
        "benchmarks.whole_job`: `solve --prefer fastest --gap-limit 1e-4` with the default space and two threads on "
        "generated clusters with hosts of "
        "eight A100-80GB, sequences of 4,096 tokens, and a batch of four sequences per host, at least 512.",
        "",
        "Seconds and memory are those of the whole process. Counted seconds exclude compiling, reading and writing; "
        "the limit applies to them. Load: mean of the minute before the run. A load far above the number of cores "
        "means that other work took most of the processor, so the gap says little. Rows before 27 November 2026 are of "
        "the default preference: the plan shown may be slower than the fastest, by which the gap counts.",
        "",
        "| hosts | kind | seed | model | limit | iteration, s | bound, s | gap | seconds | counted | peak, GiB | load "
        "| date |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        made = row.iteration_s is not None and row.bound_s is not None and row.gap is not None
        found = f"{row.iteration_s:.4f} | {row.bound_s:.4f} | {row.gap:.2%}" if made else f"{row.ended} | |"
        lines.append(
            f"| {row.hosts:,} | {row.kind} | {row.seed} | {row.model} | {row.limit_s:g} | {found} | {row.seconds:.0f} "
            f"| {'' if row.counted_s is None else round(row.counted_s)} | {row.peak_gib:.1f} | {row.load:.1f} "
            f"| {row.date} |"
        )
    return "\n".join(lines) + "\n"


def make(given: argparse.Namespace) -> Iterator[str]:
    """Run the chosen jobs one after the other; yield the page with all rows of the CSV file after each."""
    path = RESULTS / "whole-job.csv"
    for hosts, kind, seed in product(given.hosts.split(","), given.kinds.split(","), given.seeds.split(",")):
        row = run(Job(hosts=int(hosts), kind=kind, seed=int(seed), model=given.model, limit_s=given.seconds))
        rows = [known for known in read_rows(path) if known.job != row.job]
        rows = sorted([*rows, row], key=lambda known: known.job)
        write_rows(path, rows)
        yield page(rows)


OPTIONS = (
    option("--hosts", default="16,32,64,128"),
    option("--kinds", default="tree,unif"),
    option("--seeds", default="0"),
    option("--model", default="llama-2-70b"),
    option("--seconds", type=float, default=60.0),
)


if __name__ == "__main__":
    run_page(make, *OPTIONS, out=RESULTS / "whole-job.md")
