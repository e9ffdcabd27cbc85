"""
The story: enumerate, keep what fits, anneal for a hint, certify by the judge, solve the closed form, re-rank, verify.

The judge walks the real schedule and decides. Its certificate covers every candidate, interleaved or not. Where it
leaves a gap and the best plan is not interleaved, the solver optimises the closed form of these, which may find a
faster plan; then the judge's certificate goes on from there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pipette_opt.base.backends import Backend
from pipette_opt.base.errors import InfeasibleError
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify import CertifyParams, certify
from pipette_opt.certify.closed_forms import (
    anneal_closed_forms,
    judge_closed_forms,
    judge_first_plan,
    solve_closed_forms,
)
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.finish import finish_plan
from pipette_opt.certify.scope import why_nothing
from pipette_opt.certify.splits import prove_splits
from pipette_opt.certify.ties import settle_ties
from pipette_opt.judge.slots import search_share
from pipette_opt.judge.solutions import JudgedSolution, best_first
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, prepare
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.joint import JointLimits
from pipette_opt.solver.params import SolverParams
from pipette_opt.specs import Instance

JOINT_SHARE = 0.2
"""Share of the time limit that the joint model over all splits of the layers may take, for each kind of GPU. Chosen."""

ANNEALING_SHARE = 0.2
"""Share of the time limit that annealing for a hint may take. Chosen."""

HINT_S = 2.0
"""Largest number of seconds for the same. Chosen."""

CLOSED_FORM_SHARE = 0.4
"""Share of the time left that is kept for the closed form where the judge's certificate comes first. Chosen."""

INTERLEAVED_SHARE = 0.15
"""Share of the time limit that is kept for what comes after the closed form. Chosen."""

TIES_SHARE = 0.05
"""Share of the time limit that the choice among equally fast plans may take. Chosen."""

LEAST_CERTIFYING_S = 0.01
"""Smallest number of seconds that the judge's certificate gets where a plan is known. Chosen."""

LEAST_PLACING_S = 0.5
"""The same where none is known, so that something is placed. Chosen."""

