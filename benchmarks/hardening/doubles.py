"""
Search for inputs whose reading time or memory grows faster than the input, by doubling their size.

``python benchmarks/hardening/doubles.py --minutes 5`` gives each reader repeated lines, words, brackets and blanks at
doubling sizes. They come from its seed files and from a list of difficult texts. A reader fails in one of these cases:
its time or memory grows by more than 2.5 times per doubling, twice in a row; a call takes more than ``SECONDS``; it
raises an exception other than ``PipetteError``; its message is longer than a screen.

Times are processor times. Where a call seems slow, the least of several counts, so that other work on the machine
matters less. The exit code is 1 if a reader fails. ``--seed`` and the commit printed first repeat a run.
"""

import argparse
import random
import resource
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from readers import STEM, readers

from pipette_opt.base.errors import PipetteError

SIZES = tuple(4_000 * 2**step for step in range(7))
"""Sizes of the inputs in characters; the last is 256,000. Chosen."""

GROWTH = 2.5
"""Maximum cost of an input over that of an input half as long. Chosen."""

MIN_S = 0.1
"""Seconds below which times are not compared, because of noise and start-up. Chosen."""

REPEATS = 3
"""Number of calls, of which the fastest counts, if the first seems slow. Chosen."""

MIN_BYTES = 32 * 2**20
"""Bytes of peak memory below which peaks are not compared. Chosen."""

MEMORY_EVERY = 5
"""Every n-th input of a reader has its memory measured, which takes several times as long. Chosen."""

SECONDS = 20.0
"""Maximum processor seconds of a call; larger sizes of the input are then left out. Chosen."""

MAX_ERROR = 2_200
"""Maximum characters of an error message, without the name of its file. Chosen."""

MEMORY_BYTES = 3 * 2**30
"""Limit on the address space of this process, bytes. Chosen."""

WORDS = (
    *"a09,;:.-_|=#[](){}`\"'\\ \t\n\u00e9",
    *(
        "failed: ",
        "[[",
        "$((",
        "${",
        "$(",
        "\\\n",
        "a,",
        "a:",
        "a b ",
        "a=b ",
        "1 ",
        "1,",
        "n[0-9]",
        "- ",
        "&a ",
        "*a ",
    ),
    *("[0] ", "0: ", "[1,0]<stdout>:", "if true; then ", "for i in 1 2; do ", "case x in x) ", "f() { ", "((", "<<A\n"),
    *("--a ", "A=$A$A\n", "x=`", "$A", "\x1b[31m", "2024-01-01 00:00:00 ", "iteration 1/ 2 | ", "# Rank 0 "),
    *("Test NCCL failure ", "[Rank 0] memory (MB) ", "max reserved: 1 ", "NVIDIA H100 ", "..... ", "mpirun -H "),
    *("SwitchName=a ", "GPU0 ", "1 float ", "sendrecv_perf ", "# OSU MPI ", "BW average[Gb/sec] "),
)
"""Texts that are repeated."""

HEADS = {
    "links": (
        *("", "# nThread 1 nGpus 1\n", "# OSU MPI Bandwidth Test v7\n", '{"pipette_opt_links": 1, "hosts": ["a"'),
        *("START mpiGraph\n", "Send BW Test\n", "SwitchName=a Level=0\n", "\tGPU0\tGPU1\n", "<system>"),
        '{"version": 1, "results": [',
    ),
    "megatron": ("", "python pretrain_gpt.py ", "A=", "echo $((", "A=(", "---- arguments ----\n", "#SBATCH --a\n"),
    "cluster": ("", "nodes: ", "nodes: [{hosts: '", "nodes: [{hosts: n, gpu: '"),
    "model": ("", "num_layers: "),
    "stack": ("", "name: "),
    "matrix": ("", "x,", "x,a\na,"),
    "logs": ("", "--- arguments ---\n", " iteration 1/ 2 | elapsed time per iteration (ms): "),
}
"""Beginnings of files that lead a reader on, by reader; other readers have an empty beginning and their seed files."""


