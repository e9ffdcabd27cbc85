"""
The story: enumerate, keep what fits, anneal for a hint, certify by the judge, solve the closed form, re-rank, verify.

The judge walks the real schedule and decides. Its certificate covers every candidate, interleaved or not. Where it
leaves a gap and the best plan is not interleaved, the solver optimises the closed form of these, which may find a
faster plan; then the judge's certificate goes on from there.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from pipette_opt.annealing.anneal import AnnealingParams
from pipette_opt.base.backends import Backend
from pipette_opt.base.errors import InfeasibleError
from pipette_opt.base.units import counted
from pipette_opt.candidates import SearchSpace
from pipette_opt.certify import Certified, CertifyParams, certify
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.certify.scope import not_searched, proof, scope, searched
from pipette_opt.certify.ties import settle_ties
from pipette_opt.judge.slots import with_slots
from pipette_opt.judge.solutions import (
    JudgedSolution,
    best_first,
    is_proven,
    judge_lower_bound_s,
    judge_solution,
    lost_because,
    make_certificate,
    make_plan,
    stage_memory,
)
from pipette_opt.parallel import without_overlap
from pipette_opt.plans.notes import plan_notes
from pipette_opt.plans.plan import Alternative, JointModel, Plan, StageMemory
from pipette_opt.prepare import Prepared, prepare
from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Result, Solution
from pipette_opt.solver.joint import MARGIN, JointLimits
from pipette_opt.solver.search.params import SearchParams
from pipette_opt.solver.search.run import search
from pipette_opt.solver.search.threads import anneal_on_threads
from pipette_opt.specs import Instance

logger = logging.getLogger(__name__)

ANNEALING_SHARE, INTERLEAVED_SHARE = 0.2, 0.15
"""Parts of the time limit for the hint, and for what comes after the closed form."""

JOINT_SHARE = 0.2
"""Part of the time limit that the joint model over all splits of the layers may take. Chosen."""

MOST_ANNEALING_S, HINT_S = 10.0, 2.0
"""Seconds of annealing at most: where the closed form alone is solved, and before the judge's certificate."""

CLOSED_FORM_SHARE = 0.4
"""Part of the time left that is kept for the closed form where the judge's certificate comes first."""

SLOTS_SHARE = 0.1
"""Part of the time limit for the GPUs of each host, where links of single GPUs are known. Chosen."""

TIES_SHARE = 0.05
"""Part of the time limit for the choice among equally fast plans, at most."""

MOST_JUDGED = 64
"""Solutions of the solver's pool that are shown to the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What is known so far: the step, the incumbent's closed form and the proven bound."""

    step: str
    elapsed_s: float
    objective_s: float | None = None
    lower_bound_s: float | None = None


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


