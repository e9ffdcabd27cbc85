"""
Plans that differ between two versions of the program: ``python -m benchmarks.changed_plans --before FOLDER``.

FOLDER is a checkout of the earlier version (``git worktree add FOLDER COMMIT``). Both versions solve each job, in
processes of their own. Today's simulator times both plans.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.page import ROOT, option, run_page, say

SECONDS = 8
"""Time limit of each search, seconds. Chosen."""

MAX_SECONDS = 300
"""Seconds after which a command of a version is stopped; kernels may have to be compiled first. Chosen."""

JOBS = {
    "qwen3-30b-a3b, 2 hosts of H100": "--nodes 2 --gpu h100-80gb --model qwen3-30b-a3b --global-batch-size 256 "
    "--seq-length 4096",
    "gpt-3-175b, 64 hosts of A100": "--nodes 64 --gpu a100-80gb --model gpt-3-175b --global-batch-size 1536 "
    "--seq-length 2048",
    "mixtral-8x7b, 4 hosts of H100": "--nodes 4 --gpu h100-80gb --model mixtral-8x7b --global-batch-size 128 "
    "--seq-length 4096",
    "qwen3-30b-a3b in fp8, 1 host of B200": "--nodes 1 --gpu b200 --model qwen3-30b-a3b --global-batch-size 512 "
    "--seq-length 4096 --fp8",
    "llama-2-13b, 4 hosts of A100": "--nodes 4 --gpu a100-80gb --model llama-2-13b --global-batch-size 256 "
    "--seq-length 4096",
    "gpt-3-1.3b, 8 hosts of A100": "--nodes 8 --gpu a100-80gb --model gpt-3-1.3b --global-batch-size 512 "
    "--seq-length 2048",
    "llama-3-70b, 16 hosts of A100": "--nodes 16 --gpu a100-80gb --model llama-3-70b --global-batch-size 512 "
    "--seq-length 4096",
    "llama-3-70b in fp8, 8 hosts of B200": "--nodes 8 --gpu b200 --model llama-3-70b --global-batch-size 256 "
    "--seq-length 8192 --fp8",
    "llama-3-70b, 8 hosts of H100": "--nodes 8 --gpu h100-80gb --model llama-3-70b --global-batch-size 256 "
    "--seq-length 4096",
    "llama-3.1-405b, 32 hosts of H100": "--nodes 32 --gpu h100-80gb --model llama-3.1-405b --global-batch-size 512 "
    "--seq-length 8192",
    "llama-3-8b in fp8, 2 hosts of H100": "--nodes 2 --gpu h100-80gb --model llama-3-8b --global-batch-size 128 "
    "--seq-length 8192 --fp8",
    "llama-3-8b, 2 hosts of H100": "--nodes 2 --gpu h100-80gb --model llama-3-8b --global-batch-size 128 "
    "--seq-length 8192",
}
"""Options of ``solve`` for each job, by the job's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """Content of a plan file, and its estimate by today's simulator (``None`` if it is refused)."""

    content: dict[str, Any]
    now: dict[str, Any] | None

    @property
    def label(self) -> str:
        """Label of the plan's configuration, such as ``tp4 pp8 dp2 mbs1``."""
        degrees = self.content["parallel"]
        parts = [
            f"tp{degrees['tensor_model_parallel_size']} pp{degrees['pipeline_model_parallel_size']} "
            f"dp{degrees['data_parallel_size']} mbs{degrees['micro_batch_size']}"
        ]
        for name, short in (
            ("context_parallel_size", "cp"),
            ("expert_model_parallel_size", "ep"),
            ("virtual_pipeline_model_parallel_size", "vpp"),
        ):
            if (degrees.get(name) or 1) > 1:
                parts.append(f"{short}{degrees[name]}")
        if degrees["recompute_granularity"]:
            block = f" {degrees['recompute_num_layers']}" if degrees.get("recompute_method") == "block" else ""
            parts.append(f"{degrees['recompute_granularity']}{block}")
        return " ".join(parts)


def make(given: argparse.Namespace) -> Iterator[str]:
    """Solve all jobs with both versions; yield the page after each."""
    rows, same = list[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name, job in JOBS.items():
            new = solved(ROOT, job, Path(folder) / "new.json")
            old = solved(given.before, job, Path(folder) / "old.json", new)
            say(" | ".join([name, *(str(plan and plan.label) for plan in (old, new))]))
            if old is not None and new is not None and old.label == new.label:
                same.append(name)
            else:
                rows.append(row(name, old, new))
            yield page(rows, same)


def page(rows: Sequence[str], same: Sequence[str]) -> str:
    """Return the page: a table of changed plans, and the names of jobs with unchanged plans."""
    head = [
        *HEAD,
        f"| job | before | now | before, by today's simulator | now | {CAUSES} |",
        "|---|---|---|---|---|---|",
    ]
    kept = f"The same degrees, micro-batch and recomputation as before: {'; '.join(same) or 'none'}."
    return "\n".join([*head, *rows, "", kept, ""])


CAUSES = "what differs most, seconds of an iteration"

HEAD = [
    "# Plans that differ from an earlier version's",
    "",
    f"`python -m benchmarks.changed_plans --before FOLDER`: the same jobs solved by both versions, {SECONDS} s each; "
    "both plans are timed by today's simulator.",
    "",
]


def solved(folder: Path, job: str, path: Path, today: Solved | None = None) -> Solved | None:
    """
    Return the plan of the version in ``folder``, or ``None`` if it found none.

    Today's estimate of the plan uses the inputs of ``today``'s plan of the job, if given.
    """
    path.unlink(missing_ok=True)
    run(folder, ["solve", *job.split(), "--time-limit", str(SECONDS), "--workers", "1", "-o", str(path)])
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    if today is not None:
        content["inputs"] = today.content["inputs"]
        path.write_text(json.dumps(content))
    now = json.loads(run(ROOT, ["estimate", str(path), "--json"]) or "{}")
    return Solved(content=content, now=now if "estimate" in now else None)


def run(folder: Path, arguments: list[str]) -> str:
    """Run a command of the version in ``folder`` and return its standard output; empty after ``MAX_SECONDS``."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    if folder != ROOT and "NUMBA_CACHE_DIR" in os.environ:
        environment["NUMBA_CACHE_DIR"] = f"{os.environ['NUMBA_CACHE_DIR']}-before"
    command = [sys.executable, "-m", "pipette_opt", *arguments]
    try:
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False, timeout=MAX_SECONDS
        )
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def row(name: str, old: Solved | None, new: Solved | None) -> str:
    """Return the table row of one job, with the two causes whose seconds differ most."""
    cells = [name, *("none found" if plan is None else plan.label for plan in (old, new))]
    times = [None if plan is None or plan.now is None else plan.now["estimate"] for plan in (old, new)]
    cells += ["refused" if estimate is None else f"{estimate['iteration_time_s']:.3g} s" for estimate in times]
    causes = ""
    if times[0] is not None and times[1] is not None:
        parts = [estimate["breakdown"] for estimate in times]
        gaps = {cause: parts[0].get(cause, 0.0) - parts[1].get(cause, 0.0) for cause in {*parts[0], *parts[1]}}
        largest = sorted(gaps, key=lambda cause: -abs(gaps[cause]))[:2]
        causes = ", ".join(f"{cause.replace('_', ' ')} {-gaps[cause]:+.2g}" for cause in largest)
    return f"| {' | '.join([*cells, causes])} |"


if __name__ == "__main__":
    run_page(make, option("--before", type=Path, required=True))