def all_readers() -> dict[str, tuple[Callable[[Path], object], str, tuple[Path, ...]]]:
    """Return the function, suffix and seed files of each of the fuzzer's readers and of the training log reader."""
    from pipette_opt.read.megatron_logs import import_runs

    found = {name: (reader.read, reader.suffix, reader.seeds) for name, reader in readers().items()}
    return found | {"logs": (lambda path: import_runs([path], gpu="h100", gpus_per_node=8), ".log", ())}


def texts(name: str, seeds: tuple[Path, ...], draw: random.Random) -> Iterator[Callable[[int], str]]:
    """Yield inputs of a reader without end, each as a function of its length."""
    heads = [*HEADS.get(name, ("",)), *(path.read_text(encoding="utf-8") for path in seeds)]
    while True:
        head = draw.choice(heads)
        head = head[: draw.randint(0, len(head))] if draw.random() < 0.5 else head
        piece = "".join(draw.choice(WORDS) for _ in range(draw.choice((1, 1, 1, 2, 2, 3))))
        if draw.random() < 0.3:
            lines = [line for line in head.splitlines(keepends=True) if line.strip()] or [piece]
            piece = draw.choice(lines)
        end = draw.choice(("", "\n", "x", "'", ")", "]"))
        yield lambda size, head=head, piece=piece, end=end: head + piece * (size // len(piece)) + end  # type: ignore[misc]


def trouble(read: Callable[[Path], object], path: Path, text: Callable[[int], str], *, memory: bool) -> str | None:
    """
    Return the fault of a reader on an input of growing length; ``None`` without a fault.

    ``memory``: compare memory peaks instead of times.
    """
    unit, least = ("bytes", MIN_BYTES) if memory else ("s", MIN_S)
    before, grew = 0.0, 0
    for size in SIZES:
        path.write_text(text(size), encoding="utf-8")
        cost, wrong = cost_of(read, path, memory=memory)
        for _ in range(REPEATS - 1):
            if memory or wrong or not (cost > SECONDS or (before > least and cost > GROWTH * before)):
                break
            cost = min(cost, cost_of(read, path, memory=memory)[0])
        if wrong:
            return f"size {size}: {wrong}"
        if not memory and cost > SECONDS:
            return f"size {size}: {cost:.1f} s"
        grew = grew + 1 if before > least and cost > GROWTH * before else 0
        if grew == 2:
            return f"size {size}: {cost:,.2f} {unit} after {before:,.2f} for half of it"
        before = cost
    return None


def cost_of(read: Callable[[Path], object], path: Path, *, memory: bool) -> tuple[float, str]:
    """Return the processor seconds of a call, or its memory peak in bytes; and the fault of its exception, if any."""
    if memory:
        tracemalloc.start()
    begun, wrong = time.process_time(), ""
    try:
        read(path)
    except PipetteError as error:
        if len(str(error)) > MAX_ERROR + len(str(path)):
            wrong = f"an error of {len(str(error)):,} characters"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        wrong = f"{type(error).__name__}: {str(error)[:100]}"
    cost = time.process_time() - begun
    if memory:
        cost = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return cost, wrong


def main() -> int:
    """Test the readers in turn for the given minutes; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Name of a reader.")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    draw, found = random.Random(given.seed), 0
    chosen = {name: reader for name, reader in all_readers().items() if given.only in ("", name)}
    inputs = {name: texts(name, seeds, draw) for name, (_, _, seeds) in chosen.items()}
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False)
    print(f"seed {given.seed}, commit {commit.stdout.strip() or 'unknown'}", flush=True)
    tried, end = 0, time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for name, (read, suffix, _) in chosen.items():
                text = next(inputs[name])
                memory = tried // len(chosen) % MEMORY_EVERY == MEMORY_EVERY - 1
                wrong = trouble(read, Path(folder) / f"{STEM}{suffix}", text, memory=memory)
                tried += 1
                if wrong:
                    found += 1
                    print(f"{name}: {wrong}: {text(60)[-90:]!r}", flush=True)
    print(f"{tried} inputs at {len(SIZES)} sizes in {given.minutes:g} minutes, {found} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
