"""Proof of a certificate by a new search, for the part that cheap bounds cannot confirm."""

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from pipette_opt.base.errors import PlanError
from pipette_opt.certify.budget import clock_of
from pipette_opt.certify.first_plans import begin_with
from pipette_opt.optimize import OptimizeParams, complete
from pipette_opt.parallel import ParallelConfig
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.plan import Plan
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Question, prepare
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.specs import Instance
from pipette_opt.verify import recorded_space
from pipette_opt.verify.common import CLOSED_GAP
from pipette_opt.verify.memory import accepted_risk


@dataclass(frozen=True, slots=True, kw_only=True)
class Proven:
    """
    Result of the new search: no searched plan is faster than the claimed bound.

    Parameters
    ----------
    bound_s
        Proven lower bound, in seconds; at least the claim of the certificate, up to rounding.
    fastest_s
        Iteration time, in seconds, of the fastest plan found during the proof.
    """

    bound_s: float
    fastest_s: float
    seconds: float


JOINT_SHARE = 0.3
"""Share of the time limit for the CP-SAT model over all configurations. Chosen."""

MIN_TIME_S, TIMES_AS_LONG = 60.0, 2.0
"""Default time limit: at least this many seconds, and this multiple of the time of the plan's own search. Chosen."""


def prove(
    instance: Instance,
    plan: Plan,
    configs: Collection[ParallelConfig],
    *,
    time_limit_s: float | None = None,
    workers: int = 2,
    watcher: Watcher | None = None,
) -> Proven:
    """
    Search configurations of the plan's space again, until the certificate's bound is reached.

    The first search stops at the plan's own gap. If its bound is too low, a second search uses the remaining time to
    close the gap.

    Parameters
    ----------
    configs
        Configurations that only a search can bound; see :attr:`~pipette_opt.verify.Checked.open_configs`. The CP-SAT
        model over all configurations is solved again in any case.
    time_limit_s
        Seconds; ``None`` for the larger of 60 and twice the time of the plan's own search.

    Raises
    ------
    PlanError
        If a plan is faster than the bound, or if the bound is not reached in time; the text says which.
    """
    watcher, proof = watcher or Watcher(), plan.certificate
    limit_s = time_limit_s or max(MIN_TIME_S, TIMES_AS_LONG * proof.wall_time_s)
    claimed_s = proof.lower_bound_s * (1 - CLOSED_GAP)
    gap = min(max(1 - claimed_s / plan.estimate.iteration_time_s, 0.0), 0.99)
    space, risk, bound_s, fastest_s = recorded_space(plan), accepted_risk(plan.inputs), 0.0, math.inf
    joint = None
    if proof.joint_model is not None:
        joint = JointLimits(
            time_limit_s=JOINT_SHARE * limit_s, workers=workers, seed=plan.seed, to_beat_s=proof.lower_bound_s
        )
    whole = prepare(
        Question(instance, space, risk, keep=set(configs).__contains__, joint=joint), Clock(watcher=watcher)
    )
    if whole.joined is not None and whole.joined.splits:
        layers = ", ".join(map(str, whole.joined.splits[0]))
        raise _not_proven(plan, f"but stages of {layers} layers may be faster")
    if not configs:
        bound_s = math.inf if whole.joined is None else whole.joined.model.bound_s
        if bound_s >= claimed_s:
            return Proven(bound_s=bound_s, fastest_s=fastest_s, seconds=watcher.elapsed_s)
        raise _not_proven(
            plan,
            f"but the CP-SAT model over all configurations proved only {bound_s} s again; give more time with "
            "--time-limit",
        )
    candidates = tuple(candidate for candidate in whole.problem.candidates if candidate.config in configs)
    prepared = replace(whole, problem=replace(whole.problem, candidates=candidates), pruned=None)
    for gap_limit in (gap, 0.0):
        params = OptimizeParams(
            time_limit_s=limit_s,
            gap_limit=gap_limit,
            workers=workers,
            seed=plan.seed,
            max_oom_risk=risk,
        )
        found = complete(begin_with(prepared, params, clock_of(instance, params, watcher)))
        bound_s = max(bound_s, found.certificate.lower_bound_s)
        fastest_s = min(fastest_s, found.estimate.iteration_time_s)
        if fastest_s < claimed_s:
            raise _not_proven(plan, f"but {found.config.label()} takes {fastest_s} s")
        if bound_s >= claimed_s:
            return Proven(bound_s=bound_s, fastest_s=fastest_s, seconds=watcher.elapsed_s)
        if watcher.stop.is_set() or watcher.elapsed_s >= limit_s:
            break
    raise _not_proven(
        plan,
        f"but in {watcher.elapsed_s:.0f} s only {bound_s} s were proven again, and the fastest plan found takes "
        f"{fastest_s} s; give more time with --time-limit",
    )


def _not_proven(plan: Plan, why: str) -> PlanError:
    return PlanError(f"the plan breaks:\n  bound_is_proven: lower_bound_s is {plan.certificate.lower_bound_s}, {why}")
