"""``pack``: which documents share a packed sequence, and which replica trains it when."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.table import Table, count_cell, share_cell
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import at_most_percent, counted, difference, percent, three_digits
from pipette_opt.library.arguments import Named, Told, argument_errors, options_of, watcher_of
from pipette_opt.options.questions import PackOptions
from pipette_opt.options.values import threads
from pipette_opt.plans.clock import Clock
from pipette_opt.read.lengths import lengths_of, read_lengths
from pipette_opt.read.model import read_model
from pipette_opt.solver.packing.bounds import least_bins
from pipette_opt.solver.packing.problem import PackingProblem, places, total_time
from pipette_opt.solver.packing.solve import PackingResult, pack_documents
from pipette_opt.solver.packing.start import first_fit
from pipette_opt.specs import ModelSpec
from pipette_opt.verify.packing import PackingClaims, step_time, verify_packing

MAX_DOCUMENTS = 100_000
"""Largest number of documents. Chosen: a step has fewer, and moves of so many are tried for hours."""

MAX_BINS = 100_000
"""Largest number of bins of a step: a search of more takes gigabytes. Chosen."""

NOTE = "Time of a step over that with equal work in all bins; work of the largest bin over the mean of all bins."
"""Line below the table of steps."""

WORK_UNITS = 10**9
"""Units of work of all documents together: work is rounded to whole units. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Packed:
    """
    Best packing found, with its time and what no packing can beat.

    Parameters
    ----------
    lengths
        Tokens of each document, in the order of the file.
    step, replica, microbatch
        Place of each document, from 0.
    step_times
        Time of each step over that of a step with equal work in all bins.
    gap
        Bound on how much faster a packing in as many steps can be, as a share of its time.
    first_fit
        Time of first-fit in file order over this packing's time.
    is_fewest
        Whether it is proven that fewer steps hold no packing.
    table
        Documents, tokens, time and largest bin of each step.
    """

    lengths: IntArray
    step: IntArray
    replica: IntArray
    microbatch: IntArray
    num_bins: int
    bin_tokens: int
    step_times: tuple[float, ...]
    gap: float
    first_fit: float
    is_fewest: bool
    table: Table

    @property
    def sentences(self) -> tuple[str, ...]:
        """Answer in words: how full and how fast, what is proven, and what first-fit loses."""
        steps, full = len(self.step_times), int(self.lengths.sum()) / (self.num_bins * self.bin_tokens)
        where = counted(self.num_bins, "bin") + (f" of {steps} steps" if steps > 1 else "")
        mean = three_digits(sum(self.step_times) / steps)
        proven = (
            "no packing is faster" if self.gap <= 0 else f"no packing is more than {at_most_percent(self.gap)} faster"
        )
        lines = [
            f"Packing: {counted(len(self.lengths), 'document')} in {where}, {percent(full)} full; a step takes {mean} "
            f"times as long as with equal work in all bins; {proven}.",
            f"Documents in file order, first-fit: {difference(self.first_fit, 'slower', 'faster', 'as fast')}.",
        ]
        if not self.is_fewest:
            lines.append(f"It is not proven that {steps - 1} steps cannot hold the documents.")
        return tuple(lines)

    def rows(self) -> list[dict[str, int]]:
        """Return a row for each document: its number in the file from 0, length, step, replica and micro-batch."""
        names = ("document", "length", "step", "replica", "microbatch")
        columns = (np.arange(len(self.lengths)), self.lengths, self.step, self.replica, self.microbatch)
        return [dict(zip(names, map(int, row), strict=True)) for row in zip(*columns, strict=True)]

    def as_dict(self) -> dict[str, Any]:
        """Return the packing as fields of a JSON document."""
        return {
            "documents": len(self.lengths),
            "bins": self.num_bins,
            "full": int(self.lengths.sum()) / (self.num_bins * self.bin_tokens),
            "step_times": list(self.step_times),
            "gap": self.gap,
            "first_fit": self.first_fit,
            "fewest_steps": self.is_fewest,
            "places": self.rows(),
        }

    def __repr__(self) -> str:
        return "\n".join(self.sentences)


