"""
Lower bound of a candidate configuration with the best hosts and links for every stage; needs no search, only a pass
over host pairs.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import PlacedTicks, path_work, placed_objective_ticks


def has_room(data: ProblemData, candidate: CandidateData) -> bool:
    """Return whether the hosts with enough memory suffice for all grid rows; rows that need more memory count first."""
    room = np.sort(data.allowed(candidate).sum(axis=1))
    width = candidate.num_cells // candidate.grid[0]
    return bool((room >= width * np.arange(1, len(room) + 1)).all())


def scarce_kinds(data: ProblemData, candidate: CandidateData) -> Iterator[IntArray]:
    """Yield sets of slow GPU types of which every placement uses at least one host, as the faster hosts are too few."""
    kinds = np.unique(data.kind_of_node)
    total = (candidate.forward_ticks + candidate.backward_ticks).sum(axis=1)[kinds]
    kinds = kinds[np.argsort(total, kind="stable")]
    somewhere = data.allowed(candidate).any(axis=0)
    for count in range(1, len(kinds)):
        if (np.isin(data.kind_of_node, kinds[:count]) & somewhere).sum() < candidate.num_cells:
            yield kinds[count:]


def optimistic_ticks(data: ProblemData, candidate: CandidateData) -> int:
    """
    Return a lower bound on the objective in integer ticks: the best host for every stage and the best link for every
    transfer.

    The bound is at least ``candidate.least_ticks``. It is ``UNUSABLE_TICKS`` if memory or links rule out every
    placement.
    """
    if not has_room(data, candidate):
        return UNUSABLE_TICKS
    pp, stage = candidate.num_stages, np.arange(candidate.num_stages)
    row = stage // candidate.tile.stages
    kinds = np.zeros((len(candidate.forward_ticks), candidate.grid[0]), dtype=np.bool_)
    np.logical_or.at(kinds, data.kind_of_node, data.allowed(candidate).T)
    usable = kinds[:, row]  # (kinds, pp)
    link = _best_link(candidate.p2p_ticks)
    inside = (row == np.roll(row, -1))[: candidate.num_links]
    send = np.where(inside, candidate.intra_p2p_ticks, link)[:, None]
    ring = candidate.ring_floor_ticks
    if candidate.ring_length > 1:
        classes = np.array([_best_link(ticks) for ticks in candidate.ring_ticks], dtype=np.int64)
        ring = np.maximum(ring, classes[candidate.ring_class])
    hop = [_best_link(ticks) for ticks in (candidate.tensor_forward_ticks, candidate.tensor_backward_ticks)]
    if (pp > 1 and candidate.grid[0] > 1 and link >= UNUSABLE_TICKS) or max(*hop, *ring.tolist()) >= UNUSABLE_TICKS:
        return UNUSABLE_TICKS
    placed = PlacedTicks(
        send_forward=send,
        send_backward=send,
        ring=ring,
        embedding=max(candidate.embedding_floor_ticks, _best_link(candidate.embedding_ticks)),
        path_work=best_path_work(candidate, usable, hop),
    )
    return max(candidate.least_ticks, placed_objective_ticks(candidate, placed))


def best_path_work(candidate: CandidateData, usable: BoolArray, hop: Sequence[int]) -> IntArray:
    """
    Return the least ticks of work on each path through the schedule, shape ``(num_paths, 1)``.

    Parameters
    ----------
    usable
        Mask of GPU types that each stage may use, shape ``(num_kinds, pp)``.
    hop
        Least ticks of one layer's tensor communication between hosts, forward and backward.
    """
    by_stage = np.where(usable, candidate.paths.work_ticks, UNUSABLE_TICKS).min(axis=1)  # (num_paths, pp)
    hops = [np.full((candidate.num_stages, 1), ticks, dtype=np.int64) for ticks in hop]
    return path_work(candidate.paths, by_stage[:, :, None], hops[0], hops[1])


def _best_link(ticks: IntArray) -> int:
    return int(ticks.min()) if ticks.size else 0
