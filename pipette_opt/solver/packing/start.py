"""Packings made in a pass over the documents, and the fewest steps that take all."""

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.solver.packing.problem import Packing, PackingProblem

Choice = Callable[[IntArray, IntArray, IntArray, int], int]
"""Function that returns a bin: from bins with room, tokens and work of all bins, and the document."""


def place_all(problem: PackingProblem, documents: Iterable[int], choose: Choice) -> IntArray | None:
    """Return the bin of each document, placed in this order; ``None`` if a document finds no room."""
    tokens, works = (np.zeros(problem.num_bins, np.int64) for _ in range(2))
    bin_of = np.zeros(len(problem.lengths), np.int64)
    for document in documents:
        room = np.flatnonzero(tokens + problem.lengths[document] <= problem.bin_tokens)
        if not len(room):
            return None
        chosen = choose(room, tokens, works, document)
        bin_of[document] = chosen
        tokens[chosen] += problem.lengths[document]
        works[chosen] += problem.works[document]
    return bin_of


def in_order(problem: PackingProblem, bin_of: IntArray) -> Packing:
    """Return a packing whose bins go to replicas in turn, as samplers of trainers deal them."""
    bins = np.arange(problem.num_bins)
    if problem.waits_each_microbatch:
        return Packing(bin_of=bin_of, lane_of=bins)
    replicas = problem.num_replicas
    lane_of = bins // (replicas * problem.num_microbatches) * replicas + bins % replicas
    return Packing(bin_of=bin_of, lane_of=lane_of)


def first_fit(
    problem: PackingProblem, documents: Iterable[int], reach: int | None = None
) -> tuple[PackingProblem, Packing]:
    """
    Return first-fit of documents in this order, and the problem with the number of steps that it takes.

    Parameters
    ----------
    reach
        Number of bins, the last opened, that a document may join; ``None`` for all. 1 is next-fit.
    """

    def first(room: IntArray, tokens: IntArray, works: IntArray, document: int) -> int:
        oldest = 0 if reach is None else int(np.count_nonzero(tokens)) - reach
        return int(room[room >= oldest][0])

    bin_of = place_all(_wide(problem), documents, first)
    if bin_of is None:
        raise AssertionError("the bins are enough for first-fit")
    problem = _shrunk(problem, bin_of)
    return problem, in_order(problem, bin_of)


def best_start(problem: PackingProblem) -> tuple[PackingProblem, Packing]:
    """
    Return the problem with the fewest steps of best-fit decreasing, and a packing to start from.

    The longest documents come first, into the bin with the least work; if this finds no room, into the fullest bin.
    """
    order = np.argsort(-problem.lengths, kind="stable")
    best_fit = place_all(
        _wide(problem), order, lambda room, tokens, works, document: int(room[np.argmax(tokens[room])])
    )
    if best_fit is None:
        raise AssertionError("the bins are enough for best-fit")
    problem = _shrunk(problem, best_fit)
    even = place_all(problem, order, lambda room, tokens, works, document: int(room[np.argmin(works[room])]))
    return problem, in_order(problem, best_fit if even is None else even)


def _wide(problem: PackingProblem) -> PackingProblem:
    """Return the problem with enough steps for first-fit and best-fit: at most a bin of theirs is at most half full."""
    most = 2 * ceil_div(int(problem.lengths.sum()), problem.bin_tokens) + 1
    return replace(problem, num_steps=ceil_div(most, problem.num_replicas * problem.num_microbatches))


def _shrunk(problem: PackingProblem, bin_of: IntArray) -> PackingProblem:
    """Return the problem with the fewest steps that hold bins up to the last used."""
    num_steps = ceil_div(int(bin_of.max()) + 1, problem.num_replicas * problem.num_microbatches)
    return replace(problem, num_steps=num_steps)
