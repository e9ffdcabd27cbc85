"""
Costs of ring hops raised to what any ring through them takes, which changes no placement's objective.

A row's ring takes as long as its slowest hop. A fast link whose hosts have no other fast links is therefore worth no
more than these others; but whatever bounds a hop by itself, or merges hosts into classes, would count it as it is. So
each link is given the least that the slowest hop can be of a ring of ``D`` different hosts through it, or a bound of
that (``D`` is ``ring_length``: columns, times parts of a context group):

- the rest of the ring is a path of ``D - 1`` hops between the link's ends. With one hop between, or two, the best path
  is found exactly; of longer ones, the best walks are that start at either end and never turn back;
- links that are fast enough join hosts to groups; what is left of a group without its dead ends, and without whatever
  ends in one, has ``D`` hosts at least.
"""

import math
import time
from dataclasses import replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData

MAX_HOSTS_OF_PATHS = 256
"""Hosts above which the exact path of three hops takes too long."""

MAX_STEPS = 8
"""Hops of walks: longer ones tell little more."""


def lift_rings(data: ProblemData, seconds: float = math.inf) -> ProblemData:
    """
    The same problem, with the same objective of every placement.

    Parameters
    ----------
    seconds
        Wall time after which candidates are left as they are.
    """
    ends = time.perf_counter() + seconds
    return replace(data, candidates=tuple(_lift(one) if time.perf_counter() < ends else one for one in data.candidates))


def _lift(candidate: CandidateData) -> CandidateData:
    length = candidate.ring_length
    if length < 3 or not candidate.ring_ticks.size:
        return candidate
    return replace(candidate, ring_ticks=np.stack([lifted(one, length) for one in candidate.ring_ticks]))


def lifted(ticks: IntArray, length: int) -> IntArray:
    """
    Bound of the slowest hop of a ring of so many hosts through each link, at least what the link itself costs.

    Parameters
    ----------
    ticks
        Of each hop, directed, shape ``(n, n)``; the diagonal is left as it is.
    length
        Hosts of the ring, 3 or more.
    """
    either: IntArray = np.minimum(ticks, ticks.T)
    np.fill_diagonal(either, UNUSABLE_TICKS)
    if length == 3:
        rest = _over_one(either)
    elif length == 4 and len(either) <= MAX_HOSTS_OF_PATHS:
        rest = _over_two(either)
    else:
        walks = _walks(either, min(length - 1, MAX_STEPS))
        rest = np.maximum(walks, walks.T)
    raised: IntArray = np.maximum(ticks, np.maximum(rest, _floor(either, length)))
    np.fill_diagonal(raised, np.diagonal(ticks))
    return raised


def _over_one(either: IntArray) -> IntArray:
    """The best path from host to host over one other."""
    return np.stack([np.maximum(row, either).min(axis=1) for row in either])


def _over_two(either: IntArray) -> IntArray:
    """The best path from host to host over two others; exact."""
    number = len(either)
    hosts = np.arange(number)
    best = np.full_like(either, UNUSABLE_TICKS)
    for start in range(number):
        steps = np.maximum(either[start][:, None], either)  # over each host to each
        steps[:, start] = UNUSABLE_TICKS
        first = steps.argmin(axis=0)
        fastest = steps[first, hosts].copy()
        steps[first, hosts] = UNUSABLE_TICKS
        second = steps.min(axis=0)
        over = np.where(first[:, None] == hosts, second[:, None], fastest[:, None])  # to each, not over each
        best[start] = np.maximum(over, either).min(axis=0)
    return best


def _walks(either: IntArray, steps: int) -> IntArray:
    """The best walk of so many hops from each host, not at first to each, that never turns back."""
    hosts = np.arange(len(either))
    walks = np.zeros_like(either)  # from each host, having come from each
    for _ in range(steps):
        further = np.maximum(either, walks.T)
        first = further.argmin(axis=1)
        fastest = further[hosts, first].copy()
        further[hosts, first] = UNUSABLE_TICKS
        second = further.min(axis=1)
        walks = np.where(first[:, None] == hosts, second[:, None], fastest[:, None])
    return walks


def _floor(either: IntArray, length: int) -> int:
    """The least that the slowest hop of any ring of so many hosts can be; as a bound."""
    levels = np.unique(either)
    low, high = 0, len(levels) - 1
    while low < high:
        middle = (low + high) // 2
        if _has_core(either <= levels[middle], length):
            high = middle
        else:
            low = middle + 1
    return int(levels[low])


def _has_core(linked: BoolArray, length: int) -> bool:
    """Whether so many hosts are joined to each other, each with two links at least to others of them."""
    hosts = np.arange(len(linked))
    while len(hosts) >= length:
        kept = linked[np.ix_(hosts, hosts)].sum(axis=1) >= 2
        if kept.all():
            break
        hosts = hosts[kept]
    left = hosts
    while len(left) >= length:
        group = np.zeros(len(linked), dtype=np.bool_)
        new = left[:1]
        while len(new):
            group[new] = True
            new = np.flatnonzero(linked[new].any(axis=0) & ~group & np.isin(np.arange(len(linked)), left))
        if group.sum() >= length:
            return True
        left = left[~group[left]]
    return False
