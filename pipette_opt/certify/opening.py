"""
First step of the certificate: find the candidate configurations that could be faster than the best plan, and their
first paths.
"""

from dataclasses import replace
from operator import attrgetter

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.certify.ledger import Ledger, OpenCandidate
from pipette_opt.parallel import without_overlap
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import with_paths
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.best_kinds import BestKinds, best_kinds
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.solutions import best_links_times
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.pruning import FLOAT_MARGIN

SLOWEST_HOST = "judge with the slowest host"
"""Name of the bound of :func:`bound_by_slowest_host` in the certificate."""

OPENED_PER_PLACING = 4
"""
Number of candidate configurations bounded before the most promising candidate without a placement is placed.
Chosen.
"""

SLOWER_LINK = 1.5
"""Factor by which each link in turn is slowed down, to find the paths through it. Chosen."""


def open_candidates(ledger: Ledger) -> None:
    """
    Add to the ledger the candidate configurations that could be faster with all links as fast as the fastest, most
    promising first.
    """
    of_links = [optimistic_ticks(ledger.data, candidate) for candidate in ledger.data.candidates]
    known = [_known_ticks(ledger, candidate) for candidate in ledger.data.candidates]
    bounds = list(map(max, of_links, known))
    nodes_of: dict[tuple[object, object], IntArray] = {}
    for plan in sorted(ledger.known, key=lambda plan: -plan.estimate.iteration_time_s):
        nodes_of[plan.candidate.config, plan.candidate.tile] = plan.nodes
    order = [index for index in np.argsort(bounds, kind="stable").tolist() if bounds[index] < UNUSABLE_TICKS]
    unplaced: list[OpenCandidate] = []
    for number, index in enumerate(order):
        bound_s, candidate = bounds[index] * ledger.data.tick_s, ledger.data.candidates[index]
        if bound_s >= ledger.fastest_s or ledger.clock.is_over:
            for other in order[number:]:
                by_family = known[other] > of_links[other] and _is_by_family(ledger, ledger.data.candidates[other])
                ledger.close(bounds[other] * ledger.data.tick_s, other, "any layers" if by_family else "best links")
            break
        entry = _opened(ledger, index, candidate, bounds[index])
        if entry is None:
            continue
        ledger.open.append(entry)
        hint = nodes_of.get((candidate.config, candidate.tile))
        if hint is not None:
            ledger.look(entry, hint)
        unplaced.append(entry)
        if not np.isfinite(ledger.fastest_s) or len(ledger.open) % OPENED_PER_PLACING == 0:
            promising = min(unplaced, key=attrgetter("bound_ticks", "index"))
            unplaced.remove(promising)
            place_once(ledger, promising)


def place_once(ledger: Ledger, entry: OpenCandidate) -> None:
    """Anneal a candidate configuration that may be faster; before its first annealing, add paths through slow links."""
    if entry.visits == 0 and ledger.may_be_faster(entry):
        slow_links_down(ledger, entry)
    if ledger.may_be_faster(entry):
        ledger.anneal_once(entry)


def _is_by_family(ledger: Ledger, candidate: CandidateData) -> bool:
    """Return whether the configuration was already bounded by its partition family in the joint model."""
    pruned = ledger.prepared.pruned
    return pruned is not None and without_overlap(candidate.config) in pruned.by_family


def _known_ticks(ledger: Ledger, candidate: CandidateData) -> int:
    """Return the bound that pruning or an earlier certificate proved for the configuration, integer ticks."""
    config, pruned = candidate.config, ledger.prepared.pruned
    seconds = ledger.prepared.proven_s.get(config, 0.0)
    if pruned is not None:
        seconds = max(seconds, pruned.bounds_s.get(without_overlap(config), 0.0))
    return int(min(seconds * (1 - FLOAT_MARGIN) / ledger.data.tick_s, UNUSABLE_TICKS))