@argument_errors()
def pack(
    lengths: Named | Sequence[int],
    model: Named | ModelSpec | None = None,
    *,
    on_progress: Told | None = None,
    **options: Any,
) -> Packed:
    """
    Pack documents of unequal lengths into the micro-batches of training steps, so that the steps are fastest.

    The work of a document of l tokens is ``l * model.flops_per_token(l)``, in whole units; a bin's work is the sum of
    its documents'. A replica of P stages takes the sum of its bins' work and P - 1 times the largest: the makespan of a
    proportionate flow shop (Pinedo, Scheduling), whatever the order. A step takes as long as its slowest replica; with
    ``wait="microbatch"``, the sum over micro-batches of the slowest replica's work, and P - 1 times the largest. The
    sum over steps is least, for the fewest steps that best-fit decreasing finds.

    Parameters
    ----------
    lengths
        File of lengths, as :func:`~pipette_opt.read.lengths.read_lengths` reads it, or the lengths themselves.
    on_progress
        Callback for progress, as in :func:`~pipette_opt.solve`.
    options
        Fields of :class:`~pipette_opt.options.questions.PackOptions`: ``bin=8192, replicas=8, microbatches=8``.

    Raises
    ------
    InputError
        If an argument or a file is wrong, or a document is longer than a bin.
    PlanError
        If the check of the packing, which shares no code with its search, finds a broken rule.
    """
    (asked,) = options_of(options, PackOptions)
    if asked.bin is None:
        raise InputError("--bin", "is missing; give the tokens of a packed sequence, e.g. 8192.")
    if model is None:
        raise InputError("--model", "is missing; it gives documents their work. `pipette-opt models` lists presets.")
    for option, value in (("--workers", asked.workers), ("--time-limit", asked.time_limit)):
        if value is not None and not value > 0:
            raise InputError(option, f"must be above 0, got {value:g}.")
    if asked.replicas * asked.microbatches > MAX_BINS:
        raise InputError("--replicas", f"times --microbatches must be at most {MAX_BINS:,}.")
    spec = model if isinstance(model, ModelSpec) else read_model(fspath(model))
    documents = _documents(lengths, asked.bin)
    problem = PackingProblem(
        lengths=documents,
        works=works_of(documents, spec),
        bin_tokens=asked.bin,
        num_replicas=asked.replicas,
        num_microbatches=asked.microbatches,
        num_stages=asked.stages,
        waits_each_microbatch=asked.wait == "microbatch",
        num_steps=1,
    )
    clock = Clock(watcher=watcher_of(on_progress), limit_s=asked.time_limit)
    found = pack_documents(problem, clock.after(asked.time_limit), threads(asked.workers), asked.seed)
    return _checked(found)


def _documents(lengths: Named | Sequence[int], bin_tokens: int) -> IntArray:
    """Return the length of each document; ``InputError`` for too many, and for documents longer than a bin."""
    if isinstance(lengths, str | PathLike):
        where, found = str(lengths), read_lengths(fspath(lengths))
    else:
        if not (len(lengths) and all(isinstance(length, int | np.integer) and length > 0 for length in lengths)):
            raise InputError("lengths", f"must be whole numbers >= 1, at least one, got {shown(lengths)}.")
        where, found = "lengths", lengths_of([(length, 1) for length in lengths])
    if found.num_documents > MAX_DOCUMENTS:
        raise InputError(where, f"has {found.num_documents:,} documents; at most {MAX_DOCUMENTS:,} can be packed.")
    over = found.lengths > bin_tokens
    if over.any():
        long = counted(int(found.counts[over].sum()), "document")
        problem = f"has {long} longer than a bin of {bin_tokens:,} tokens, the longest of {found.lengths.max():,}"
        raise InputError(where, f"{problem}; split them, or give a larger --bin.")
    return np.repeat(found.row_lengths, found.row_counts)


def works_of(lengths: IntArray, model: ModelSpec) -> IntArray:
    """Return the work of each document in whole units, at least 1."""
    kinds, places = np.unique(lengths, return_inverse=True)
    flops = np.array([length * model.flops_per_token(length) for length in kinds.tolist()])
    works: IntArray = np.maximum(1, np.rint(flops * WORK_UNITS / flops[places].sum())).astype(np.int64)[places]
    return works


def _checked(found: PackingResult) -> Packed:
    """Return the answer of a search, whose places, times and bound are checked without it."""
    problem = found.problem
    step, replica, microbatch = places(problem, found.packing)
    bins = np.zeros((problem.num_steps, problem.num_replicas, problem.num_microbatches), np.int64)
    np.add.at(bins, (step, replica, microbatch), problem.works)
    times = [step_time(works.tolist(), problem.num_stages, problem.waits_each_microbatch) for works in bins]
    verify_packing(
        PackingClaims(
            lengths=problem.lengths.tolist(),
            works=problem.works.tolist(),
            places=list(zip(step.tolist(), replica.tolist(), microbatch.tolist(), strict=True)),
            bin_tokens=problem.bin_tokens,
            num_replicas=problem.num_replicas,
            num_microbatches=problem.num_microbatches,
            num_stages=problem.num_stages,
            waits_each_microbatch=problem.waits_each_microbatch,
            step_times=times,
            bound=found.bound,
            is_arithmetic=found.is_arithmetic,
        )
    )
    mean = problem.works.sum() / problem.num_bins
    even = mean * (problem.num_microbatches + problem.num_stages - 1)
    room = problem.bin_tokens * bins[0].size
    rows = [
        (
            str(number),
            count_cell(int((step == number).sum())),
            share_cell(float(problem.lengths[step == number].sum() / room)),
            three_digits(times[number] / even),
            three_digits(bins[number].max() / mean),
        )
        for number in range(problem.num_steps)
    ]
    return Packed(
        lengths=problem.lengths,
        step=step,
        replica=replica,
        microbatch=microbatch,
        num_bins=problem.num_bins,
        bin_tokens=problem.bin_tokens,
        step_times=tuple(time / even for time in times),
        gap=found.time / found.bound - 1,
        first_fit=total_time(*first_fit(problem, range(len(problem.lengths)))) / found.time,
        is_fewest=least_bins(problem.lengths, problem.bin_tokens) > problem.num_bins - bins[0].size,
        table=Table(headers=("step", "documents >", "full >", "time >", "largest bin >"), rows=rows, note=NOTE),
    )
