"""Placement problem of one candidate configuration with classes of similar hosts in place of hosts."""

from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import PlacedTicks, place
from pipette_opt.solver.class_assignment.twins import HostClasses


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Merged:
    """
    Relaxed placement problem of one candidate configuration.

    Parameters
    ----------
    data
        Problem with this candidate only. Its hosts are classes, with the least costs of their members.
    classes
        Partition of the hosts into classes.
    """

    data: ProblemData
    classes: HostClasses

    @property
    def candidate(self) -> CandidateData:
        """Candidate configuration with link costs between classes."""
        return self.data.candidates[0]


def merge(data: ProblemData, candidate: CandidateData, classes: HostClasses, tolerance: float = 0.0) -> Merged:
    """
    Return the relaxed problem with classes of hosts; members have one GPU type, and memory for the same grid rows.

    Parameters
    ----------
    tolerance
        Relative difference up to which costs count as equal, so that noise does not make racks different.
    """
    missing = np.maximum(candidate.p2p_ticks, candidate.p2p_ticks.T) >= UNUSABLE_TICKS

    def least(ticks: IntArray) -> IntArray:
        return merge_levels(block_minima(ticks, classes), tolerance) if ticks.size else ticks

    first = np.unique(classes.of_host, return_index=True)[1]
    capacity = np.zeros(classes.number, dtype=np.int64)
    np.maximum.at(capacity, classes.of_host, data.capacity_mib)
    merged = replace(
        candidate,
        p2p_ticks=least(np.where(missing, UNUSABLE_TICKS, candidate.p2p_ticks)),
        ring_ticks=np.stack([least(ticks) for ticks in candidate.ring_ticks]),
        ring_level=least(candidate.ring_level),
        tensor_forward_ticks=least(candidate.tensor_forward_ticks),
        tensor_backward_ticks=least(candidate.tensor_backward_ticks),
        embedding_ticks=least(candidate.embedding_ticks),
    )
    return Merged(
        data=replace(data, candidates=(merged,), kind_of_node=data.kind_of_node[first], capacity_mib=capacity),
        classes=classes,
    )


def place_classes(merged: Merged, pattern: IntArray) -> PlacedTicks:
    """Return the times of a pattern (class of each cell); two cells of one class count as different hosts."""
    cells = np.arange(pattern.size).reshape(pattern.shape)
    flat = pattern.ravel()
    relaxed = merged.candidate

    def of_cells(ticks: IntArray) -> IntArray:
        return ticks[..., flat[:, None], flat[None, :]] if ticks.size else ticks

    candidate = replace(
        relaxed,
        p2p_ticks=of_cells(relaxed.p2p_ticks),
        ring_ticks=of_cells(relaxed.ring_ticks),
        ring_level=of_cells(relaxed.ring_level),
        tensor_forward_ticks=of_cells(relaxed.tensor_forward_ticks),
        tensor_backward_ticks=of_cells(relaxed.tensor_backward_ticks),
        embedding_ticks=of_cells(relaxed.embedding_ticks),
    )
    data = replace(merged.data, candidates=(candidate,), kind_of_node=merged.data.kind_of_node[flat])
    return place(data, candidate, cells)


def block_minima(ticks: IntArray, classes: HostClasses) -> IntArray:
    """Return the least cost from a host of a class to another of each class, ticks, shape ``(classes, classes)``."""
    apart = np.array(ticks, dtype=np.int64)
    np.fill_diagonal(apart, UNUSABLE_TICKS)
    order = np.argsort(classes.of_host, kind="stable")
    starts = np.searchsorted(classes.of_host[order], np.arange(classes.number))
    least = np.minimum.reduceat(np.minimum.reduceat(apart[np.ix_(order, order)], starts, axis=0), starts, axis=1)
    return np.minimum(least, UNUSABLE_TICKS)


def merge_levels(ticks: IntArray, tolerance: float) -> IntArray:
    """Return costs in which values within the relative ``tolerance`` of each other are lowered to the least of them."""
    values = np.unique(ticks)
    levels, level = np.empty_like(values), -1
    for number, value in enumerate(values.tolist()):
        if level < 0 or value > level * (1 + tolerance):
            level = value
        levels[number] = level
    merged: IntArray = levels[np.searchsorted(values, ticks)]
    return merged