LEAST_SOLVING_S = 0.1
"""Smallest number of seconds that the closed form gets. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizeParams:
    """
    How hard to search, and what risk to take.

    Parameters
    ----------
    time_limit_s
        Wall-clock time for annealing, solving and judging together.
    gap_limit
        Stop when the gap is proven to be at most this.
    max_oom_risk
        Probability of running out of memory that a plan may have; 1: memory does not count.
    num_alternatives
        Plans reported beside the best.
    """

    time_limit_s: float = 60.0
    gap_limit: float = 0.0
    workers: int = 2
    seed: int = 0
    max_oom_risk: float = 0.01
    num_alternatives: int = 5

    def __post_init__(self) -> None:
        if not self.time_limit_s > 0:
            raise ValueError(f"time_limit_s must be > 0, got {self.time_limit_s}.")
        if not 0 <= self.gap_limit < 1:
            raise ValueError(f"gap_limit must be in [0, 1), got {self.gap_limit}.")
        if self.workers < 1:
            raise ValueError(f"workers must be >= 1, got {self.workers}.")
        if not 0 <= self.seed < 2**31:
            raise ValueError(f"seed must be in [0, 2^31), got {self.seed}.")
        if not 0 < self.max_oom_risk <= 1:
            raise ValueError(f"max_oom_risk must be in (0, 1], got {self.max_oom_risk}.")


def optimize(
    instance: Instance,
    space: SearchSpace,
    params: OptimizeParams | None = None,
    watcher: Watcher | None = None,
    inputs: Mapping[str, Any] | None = None,
    prepared: Prepared | None = None,
    known: Sequence[Solution] = (),
    backend: Backend | None = None,
    host_order: Sequence[int] | None = None,
) -> Plan:
    """
    Find the best plan of a search space and prove how good it is.

    Raises ``InfeasibleError`` with the reasons if nothing is legal, fits and can be placed.

    Parameters
    ----------
    prepared
        What :func:`~pipette_opt.prepare.prepare` made of the same instance and space, if that was done before.
    known
        Placements to start from, of candidates of ``prepared.exact``.
    backend
        Processes over which the search for the closed form is spread; threads of this one without it.
    host_order
        Hosts by index, in the order that is preferred among equally fast plans; as listed by default.
    """
    from pipette_opt.verify import verify_content

    params, watcher = params or OptimizeParams(), watcher or Watcher()
    params = replace(params, time_limit_s=search_share(instance) * params.time_limit_s)
    limit_s, workers, seed, stop = params.time_limit_s, params.workers, params.seed, watcher.stop
    kinds = min(len(instance.cluster.gpu_kinds), 3)
    finished = partial(
        finish_plan,
        watcher=watcher,
        time_limit_s=limit_s,
        max_oom_risk=params.max_oom_risk,
        num_alternatives=params.num_alternatives,
        seed=seed,
        inputs={**(inputs or {}), "max_oom_risk": params.max_oom_risk},
    )
    prepared = prepared or prepare(
        instance,
        space,
        params.max_oom_risk,
        watcher.report,
        keep=lambda config: False,
        seconds_left=lambda: 0.0 if stop.is_set() else limit_s - watcher.elapsed_s,
        loading=watcher.loading_kernels,
        joint=JointLimits(time_limit_s=JOINT_SHARE * kinds * limit_s, workers=workers, seed=seed),
        stop=stop,
    )
    with watcher.loading_kernels():
        compile_kernels(prepared, stop)

    watcher.report(f"annealing placements of {counted(len(prepared.exact.candidates), 'candidate')}")
    judged = judge_first_plan(prepared)
    hint_s = min(HINT_S, ANNEALING_SHARE * limit_s, limit_s - watcher.elapsed_s if judged else limit_s)
    hint = anneal_closed_forms(prepared, hint_s, workers, seed, stop, known)
    judged += judge_closed_forms(prepared, hint)
    if judged:
        watcher.on_plan(finished(prepared, judged))

    if judged and not stop.is_set():
        known_s, left_s = best_first(judged)[0].estimate.iteration_time_s, limit_s - watcher.elapsed_s
        prepared = prove_splits(prepared, known_s, params.gap_limit, JOINT_SHARE * left_s)
    how = _certifying(params, watcher, judged, CLOSED_FORM_SHARE)
    certified = certify(prepared, judged, how, watcher.report, stop)
    judged, result = [*judged, *certified.judged], None
    over = certified.is_closed or (judged and watcher.elapsed_s >= limit_s)
    if not over and (not judged or best_first(judged)[0].objective_s is not None):
        result = solve_closed_forms(prepared, hint, _solving(params, watcher), watcher.report, stop, backend)
        judged += judge_closed_forms(prepared, result)
        certified = certify(prepared, judged, _certifying(params, watcher, judged), earlier=certified)
        judged += certified.judged
    if not judged:
        raise InfeasibleError(why_nothing(prepared))

    best_s, left_s = best_first(judged)[0].estimate.iteration_time_s, (1 - TIES_SHARE) * limit_s - watcher.elapsed_s
    prepared = prove_splits(prepared, best_s, params.gap_limit, 0.0 if stop.is_set() else left_s)
    order = host_order or range(prepared.instance.cluster.num_nodes)
    judged += settle_ties(prepared, judged, best_first(judged)[0], order, TIES_SHARE * limit_s)
    plan = finished(prepared, judged, certified, result)
    verify_content(prepared.given, plan)
    return plan


def _certifying(
    params: OptimizeParams, watcher: Watcher, judged: Sequence[JudgedSolution], kept_share: float = 0.0
) -> CertifyParams:
    """How the judge's certificate may work in the time left, of which a share is kept for the closed form."""
    least_s = LEAST_CERTIFYING_S if judged else LEAST_PLACING_S
    left_s = max(least_s, (1 - TIES_SHARE) * params.time_limit_s - watcher.elapsed_s)
    return CertifyParams(
        time_limit_s=left_s,
        reserve_s=kept_share * left_s,
        gap_limit=params.gap_limit,
        workers=params.workers,
        seed=params.seed,
        num_alternatives=params.num_alternatives,
    )


def _solving(params: OptimizeParams, watcher: Watcher) -> SolverParams:
    """How the closed form may be solved in the time left; its placements are annealed already."""
    return SolverParams(
        time_limit_s=max(LEAST_SOLVING_S, (1 - INTERLEAVED_SHARE) * params.time_limit_s - watcher.elapsed_s),
        gap_limit=params.gap_limit,
        workers=params.workers,
        seed=params.seed,
        first_s=0.0,
    )
