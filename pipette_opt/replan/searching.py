"""Short searches that start from a known plan, for ``whatif`` and ``recommend``."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InfeasibleError, MissingLinkError
from pipette_opt.base.types import IntArray
from pipette_opt.candidates import SearchSpace, layers_are_free
from pipette_opt.certify.budget import joint_limits
from pipette_opt.certify.first_plans import begin
from pipette_opt.certify.rounds import certify
from pipette_opt.certify.state import SearchState
from pipette_opt.optimize import OptimizeParams
from pipette_opt.parallel import HostTile, ParallelConfig, tile_placement
from pipette_opt.plans.clock import Clock
from pipette_opt.plans.watcher import Watcher
from pipette_opt.prepare import Prepared, Question, prunes
from pipette_opt.problem.solution import Solution
from pipette_opt.simulate.least_times import LeastTimes
from pipette_opt.simulate.many import estimate_many
from pipette_opt.simulate.slots import with_slots
from pipette_opt.simulate.solutions import SimulatedSolution, best_first, simulate_solution
from pipette_opt.solver.pruning import FirstPlan
from pipette_opt.specs import Instance

GAP = 0.003
"""Proven gap at which a search ends, far below the error of predicted times. Chosen."""

MIN_S = 0.3
"""Minimum seconds of a search, so that each question gets a plan. Chosen."""

MAX_SPARES, MAX_EXCHANGES = 4, 32
"""Maximum number of idle hosts tried for a lost host, and of exchanges of each with another host. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Searched:
    """
    A finished search over all hosts of a job.

    Parameters
    ----------
    found
        The best plans found so far for questions about this job; starting points for later questions.
    outside_s
        Lower bound on the plans that the time limit left out of the search space; infinite if it left out none.
    """

    state: SearchState
    best: SimulatedSolution
    found: list[SimulatedSolution]
    outside_s: float = float("inf")

    @property
    def prepared(self) -> Prepared:
        """Problem of the search."""
        return self.state.prepared

    @property
    def bound_s(self) -> float:
        """Lower bound, in seconds, on the time of every plan of the whole space on these hosts."""
        return min(self.state.bound_s, self.outside_s)


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
    Return the best plan found for a job in ``seconds``, and a lower bound on all plans.

    Parameters
    ----------
    first
        A known plan to start from, or ``None``.
    params
        Settings of the search; ``seconds`` replaces its time limit.
    like
        Prepared problem of the same search space for a job that is :func:`alike`; its results are reused.

    Raises
    ------
    InfeasibleError, InputError
        If no configuration is legal and fits in memory, or no plan is found in time.
    """
    clock, joint = Clock(watcher=watcher, is_quiet=True).after(seconds), None
    if like is None:
        to_beat_s = float("inf") if first is None else first.seconds
        joint = joint_limits(instance, replace(params, to_beat_s=to_beat_s), clock)
    question = Question(
        instance, space, params.max_oom_risk, keep=prunes, joint=joint, first=first, like=like, chooses_sizes=True
    )
    state = begin(question, replace(params, gap_limit=GAP, to_beat_s=float("inf")), clock)
    if state.prepared.joined is None:
        state.prepared = replace(state.prepared, other_splits_s=_other_splits_s(state.prepared, clock))
    best = certified(state)
    outside_s = _least_s(instance, space) if state.prepared.space.narrowed else float("inf")
    return Searched(state=state, best=best, found=[best], outside_s=outside_s)


def without_hosts(
    searched: Searched, barred: Sequence[int], seconds: float, known: Callable[[Prepared], list[SimulatedSolution]]
) -> SearchState:
    """
    Return a search of ``seconds`` for the same job without the barred hosts; the bounds on all hosts hold there too.

    Parameters
    ----------
    known
        Function from the problem without these hosts to plans to start from.
    """
    before = searched.state
    capacity = before.data.capacity_mib.copy()
    capacity[list(barred)] = -1
    fewer = replace(
        before.prepared,
        problem=replace(before.data, capacity_mib=capacity),
        joined=None,
        other_splits_s=before.other_splits_s,
    )
    return SearchState(fewer, known(fewer), before.params, before.clock.after(seconds), before=before)


def _other_splits_s(prepared: Prepared, clock: Clock) -> float:
    """
    Return a lower bound, in seconds, on plans with layer splits other than the enumerated ones.

    Infinite if the search space allows no other splits.
    """
    space = prepared.space
    if not layers_are_free(prepared.instance, space):
        return float("inf")
    least = LeastTimes(prepared.instance, space)
    sizes = space.world_sizes or least.numbers if space.num_gpus is None else (space.num_gpus,)
    return min((least.at_peak_s(size) if clock.is_over else least(size) for size in sizes), default=float("inf"))


def _least_s(instance: Instance, space: SearchSpace) -> float:
    """Return a lower bound on every plan of a space, by compute alone, seconds."""
    least = LeastTimes(instance, space)
    found_s = float("inf")
    for size in space.world_sizes or (least.numbers if space.num_gpus is None else (space.num_gpus,)):
        if least.at_peak_s(size) >= found_s:
            break  # fewer GPUs take longer at their peak
        found_s = min(found_s, least(size))
    return found_s


def alike(instance: Instance, other: Instance) -> bool:
    """
    Return whether legality and memory results for ``instance`` also hold for ``other``.

    True if both jobs have equal hosts of the same GPU type, the same model, training settings and stack.
    """
    (gpu, *kinds), (like, *others) = instance.cluster.gpu_kinds, other.cluster.gpu_kinds
    counts = [(cluster.gpus_per_node, cluster.intra_node_bytes_per_s) for cluster in (instance.cluster, other.cluster)]
    same = (instance.model, instance.training, instance.stack) == (other.model, other.training, other.stack)
    return same and not kinds and not others and gpu == like and counts[0] == counts[1]


def certified(state: SearchState) -> SimulatedSolution:
    """Bound and place the configurations of a search, and return its best plan on the hosts as given."""
    slots_s, prepared = state.clock.left_s, state.prepared
    state.clock = state.clock.after(max(MIN_S, slots_s))
    certify(state)
    simulated = state.simulated
    if not simulated:
        raise InfeasibleError("no plan was found in the time limit; give more time with --time-limit.")
    if prepared.has_slots:
        simulated = with_slots(prepared.given, prepared.problem, simulated, 0, state.clock.after(slots_s))
    return best_first(simulated)[0]


def _seated(
    prepared: Prepared, config: ParallelConfig, tile: HostTile, grids: Sequence[IntArray]
) -> list[SimulatedSolution]:
    """Return simulated placements of a configuration; placements with unmeasured links are left out."""
    found = []
    for index, candidate in enumerate(prepared.problem.candidates):
        if (candidate.config, candidate.tile) != (config, tile):
            continue
        for nodes in grids:
            with contextlib.suppress(MissingLinkError):
                solution = Solution(candidate=index, nodes=nodes, objective_ticks=0)
                found.append(simulate_solution(prepared.instance, prepared.problem, solution))
    return found


def with_spares(prepared: Prepared, best: SimulatedSolution, barred: Sequence[int]) -> list[SimulatedSolution]:
    """
    Return the fastest variant of a plan in which an idle host replaces each barred host; empty if memory forbids it.

    The idle host takes the barred host's place, or that of another host which moves there: idle hosts are usually slow,
    so the barred host's place is rarely the best.
    """
    config, tile, nodes = best.candidate.config, best.candidate.tile, best.nodes
    allowed = prepared.problem.allowed(best.candidate)
    simulated: list[SimulatedSolution] = []
    for node in barred:
        cells = np.argwhere(nodes == node)
        if not len(cells):
            continue
        cell = tuple(cells[0].tolist())
        idle = [node for node in np.flatnonzero(allowed.any(axis=0)).tolist() if node not in nodes][:MAX_SPARES]
        grids = []
        for spare in idle:
            for other in list(np.ndindex(*nodes.shape))[:MAX_EXCHANGES]:
                grid = nodes.copy()
                grid[cell], grid[other] = grid[other], spare
                if allowed[cell[0], grid[cell]] and allowed[other[0], spare]:
                    grids.append(grid)
        if not grids:
            return []
        placed = [(config, tile_placement(config, tile, grid)) for grid in grids]
        fastest = grids[int(estimate_many(prepared.instance, placed).argmin())]
        simulated = _seated(prepared, config, tile, [fastest])
        if not simulated:
            return []
        nodes = simulated[0].nodes
    return simulated


def time_s(simulated: SimulatedSolution) -> float:
    """Return the simulated seconds of an iteration."""
    return simulated.estimate.iteration_time_s
