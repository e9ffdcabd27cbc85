"""First step of the certificate: candidates that could be faster than the best plan, and their first paths."""

from operator import attrgetter

import numpy as np

from pipette_opt.base.types import BoolArray, ProofStep
from pipette_opt.certify.state import OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.build import with_paths
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData
from pipette_opt.simulate.best_kinds import BestKinds, best_kinds
from pipette_opt.simulate.estimate import simulate_times
from pipette_opt.simulate.longest_paths import critical_counts
from pipette_opt.simulate.solutions import best_links_times
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.coarse_plans import coarse_placement
from pipette_opt.solver.pruning import FLOAT_MARGIN

OPENED_PER_PLACING = 4
"""Number of candidates bounded before the most promising one without a placement is placed. Chosen."""


def has_unopened(state: SearchState) -> int | None:
    """Return the number of candidates that could be faster and are not open yet; ``None`` without any."""
    opened = {(entry.candidate.config, entry.candidate.tile) for entry in state.open}
    parts = {(candidate.config, candidate.tile) for candidate in state.data.candidates} - opened
    return sum(state.bounds[part].bound_s < state.fastest_s for part in parts) or None


def open_candidates(state: SearchState, clock: Clock) -> None:
    """Add to the state the candidates that could be faster over the fastest links, most promising first."""
    data, opened = state.data, {entry.index for entry in state.open}
    for candidate in data.candidates:
        ticks = optimistic_ticks(data, candidate)
        seconds = ticks * data.tick_s if ticks < UNUSABLE_TICKS else float("inf")
        state.raise_bound(candidate.config, seconds, "best links", "best links", candidate.tile)
    hints = {part: plan.nodes for part, plan in state.plans.items()}
    bounds = [state.bounds[candidate.config, candidate.tile].bound_s for candidate in data.candidates]
    unplaced: list[OpenCandidate] = []
    for index in np.argsort(bounds, kind="stable").tolist():
        candidate = data.candidates[index]
        if bounds[index] >= state.fastest_s or clock.is_over:
            return
        if index in opened:
            continue
        entry = _opened(state, index, candidate, int(bounds[index] * (1 - FLOAT_MARGIN) / data.tick_s))
        if entry is None:
            continue
        state.add_open(entry)
        hint = hints.get((candidate.config, candidate.tile))
        if hint is not None:
            state.look(entry, hint)
        unplaced.append(entry)
        if not np.isfinite(state.fastest_s) or len(state.open) % OPENED_PER_PLACING == 0:
            promising = min(unplaced, key=attrgetter("bound_ticks", "index"))
            unplaced.remove(promising)
            place_once(state, promising)


def place_once(state: SearchState, entry: OpenCandidate) -> None:
    """Anneal a candidate that may be faster; its first annealing starts from the best coarse placement."""
    if entry.visits == 0 and state.may_be_faster(entry):
        coarse = coarse_placement(state.prepared.instance, state.data, entry.candidate)
        if coarse is not None:
            state.look(entry, coarse[0])
    if state.may_be_faster(entry):
        state.anneal_once(entry)


def _opened(state: SearchState, index: int, candidate: CandidateData, bound_ticks: int) -> OpenCandidate | None:
    """Return the candidate with its critical paths over the best links; ``None`` if these rule it out."""
    deciding = np.ones(candidate.num_stages, dtype=np.bool_)
    best = _over_best_links(state, candidate)
    if best is not None:
        ideal_s = best.seconds * (1 - FLOAT_MARGIN)
        if ideal_s >= state.fastest_s:
            step: ProofStep = "judge over best links"
            state.raise_bound(candidate.config, ideal_s, step, step, candidate.tile)
            return None
        deciding = _deciding_stages(candidate, best.backward_s / state.data.tick_s)
        found = [critical_counts(times, candidate.num_microbatches, state.data.p2p) for times in best.times]
        found = [counts.ending_at(deciding) for counts in found]
        candidate = with_paths(state.prepared.instance, state.data, candidate, found)
        ideal_ticks = int(ideal_s / state.data.tick_s)
        bound_ticks = max(bound_ticks, ideal_ticks, candidate_bound(state.data, candidate))
    return OpenCandidate(index=index, candidate=candidate, bound_ticks=bound_ticks, deciding=deciding)


def _over_best_links(state: SearchState, candidate: CandidateData) -> BestKinds | None:
    """Return the simulation over the best links, by GPU type if there are several; ``None`` if links are not known."""
    instance = state.prepared.instance
    if len(instance.cluster.gpu_kinds) > 1:
        several = instance.cluster.most_in_domain > 1
        return None if several else best_kinds(instance, state.data, candidate)
    times = best_links_times(instance, candidate)
    if times is None:
        return None
    seconds = simulate_times(times, candidate.num_microbatches, state.data.p2p).iteration_time_s
    return BestKinds(seconds=seconds, times=(times,), backward_s=times.backward_s[0].min(axis=1))


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