@dataclass(slots=True, kw_only=True)
class Watcher:
    """
    Who is told how a run goes, and how it is stopped early.

    Parameters
    ----------
    begun
        When the run began, by ``time.perf_counter``: what people are told counts from here.
    started
        The same, later by the seconds in which kernels were compiled: time limits count from here.
    """

    on_progress: Callable[[Progress], None] = lambda progress: None
    on_plan: Callable[[Plan], None] = lambda plan: None
    stop: threading.Event = field(default_factory=threading.Event)
    begun: float = field(default_factory=time.perf_counter)
    started: float = field(default_factory=time.perf_counter)

    @property
    def elapsed_s(self) -> float:
        """Seconds of the time limit that are over."""
        return time.perf_counter() - self.started

    @contextmanager
    def loading_kernels(self) -> Iterator[None]:
        """Compiling takes seconds once per installation, which do not count as time of the search."""
        self.report("loading compiled kernels (the first time they are compiled)")
        begun = time.perf_counter()
        yield
        self.started += time.perf_counter() - begun

    def report(self, step: str, objective_s: float | None = None, lower_bound_s: float | None = None) -> None:
        """Tell where the run is."""
        elapsed_s = time.perf_counter() - self.begun
        self.on_progress(Progress(step=step, elapsed_s=elapsed_s, objective_s=objective_s, lower_bound_s=lower_bound_s))


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

    params, watcher = _for_search(params or OptimizeParams(), instance), watcher or Watcher()
    inputs = {**(inputs or {}), "max_oom_risk": params.max_oom_risk}
    prepared = prepared or prepare(
        instance,
        space,
        params.max_oom_risk,
        watcher.report,
        keep=lambda config: False,
        seconds_left=lambda: 0.0 if watcher.stop.is_set() else params.time_limit_s - watcher.elapsed_s,
        loading=watcher.loading_kernels,
        joint=JointLimits(time_limit_s=JOINT_SHARE * params.time_limit_s, workers=params.workers, seed=params.seed),
        stop=watcher.stop,
    )
    with watcher.loading_kernels():
        compile_kernels(prepared, watcher.stop)
    hint = with_known(hint_for(prepared, params, watcher, HINT_S), known)
    judged = [*judge_first(prepared), *judge_pool(prepared.instance, prepared.exact, hint)]
    if judged:
        watcher.on_plan(finish(prepared, judged, params, watcher, inputs))
    certified = certify_judge(prepared, judged, params, watcher, CLOSED_FORM_SHARE)
    judged += certified.judged
    result = None
    if not certified.is_closed and (not judged or best_first(judged)[0].objective_s is not None):
        result = solve_exact(prepared, params, watcher, hint, backend)
        judged += judge_pool(prepared.instance, prepared.exact, result)
        certified = certify_judge(prepared, judged, params, watcher, earlier=certified)
        judged += certified.judged
    if not judged:
        raise InfeasibleError(_why_nothing(prepared))
    prepared = prove_splits(prepared, best_first(judged)[0].estimate.iteration_time_s, params, watcher)
    order = host_order or range(prepared.instance.cluster.num_nodes)
    judged += settle_ties(prepared, judged, best_first(judged)[0], order, TIES_SHARE * params.time_limit_s)
    plan = finish(prepared, judged, params, watcher, inputs, certified, result)
    verify_content(prepared.given, plan)
    return plan


def _for_search(params: OptimizeParams, instance: Instance) -> OptimizeParams:
    """The same without the time for the GPUs of each host."""
    share = 0.0 if instance.cluster.gpu_links is None else SLOTS_SHARE
    return replace(params, time_limit_s=(1 - share) * params.time_limit_s)


def prove_splits(prepared: Prepared, fastest_s: float, params: OptimizeParams, watcher: Watcher) -> Prepared:
    """The same with what the joint model proves in the time left, if it has not proven enough."""
    joined, left = prepared.joined, (1.0 - TIES_SHARE) * params.time_limit_s - watcher.elapsed_s
    if joined is None or watcher.stop.is_set() or left <= 0:
        return prepared
    if joined.model.bound_s >= (1 - max(params.gap_limit, MARGIN)) * fastest_s:
        return prepared
    again = joined.go_on(left, fastest_s)
    bound_s = max(again.bound_s, joined.model.bound_s)
    return replace(prepared, joined=replace(joined, model=replace(again, bound_s=bound_s)))


def hint_for(prepared: Prepared, params: OptimizeParams, watcher: Watcher, most_s: float = MOST_ANNEALING_S) -> Result:
    """Anneal the candidates that have a closed form, on every thread with a seed of its own."""
    watcher.report(f"annealing placements of {counted(len(prepared.exact.candidates), 'candidate')}")
    limit = min(most_s, ANNEALING_SHARE * params.time_limit_s)
    settings = AnnealingParams(time_limit_s=limit, seed=params.seed)
    first, *others = anneal_on_threads(prepared.exact, settings, params.workers, watcher.stop)
    return with_known(first, [one for other in others for one in other.solutions])


def with_known(hint: Result, known: Sequence[Solution]) -> Result:
    """The hint with the better of its own and the known placements of each candidate."""
    if not known:
        return hint
    ranked = sorted((*known, *hint.solutions), key=lambda one: (one.objective_ticks, one.candidate))
    best_of = {one.candidate: one for one in reversed(ranked)}
    best, *others = sorted(best_of.values(), key=lambda one: (one.objective_ticks, one.candidate))
    status = "FEASIBLE" if hint.status in ("INFEASIBLE", "UNKNOWN") else hint.status
    return replace(hint, status=status, solution=best, pool=tuple(others))


