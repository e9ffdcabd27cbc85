"""
Raised costs of ring hops: each becomes the least possible slowest hop of any ring that uses it.

A row's ring takes as long as its slowest hop. So a fast link is worth no more than the other links of its hosts. But
bounds that look at single hops, or merge hosts into classes, would count the link at its own cost. Each link therefore
gets the least slowest hop of a ring of ``D`` different hosts through it, or a lower bound on it. ``D`` is
``ring_length``, the number of columns times parts of a context group. No placement's objective changes.

- The rest of the ring is a path of ``D - 1`` hops between the link's ends. With one or two hosts in between, the best
  path is found exactly. For longer paths, the bound is the best walk from either end that never turns back.
- Links of at most a given cost join hosts to groups. After removing dead ends repeatedly, a group must have at least
  ``D`` hosts.
"""

from dataclasses import replace

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData

MAX_HOSTS_OF_PATHS = 256
"""With more hosts than this, the exact path of three hops takes too long. Chosen."""

MAX_STEPS = 8
"""Largest number of hops in a walk; longer walks hardly raise the bound. Chosen."""


def lift_rings(data: ProblemData, clock: Clock | None = None) -> ProblemData:
    """
    Return the problem with raised ring costs; the objective of every placement stays equal.

    Parameters
    ----------
    clock
        Time after which the remaining candidate configurations are left unchanged.
    """
    clock = clock or Clock()
    candidates = (each if clock.is_over else _lift(each) for each in data.candidates)
    return replace(data, candidates=tuple(candidates))


def _lift(candidate: CandidateData) -> CandidateData:
    length = candidate.ring_length
    if length < 3 or not candidate.ring_ticks.size:
        return candidate
    level = candidate.ring_level
    return replace(
        candidate,
        ring_ticks=np.stack([lifted(ticks, length) for ticks in candidate.ring_ticks]),
        ring_level=lifted(level, length) if level.size else level,
    )


def lifted(ticks: IntArray, length: int) -> IntArray:
    """
    Return a lower bound on the slowest hop of any ring of ``length`` hosts through each link, integer ticks; at least
    its own cost.

    Parameters
    ----------
    ticks
        Ticks of each directed hop, shape ``(n, n)``; the diagonal is kept.
    length
        Number of hosts of the ring, 3 or more.
    """
    either: IntArray = np.minimum(ticks, ticks.T)
    np.fill_diagonal(either, UNUSABLE_TICKS)
    if length == 3:
        rest = np.stack([np.maximum(row, either).min(axis=1) for row in either])
    elif length == 4 and len(either) <= MAX_HOSTS_OF_PATHS:
        rest = _over_two(either)
    else:
        walks = _walks(either, min(length - 1, MAX_STEPS))
        rest = np.maximum(walks, walks.T)
    raised: IntArray = np.maximum(ticks, np.maximum(rest, _floor(either, length)))
    np.fill_diagonal(raised, np.diagonal(ticks))
    return raised


def _over_two(either: IntArray) -> IntArray:
    """Return the slowest hop of the best path between two hosts over two further hosts, ticks, shape ``(n, n)``."""
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
    """
    Return the slowest hop of the best walk of ``steps`` hops from host i that does not begin with host j.

    Walks never turn back at once. Ticks, shape ``(n, n)``.
    """
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
    """Return a lower bound on the slowest hop of any ring of ``length`` hosts, integer ticks."""
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
    """Return whether ``length`` hosts are connected so that each has at least two links to the others."""
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
