"""What work, transfers and reductions cost on and between hosts, as the search of a grid reads them."""

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.solver.bounds import least_embedding

NEVER = np.int64(UNUSABLE_TICKS)
"""Ticks of what is impossible."""


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


def watched_stages(candidate: CandidateData) -> IntArray:
    """Of stages of a row with equal rings the first ends last; the last stage may have tied embeddings to reduce."""
    rows = np.arange(candidate.num_stages) // candidate.block.stages
    keys = list(zip(rows.tolist(), candidate.ring_class.tolist(), candidate.ring_floor_ticks.tolist(), strict=True))
    tied = {candidate.num_stages - 1} if candidate.has_tied_stages else set()
    return np.array([stage for stage, key in enumerate(keys) if key not in keys[:stage] or stage in tied])


def end_parts(
    candidate: CandidateData, kinds: IntArray, both: IntArray, there: IntArray, stage: int
) -> tuple[IntArray, IntArray]:
    """
    Round trip minus what the stages before ``stage`` still do, by hosts ``(P, N)`` and transfers ``(P - 1, N, N)``.

    Stages from ``stage`` on count forward and backward, transfers from there on both ways; those before only there.
    """
    P, stages = candidate.grid[0], candidate.block.stages
    work = candidate.forward_ticks + candidate.backward_ticks
    work = np.where(np.arange(candidate.num_stages) < stage, candidate.forward_ticks, work)
    node = work[kinds].reshape(len(kinds), P, stages).sum(axis=2).T
    inner = np.arange(candidate.num_stages - 1)
    inner = inner[inner // stages == (inner + 1) // stages]
    node = (
        node
        + np.bincount(
            inner // stages, weights=np.where(inner >= stage, 2, 1) * candidate.intra_p2p_ticks, minlength=P
        ).astype(np.int64)[:, None]
    )
    boundary = (np.arange(P - 1) + 1) * stages - 1
    arc = np.where((boundary >= stage)[:, None, None], both, there).reshape(P - 1, len(kinds), len(kinds))
    return node, arc


def mean_parts(
    data: ProblemData, candidate: CandidateData, kinds: IntArray, pair: IntArray
) -> tuple[IntArray, IntArray]:
    """Sum of what a column's stages take in a period, by hosts ``(P, N)`` and transfers ``(P - 1, N, N)``."""
    P, stages = candidate.grid[0], candidate.block.stages
    work = candidate.forward_ticks + candidate.backward_ticks
    node = work[kinds].reshape(len(kinds), P, stages).sum(axis=2).T + 2 * (stages - 1) * candidate.intra_p2p_ticks
    # A blocking stage waits for both neighbours, so a transfer is in two terms; else both directions are in one.
    counted = 2 * np.minimum(pair, NEVER) if data.p2p == "blocking" else pair
    return node, np.broadcast_to(counted, (P - 1, *pair.shape))


def is_grid(candidate: CandidateData) -> bool:
    """Whether a candidate has a closed form, tensor groups inside hosts, and more than one host."""
    return candidate.exact and candidate.grid[2] == 1 and candidate.num_cells > 1