def solve_exact(
    prepared: Prepared, params: OptimizeParams, watcher: Watcher, hint: Result, backend: Backend | None = None
) -> Result:
    """Search and proof over the candidates that have a closed form, from the hint."""
    data = prepared.exact
    left = max(0.1, (1.0 - INTERLEAVED_SHARE) * params.time_limit_s - watcher.elapsed_s)

    def on_progress(elapsed_s: float, incumbent: int | None, bound: int) -> None:
        objective = None if incumbent is None else incumbent * data.tick_s
        watcher.report("solving", objective, bound * data.tick_s)

    return search(
        data,
        SearchParams(
            time_limit_s=left, gap_limit=params.gap_limit, workers=params.workers, seed=params.seed, first_s=0.0
        ),
        known=hint.solutions,
        on_progress=on_progress,
        stop=watcher.stop,
        backend=backend,
    )


def judge_first(prepared: Prepared) -> list[JudgedSolution]:
    """The plan on the listed hosts that others were left out for."""
    first = None if prepared.pruned is None else prepared.pruned.first
    if first is None:
        return []
    return [
        judge_solution(
            prepared.instance, prepared.problem, Solution(candidate=index, nodes=first.nodes, objective_ticks=0)
        )
        for index, candidate in enumerate(prepared.problem.candidates)
        if (candidate.config, candidate.block) == (first.config, first.block)
    ]


def judge_pool(instance: Instance, data: ProblemData, result: Result) -> list[JudgedSolution]:
    """Judge the best solutions of a result."""
    return [judge_solution(instance, data, one) for one in result.solutions[:MOST_JUDGED]]


def certify_judge(
    prepared: Prepared,
    judged: list[JudgedSolution],
    params: OptimizeParams,
    watcher: Watcher,
    kept_share: float = 0.0,
    earlier: Certified | None = None,
) -> Certified:
    """The judge's certificate over all candidates; part of the time is kept unless the best plan is interleaved."""
    left = max(0.5, (1.0 - TIES_SHARE) * params.time_limit_s - watcher.elapsed_s)
    other_splits_s = float("inf") if prepared.joined is None else prepared.joined.model.bound_s

    def report(step: str, fastest_s: float | None, bound_s: float | None) -> None:
        watcher.report(step, fastest_s, None if bound_s is None else min(bound_s, other_splits_s))

    return certify(
        prepared,
        judged,
        CertifyParams(
            time_limit_s=left,
            reserve_s=kept_share * left,
            gap_limit=params.gap_limit,
            workers=params.workers,
            seed=params.seed,
            num_alternatives=params.num_alternatives,
        ),
        report=report,
        stop=watcher.stop,
        earlier=earlier,
    )


def finish(
    prepared: Prepared,
    judged: list[JudgedSolution],
    params: OptimizeParams,
    watcher: Watcher,
    inputs: Mapping[str, Any] | None,
    certified: Certified | None = None,
    exact: Result | None = None,
) -> Plan:
    """
    The plan of the fastest judged solution, with its certificate and what came next.

    Parameters
    ----------
    certified
        What is proven about the judge's time; by default the bound that needs no search.
    exact
        What the solver said about the closed form, if it was asked.
    """
    if prepared.has_slots:
        judged = slots_assigned(prepared, judged, params, watcher)
    ranked = best_first(judged)
    best = ranked[0]
    certificate = make_certificate(
        prepared.given,
        prepared.problem,
        best,
        min(
            _bound_without_search_s(prepared) if certified is None else certified.bound_s,
            float("inf") if prepared.joined is None else prepared.joined.model.bound_s,
        ),
        watcher.elapsed_s,
        None if prepared.has_slots else exact,
    )
    num_candidates = len(prepared.memory.fitting)
    parts = () if certified is None else proof(prepared, certified.steps)
    by_search = sum(part.configurations for part in parts if part.by == "search")
    certificate = replace(
        certificate,
        scope=scope(prepared),
        searched=searched(prepared),
        not_searched=not_searched(prepared),
        proof=parts,
        joint_model=_joint_model(prepared, certificate.objective_s),
        num_candidates=num_candidates,
        num_pruned=num_candidates - by_search if parts else 0,
    )
    memory = _memory(prepared, best, params)
    return make_plan(
        prepared.given,
        prepared.problem,
        ranked,
        certificate,
        memory,
        alternatives=tuple(
            _alternative(prepared, best, other, params) for other in _others(ranked)[: params.num_alternatives]
        ),
        notes=plan_notes(
            prepared.instance, best.candidate.config, best.estimate.iteration_time_s, prepared.memory, memory
        ),
        seed=params.seed,
        inputs={**(inputs or {}), "search": asdict(prepared.space)},
    )


