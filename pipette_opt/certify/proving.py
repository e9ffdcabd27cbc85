"""Proof of the bound by the solver, on the relaxations of all candidate configurations that could be faster."""

from dataclasses import replace

from pipette_opt.base.units import counted
from pipette_opt.certify.more_configurations import adds_configurations
from pipette_opt.certify.state import OpenCandidate, SearchState
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.steps import PROVERS
from pipette_opt.problem.solution import Result, checked_solution
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.incumbent import WITHOUT_SEARCH


def prove(state: SearchState, clock: Clock) -> None:
    """
    Let the solver place relaxations, simulate and add critical paths, until no candidate configuration can be faster or
    time is over.

    Each round is a new solve, which starts from the paths found so far.
    """
    for entry in state.could_win():
        if state.is_over:
            return
        state.raise_ticks(entry, candidate_bound(state.data, entry.candidate), WITHOUT_SEARCH)
    turn = clock
    while not state.is_over:
        able = state.could_win()
        if not able:
            return
        before = [entry.bound_ticks for entry in able]
        result = _solve_once(state, able, turn.left_s)
        learned = False
        for solution in result.solutions:
            learned |= state.look(able[solution.candidate], solution.nodes)
        takes_all = not learned and state.listed_bound_s <= state.other_splits_s
        has_ended = result.status == "INFEASIBLE" or (result.status == "OPTIMAL" and not learned)
        is_alike = not learned and before == [entry.bound_ticks for entry in able]
        if has_ended or (is_alike and (turn is state.clock or not takes_all)):
            for entry in able:  # the model has nothing left to do, or the joint model's bound is the least
                entry.is_proven = True
            return
        if adds_configurations(state):  # they come first: without time they would only widen the space
            state.done.pop(PROVERS, None)
            return
        turn = state.clock if takes_all else state.clock.step(PROVERS)


def _solve_once(state: SearchState, able: list[OpenCandidate], seconds: float) -> Result:
    """Run the solver on the relaxations of the candidate configurations for ``seconds``, and record its bounds."""
    from pipette_opt.solver.params import SolverParams
    from pipette_opt.solver.solve import solve

    known = (replace(entry.candidate, least_ticks=entry.bound_ticks) for entry in able)
    data = replace(state.data, candidates=tuple(known))
    plans = [(number, plan) for number, entry in enumerate(able) if (plan := state.plan_of(entry)) is not None]
    hints = [checked_solution(data, number, plan.nodes) for number, plan in plans]

    step = f"bounding simulated times of {counted(len(able), 'candidate')}"

    def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        state.report(step, bound)

    result = solve(
        data,
        SolverParams(
            time_limit_s=max(0.1, seconds),
            gap_limit=state.params.gap_limit,
            workers=state.params.workers,
            seed=state.params.seed,
        ),
        hint=[solution for solution in hints if solution is not None],
        on_progress=on_progress,
        stop=state.clock.stop,
    )
    for entry, ticks, name in zip(able, result.candidate_bounds.tolist(), result.proven_by, strict=True):
        state.raise_ticks(entry, ticks, name)
    return result
