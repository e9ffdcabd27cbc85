"""Check of a finished packing: its documents, bins, times and bound, without the solver."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from pipette_opt.base.errors import PlanError

RULES = ("every document has a place", "bins hold their documents", "times of steps", "lower bound")
"""Rules of :func:`verify_packing`, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackingClaims:
    """
    Packing, and what is claimed about it.

    Parameters
    ----------
    lengths, works
        Tokens and units of work of each document.
    places
        Step, replica and micro-batch of each document.
    step_times
        Claimed time of each step, in units of work.
    bound
        Claimed lower bound on their sum; with ``is_arithmetic`` it follows from sums and sorted lists.
    """

    lengths: Sequence[int]
    works: Sequence[int]
    places: Sequence[tuple[int, int, int]]
    bin_tokens: int
    num_replicas: int
    num_microbatches: int
    num_stages: int
    waits_each_microbatch: bool
    step_times: Sequence[int]
    bound: int
    is_arithmetic: bool


def verify_packing(claims: PackingClaims) -> None:
    """
    Check the rules of ``RULES``.

    Raises
    ------
    PlanError
        If a rule is broken; the message names it, with the figures.
    """
    shape = len(claims.step_times), claims.num_replicas, claims.num_microbatches
    if not len(claims.places) == len(claims.lengths) == len(claims.works):
        raise PlanError(f"{RULES[0]}: {len(claims.lengths)} documents, {len(claims.places)} places.")
    tokens: dict[tuple[int, int, int], int] = defaultdict(int)
    works: dict[tuple[int, int, int], int] = defaultdict(int)
    for document, place in enumerate(claims.places):
        if not all(0 <= index < size for index, size in zip(place, shape, strict=True)):
            raise PlanError(f"{RULES[0]}: document {document} is at {place}, outside of {shape}.")
        tokens[place] += claims.lengths[document]
        works[place] += claims.works[document]
    for place, held in tokens.items():
        if held > claims.bin_tokens:
            raise PlanError(f"{RULES[1]}: the bin {place} has {held} tokens, at most {claims.bin_tokens}.")
    for step, claimed in enumerate(claims.step_times):
        table = [[works[step, replica, turn] for turn in range(shape[2])] for replica in range(shape[1])]
        if claimed != (counted := step_time(table, claims.num_stages, claims.waits_each_microbatch)):
            raise PlanError(f"{RULES[2]}: step {step} takes {counted}, not {claimed}.")
    total = sum(claims.step_times)
    most = arithmetic_bound(claims) if claims.is_arithmetic else total
    if claims.bound > min(most, total):
        raise PlanError(f"{RULES[3]}: {claims.bound} is claimed, but only {min(most, total)} is shown.")


def step_time(works: Sequence[Sequence[int]], num_stages: int, waits_each_microbatch: bool) -> int:
    """Return the time of a step from the work of each bin, by replica and micro-batch."""
    if waits_each_microbatch:
        turns: list[int] = [max(turn) for turn in zip(*works, strict=True)]
        return sum(turns) + (num_stages - 1) * max(turns)
    return max(sum(bins) + (num_stages - 1) * max(bins) for bins in works)


def arithmetic_bound(claims: PackingClaims) -> int:
    """
    Return the lower bound that follows from sums and sorted lists.

    The bins with the most work hold at most the densest documents that their tokens take; the others hold the rest.
    """
    replicas, turns, total = claims.num_replicas, claims.num_microbatches, sum(claims.works)
    num_bins = replicas * turns * len(claims.step_times)
    documents = sorted(zip(claims.lengths, claims.works, strict=True), key=lambda pair: -pair[1] / pair[0])
    alone = sorted((work for length, work in documents if 2 * length > claims.bin_tokens), reverse=True)

    rests, room, left, queue = [total], 0, total, deque(documents)
    for _ in range(num_bins):
        room += claims.bin_tokens
        while queue and queue[0][0] <= room:
            length, work = queue.popleft()
            room, left = room - length, left - work
        rests.append(max(0, left - -(-queue[0][1] * room // queue[0][0])) if queue else 0)
    least, above = [0] * num_bins, 0
    for rank in reversed(range(num_bins)):
        above = max(above, -(-rests[rank] // (num_bins - rank)), alone[rank] if rank < len(alone) else 0)
        least[rank] = above
    longest = max(claims.works)
    least[0] = max(least[0], longest)
    if not claims.waits_each_microbatch:
        return max(longest * claims.num_stages, -(-(total + (claims.num_stages - 1) * sum(least[::turns])) // replicas))
    firsts = range(0, num_bins + 1, replicas)
    sums = [sum(least[:first:replicas]) + -(-rests[first] // replicas) for first in firsts]
    return max(sums) + (claims.num_stages - 1) * sum(least[:: replicas * turns])
