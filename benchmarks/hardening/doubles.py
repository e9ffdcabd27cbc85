"""
Readers of texts on inputs that double: whose time or memory grows faster than the input.

``python benchmarks/hardening/doubles.py --minutes 5`` gives each reader lines, words, brackets and blanks that repeat,
drawn from its seed files and from a list of texts that readers trip over, at sizes that double. A reader fails where
its time more than doubles and half again from one size to the next, twice running; where a call takes more than
``SECONDS``; or where it raises anything but ``PipetteError``. Exit code 1 if a reader fails.
"""

import argparse
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from readers import STEM, readers

from pipette_opt.base.errors import PipetteError

SIZES = tuple(4_000 * 2**step for step in range(7))
"""Characters of the inputs; the last is 256,000."""

GROWTH = 2.5
"""Time of an input over that of one half as long, at most."""

LEAST_S = 0.1
"""Seconds below which a time is not compared: noise and start-up."""

SECONDS = 20.0
"""Seconds of the processor that a call may take; the rest of its sizes are left out."""

MEMORY_BYTES = 3 * 2**30
"""Address space of the process."""

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
"""Pieces that are repeated."""

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
"""Beginnings that make a reader look further; readers that are not named here have an empty one and their seeds."""


def all_readers() -> dict[str, tuple[Callable[[Path], object], str, tuple[Path, ...]]]:
    """Readers of the fuzzer, and that of training logs: what is called, suffix, seed files."""
    from pipette_opt.read.megatron_logs import import_runs

    found = {name: (reader.read, reader.suffix, reader.seeds) for name, reader in readers().items()}
    return found | {"logs": (lambda path: import_runs([path], gpu="h100", gpus_per_node=8), ".log", ())}


def texts(name: str, seeds: tuple[Path, ...], draw: random.Random) -> Iterator[Callable[[int], str]]:
    """Inputs of a reader as functions of their length, without end."""
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


def trouble(read: Callable[[Path], object], path: Path, text: Callable[[int], str]) -> str | None:
    """What is wrong with a reader on an input of growing length."""
    before, grew = 0.0, 0
    for size in SIZES:
        path.write_text(text(size), encoding="utf-8")
        begun = time.process_time()
        try:
            read(path)
        except PipetteError as error:
            if len(str(error)) > 2_000 + 20 * len(str(path)):
                return f"size {size}: an error of {len(str(error)):,} characters"
        except BaseException as error:
            return f"size {size}: {type(error).__name__}: {str(error)[:100]}"
        seconds = time.process_time() - begun
        if seconds > SECONDS:
            return f"size {size}: {seconds:.1f} s"
        grew = grew + 1 if before > LEAST_S and seconds > GROWTH * before else 0
        if grew == 2:
            return f"size {size}: {seconds:.2f} s after {before:.2f} s for half of it"
        before = seconds
    return None


def main() -> int:
    """Run for some minutes, readers in turn."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="Name of a reader.")
    given = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    draw, found = random.Random(given.seed), 0
    chosen = {name: reader for name, reader in all_readers().items() if given.only in ("", name)}
    inputs = {name: texts(name, seeds, draw) for name, (_, _, seeds) in chosen.items()}
    tried, end = 0, time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < end:
            for name, (read, suffix, _) in chosen.items():
                text = next(inputs[name])
                wrong = trouble(read, Path(folder) / f"{STEM}{suffix}", text)
                tried += 1
                if wrong:
                    found += 1
                    print(f"{name}: {wrong}: {text(60)[-90:]!r}", flush=True)
    print(f"{tried} inputs at {len(SIZES)} sizes, {found} found")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
