"""
Commands killed at random moments (SIGKILL, the whole process group): lost and half-written files.

``python -m benchmarks.hardening.kill --kills 200`` runs each command to its end, then repeatedly with a kill at a
random moment, in a folder with the files of an earlier run. After each kill, every file must be the old or the new one,
and complete. Written rows of long work must still exist. The exit code is 1 otherwise.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.hardening.readers import SEEDS
from benchmarks.measured import shared_folder
from models.memory.collect import collect
from pipette_opt.cli import main as pipette_opt
from pipette_opt.cli.program import run_command
from pipette_opt.read.runs import read_rows
from pipette_opt.read.stack import read_stack
from pipette_opt.report.plan_file import read_plan

FORKED = multiprocessing.get_context("fork")
"""Context that starts commands as copies of this process, with all imports done, so that kills hit their work."""

POINTS = 60
"""Number of memory traces that are collected and trained on. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """
    Command that is killed.

    Parameters
    ----------
    arguments
        Arguments of the program; files are in the folder that it runs in.
    outputs
        Files that the command writes, and the function that reads a complete one.
    main
        Function that runs the program.
    grows
        File whose lines are finished work that the next run continues; empty for none.
    """

    arguments: tuple[str, ...]
    outputs: dict[str, Callable[[Path], object]]
    main: Callable[[], None] = pipette_opt
    grows: str = ""


def whole_script(path: Path) -> object:
    """Return the text of a launcher's file; fails if bash cannot parse a script, or the last line has no end."""
    if path.suffix == ".sh" or path.name.endswith(".sbatch"):
        subprocess.run(["bash", "-n", str(path)], check=True, capture_output=True)
    text = path.read_text()
    assert text.endswith("\n"), "has no end"
    return text


def whole_table(path: Path) -> object:
    """Return the rows of a table; fails if a row has another number of cells than the header."""
    lines = [line.split(",") for line in path.read_text().splitlines()]
    assert all(len(cells) == len(lines[0]) for cells in lines[:-1]), "has broken rows"
    return lines


def jobs(folder: Path) -> dict[str, Job]:
    """Return all commands by name; their inputs are written into ``folder``."""
    shutil.copy(SEEDS / "plan.json", folder / "given.json")
    shared = shared_folder()
    runs = shared / "measured" / "vtrain_a100.csv"
    solve = ("solve", "--example", "lab-2x8", "--time-limit", "2")
    replan = ("replan", "spares.json", "--lost", "gpu03", "--time-limit", "2", "--out", "new.json")
    found = {
        "solve": Job(arguments=(*solve, "--out", "plan.json"), outputs={"plan.json": read_plan}),
        "replan": Job(arguments=replan, outputs={"new.json": read_plan}),
        "export": Job(
            arguments=("export", "given.json", "--format", "slurm", "--out", "launch"),
            outputs={"launch/*": whole_script},
        ),
        "collect": Job(
            arguments=("--out", "traces.csv", "--num-points", str(POINTS), "--workers", "1"),
            outputs={"traces.csv": whole_table},
            main=partial(run_command, collect),
            grows="traces.csv",
        ),
    }
    if runs.exists():
        lines = runs.read_text().splitlines(keepends=True)
        (folder / "runs.csv").write_text("".join(lines[:60]))
        assert read_rows(folder / "runs.csv")
        found["calibrate"] = Job(
            arguments=("calibrate", "runs.csv", "--out", "stack.yaml"), outputs={"stack.yaml": read_stack}
        )
    return found


def command(job: Job, folder: Path, errors: Path) -> None:
    """Run the program in this forked process, as a process group of its own."""
    os.setsid()
    os.chdir(folder)
    with Path(os.devnull).open("w") as nothing, errors.open("w") as complaints:
        os.dup2(nothing.fileno(), 1)
        os.dup2(complaints.fileno(), 2)
    sys.argv = ["pipette-opt", *job.arguments]
    job.main()


def run(job: Job, folder: Path, after_s: float | None) -> float:
    """Return the seconds of a command, which is killed with all its processes after ``after_s`` seconds."""
    errors = folder / "errors.txt"
    process = FORKED.Process(target=command, args=(job, folder, errors))
    begin = time.perf_counter()
    process.start()
    process.join(after_s)
    if process.exitcode is None:
        with contextlib.suppress(ProcessLookupError):  # it has no group of its own yet
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.join()
    else:
        assert process.exitcode in (0, 4), f"{job.arguments}: {process.exitcode} {errors.read_text()[-500:]}"
    return time.perf_counter() - begin


def left_broken(job: Job, folder: Path, before: list[str]) -> list[str]:
    """Return the faults of a killed command's files; ``before`` has the earlier lines of its growing file."""
    problems = []
    for pattern, reader in job.outputs.items():
        for path in folder.glob(pattern):
            try:
                reader(path)
            except Exception as error:
                problems.append(f"{path.name}: {type(error).__name__}: {error}")
    if job.grows and (now := lines_of(folder / job.grows))[: len(before)] != before:
        problems.append(f"{job.grows}: {len(before)} lines before, {len(now)} now")
    return problems


def lines_of(path: Path) -> list[str]:
    """Return the complete lines of a file; empty if the file is missing."""
    return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")] if path.exists() else []


def main() -> None:
    """Parse the arguments, kill commands, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="total number of kills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--command", action="append", help="name of a command to kill, may be repeated; default: all")
    given = parser.parse_args()
    draw = random.Random(given.seed)
    rows, failed = [], False
    for module in ("cli.app", "optimize", "replan", "calibrate", "export"):
        importlib.import_module(f"pipette_opt.{module}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(
            Job(
                arguments=("solve", "--example", "spares-10x8", "--time-limit", "3", "--out", "spares.json"), outputs={}
            ),
            folder,
            None,
        )
        all_of_them = {name: job for name, job in jobs(folder).items() if name in (given.command or [name])}
        for title, job in all_of_them.items():
            if not job.grows:
                run(job, folder, None)  # compiles its kernels
            whole = run(job, folder, None)
            digest = hashlib.sha256("".join(lines_of(folder / job.grows)).encode()).hexdigest() if job.grows else ""
            if job.grows:
                (folder / job.grows).unlink()
            kills, broken, ended = given.kills // len(all_of_them), 0, 0
            before: list[str] = []
            for _ in range(kills):
                moment = draw.uniform(0.0, whole)
                has_ended = run(job, folder, moment) < moment
                ended += has_ended
                for problem in left_broken(job, folder, before):
                    broken, failed = broken + 1, True
                    print(f"{title} killed after {moment:.2f} s: {problem}", flush=True)
                if job.grows and has_ended:  # nothing is left to do
                    (folder / job.grows).unlink()
                before = lines_of(folder / job.grows) if job.grows else []
            run(job, folder, None)
            if job.grows:
                now = hashlib.sha256("".join(lines_of(folder / job.grows)).encode()).hexdigest()
                if now != digest:
                    broken, failed = broken + 1, True
                    print(f"{title}: finished after all the kills, the file is not that of a run without", flush=True)
            temporary = len(list(folder.rglob("*.tmp")))
            rows.append((title, f"{whole:.1f}", kills, ended, broken, temporary))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    print("\n| command | s | kills | ended before | broken or lost | temporary files left |\n|---|---|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
