"""
Steps that add configurations to a search: other numbers of GPUs, other layer partitions of the joint model, single
changes of the fastest plan, and configurations that the first bounds had no time for.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipette_opt.candidates.single_changes import choices, open_choices
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.certify.state import SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import BOUNDS_AGAIN, OTHER_SIZES, SINGLE_CHANGES
from pipette_opt.prepare import (
    Prepared,
    fitting_candidates,
    with_configurations,
    with_single_changes,
    with_splits,
    with_world_sizes,
)
from pipette_opt.simulate.solutions import SimulatedSolution, best_first
from pipette_opt.solver.family_bounds import FAMILY_MARGIN
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.pruning import FirstPlan

MIN_TURN_S = 0.1
"""Least remaining time in which the joint model gets another turn, seconds. Chosen."""


CHANGES_SHARE = 0.1
"""Share of the limit that must be left to search single changes; with less they only widen the space. Chosen."""


def joint_model(state: SearchState) -> bool | None:
    """Return ``True`` if a plan is known and the joint model's bound leaves the gap open, else ``None``."""
    joined, params = state.prepared.joined, state.params
    if joined is None or not state.plans:
        return None
    enough_s = (1 - max(params.gap_limit, FAMILY_MARGIN)) * min(state.fastest_s, params.to_beat_s)
    return True if joined.model.bound_s < enough_s else None


def least_joint_model(state: SearchState) -> object:
    """Return the joint model's result if its bound is the least of all, so that no other step raises the bound."""
    joined = state.prepared.joined
    if joined is None or joint_model(state) is None or state.clock.left_s < MIN_TURN_S:
        return None
    return joined.model if joined.model.bound_s < state.listed_bound_s else None


def continue_joint_model(state: SearchState, clock: Clock) -> None:
    """
    Continue the joint model's proof against the fastest plan.

    New partitions, and the faster plan that the joint model found, become part of the search.
    """
    prepared = state.prepared
    assert prepared.joined is not None
    before, is_pruned = prepared.joined, prepared.pruned is not None
    again = before.go_on(clock, min(state.fastest_s, state.params.to_beat_s), is_pruned)
    if again.splits != before.splits and not is_pruned:
        return  # new partitions cannot be searched, and the new bound does not cover them
    model = replace(again.model, bound_s=max(again.model.bound_s, before.model.bound_s))
    known = fastest_plan(state.simulated)
    prepared = replace(prepared, joined=replace(again, model=model))
    is_faster = again.first is not None and again.first.seconds < known.seconds
    if again.splits == before.splits and not is_faster:
        state.prepared = prepared
        return
    best = again.first if again.first is not None and is_faster else known
    more = with_splits(prepared, best, state.clock.step(BOUNDS_AGAIN), least_s=before.model.bound_s)
    _search_too(state, more)
    for plan in simulate_first_plan(more) if is_faster else []:
        state.take(plan)


def other_sizes(state: SearchState) -> object:
    """Return the time to beat and how many numbers of GPUs are bounded or searched; ``None`` once all are."""
    least = state.prepared.least_times
    if least is None or not state.plans:
        return None
    return state.fastest_s, len(least.not_below_s), len(state.prepared.space.world_sizes)


def search_other_sizes(state: SearchState, clock: Clock) -> None:
    """Bound the other numbers of GPUs; configurations that may be faster on these become part of the search."""
    state.clock.report("bounding numbers of GPUs")
    params = state.params
    limits = JointLimits(time_limit_s=clock.left_s, workers=params.workers, seed=params.seed, to_beat_s=state.fastest_s)
    _search_too(state, with_world_sizes(state.prepared, fastest_plan(state.simulated), limits, clock))


def unchanged(state: SearchState) -> object:
    """Return the choices of the fastest plan if its single changes can be searched and are not yet, else ``None``."""
    prepared = state.prepared
    if not state.plans or prepared.pruned is None or not open_choices(prepared.space):
        return None
    if state.clock.left_s < CHANGES_SHARE * state.params.time_limit_s:
        return None
    found = choices(fastest_plan(state.simulated).config)
    return None if found in map(choices, prepared.space.near) else found


def search_single_changes(state: SearchState, clock: Clock) -> None:
    """Bound the single changes of the fastest plan; those that may be faster become part of the search."""
    state.clock.report("bounding single changes of the fastest plan")
    _search_too(state, with_single_changes(state.prepared, fastest_plan(state.simulated), clock))


def left_out(state: SearchState) -> int | None:
    """Return the number of configurations outside the problem whose bounds leave the gap open, ``None`` if none."""
    return len(_left_out(state)) or None


def _left_out(state: SearchState) -> set[object]:
    enough_s = (1 - state.params.gap_limit) * state.fastest_s if state.plans else 0.0
    return {config for (config, tile), reason in state.bounds.items() if tile is None and reason.bound_s < enough_s}


def bound_left_out(state: SearchState, clock: Clock) -> None:
    """Bound the configurations that the first bounds had no time for; those that may be faster become part of it."""
    prepared, left = state.prepared, _left_out(state)
    state.clock.report("bounding the configurations left out for time")
    fitting = [candidate for candidate in fitting_candidates(prepared.memory) if candidate.config in left]
    _search_too(state, with_configurations(prepared, fitting, fastest_plan(state.simulated), clock))


def adds_configurations(state: SearchState) -> bool:
    """Return whether a step has work that adds configurations to the search."""
    steps = ((SINGLE_CHANGES, unchanged(state)), (OTHER_SIZES, other_sizes(state)), (BOUNDS_AGAIN, left_out(state)))
    return any(work is not None and state.done.get(step) != work for step, work in steps)


def _search_too(state: SearchState, more: Prepared) -> None:
    """Go on with a problem that has further candidates."""
    with state.clock.loading():
        compile_kernels(more, state.clock)
    state.go_on_with(more)


def fastest_plan(simulated: Sequence[SimulatedSolution]) -> FirstPlan:
    """Return the fastest of the simulated plans as a warm start."""
    best = best_first(simulated)[0]
    return FirstPlan(
        config=best.candidate.config,
        tile=best.candidate.tile,
        nodes=best.nodes,
        seconds=best.estimate.iteration_time_s,
    )
