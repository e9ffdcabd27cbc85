"""Lower bounds from sums and sorted lists: on the number of bins, and on the time of a packing."""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.base.units import ceil_div
from pipette_opt.solver.packing.problem import PackingProblem


def least_bins(lengths: IntArray, bin_tokens: int) -> int:
    """
    Return a lower bound on the number of bins: tokens over capacity, and Martello and Toth's L2.

    L2: documents longer than half a bin need a bin each. For a threshold ``a``, those from ``a`` to half a bin fill
    what is left of bins whose long document is at most ``bin_tokens - a``, and further bins (Knapsack Problems, 8.3).
    """
    ordered = np.sort(lengths)
    sums = np.concatenate([[0], np.cumsum(ordered)])
    half = int(np.searchsorted(2 * ordered, bin_tokens, "right"))
    thresholds = np.unique(np.append(ordered[:half], 0))
    small, closed = np.searchsorted(ordered, thresholds), np.searchsorted(ordered, bin_tokens - thresholds, "right")
    closed = np.maximum(closed, half)
    room = (closed - half) * bin_tokens - (sums[closed] - sums[half])
    left = sums[half] - sums[small] - room
    more = int(np.maximum(0, -(-left // bin_tokens)).max())
    return max(ceil_div(int(sums[-1]), bin_tokens), len(lengths) - half + more)


def time_bound(problem: PackingProblem) -> int:
    """
    Return a lower bound on the time of all steps, in units of work.

    The largest bin holds at least the largest document, the k-th largest at least the k-th largest document that is
    longer than half a bin, and at least the mean
    of what the k - 1 largest bins leave. Waves take at least the mean of their bins; the first waves may be bounded
    by their largest bins instead.
    """
    least, most = _sorted_bins(problem)
    replicas, work = problem.num_replicas, int(problem.works.sum())
    if not problem.waits_each_microbatch:
        largest = sum(least[:: problem.num_microbatches])
        of_longest = int(problem.works.max()) * (1 + problem.largest_weight)
        return max(of_longest, ceil_div(work + problem.largest_weight * largest, replicas))
    heads = [0, *np.cumsum(least[::replicas]).tolist()]
    sums = [head + ceil_div(work - min(work, top), replicas) for head, top in zip(heads, most[::replicas], strict=True)]
    return int(max(sums)) + (problem.num_stages - 1) * sum(least[:: replicas * problem.num_microbatches])


def _sorted_bins(problem: PackingProblem) -> tuple[list[int], list[int]]:
    """Return the least work of the k-th largest bin for k from 1, and the most work of k bins for k from 0."""
    order = np.argsort(-problem.works / problem.lengths, kind="stable")
    lengths, works = problem.lengths[order], problem.works[order]
    tokens, sums = (np.concatenate([[0], np.cumsum(values)]) for values in (lengths, works))
    most, work, count = [], int(works.sum()), problem.num_bins
    for bins in range(count + 1):
        room = min(bins * problem.bin_tokens, int(tokens[-1]))
        taken = min(int(np.searchsorted(tokens, room, "right")) - 1, len(lengths) - 1)
        part = ceil_div((room - int(tokens[taken])) * int(works[taken]), int(lengths[taken]))
        most.append(int(sums[taken]) + part)
    long = np.sort(works[2 * lengths > problem.bin_tokens])[::-1]
    least = [ceil_div(work - min(work, most[rank]), count - rank) for rank in range(count)]
    least = [max(value, int(long[rank]) if rank < len(long) else 0) for rank, value in enumerate(least)]
    least[0] = max(least[0], int(works.max()))
    return np.maximum.accumulate(least[::-1])[::-1].tolist(), most
