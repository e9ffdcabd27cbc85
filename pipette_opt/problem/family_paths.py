"""Paths through a family's schedule, as seconds that are linear in the layers of its stages."""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts


class FamilyPaths(NamedTuple):
    """
    Lower bounds of an iteration, one a row.

    Parameters
    ----------
    fixed_s
        Seconds of each stage on each GPU kind without its layers, shape ``(num_paths, num_kinds, pp)``.
    unit_s
        Seconds per unit of the stage, same shape.
    again_s
        Seconds per unit recomputed beside the first, same shape.
    moved
        Transfers between each stage and the next (cyclic), shape ``(num_paths, pp)``.
    """

    fixed_s: FloatArray
    unit_s: FloatArray
    again_s: FloatArray
    moved: IntArray


def family_paths(family: LayerFamily, counts: PathCounts) -> FamilyPaths:
    """
    Return paths with the given counts, each with the reduction that follows it.

    Parts of a reduction beyond the first follow a path only with interleaving and overlap. Without interleaving, the
    first stage's reduction may end with its last backward, so its paths also count without a reduction.
    """
    overlaps, chunks = family.config.overlap_grad_reduce, family.config.num_chunks
    if not overlaps or chunks == 1:
        counts = counts.take(counts.parts == 1)
    again = family.recompute_path_s(family.before_reduction(counts))
    found = FamilyPaths(*family.reduced_path_s(counts), again, counts.up + counts.down)
    if not overlaps or chunks > 1:
        return found
    own = counts.take(counts.stage == 0)
    fixed, unit = family.path_s(own)
    fixed[:, :, 0] += family.after_s(own)[:, None]
    alone = FamilyPaths(fixed, unit, family.recompute_path_s(own), own.up + own.down)
    return FamilyPaths(*(np.concatenate(both) for both in zip(found, alone, strict=True)))


def least_transfers_s(family: LayerFamily, moved: IntArray) -> FloatArray:
    """Seconds of the transfers of each path over the best links of their kind, shape ``(num_paths,)``."""
    rows = np.arange(moved.shape[1]) // family.block.stages
    inside = rows == np.roll(rows, -1)
    sent = moved[:, ~inside].sum(axis=1)
    across = sent * np.where(np.isfinite(family.link_s), family.link_s, np.inf).min() if sent.any() else 0.0 * sent
    seconds: FloatArray = moved[:, inside].sum(axis=1) * family.inside_s + np.where(np.isfinite(across), across, 0.0)
    return seconds if family.far_after < 0 else seconds + moved[:, family.far_stage] * family.far_s