def slots_assigned(
    prepared: Prepared, judged: Sequence[JudgedSolution], params: OptimizeParams, watcher: Watcher
) -> list[JudgedSolution]:
    """The same with an order of the GPUs of each host, judged by the links of single GPUs."""
    watcher.report("assigning the GPUs of each host")
    seconds = SLOTS_SHARE / 2 * params.time_limit_s  # of the first plan, and of the last
    return with_slots(prepared.given, prepared.problem, judged, params.num_alternatives, seconds, watcher.stop)


def _joint_model(prepared: Prepared, objective_s: float) -> JointModel | None:
    """What the joint model said; of what is slower than the plan, it is not said by how much."""
    model = None if prepared.joined is None else prepared.joined.model
    if model is None:
        return None
    bound_s = min(model.bound_s, objective_s)
    # On relaxed hosts it compared with a plan that may be faster than this one is with real slots.
    beaten = model.status == "INFEASIBLE" and (not prepared.has_slots or is_proven(bound_s, objective_s))
    return replace(model, bound_s=bound_s, status="INFEASIBLE" if beaten else "FEASIBLE")


def _others(ranked: Sequence[JudgedSolution]) -> list[JudgedSolution]:
    """All but the first, of those that differ only in what overlaps the fastest."""
    alike = {without_overlap(one.candidate.config): one for one in reversed(ranked)}
    return [one for one in ranked[1:] if alike[without_overlap(one.candidate.config)] is one]


def _bound_without_search_s(prepared: Prepared) -> float:
    """No plan is faster of those with usual splits, by the cheap bounds alone."""
    return min(judge_lower_bound_s(prepared.lower), prepared.ruled_out_s)


def _why_nothing(prepared: Prepared) -> str:
    """Legal and fitting candidates, and yet no placement."""
    counts = prepared.problem.candidates
    cluster = prepared.instance.cluster
    missing = int((~cluster.usable_links).sum()) - cluster.num_nodes
    return (
        f"{len(prepared.memory.fitting)} candidates are legal and fit some host, but none of their {len(counts)} "
        f"packings can be placed on the {cluster.num_nodes} hosts of {cluster.name}: too few hosts have the memory, "
        f"or links are missing ({missing} directed pairs were not measured) or far too slow. Allow fewer GPUs with "
        "--num-gpus, other degrees, more recomputation, or import the links with a fill value."
    )


def _memory(prepared: Prepared, best: JudgedSolution, params: OptimizeParams) -> tuple[StageMemory, ...]:
    return stage_memory(
        prepared.instance, best.candidate.config, best.placement, prepared.predictor, params.max_oom_risk
    )


def _alternative(
    prepared: Prepared, best: JudgedSolution, other: JudgedSolution, params: OptimizeParams
) -> Alternative:
    stages = _memory(prepared, other, params)
    return Alternative(
        config=other.candidate.config,
        hosts=tuple(prepared.instance.cluster.hosts[node] for node in other.nodes.ravel()),
        objective_s=other.objective_s,
        iteration_time_s=other.estimate.iteration_time_s,
        oom_probability=(worst := max(stages, key=lambda one: one.oom_probability)).oom_probability,
        oom_probability_at_most=worst.oom_probability_at_most,
        reason=lost_because(best, other),
        slots=None if other.slots is None else tuple(map(tuple, other.slots.reshape(other.nodes.size, -1).tolist())),
    )
