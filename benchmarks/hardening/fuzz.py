"""
Fuzzing of users' file readers with nearly correct files, for crashes, excessive time and excessive memory.

``python benchmarks/hardening/fuzz.py --minutes 10`` mutates the seed files for this time, readers in turn, in processes
with 4 GiB of memory. With ``--coverage`` (``pip install atheris``), mutations are guided by new lines of the readers.
Files that crash a reader are kept in ``--keep``; add them to the reader's tests. The exit code is 1 after any crash.
"""

import argparse
import multiprocessing
import random
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from readers import STEM, mutants, readers

from pipette_opt.base.errors import PipetteError

MEMORY_BYTES = 4 * 2**30
"""Address space of a reader's process, bytes. Chosen."""

SECONDS = 10.0
"""Maximum processor seconds of a reader for a file of a few kilobytes. Chosen."""

BATCH = 200
"""Number of files between two checks of the time limit. Chosen."""


def tried(name: str, content: bytes, folder: Path) -> str | None:
    """Return why the reader crashed or took too long, ``"refused"``, or ``None`` for an accepted file."""
    reader = readers()[name]
    path = folder / f"{STEM}{reader.suffix}"
    path.write_bytes(content)
    begin = time.process_time()
    try:
        reader.read(path)
        answer = None
    except PipetteError:
        answer = "refused"
    except BaseException:
        last = traceback.format_exc().strip().splitlines()
        return f"{last[-1]} ({last[-3].strip() if len(last) > 2 else ''})"
    seconds = time.process_time() - begin
    return f"took {seconds:.0f} s" if seconds > SECONDS else answer


def batch(arguments: tuple[str, int]) -> tuple[str, Counter[str], list[tuple[str, bytes]]]:
    """Return the outcomes of one batch of files of a reader, and the files that crashed it."""
    name, seed = arguments
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    seeds = tuple(path.read_bytes() for path in readers()[name].seeds)
    outcomes: Counter[str] = Counter()
    crashes = []
    with tempfile.TemporaryDirectory() as folder:
        for content in mutants(seeds, BATCH, seed):
            outcome = tried(name, content, Path(folder))
            outcomes["taken" if outcome is None else "refused" if outcome == "refused" else "crashed"] += 1
            if outcome not in (None, "refused"):
                crashes.append((outcome, content))
    return name, outcomes, crashes


def by_mutation(names: list[str], minutes: float, seed: int, keep: Path, processes: int | None) -> int:
    """Test random mutations until the time is over; return the number of kinds of crash."""
    end = time.monotonic() + 60 * minutes
    outcomes: dict[str, Counter[str]] = {name: Counter() for name in names}
    kinds: dict[str, set[str]] = {name: set() for name in names}
    draw = random.Random(seed)

    def work() -> "list[tuple[str, int]]":
        return [(name, draw.randrange(2**31)) for name in names]

    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=20) as pool:
        while time.monotonic() < end:
            for name, found, crashes in pool.imap_unordered(batch, work()):
                outcomes[name] += found
                for kind, content in crashes:
                    if kind not in kinds[name]:
                        kinds[name].add(kind)
                        keep.mkdir(parents=True, exist_ok=True)
                        path = keep / f"{name}-{len(kinds[name])}{readers()[name].suffix}"
                        path.write_bytes(content)
                        print(f"{path}: {kind}", flush=True)
            print(f"{sum(map(Counter.total, outcomes.values())):,} files", file=sys.stderr, flush=True)
    print("\n| reader | files | taken | refused | crashed | kinds of crash |\n|---|---|---|---|---|---|")
    for name in names:
        found = outcomes[name]
        cells = (found.total(), found["taken"], found["refused"], found["crashed"], len(kinds[name]))
        print(f"| {name} | " + " | ".join(f"{cell:,}" for cell in cells) + " |")
    return sum(map(len, kinds.values()))


def by_coverage(names: list[str], minutes: float, keep: Path) -> int:
    """Run Atheris on each reader in a process of its own; return the number of readers that crashed."""
    keep.mkdir(parents=True, exist_ok=True)
    crashed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as corpus:
            for path in readers()[name].seeds:
                (Path(corpus) / path.name).write_bytes(path.read_bytes())
            options = [f"-max_total_time={60 * minutes / len(names):.0f}", f"-artifact_prefix={keep}/{name}-"]
            options += [f"-timeout={SECONDS:.0f}", f"-rss_limit_mb={MEMORY_BYTES >> 20}", "-print_final_stats=1"]
            done = subprocess.run([sys.executable, __file__, "--guided", name, *options, corpus], check=False)
        crashed += done.returncode != 0
        print(f"{name}: {'crashed' if done.returncode else 'no crash'}", flush=True)
    return crashed


def guided(name: str, options: list[str]) -> None:
    """Run Atheris on one reader in this process."""
    import atheris

    with atheris.instrument_imports(include=["pipette_opt.read", "pipette_opt.report", "pipette_opt.specs"]):
        reader = readers()[name]
    folder = Path(tempfile.mkdtemp())
    path = folder / f"{STEM}{reader.suffix}"

    def read_content(content: bytes) -> None:
        path.write_bytes(content)
        try:
            reader.read(path)
        except PipetteError:
            return

    atheris.Setup([sys.argv[0], *options], read_content)
    atheris.Fuzz()


def main() -> None:
    """Parse the arguments and fuzz."""
    if sys.argv[1:2] == ["--guided"]:
        guided(sys.argv[2], sys.argv[3:])
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0, help="total time, minutes")
    parser.add_argument(
        "--reader", action="append", choices=sorted(readers()), help="name of a reader, may be repeated; default: all"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, help="number of processes; by default one per core")
    parser.add_argument("--coverage", action="store_true", help="guide mutations by coverage, with Atheris")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-crashes"), help="folder of files that crash a reader")
    given = parser.parse_args()
    names = given.reader or list(readers())
    found = (
        by_coverage(names, given.minutes, given.keep)
        if given.coverage
        else by_mutation(names, given.minutes, given.seed, given.keep, given.processes)
    )
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
