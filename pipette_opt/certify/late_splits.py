"""Continuation of the joint model's proof about layer partitions that are not searched, once a plan is known."""

from collections.abc import Sequence
from dataclasses import replace

from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.certify.state import SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.prepare import with_splits
from pipette_opt.simulate.solutions import SimulatedSolution, best_first
from pipette_opt.solver.family_bounds import FAMILY_MARGIN
from pipette_opt.solver.pruning import FirstPlan


def prove_splits(state: SearchState, clock: Clock, search: Clock | None = None) -> None:
    """
    Continue the joint model's proof, unless its bound already closes the gap.

    New partitions, and the faster plan that the joint model found, become part of the search.

    Parameters
    ----------
    state
        Search with at least one plan.
    search
        Clock of the search that follows, in which new partitions are bounded and built. ``None`` means that no search
        follows: then only the partition of a faster plan is added, and the bound still covers it.
    """
    prepared, params = state.prepared, state.params
    joined, fastest_s = prepared.joined, min(state.fastest_s, params.to_beat_s)
    if (
        joined is None
        or clock.is_over
        or joined.model.bound_s >= (1 - max(params.gap_limit, FAMILY_MARGIN)) * fastest_s
    ):
        return
    again = joined.go_on(clock, fastest_s, search is not None)
    model = replace(again.model, bound_s=max(again.model.bound_s, joined.model.bound_s))
    prepared = replace(prepared, joined=replace(again, model=model))
    known = fastest_plan(state.simulated)
    is_faster = again.first is not None and again.first.seconds < known.seconds
    if again.splits == joined.splits and not is_faster:
        state.prepared = prepared
        return
    least_s = model.bound_s if search is None else 0.0
    more = with_splits(prepared, known, search or clock.after(0.0), least_s)
    with clock.loading():
        compile_kernels(more, clock.stop)
    state.go_on_with(more)
    for plan in simulate_first_plan(more) if is_faster else []:
        state.take(plan)


def fastest_plan(simulated: Sequence[SimulatedSolution]) -> FirstPlan:
    """Return the fastest of the simulated plans as a warm start."""
    best = best_first(simulated)[0]
    return FirstPlan(
        config=best.candidate.config,
        tile=best.candidate.tile,
        nodes=best.nodes,
        seconds=best.estimate.iteration_time_s,
    )
