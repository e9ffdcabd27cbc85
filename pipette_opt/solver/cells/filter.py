"""
What the cells of a grid may hold, compiled: hosts that no placement within the limits has there are taken out.

The hosts that a cell may still have are bits of words. A column is filtered by dynamic programming down and up its
rows, a ring by going round it both ways, and all cells together by counting the hosts that are left.
"""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.solver.cells.bits import WORD, BitArray, bit, lowest, number_of, without_lowest

MUCH = np.int64(1 << 56)
"""More than anything costs."""

_NONE = np.uint64(0)


class Limits(NamedTuple):
    """
    What a part of the search allows; ``words`` hold the bits of ``N`` hosts.

    Parameters
    ----------
    values
        Ceiling of the objective; largest and least period of any column; latest end of the first watched stage.
    head, tail, total
        What the first stages of a row take beyond the largest period, its last ones, and all of them. Blocking: the
        first stage, the last, and both if they are one, else far below 0. Otherwise the largest sum over some of the
        first, over some of the last, and over all. Shape ``(P, N)``.
    path
        Least end of each watched stage in any column, without the periods, shape ``(W,)``.
    along, into
        Hosts that may follow and precede each host in a row's ring, shape ``(P, N, words)``.
    """

    values: IntArray
    head: IntArray
    tail: IntArray
    total: IntArray
    path: IntArray
    along: BitArray
    into: BitArray


class Work(NamedTuple):
    """
    Memory of the filters; of each row of a column its hosts in a list.

    Parameters
    ----------
    size, hosts
        How many, and which; shapes ``(P,)`` and ``(P, N)``.
    above, below
        Least sums of the column down to each host, and below it, shape ``(P, N, W + 1)``.
    into
        Least wait for the transfer into each, shape ``(P, N)``; not blocking, with what is taken before it.
    excess, later
        What a column down to each host, and from it on, takes at least beyond the longest period, shape ``(P, N)``.
    period
        Least period of a column with each host, shape ``(P, N)``.
    least
        Least sums of the whole column and its least period, shape ``(W + 2,)``.
    columns, rows
        Which are to be filtered again, shapes ``(D,)`` and ``(P,)``.
    """

    size: IntArray
    hosts: IntArray
    above: IntArray
    below: IntArray
    into: IntArray
    excess: IntArray
    later: IntArray
    period: IntArray
    least: IntArray
    columns: BoolArray
    rows: BoolArray


@njit(cache=True, nogil=True)
def keep_ring(g, limits, work, cells, row, column):  # type: ignore[no-untyped-def]
    """
    Keep hosts of a row with a neighbour on each side, going round from a column both ways; False if none are.

    Parameters
    ----------
    cells
        Hosts that each cell may have, shape ``(P * D, words)``.
    """
    D = g.scalars[1]
    for turn in range(2):
        near = limits.along[row] if turn == 0 else limits.into[row]
        step = 1 if turn == 0 else -1
        for number in range(1, D):
            here = row * D + (column + step * (number - 1)) % D
            next_column = (column + step * number) % D
            if not _keep_near(near, work.columns, cells, here, row * D + next_column, next_column):
                return False
    return True


@njit(cache=True, nogil=True)
def _keep_near(near, columns, cells, here, there, column):  # type: ignore[no-untyped-def]
    """Keep of one cell what some host of another allows."""
    words = cells.shape[1]
    some_left = False
    for k in range(words):
        allowed = _NONE
        for j in range(words):
            bits = cells[here, j]
            while bits and cells[there, k] & ~allowed:
                allowed |= near[j * WORD + lowest(bits), k]
                bits = without_lowest(bits)
        if cells[there, k] & ~allowed:
            cells[there, k] &= allowed
            columns[column] = True
        some_left = some_left or cells[there, k] != _NONE
    return some_left


@njit(cache=True, nogil=True)
def keep_hops(g, limits, work, cells, latest, row, column, host):  # type: ignore[no-untyped-def]
    """
    Keep hosts beside a given one whose hops end in time; False if none are.

    Parameters
    ----------
    latest
        Least end of each watched stage, shape ``(W,)``.
    """
    D = g.scalars[1]
    for turn in range(2):
        beside = (column + 1) % D if turn == 0 else (column - 1) % D
        some_left = False
        for k in range(cells.shape[1]):
            bits = cells[row * D + beside, k]
            kept = bits
            while bits:
                other = k * WORD + lowest(bits)
                bits = without_lowest(bits)
                for w in range(len(g.row)):
                    hop = g.hop[w, host, other] if turn == 0 else g.hop[w, other, host]
                    if g.row[w] == row and latest[w] + hop + g.after[w] > limits.values[0]:
                        kept &= ~bit(other)
            if kept != cells[row * D + beside, k]:
                cells[row * D + beside, k] = kept
                work.columns[beside] = True
            some_left = some_left or kept != _NONE
        if not some_left:
            return False
    return True


