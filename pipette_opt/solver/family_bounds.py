"""Bounds of one family by itself, before any model: whole layers in the time of a stage, and the work of all stages."""

from collections.abc import Sequence

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.costs.work import busy_share
from pipette_opt.problem.families import LayerFamily

MARGIN = 1e-6
"""Relative part of a bound that is given up, as bounds are computed in doubles and ticks."""

BISECTIONS = 14
"""Number of halvings of the interval in which the bound of a family lies: to 6e-5 of it."""


def family_bound_s(family: LayerFamily, hosts_of_kind: IntArray, to_beat_s: float = float("inf")) -> float:
    """
    No split of a family is faster: seconds, up to the time to beat; infinite if its layers have no room.

    The least time, to a bisection, in which the stages can hold all units: by the room of each stage
    (:func:`_room_in_time`), and by the work of all stages together (:func:`_share_in_time`).
    """
    if hosts_of_kind.sum() < family.grid[0] * family.hosts_per_row:
        return float("inf")
    pp, m = family.config.pipeline_model_parallel_size, family.num_microbatches
    if pp * int(family.most_units.max()) < family.num_units:
        return float("inf")
    rows = _rows_without(family, hosts_of_kind)

    def holds(total_s: float) -> bool:
        room = _room_in_time(family, total_s, rows)
        return room >= family.num_units and _share_in_time(family, total_s, hosts_of_kind) >= family.num_units

    slowest = float(family.layer_s.sum(axis=0).max())
    passes = m * family.config.num_chunks * (family.num_units * slowest + pp * float(family.fixed_s.sum(axis=0).max()))
    low, high = 0.0, 2.0 * passes + family.num_units * family.reduction_s + float(family.fixed_reduction_s.max())
    if not holds(high):
        return float("inf")
    if to_beat_s < high and not holds(to_beat_s - family.least_optimizer_s):
        return to_beat_s
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return min(low * (1 - MARGIN) + family.least_optimizer_s, to_beat_s)


def _rows_without(family: LayerFamily, hosts_of_kind: IntArray) -> list[tuple[list[int], int]]:
    """
    Kinds, the fastest first: those from some kind on, and how many rows more may have none of the kinds behind these.

    Rows that have none of the slower kinds use up hosts of the faster ones.
    """
    kinds = np.argsort(family.layer_s.sum(axis=0), kind="stable").tolist()
    able = np.minimum(np.cumsum(hosts_of_kind[kinds]) // family.hosts_per_row, family.grid[0])
    return [(kinds[place:], int(more)) for place, more in enumerate(np.diff(able, prepend=0).tolist())]


def _room_in_time(family: LayerFamily, total_s: float, rows: Sequence[tuple[list[int], int]]) -> int:
    """
    Units that all stages can hold so that each by itself is done in time.

    A stage does all its work and then reduces: all of it, or interleaved and beside compute the last part; or all of it
    from where the last chunk's gradients are made, when at most ``pp`` backwards of each chunk before are left. A row
    with hosts of several kinds is as slow as the slowest of them.
    """
    pp, chunks, m = family.config.pipeline_model_parallel_size, family.config.num_chunks, family.num_microbatches
    (forward, backward), fixed = family.layer_s[:, :, None], m * family.fixed_s.sum(axis=(0, 2))  # fixed: (kinds, pp)
    work = m * chunks * (forward + backward)
    overlaps, part = family.config.overlap_grad_reduce, 1.0
    if overlaps and chunks > 1:
        part = 1.0 / chunks
    reduced = fixed + part * family.fixed_reduction_s, work + part * family.reduction_s
    limits = [reduced]
    if overlaps and chunks == 1:  # the first stage's reduction may be over with its last backward
        limits = [(np.where(np.arange(pp) == 0, fixed, reduced[0]), np.where(np.arange(pp) == 0, work, reduced[1]))]
    elif overlaps:
        left = (chunks - 1) * pp
        early = fixed - pp * family.fixed_s[1, :, :-1].sum(axis=1) + family.fixed_reduction_s
        limits.append((early, np.maximum(work - left * backward, 0.0) + family.reduction_s))
    room = family.most_units
    for rest, unit in limits:
        within = np.floor((total_s - rest) / np.maximum(unit, 1e-300) * (1 + MARGIN))
        room = np.minimum(room, np.maximum(within, 0.0))
    by_row = room.reshape(len(room), family.grid[0], -1).sum(axis=2)
    units = 0.0
    for kinds, count in rows:
        units += float(np.sort(by_row[kinds].max(axis=0))[::-1][:count].sum())
    return int(units)


def _share_in_time(family: LayerFamily, total_s: float, hosts_of_kind: IntArray) -> float:
    """
    Units that all stages together have time for, as :meth:`~pipette_opt.costs.work.WorkBounds.of_any_split`.

    With the kinds of GPU that there are: the mean column has as many hosts of each kind as there are for a column, the
    fastest first, and works no longer than the slowest.
    """
    m, pp, chunks = family.num_microbatches, family.config.pipeline_model_parallel_size, family.config.num_chunks
    per_unit = family.layer_s.sum(axis=0) * chunks  # (kinds,)
    fixed = chunks * family.fixed_s.sum(axis=0).min()
    kinds = np.argsort(per_unit, kind="stable")
    rows = np.diff(np.minimum(np.cumsum(hosts_of_kind[kinds]) / family.hosts_per_row, family.grid[0]), prepend=0.0)
    most = int(family.most_units.max())
    left, units = total_s * busy_share(m, pp, chunks) - pp * fixed, 0.0
    for kind, count in zip(kinds.tolist(), (rows * family.block.stages).tolist(), strict=True):
        each = min(max(total_s / m - fixed, 0.0), most * per_unit[kind])
        work = min(count * each, max(left, 0.0))
        units += work / per_unit[kind]
        left -= work
    return units
