"""
Plans that another version of this program would make otherwise: ``python -m benchmarks.changed_plans --before FOLDER``.

FOLDER is a checkout of that version (``git worktree add FOLDER COMMIT``). Each job is solved by both, in processes of
their own, and both plans are timed by today's clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipette_opt.base.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]

SECONDS = 8
"""Time limit of each search."""

MAX_SECONDS = 300
"""After which a version is given up for a job; kernels may have to be compiled."""

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
"""Options of ``solve``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A plan's file, what it says, and its time by today's clock."""

    content: dict[str, Any]
    now: dict[str, Any] | None

    @property
    def label(self) -> str:
        """Degrees and what else people choose."""
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


def main() -> None:
    """Solve, compare, print or write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows, same = list[str](), list[str]()
    with tempfile.TemporaryDirectory() as folder:
        for name, job in JOBS.items():
            new = solved(ROOT, job, Path(folder) / "new.json")
            old = solved(options.before, job, Path(folder) / "old.json", new)
            print(name, *(plan and plan.label for plan in (old, new)), sep=" | ", file=sys.stderr, flush=True)
            if old is not None and new is not None and old.label == new.label:
                same.append(name)
            else:
                rows.append(row(name, old, new))
            if options.out is not None:
                write_atomically(options.out, page(rows, same))
    if options.out is None:
        print(page(rows, same))


def page(rows: Sequence[str], same: Sequence[str]) -> str:
    """Plans that changed, and the jobs whose plans did not."""
    head = [*HEAD, f"| job | before | now | before, by today's clock | now | {CAUSES} |", "|---|---|---|---|---|---|"]
    kept = f"The same degrees, micro-batch and recomputation as before: {'; '.join(same) or 'none'}."
    return "\n".join([*head, *rows, "", kept, ""])


CAUSES = "what differs most, seconds of an iteration"

HEAD = [
    "# Plans that the clock of before would make otherwise",
    "",
    f"`python -m benchmarks.changed_plans --before FOLDER`: the same jobs solved by both versions, {SECONDS} s each; "
    "both plans timed by today's clock.",
    "",
]


def solved(folder: Path, job: str, path: Path, today: Solved | None = None) -> Solved | None:
    """The plan of a version, ``None`` if it found none; timed with what ``today``'s plan of the job was made from."""
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
    """What a command of a version prints."""
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
    """One job."""
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
    main()