def _opened(ledger: Ledger, index: int, candidate: CandidateData, bound_ticks: int) -> OpenCandidate | None:
    """
    Return the candidate configuration with its critical paths over the best links; ``None`` if the simulator rules it
    out over these.
    """
    deciding = np.ones(candidate.num_stages, dtype=np.bool_)
    best = _over_best_links(ledger, candidate)
    if best is not None:
        ideal_s = best.seconds * (1 - FLOAT_MARGIN)
        if ideal_s >= ledger.fastest_s:
            ledger.close(ideal_s, index, "judge over best links")
            return None
        deciding = _deciding_stages(candidate, best.backward_s / ledger.data.tick_s)
        found = [critical_counts(times, candidate.num_microbatches, ledger.data.p2p) for times in best.times]
        found = [counts.ending_at(deciding) for counts in found]
        candidate = with_paths(ledger.prepared.instance, ledger.data, candidate, found)
        ideal_ticks = int(ideal_s / ledger.data.tick_s)
        bound_ticks = max(bound_ticks, ideal_ticks, candidate_bound(ledger.data, candidate))
    return OpenCandidate(index=index, candidate=candidate, bound_ticks=bound_ticks, deciding=deciding)


def _over_best_links(ledger: Ledger, candidate: CandidateData) -> BestKinds | None:
    """Return the simulation over the best links, by GPU type if there are several; ``None`` if links are not known."""
    instance = ledger.prepared.instance
    if len(instance.cluster.gpu_kinds) > 1:
        several = instance.cluster.most_in_domain > 1
        return None if several else best_kinds(instance, ledger.data, candidate)
    times = best_links_times(instance, candidate)
    if times is None:
        return None
    seconds = simulate_times(times, candidate.num_microbatches, ledger.data.p2p).iteration_time_s
    return BestKinds(seconds=seconds, times=(times,), backward_s=times.backward_s[0].min(axis=1))


def bound_by_slowest_host(ledger: Ledger, entry: OpenCandidate) -> None:
    """
    Raise the bound by simulating over the best links with the slowest host.

    The bound is the least time over all rows that the slowest host may be in.
    """
    least_s = float("inf")
    for row in range(entry.candidate.grid[0]):
        times = best_links_times(ledger.prepared.instance, entry.candidate, slow_row=row)
        if times is None or ledger.is_over:
            return
        simulated = simulate_times(times, entry.candidate.num_microbatches, ledger.data.p2p)
        least_s = min(least_s, simulated.iteration_time_s)
    entry.raise_bound(int(least_s * (1 - FLOAT_MARGIN) / ledger.data.tick_s), SLOWEST_HOST)


def slow_links_down(ledger: Ledger, entry: OpenCandidate) -> None:
    """Add the paths that become critical when a single link between hosts is slower than all others."""
    times, candidate = best_links_times(ledger.prepared.instance, entry.candidate), entry.candidate
    if times is None:
        return
    rows = np.arange(candidate.num_stages) // candidate.tile.stages
    found = []
    for stage in np.flatnonzero(rows != np.roll(rows, -1))[: candidate.num_links].tolist():
        sends = [times.send_forward_s.copy(), times.send_backward_s.copy()]
        for side in sends:
            side[stage] *= SLOWER_LINK
        slower = replace(times, send_forward_s=sends[0], send_backward_s=sends[1])
        found.append(critical_counts(slower, candidate.num_microbatches, ledger.data.p2p).ending_at(entry.deciding))
    entry.candidate = with_paths(ledger.prepared.instance, ledger.data, candidate, found)
    entry.raise_bound(candidate_bound(ledger.data, entry.candidate))


def _deciding_stages(candidate: CandidateData, backward_ticks: np.ndarray) -> BoolArray:
    """
    Return a mask of the stages whose last backward can decide the iteration time, shape ``(pp,)``.

    The first stage ends later than stage ``s`` by the backward passes of the stages before ``s``. So stage ``s``
    matters only if its reduction can exceed the first stage's by more than that. Tied embeddings follow both ends
    equally.

    Parameters
    ----------
    backward_ticks
        Least backward pass of the first chunk of each stage, integer ticks, shape ``(pp,)``.
    """
    longest, shortest = candidate.ring_floor_ticks.copy(), candidate.ring_floor_ticks.copy()
    if candidate.ring_length > 1:
        usable = [ticks[ticks < UNUSABLE_TICKS] for ticks in candidate.ring_ticks]
        most = np.array([int(ticks.max(initial=0)) for ticks in usable])[candidate.ring_class]
        least = np.array([int(ticks.min(initial=UNUSABLE_TICKS)) for ticks in usable])[candidate.ring_class]
        longest, shortest = np.maximum(longest, most), np.maximum(shortest, least)
    still = np.concatenate([[0.0], np.cumsum(backward_ticks)[:-1]])
    deciding: BoolArray = longest > shortest[0] + still
    deciding[0] = True
    return deciding