@njit(cache=True, nogil=True)
def keep_column(g, limits, work, cells, column, caps, less):  # type: ignore[no-untyped-def]
    """
    Keep hosts that are in some column within the limits, whatever other columns hold; False if there is none.

    Parameters
    ----------
    caps
        Latest end of each watched stage with its periods, and the largest of the last sum, shape ``(W + 1,)``.
    less
        By how much the largest period is less than that of the limits.
    """
    P, D = g.scalars[0], g.scalars[1]
    for r in range(P):
        number = 0
        for k in range(cells.shape[1]):
            bits = cells[r * D + column, k]
            while bits:
                work.hosts[r, number] = k * WORD + lowest(bits)
                number += 1
                bits = without_lowest(bits)
        work.size[r] = number
    if not _down(g, limits, work, less):
        return False
    if not g.scalars[4]:  # a blocking period is known by host, this one by what all intervals of stages may take
        shorter = _shorter(g, limits, work, caps, less)
        if shorter > less and not _down(g, limits, work, shorter):
            return False
        less = shorter
    if not _up(g, limits, work, caps, less):
        return False
    for r in range(P):
        i = 0
        for k in range(cells.shape[1]):
            kept = _NONE
            while i < work.size[r] and work.hosts[r, i] < (k + 1) * WORD:
                kept |= bit(work.hosts[r, i])
                i += 1
            if kept != cells[r * D + column, k]:
                cells[r * D + column, k] = kept
                work.rows[r] = True
    _least(g, work)
    return True


