"""
Packings of random documents, with their proven gaps: ``python -m benchmarks.packing [--seeds N] [--time-limit S]``.

Each instance has 512 documents for 8 replicas of 8 micro-batches. They fill 60 % of the bins, 98 %, or a share
between; 3 to 14 documents are as long as a bin, or up to 15 % shorter.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from typing import NamedTuple

import numpy as np

from benchmarks.page import RESULTS, made_by, option, run_page, say, table
from pipette_opt.base.types import IntArray
from pipette_opt.library.pack import works_of
from pipette_opt.plans.clock import Clock
from pipette_opt.read.model import read_model
from pipette_opt.solver.packing.problem import PackingProblem, total_time
from pipette_opt.solver.packing.solve import pack_documents
from pipette_opt.solver.packing.start import first_fit

NUM_DOCUMENTS, NUM_REPLICAS, NUM_MICROBATCHES = 512, 8, 8
BINS, KINDS = (8_192, 32_768), ("log-normal", "two humps")
CASES = tuple((stages, wait) for stages in (1, 4) for wait in ("step", "microbatch"))
FILLS = (0.6, 0.98)
GOAL = 0.03
"""Largest proven gap that counts as reached."""


class Row(NamedTuple):
    """Result of an instance and a case."""

    bin_tokens: int
    kind: str
    fill: float
    stages: int
    wait: str
    gap: float
    over: dict[str, float]
    """Time of each rule of trainers over the packing's time."""


def documents(kind: str, bin_tokens: int, fill: float, seed: int) -> IntArray:
    """Return random lengths of documents that fill about this share of the bins."""
    rng = np.random.default_rng(seed)
    if kind == "log-normal":
        sizes = rng.lognormal(0, 1.2, NUM_DOCUMENTS)
    else:
        short, long = rng.normal(1, 0.3, NUM_DOCUMENTS), rng.normal(6, 1.5, NUM_DOCUMENTS)
        sizes = np.where(rng.random(NUM_DOCUMENTS) < 0.8, short.clip(0.1), long.clip(1))
    sizes[: (num_long := rng.integers(3, 15))] = 0
    longest = rng.uniform(0.85, 1, num_long) * bin_tokens
    tokens = fill * NUM_REPLICAS * NUM_MICROBATCHES * bin_tokens - longest.sum()
    low, high = 0.0, float(bin_tokens) / sizes.min(initial=1, where=sizes > 0)
    for _ in range(60):
        scale = (low + high) / 2
        low, high = (low, scale) if np.minimum(sizes * scale, bin_tokens).sum() > tokens else (scale, high)
    lengths = np.minimum(sizes * low, bin_tokens)
    lengths[:num_long] = longest
    return rng.permutation(np.maximum(lengths, 1).astype(np.int64))


def rules(problem: PackingProblem, rng: np.random.Generator) -> dict[str, float]:
    """Return the time over all steps of the packings that trainers make."""
    shuffled = rng.permutation(len(problem.lengths))
    longest_first = shuffled[np.argsort(-problem.lengths[shuffled], kind="stable")]
    found = {
        "first-fit, random order": total_time(*first_fit(problem, shuffled)),
        "first-fit decreasing": total_time(*first_fit(problem, longest_first)),
        "sequential": total_time(*first_fit(problem, shuffled, reach=1)),
    }
    return {name: float(time) for name, time in found.items()}


