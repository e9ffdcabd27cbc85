"""A search in a few seconds, from a plan that is known: what questions about a plan, and recommendations, rest on."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InfeasibleError, MissingLinkError
from pipette_opt.base.types import IntArray
from pipette_opt.candidates import SearchSpace, layers_are_free
from pipette_opt.certify import CertifyParams, certify
from pipette_opt.certify.compiling import compile_kernels
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import NodeBlock, ParallelConfig, block_placement
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, prepare
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.slots import with_slots
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, simulate_solution
from pipette_opt.solver.open_families import JointLimits
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

GAP = 0.003
"""Proven gap at which a question is answered: far below what is known of times. Chosen."""

MIN_S = 0.3
"""Smallest number of seconds of one certificate, so that each question has a plan. Chosen."""

JOINT_SHARE, MIXED_JOINT_SHARE = 0.2, 0.4
"""Shares of a search's time for the joint model over all splits of layers, on equal and on unequal hosts. Chosen."""

MAX_SPARES, MAX_EXCHANGES = 4, 32
"""Idle hosts of which each is tried for a lost one, and hosts with which it changes places. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Searched:
    """
    A search over all hosts of a job.

    Parameters
    ----------
    best
        The best plan found.
    bound_s
        No plan on any of the hosts is faster.
    found
        The best plan of each question so far, which may serve others.
    """

    prepared: Prepared
    best: SimulatedSolution
    bound_s: float
    found: list[SimulatedSolution]


def search(
    instance: Instance,
    space: SearchSpace,
    first: FirstPlan | None,
    seconds: float,
    params: OptimizeParams,
    watcher: Watcher,
    like: Prepared | None = None,
) -> Searched:
    """
    The best plan found of a job in so many seconds, and the bound of all.

    Parameters
    ----------
    first
        A plan that is known.
    params
        Without the time limit.
    like
        A preparation of the same space for a job that is :func:`alike`.

    Raises
    ------
    InfeasibleError, InputError
        If nothing is legal, fits, or is found in time.
    """
    begun = watcher.elapsed_s

    def left_s() -> float:
        return seconds - (watcher.elapsed_s - begun)

    joint = None
    if like is None:
        share = JOINT_SHARE if len(instance.cluster.gpu_kinds) == 1 else MIXED_JOINT_SHARE
        joint = JointLimits(
            time_limit_s=share * seconds,
            workers=params.workers,
            seed=params.seed,
            to_beat_s=float("inf") if first is None else first.seconds,
        )
    prepared = prepare(
        instance,
        space,
        params.max_oom_risk,
        keep=lambda config: False,
        seconds_left=left_s,
        loading=watcher.loading_kernels,
        joint=joint,
        stop=watcher.stop,
        first=first,
        like=like,
        chooses_sizes=True,
    )
    if prepared.joined is None:
        prepared = replace(prepared, other_splits_s=_other_splits_s(prepared, left_s))
    with watcher.loading_kernels():
        compile_kernels(prepared, watcher.stop)
    beaten = None if prepared.pruned is None else prepared.pruned.first
    known = [] if beaten is None else _seated(prepared, beaten.config, beaten.block, [beaten.nodes])
    best, bound_s, proven_s = certified(prepared, known, left_s(), params, watcher)
    return Searched(prepared=replace(prepared, proven_s=proven_s), best=best, bound_s=bound_s, found=[best])


def _other_splits_s(prepared: Prepared, left_s: Callable[[], float]) -> float:
    """No plan that deals layers in another way than those that are listed is faster, seconds; infinite if none does."""
    space = prepared.space
    if not layers_are_free(prepared.instance, space):
        return float("inf")
    least = LeastTimes(prepared.instance, space)
    sizes = space.world_sizes or least.numbers if space.num_gpus is None else (space.num_gpus,)
    return min((least(size) if left_s() > 0 else least.at_peak_s(size) for size in sizes), default=float("inf"))


def alike(one: Instance, other: Instance) -> bool:
    """Whether what is legal and fits one job's equal hosts is and does so on as many or more of the other job's."""
    (gpu, *kinds), (like, *others) = one.cluster.gpu_kinds, other.cluster.gpu_kinds
    counts = [(cluster.gpus_per_node, cluster.intra_node_bytes_per_s) for cluster in (one.cluster, other.cluster)]
    same = (one.model, one.training, one.stack) == (other.model, other.training, other.stack)
    return same and not kinds and not others and gpu == like and counts[0] == counts[1]


def certified(
    prepared: Prepared, known: Sequence[SimulatedSolution], seconds: float, params: OptimizeParams, watcher: Watcher
) -> tuple[SimulatedSolution, float, dict[ParallelConfig, float]]:
    """The best plan of a problem, a bound of its plans, and one of the plans of each configuration that was built."""
    how = CertifyParams(time_limit_s=max(MIN_S, seconds), gap_limit=GAP, workers=params.workers, seed=params.seed)
    found = certify(prepared, known, how, stop=watcher.stop)
    simulated = [*known, *found.simulated]
    if not simulated:
        raise InfeasibleError("no plan was found in the time given; --time-limit gives it more.")
    if prepared.has_slots:
        simulated = with_slots(prepared.given, prepared.problem, simulated, 0, seconds, watcher.stop)
    bound_s = min(found.bound_s, prepared.other_splits_s)
    if prepared.joined is not None:
        bound_s = min(bound_s, prepared.joined.model.bound_s)
    return best_first(simulated)[0], bound_s, {config: reason.bound_s for config, reason in found.reasons.items()}


def _seated(
    prepared: Prepared, config: ParallelConfig, block: NodeBlock, grids: Sequence[IntArray]
) -> list[SimulatedSolution]:
    """Placements of a configuration, simulated; those that use links without a measurement are left out."""
    found = []
    for index, candidate in enumerate(prepared.problem.candidates):
        if (candidate.config, candidate.block) != (config, block):
            continue
        for nodes in grids:
            with contextlib.suppress(MissingLinkError):
                solution = Solution(candidate=index, nodes=nodes, objective_ticks=0)
                found.append(simulate_solution(prepared.instance, prepared.problem, solution))
    return found


def with_spares(prepared: Prepared, best: SimulatedSolution, barred: Sequence[int]) -> list[SimulatedSolution]:
    """
    The best plan with an idle host for each barred one, in its place or changed with another host's, the fastest.

    An idle host is idle as it is slow, so that its best place is seldom that of the host which is lost. None if no
    idle host has the memory.
    """
    config, block, nodes = best.candidate.config, best.candidate.block, best.nodes
    allowed = prepared.problem.allowed(best.candidate)
    simulated: list[SimulatedSolution] = []
    for node in barred:
        cells = np.argwhere(nodes == node)
        if not len(cells):
            continue
        cell = tuple(cells[0].tolist())
        idle = [one for one in np.flatnonzero(allowed.any(axis=0)).tolist() if one not in nodes][:MAX_SPARES]
        grids = []
        for spare in idle:
            for other in list(np.ndindex(*nodes.shape))[:MAX_EXCHANGES]:
                grid = nodes.copy()
                grid[cell], grid[other] = grid[other], spare
                if allowed[cell[0], grid[cell]] and allowed[other[0], spare]:
                    grids.append(grid)
        if not grids:
            return []
        placed = [(config, block_placement(config, block, grid)) for grid in grids]
        fastest = grids[int(estimate_many(prepared.instance, placed).argmin())]
        simulated = _seated(prepared, config, block, [fastest])
        if not simulated:
            return []
        nodes = simulated[0].nodes
    return simulated


def time_s(simulated: SimulatedSolution) -> float:
    """Seconds of an iteration."""
    return simulated.estimate.iteration_time_s
