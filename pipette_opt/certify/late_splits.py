"""What the joint model proves of splits of the layers that are not searched, and finds, once a plan is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.first_plans import simulate_first_plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, with_splits
from pipette_opt.simulate.solutions import SimulatedSolution, best_first
from pipette_opt.solver.family_bounds import FAMILY_MARGIN
from pipette_opt.solver.pruning import FirstPlan


def prove_splits(
    prepared: Prepared,
    simulated: Sequence[SimulatedSolution],
    to_beat_s: float,
    gap_limit: float,
    seconds: float,
    watcher: Watcher,
    is_over: Callable[[], bool] | None = None,
) -> tuple[Prepared, list[SimulatedSolution]]:
    """
    The same with what the joint model proves in so many seconds, if it has not proven enough before.

    Parameters
    ----------
    simulated
        Plans of the problem, at least one.
    to_beat_s
        A plan this slow is not wanted.
    gap_limit
        Share of the fastest plan's time that the bound may be below.
    is_over
        Whether there is no more time to bound and build the splits that are found. ``None``: nothing is searched
        afterwards, so that no split is handed on but that of a faster plan, which the bound then still covers.

    Returns
    -------
    tuple[Prepared, list[SimulatedSolution]]
        The problem, and the faster plan that the joint model found, if it did.
    """
    joined, known = prepared.joined, fastest_plan(simulated)
    fastest_s = min(known.seconds, to_beat_s)
    if joined is None or seconds <= 0 or joined.model.bound_s >= (1 - max(gap_limit, FAMILY_MARGIN)) * fastest_s:
        return prepared, []
    again = joined.go_on(seconds, fastest_s, is_over is not None)
    model = replace(again.model, bound_s=max(again.model.bound_s, joined.model.bound_s))
    prepared = replace(prepared, joined=replace(again, model=model))
    is_faster = again.first is not None and again.first.seconds < known.seconds
    if again.splits == joined.splits and not is_faster:
        return prepared, []
    least_s = model.bound_s if is_over is None else 0.0
    more = with_splits(prepared, known, is_over or (lambda: True), watcher.loading_kernels, least_s)
    with watcher.loading_kernels():
        compile_kernels(more, watcher.stop)
    return more, simulate_first_plan(more) if is_faster else []


def fastest_plan(simulated: Sequence[SimulatedSolution]) -> FirstPlan:
    """The fastest of some plans, as a plan that is known."""
    best = best_first(simulated)[0]
    return FirstPlan(
        config=best.candidate.config,
        block=best.candidate.block,
        nodes=best.nodes,
        seconds=best.estimate.iteration_time_s,
    )
