"""What transfers and reductions cost between different hosts, as the searches of a grid read them."""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.bounds import least_embedding
from pipette_opt.solver.rows.costs import NEVER


def as_ints(values: object) -> IntArray:
    """As a contiguous array of 64-bit integers."""
    return np.ascontiguousarray(values, dtype=np.int64)


def transfers(candidate: CandidateData, *, blocking: bool) -> tuple[IntArray, IntArray, IntArray]:
    """
    Transfers between different hosts, three arrays ``(N, N)``; ``NEVER`` where a direction is missing.

    There alone; there and back; what a period counts (the slower direction if sends are blocking, else both).
    """
    there, home = _apart(candidate.p2p_ticks), _apart(candidate.p2p_ticks.T)
    missing = np.maximum(there, home) >= NEVER
    both = np.where(missing, NEVER, there + home)
    wait = np.where(missing, NEVER, np.maximum(there, home)) if blocking else both
    return np.where(missing, NEVER, there), both, wait


def ring_hops(candidate: CandidateData, stage: int) -> IntArray:
    """Reduction of a stage by ring hop between different hosts, shape ``(N, N)``."""
    floor = int(candidate.ring_floor_ticks[stage])
    if candidate.grid[1] == 1:
        return np.full(candidate.p2p_ticks.shape, floor, dtype=np.int64)
    return np.maximum(_apart(candidate.ring_ticks[candidate.ring_class[stage]]), floor)


def after_reductions(candidate: CandidateData, watched: IntArray) -> IntArray:
    """What follows the reduction of each watched stage at least, shape ``(W,)``."""
    after = np.full(len(watched), candidate.optimizer_ticks, dtype=np.int64)
    after[(watched == 0) | (watched == candidate.num_stages - 1)] += least_embedding(candidate)
    return after


def _apart(ticks: IntArray) -> IntArray:
    apart = np.array(ticks, dtype=np.int64)
    np.fill_diagonal(apart, NEVER)
    return apart