def solved(seeds: int, time_limit_s: float) -> Iterator[Row]:
    """Yield a row for each instance and case."""
    model = read_model("llama-3-8b")
    for number in range(seeds):
        for bin_tokens in BINS:
            for kind in KINDS:
                rng = np.random.default_rng((number, bin_tokens, KINDS.index(kind)))
                fill = float(np.linspace(*FILLS, seeds)[number])
                lengths = documents(kind, bin_tokens, fill, int(rng.integers(2**31)))
                problem = PackingProblem(
                    lengths=lengths,
                    works=works_of(lengths, model),
                    bin_tokens=bin_tokens,
                    num_replicas=NUM_REPLICAS,
                    num_microbatches=NUM_MICROBATCHES,
                    num_stages=1,
                    waits_each_microbatch=False,
                    num_steps=1,
                )
                for stages, wait in CASES:
                    case = replace(problem, num_stages=stages, waits_each_microbatch=wait == "microbatch")
                    clock = Clock(limit_s=time_limit_s).after(time_limit_s)
                    found = pack_documents(case, clock, workers=2)
                    over = {name: time / found.time - 1 for name, time in rules(case, rng).items()}
                    row = Row(bin_tokens, kind, fill, stages, wait, found.time / found.bound - 1, over)
                    say(f"{_case(row)}, {fill:.0%} full: {row.gap:.2%} in {clock.watcher.elapsed_s:.0f} s")
                    yield row


def make(given: argparse.Namespace) -> Iterator[str]:
    """Yield the page after each instance and case."""
    rows: list[Row] = []
    for row in solved(given.seeds, given.time_limit):
        rows.append(row)
        yield page(rows, given)


def page(rows: list[Row], given: argparse.Namespace) -> str:
    """Return the page."""
    reached, worst = sum(row.gap <= GOAL for row in rows), max(rows, key=lambda row: row.gap)
    names = list(worst.over)
    faster = ", ".join(f"{median(row.over[name] for row in rows):.1%} ({name})" for name in names)
    return "\n".join(
        [
            "# Packing",
            "",
            f"In {reached} of {len(rows)} cases no packing is more than {GOAL:.0%} faster than the one found in "
            f"{given.time_limit:g} s; the median is {median(row.gap for row in rows):.2%}. The worst is "
            f"{worst.gap:.1%}: {_case(worst)}, bins {worst.fill:.0%} full. Rules of "
            f"trainers are slower by a median of {faster}.",
            "",
            table(
                ["bin", "lengths", "stages", "wait", "full", "gap, worst", "median", *names],
                [
                    _line(*key, rows)
                    for key in dict.fromkeys((row.bin_tokens, row.kind, row.stages, row.wait) for row in rows)
                ],
            ),
            f"- {NUM_DOCUMENTS} documents of llama-3-8b, {NUM_REPLICAS} replicas, {NUM_MICROBATCHES} micro-batches; "
            f"{given.seeds} instances a line, filled from 60 % to 98 %, evenly spread.",
            "- Gap: how much faster another packing in as many steps can be at most. A search ends at 0.05 %.",
            "- Last columns: how much slower trainers' rules are, median. axolotl's multipack is first-fit decreasing.",
            "- Sequential: a document goes into the last bin, or opens a new one.",
            "- A rule that needs a further step is slower by that step, whose bins are nearly empty.",
            f"- {made_by()}",
            "",
        ]
    )


def _case(row: Row) -> str:
    stages = "1 stage" if row.stages == 1 else f"{row.stages} stages"
    return f"bins of {row.bin_tokens:,} tokens, {row.kind}, {stages}, wait each {row.wait}"


def _line(bin_tokens: int, kind: str, stages: int, wait: str, rows: list[Row]) -> list[str]:
    """Return the cells of a line of the table."""
    group = [row for row in rows if row[:2] == (bin_tokens, kind) and row[3:5] == (stages, wait)]
    fills, gaps = [row.fill for row in group], [row.gap for row in group]
    over = [f"{median(row.over[name] for row in group):.1%}" for name in group[0].over]
    full = f"{min(fills):.0%} to {max(fills):.0%}"
    return [f"{bin_tokens:,}", kind, str(stages), wait, full, f"{max(gaps):.2%}", f"{median(gaps):.2%}", *over]


if __name__ == "__main__":
    run_page(
        make,
        option("--seeds", type=int, default=3, help="instances of each bin and kind of lengths; default: %(default)s"),
        option("--time-limit", type=float, default=30.0, help="seconds a case; default: %(default)s"),
        out=RESULTS / "packing.md",
    )
