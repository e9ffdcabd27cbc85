"""
Before anything expensive: configurations that cannot win, by a bound that looks at no reduction and no pair of hosts.

The bound is a lower form over the best links without reductions of gradients. It holds for every placement, and for
every choice of what is sent beside compute, so configurations that differ only in that share it. A plan that is
judged on the hosts as they are listed gives the time to beat.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.build import FittingCandidate, build_problem_data
from pipette_opt.errors import MissingLinkError
from pipette_opt.estimator.estimate import estimate
from pipette_opt.optimistic import optimistic_ticks
from pipette_opt.parallel import NodeBlock, ParallelConfig, block_placement
from pipette_opt.problem import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.specs import Instance
from pipette_opt.types import IntArray

MOST_JUDGED = 24
"""Configurations judged on the listed hosts to find a time to beat, those with the least bounds."""

KEPT = 12
"""Configurations kept in any case, those with the least bounds: the next best plans are among them."""

UNUSABLY_SLOW = 100.0
"""Of its own bound; a plan slower than this uses links that no search would use, and is no time to beat."""

MARGIN = 1e-9
"""Relative; given back from bounds that are computed in doubles."""


def without_overlap(config: ParallelConfig) -> ParallelConfig:
    """The configuration that sends nothing beside compute; what shares it has the same memory and the same bound."""
    if not config.overlap_grad_reduce:
        return config
    return replace(config, overlap_grad_reduce=False, overlap_param_gather=False, ddp_bucket_size=None)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FirstPlan:
    """A configuration on the hosts as they are listed, and its judged time."""

    config: ParallelConfig
    block: NodeBlock
    nodes: IntArray
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pruned:
    """
    What the bound leaves.

    Parameters
    ----------
    kept
        Configurations that may win, and the next best ones.
    bounds_s
        No plan of any choice of overlap is faster; by configuration without overlap; infinite if none can be placed.
    ruled_out
        Configurations that are not kept.
    bound_s
        No plan of those is faster; infinite if there is none.
    first
        The time to beat; ``None`` if nothing was judged.
    """

    kept: tuple[FittingCandidate, ...]
    bounds_s: Mapping[ParallelConfig, float]
    ruled_out: int
    bound_s: float
    first: FirstPlan | None


def prune(
    instance: Instance,
    fitting: Sequence[FittingCandidate],
    capacity_bytes: IntArray,
    keep: Callable[[ParallelConfig], bool] = lambda config: False,
) -> Pruned:
    """
    Leave out what cannot be faster than a plan on the listed hosts.

    Parameters
    ----------
    keep
        Says which configurations are kept whatever their bound.
    """
    variants: dict[ParallelConfig, list[FittingCandidate]] = {}
    for one in fitting:
        variants.setdefault(without_overlap(one.config), []).append(one)
    alone = [FittingCandidate(config=base, need_bytes=members[0].need_bytes) for base, members in variants.items()]
    data = build_problem_data(instance, alone, capacity_bytes, lower_form=True, reductions=False)
    bounds = dict.fromkeys(variants, float("inf"))
    packings = sorted(_bounded(data), key=lambda pair: pair[0])
    for seconds, candidate in packings:
        bounds[candidate.config] = min(bounds[candidate.config], seconds)
    first = _first_plan(instance, data, packings, variants)
    to_beat = float("inf") if first is None else first.seconds
    enough = sorted(bounds.values())[:KEPT][-1]
    kept: list[FittingCandidate] = []
    ruled_out, bound_s = 0, float("inf")
    for base, members in variants.items():
        if bounds[base] < to_beat or bounds[base] <= enough:
            kept += members
            continue
        chosen = [one for one in members if keep(one.config)]
        kept += chosen
        ruled_out += len(members) - len(chosen)
        bound_s = min(bound_s, bounds[base])
    return Pruned(kept=tuple(kept), bounds_s=bounds, ruled_out=ruled_out, bound_s=bound_s, first=first)


def _bounded(data: ProblemData) -> Iterator[tuple[float, CandidateData]]:
    """Each packing with the least time of its placements, if it has any."""
    for candidate in data.candidates:
        ticks = optimistic_ticks(data, candidate)
        if ticks < UNUSABLE_TICKS:
            yield ticks * data.tick_s * (1 - MARGIN), candidate


def _first_plan(
    instance: Instance,
    data: ProblemData,
    packings: Sequence[tuple[float, CandidateData]],
    variants: Mapping[ParallelConfig, Sequence[FittingCandidate]],
) -> FirstPlan | None:
    """The fastest of the most promising packings, each choice of overlap, on the hosts as they are listed."""
    best: FirstPlan | None = None
    for bound_s, candidate in packings[:MOST_JUDGED]:
        if best is not None and bound_s >= best.seconds:
            break
        nodes = listed_hosts(data, candidate)
        if nodes is None:
            continue
        placement = block_placement(candidate.config, candidate.block, nodes)
        for one in variants[candidate.config]:
            try:
                seconds = estimate(instance, one.config, placement).iteration_time_s
            except MissingLinkError:
                break
            if seconds < min(UNUSABLY_SLOW * bound_s, float("inf") if best is None else best.seconds):
                best = FirstPlan(config=one.config, block=candidate.block, nodes=nodes, seconds=seconds)
    return best


def listed_hosts(data: ProblemData, candidate: CandidateData) -> IntArray | None:
    """The first hosts listed that have the memory, row by row; ``None`` if that leaves a row without."""
    allowed, free = data.allowed(candidate), np.ones(data.num_nodes, dtype=np.bool_)
    rows, width = candidate.grid[0], candidate.num_cells // candidate.grid[0]
    nodes = np.empty((rows, width), dtype=np.int64)
    for row in np.argsort(allowed.sum(axis=1), kind="stable").tolist():
        able = np.flatnonzero(allowed[row] & free)[:width]
        if len(able) < width:
            return None
        nodes[row] = able
        free[able] = False
    return nodes.reshape(candidate.grid)
