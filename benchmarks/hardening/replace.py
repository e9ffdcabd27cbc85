"""
Loop that replaces files, killed at random moments (SIGKILL): each file must be an older or newer one, complete.

``python benchmarks/hardening/replace.py --kills 100`` has a process repeatedly replace a file of 4 MB, a file with two
parts, and the folder of an export. It kills the process and checks all files. Each file repeats the number of its
round. A file that mixes rounds, ends early or is missing is lost. Temporary files that a kill leaves are counted, but
not lost: no program reads them. An export after a kill must succeed without ``--force``. The exit code is 1 if a file
was lost.
"""

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

from pipette_opt.base.files import write_atomically, write_with_parts
from pipette_opt.export.folder import write_folder

LINES = {"large.txt": 500_000, "c.yaml": 2_000, "c_links_1.csv": 20_000, "c_links_8.csv": 20_000}
"""Number of lines of each file that is replaced. Chosen."""

EXPORTED = ("launch/a.sh", "launch/nodes.txt")


def content(name: str, number: int) -> str:
    """Return the text of a file in a round; a cluster file names its parts."""
    head = "# c_links_1.csv c_links_8.csv\n" if name == "c.yaml" else ""
    return head + f"{number:07d}\n" * LINES.get(name, 1_000)


def one_round(folder: Path, number: int) -> None:
    """Replace all files with the text of a round."""
    write_atomically(folder / "large.txt", content("large.txt", number))
    parts = {name: content(name, number) for name in ("c_links_1.csv", "c_links_8.csv")}
    write_with_parts(folder / "c.yaml", content("c.yaml", number), parts)
    write_folder(folder / "launch", {Path(name).name: content(name, number) for name in EXPORTED})


def replace_on(folder: Path, first: int) -> None:
    """Replace all files repeatedly until the process is killed."""
    for number in count(first):
        one_round(folder, number)


def lost(folder: Path) -> list[str]:
    """Return a message for each file that is missing or incomplete."""
    problems = []
    for name in (*LINES, *EXPORTED):
        path = folder / name
        lines = path.read_text().splitlines() if path.is_file() else []
        numbers = set(lines[1:] if name == "c.yaml" else lines)
        if len(numbers) != 1 or path.read_text() != content(name, int(numbers.pop())):
            problems.append(f"{name} is not whole")
    return problems


def main() -> int:
    """Kill the process repeatedly, check the files, and print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw, num_lost, mixed, number = random.Random(given.seed), 0, 0, 1
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one_round(folder, 0)
        for kill in range(given.kills):
            process = multiprocessing.get_context("fork").Process(target=replace_on, args=(folder, number))
            process.start()
            time.sleep(draw.uniform(0.0, 0.2))
            os.kill(process.pid or 0, signal.SIGKILL)
            process.join()
            for problem in lost(folder):
                num_lost += 1
                print(f"kill {kill}: {problem}", flush=True)
            mixed += (
                len({(folder / name).read_text()[-8:] for name in ("c.yaml", "c_links_1.csv", "c_links_8.csv")}) > 1
            )
            number += 1_000
            one_round(folder, number)
        left = sum(path.name.endswith(".tmp") for path in folder.rglob("*"))
    print(f"{given.kills} kills, {num_lost} files lost, {mixed} between two files of a cluster, {left} temporary files")
    return 1 if num_lost else 0


if __name__ == "__main__":
    sys.exit(main())
