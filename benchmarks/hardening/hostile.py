"""
Small hostile files, each given to the command that reads such files: seconds, memory and first line of the answer.

``python benchmarks/hardening/hostile.py FOLDER`` prints a table of the files of a folder (``.json``, ``.log``, ``.sh``
or ``.yaml``), each read by a process of its own. The exit code is 1 in one of these cases: a command takes more than
``SECONDS`` of the processor or ``MEMORY_MIB``, prints a traceback, or refuses a file in more than one line.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SECONDS, MEMORY_MIB = 2.0, 500
"""Maximum processor seconds and memory of a command on a small file, start-up included. Chosen."""

JOB = ("--model", "llama-3.1-8b", "--global-batch-size", "64", "--seq-length", "4096", "--time-limit", "1")

COMMANDS = {
    ".json": lambda path: ("import", "model", path),
    ".log": lambda path: ("import", "links", path, "-o", "c.yaml"),
    ".sh": lambda path: ("import", "model", path),
    ".yaml": lambda path: ("solve", "--cluster", path, *JOB),
}
"""Arguments of the program by the suffix of the file."""


def main() -> int:
    """Read all files of the folder and print the table; return the exit code."""
    failed = 0
    print("| file | exit code | s | MiB | answer |\n|---|---|---|---|---|")
    for path in sorted(Path(sys.argv[1]).resolve().iterdir()):
        if path.suffix not in COMMANDS:
            continue
        words = [sys.executable, "-m", "pipette_opt", *COMMANDS[path.suffix](str(path))]
        with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as complaints:
            process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=complaints)
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            complaints.seek(0)
            lines = complaints.read().splitlines() or [""]
        seconds, mib = used.ru_utime + used.ru_stime, used.ru_maxrss / 1024
        wrong = seconds > SECONDS or mib > MEMORY_MIB or process.returncode not in (0, 2)
        failed += wrong or (process.returncode == 2 and len(lines) > 1)
        answer = lines[0].replace(str(path), path.name).replace("|", "\\|")[:160]
        print(f"| {path.name} | {process.returncode} | {seconds:.1f} | {mib:.0f} | {answer} |", flush=True)
    print(f"\n{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