@njit(cache=True, nogil=True)
def _shorter(g, limits, work, caps, less):  # type: ignore[no-untyped-def]
    """By how much the largest period is less than that of the limits, after what the column takes without periods."""
    last, rounds = g.scalars[0] - 1, g.scalars[3]
    longest = limits.values[1] - less
    for k in range(len(g.row) if rounds > 0 else 0):
        path = MUCH
        for i in range(work.size[last]):
            path = min(path, work.above[last, i, k])
        longest = min(longest, (caps[k] - path) // rounds)
    return limits.values[1] - longest


@njit(cache=True, nogil=True)
def _down(g, limits, work, less):  # type: ignore[no-untyped-def]
    """Least sums and excess of a column down to each host; False if there is no such column."""
    P, blocking, sums = g.scalars[0], g.scalars[4], g.node.shape[0]
    for r in range(P):
        kept = 0
        for i in range(work.size[r]):
            host = work.hosts[r, i]
            head = limits.head[r, host] + less
            into = MUCH if r > 0 else np.int64(0)
            for k in range(sums):
                work.above[r, kept, k] = into
            for j in range(work.size[r - 1] if r > 0 else 0):
                other = work.hosts[r - 1, j]
                wait = g.wait[other, host]
                before = work.excess[r - 1, j] + wait
                if (max(before, head + wait) if blocking else before + head) > 0:
                    continue
                into = min(into, wait if blocking else before)
                for k in range(sums):
                    passed = work.above[r - 1, j, k] + g.transfer[g.arc[r - 1, k], other, host]
                    work.above[r, kept, k] = min(work.above[r, kept, k], passed)
            if into == MUCH:
                continue
            for k in range(sums):
                work.above[r, kept, k] += g.node[k, r, host]
            excess = limits.tail[r, host]
            if r > 0:
                excess = max(excess, limits.total[r, host] + into)
            work.into[r, kept], work.excess[r, kept], work.hosts[r, kept] = into, excess + less, host
            kept += 1
        work.size[r] = kept
        if kept == 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _up(g, limits, work, caps, less):  # type: ignore[no-untyped-def]
    """What a column takes at least below each host; keeps the hosts that stay within all limits, False if none do."""
    P, blocking, sums, stages = g.scalars[0], g.scalars[4], g.node.shape[0], g.work.shape[0]
    for r in range(P - 1, -1, -1):
        kept = 0
        for i in range(work.size[r]):
            host, into, excess = work.hosts[r, i], work.into[r, i], work.excess[r, i]
            out = MUCH if r < P - 1 else np.int64(0)
            for k in range(sums):
                work.below[r, kept, k] = out
            for j in range(work.size[r + 1] if r < P - 1 else 0):
                other = work.hosts[r + 1, j]
                wait = g.wait[host, other]
                behind = wait + work.later[r + 1, j]
                if (max(excess + wait, behind) if blocking else excess + behind) > 0:
                    continue
                out = min(out, wait if blocking else behind)
                for k in range(sums):
                    passed = work.below[r + 1, j, k] + g.node[k, r + 1, other] + g.transfer[g.arc[r, k], host, other]
                    work.below[r, kept, k] = min(work.below[r, kept, k], passed)
            if out == MUCH:
                continue
            head, tail, total = limits.head[r, host], limits.tail[r, host], limits.total[r, host]
            period = max(g.inner[r, host], limits.values[2])
            if blocking:
                period = max(period, max(head + into, tail + out, total + into + out) + limits.values[1])
            taken = work.above[r, i, sums - 1] + work.below[r, kept, sums - 1]
            fits = taken <= caps[sums - 1]
            period = max(period, -(-taken // stages))  # at least the mean
            for k in range(sums - 1):
                end = work.above[r, i, k] + work.below[r, kept, k] + g.scalars[3] * period
                fits = fits and end <= caps[k]
            if not fits:
                continue
            for k in range(sums):
                work.above[r, kept, k] = work.above[r, i, k]
            work.into[r, kept], work.excess[r, kept], work.hosts[r, kept] = into, excess, host
            work.later[r, kept] = (max(head, total + out) if r < P - 1 else head) + less
            work.period[r, kept] = period
            kept += 1
        work.size[r] = kept
        if kept == 0:
            return False
    return True


@njit(cache=True, nogil=True)
def _least(g, work):  # type: ignore[no-untyped-def]
    """Least sums and least period of a column that has been filtered; exact if it has one host in each row."""
    P, sums = g.scalars[0], g.node.shape[0]
    for k in range(sums):
        work.least[k] = MUCH
        for i in range(work.size[0]):
            work.least[k] = min(work.least[k], work.above[0, i, k] + work.below[0, i, k])
    period = -(-work.least[sums - 1] // g.work.shape[0])
    chosen = True
    for r in range(P):
        least = MUCH
        for i in range(work.size[r]):
            least = min(least, work.period[r, i])
        period = max(period, least)
        chosen = chosen and work.size[r] == 1
    if chosen and not g.scalars[4]:
        period = longest_mean(g, work.hosts[:, 0])
    work.least[sums] = period


@njit(cache=True, nogil=True)
def longest_mean(g, hosts):  # type: ignore[no-untyped-def]
    """
    Largest mean, rounded up, over consecutive stages: the period of a column if sends are not blocking.

    Parameters
    ----------
    hosts
        Of the column, shape ``(P,)``.
    """
    a, stages = g.scalars[2], g.work.shape[0]
    longest = np.int64(0)
    for start in range(stages):
        passed = np.int64(0)
        for s in range(start, stages):
            host = hosts[s // a]
            if s > start:
                passed += g.wait[hosts[(s - 1) // a], host] if s % a == 0 else 2 * g.scalars[5]
            passed += g.work[s, host]
            longest = max(longest, -(-passed // (s - start + 1)))
    return longest


@njit(cache=True, nogil=True)
def keep_needed(g, work, cells):  # type: ignore[no-untyped-def]
    """Whether there are enough hosts for each row and for all; if barely, a host with only one cell gets it."""
    P, D, words = g.scalars[0], g.scalars[1], cells.shape[1]
    for r in range(P):
        number = 0
        for k in range(words):
            some = _NONE
            for d in range(D):
                some |= cells[r * D + d, k]
            number += number_of(some)
        if number < D:
            return False
    left = hosts_left(cells)
    if left > P * D:
        return True
    for k in range(words):
        once, twice = _hosts_in(cells, k)
        alone = once & ~twice
        for cell in range(P * D):
            only = cells[cell, k] & alone
            if not only:
                continue
            if without_lowest(only):
                return False
            for j in range(words):
                kept = only if j == k else _NONE
                if kept != cells[cell, j]:
                    cells[cell, j] = kept
                    work.rows[cell // D] = work.columns[cell % D] = True
    return left == P * D


@njit(cache=True, nogil=True)
def hosts_left(cells):  # type: ignore[no-untyped-def]
    """How many hosts some cell may have."""
    number = np.int64(0)
    for k in range(cells.shape[1]):
        number += number_of(_hosts_in(cells, k)[0])
    return number


@njit(cache=True, nogil=True)
def _hosts_in(cells, k):  # type: ignore[no-untyped-def]
    """Of a word, the hosts that some cell may have, and those that several may have."""
    once, twice = _NONE, _NONE
    for cell in range(cells.shape[0]):
        twice |= once & cells[cell, k]
        once |= cells[cell, k]
    return once, twice
