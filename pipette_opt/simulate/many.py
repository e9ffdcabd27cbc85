"""
Iteration times of thousands of placed configurations.

Replicas do not interact before the reduction. So the replicas of all placements with an equal schedule are stacked, and
equal replicas are timed once.
"""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, P2PMode
from pipette_opt.costs.placed import KnownCosts, placed_batches
from pipette_opt.costs.times import PlacedBatch
from pipette_opt.parallel import ParallelConfig, Placement, microbatches_of
from pipette_opt.simulate.critical_path import walk_batches
from pipette_opt.simulate.estimate import batch_done
from pipette_opt.simulate.program import megatron_program
from pipette_opt.specs import Instance

_Shape = tuple[int, int, int, bool]
"""Number of stages, micro-batches and chunks, and overlap of sends, on which a schedule depends."""

_Members = tuple[IntArray, PlacedBatch]
"""Indices of placements in the result, and their times."""


def estimate_many(
    instance: Instance,
    placed: Sequence[tuple[ParallelConfig, Placement]],
    known: KnownCosts | None = None,
) -> FloatArray:
    """
    Return the iteration times of placed configurations in 1F1B, seconds, shape ``(len(placed),)``.

    Each equals that of :func:`~pipette_opt.simulate.estimate.estimate`; infinite if a placement uses a link that was
    not measured. Raises ``InputError`` if the batch size does not divide.

    Parameters
    ----------
    known
        Cache of the configurations' costs on this stack that do not depend on the placement; read and extended.
    """
    microbatches = np.array([microbatches_of(instance.training, config) for config, _ in placed], dtype=np.int64)
    return simulate_batches(placed_batches(instance, placed, known), microbatches, instance.p2p)


def simulate_batches(batches: Sequence[_Members], microbatches: IntArray, p2p: P2PMode) -> FloatArray:
    """
    Return the iteration times of placements in 1F1B, seconds, shape ``(num_placements,)``.

    Infinite if a placement uses a link that was not measured.

    Parameters
    ----------
    batches
        Times of placements, with their indices in the result; each index once.
    microbatches
        Number of micro-batches of each placement, shape ``(num_placements,)``.
    """
    by_shape: dict[_Shape, list[_Members]] = {}
    for members, batch in batches:
        _, chunks, pp, _ = batch.forward_s.shape
        linked = np.ones(batch.size, dtype=np.bool_)
        linked[list(batch.missing)] = False
        for m in np.unique(microbatches[members]).tolist():
            rows = np.flatnonzero(linked & (microbatches[members] == m))
            if len(rows):
                by_shape.setdefault((pp, m, chunks, batch.overlap_p2p), []).append((members[rows], batch.some(rows)))
    result = np.full(len(microbatches), np.inf)
    for shape, parts in by_shape.items():
        _simulate_into(result, shape, parts, p2p)
    return result


def _simulate_into(result: FloatArray, shape: _Shape, parts: Sequence[_Members], p2p: P2PMode) -> None:
    """Write the iteration times of placements with an equal schedule into ``result``."""
    pp, m, chunks, overlap_p2p = shape
    program = megatron_program(pp, m, chunks, p2p, overlap_p2p)
    walked = walk_batches(program, [batch for _, batch in parts], m)
    for (members, batch), walks in zip(parts, walked, strict=True):
        result[members] = batch_done(batch, walks).max(axis=1) + batch.optimizer_s
