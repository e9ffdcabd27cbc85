"""Paths through the schedule of a partition family, in seconds that are linear in the layers per stage."""

from typing import NamedTuple

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts


class FamilyPaths(NamedTuple):
    """
    Lower bounds on the iteration time, one for each path (first axis).

    A unit is one layer in each chunk of a stage.

    Parameters
    ----------
    fixed_s
        Seconds on each stage and GPU type with zero units, shape ``(num_paths, num_kinds, pp)``.
    unit_s
        Seconds that each unit of a stage adds, shape ``(num_paths, num_kinds, pp)``.
    again_s
        Seconds that each recomputed unit beyond the first adds, shape ``(num_paths, num_kinds, pp)``.
    moved
        Number of transfers between each stage and the next (cyclic), both directions, shape ``(num_paths, pp)``.
    """

    fixed_s: FloatArray
    unit_s: FloatArray
    again_s: FloatArray
    moved: IntArray


def family_paths(family: LayerFamily, counts: PathCounts) -> FamilyPaths:
    """
    Return the linear lower bounds of the given paths, each with the reduction that follows its last backward.

    Only interleaving with overlap lets several parts of a reduction follow a path. With overlap but no interleaving,
    the first stage's reduction may end with its last backward, so its paths are also returned without a reduction.
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
    """Return the least seconds of the transfers of each path, over the best links, shape ``(num_paths,)``."""
    rows = np.arange(moved.shape[1]) // family.tile.stages
    inside = rows == np.roll(rows, -1)
    sent = moved[:, ~inside].sum(axis=1)
    across = sent * np.where(np.isfinite(family.link_s), family.link_s, np.inf).min() if sent.any() else 0.0 * sent
    seconds: FloatArray = moved[:, inside].sum(axis=1) * family.inside_s + np.where(np.isfinite(across), across, 0.0)
    return seconds if family.far_after < 0 else seconds + moved[:, family.far_stage] * family.far_s
