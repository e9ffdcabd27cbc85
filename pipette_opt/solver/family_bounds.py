"""
Lower bound on a partition family (configurations that differ in layers per stage only), without a CP-SAT model.

An iteration time below the bound would leave too few layers: each path through the schedule then limits the layers of
the stages on it, and all limits together must hold the model's layers.
"""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_paths import family_paths, least_transfers_s
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.layer_model import LayerSplit, fewest_recomputed

FAMILY_MARGIN = 1e-6
"""Relative margin subtracted from a bound, as bounds are computed in doubles and in whole ticks. Chosen."""

HALVINGS = 14
"""Number of bisection steps for the bound of a partition family, which leave 6e-5 of the interval. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyBound:
    """
    Lower bound on the iteration time of a partition family.

    Parameters
    ----------
    seconds
        Lower bound on all partitions, limited to the time to beat; infinite if the layers do not fit into memory.
    split
        Partition near the bound that fits into memory; ``None`` if none was found or none is fast enough.
    """

    seconds: float
    split: LayerSplit | None = None


def load_kernel() -> None:
    """Compile the kernels of :func:`family_bound` if needed, by a call with the smallest possible partition family."""
    from pipette_opt.solver.family_kernel import least_time

    times, whole = np.ones((1, 1, 1)), np.ones((1, 1), dtype=np.int64)
    least_time(
        0.0, 2.0, 1, np.zeros(1), times, times, times, np.zeros((1, 1, 1), dtype=np.int64), whole,
        1, 1, np.ones(1, dtype=np.int64), -1, np.zeros((1, 1)), np.zeros((1, 1)), 0, whole.copy(),
        whole.copy(),
    )  # fmt: skip


def family_bound(
    family: LayerFamily,
    hosts_of_kind: IntArray,
    to_beat_s: float = float("inf"),
    counts: PathCounts | None = None,
    halvings: int = HALVINGS,
    nodes: int = 0,
    least_s: float = 0.0,
) -> FamilyBound:
    """
    Return the least time in which all layers fit, found by bisection.

    For a given time, every path limits each stage to the units (one layer in each chunk) for which the rest of the path
    leaves time. All stages together have to hold all units (:mod:`pipette_opt.solver.family_kernel`).

    Parameters
    ----------
    to_beat_s
        Time to beat, seconds; slower partitions are ignored.
    counts
        Paths of the schedule, such as critical paths; by default the paths that every schedule has.
    halvings
        Number of bisection steps; with 0, the bound only tells whether a partition may be faster than the time to beat.
    nodes
        Node limit of the search over the GPU types of all rows, for each bisection step; 0 for no search.
    least_s
        Known lower bound, seconds.
    """
    from pipette_opt.solver.family_kernel import least_time

    rows, per_row = family.grid[0], family.tile.stages
    order = np.argsort(family.layer_s.sum(axis=0), kind="stable")
    able = np.minimum(np.cumsum(hosts_of_kind[order]) // family.hosts_per_row, rows)
    pp, most = family.config.pipeline_model_parallel_size, np.ascontiguousarray(family.most_units[order])
    if able[-1] < rows or family.num_units < pp or int(most.max(axis=0).sum()) < family.num_units:
        return FamilyBound(seconds=float("inf"))
    paths = family_paths(family, plain_counts(*family.schedule) if counts is None else counts)
    base = least_transfers_s(family, paths.moved) + family.least_optimizer_s
    fixed, unit, again = (np.ascontiguousarray(ticks[:, order]) for ticks in paths[:3])
    spare = -1 if family.hosts_per_row == 1 else int(hosts_of_kind[order[0]]) - int(able[0]) * family.hosts_per_row
    extra = np.zeros((*most.shape, 1), dtype=np.int64)
    if family.recomputed is not None:
        extra = np.ascontiguousarray(np.maximum(family.recomputed.fewest()[order] - 1, 0))
    slowest = base + fixed.max(axis=1).sum(axis=1)
    slowest += family.num_units * (unit + again).max(axis=(1, 2))
    ends = (np.arange(rows) + 1) * per_row - 1
    moved = np.ascontiguousarray(paths.moved[:, ends] * float(rows > 1))
    links = family.link_s[np.ix_(order, order)]
    links = links - links[np.isfinite(links)].min(initial=np.inf) if np.isfinite(links).any() else np.zeros_like(links)
    slowest += moved.sum(axis=1) * links[np.isfinite(links)].max(initial=0.0)
    # Where every unit costs a path the same time, rounding alone could leave no room at exactly the upper end.
    slowest *= 1 + FAMILY_MARGIN
    least, room = np.zeros_like(most), np.zeros_like(most)
    seconds = least_time(
        least_s, min(float(slowest.max()), to_beat_s), halvings, base, fixed, unit, again, extra, most,
        family.num_units, per_row, able, spare, moved, links, nodes, least, room,
    )  # fmt: skip
    if not room.any():
        return FamilyBound(seconds=to_beat_s if to_beat_s < slowest.max() else float("inf"))
    seconds = min(seconds * (1 - FAMILY_MARGIN), to_beat_s)
    classes = _classes(room.reshape(len(room), rows, per_row).sum(axis=2), able)
    pool = np.repeat(order, hosts_of_kind[order])
    kinds = np.zeros((rows, len(order)), dtype=np.int64)
    for place, row in enumerate(np.argsort(classes, kind="stable").tolist()):
        hosts = pool[place * family.hosts_per_row : (place + 1) * family.hosts_per_row]
        kinds[row] = np.bincount(hosts, minlength=len(order))
    stages = np.arange(len(room[0]))
    kind = classes[stages // per_row]
    # A row of slow hosts may contain a faster host with less memory.
    held = kinds[stages // per_row].T > 0
    caps = np.where(held, family.most_units, family.num_units).min(axis=0)
    units = _dealt(family.num_units, room[kind, stages], caps, unit.max(axis=0)[kind, stages])
    if units is None:
        return FamilyBound(seconds=seconds)
    recomputed = fewest_recomputed(family, units, kinds)
    split = LayerSplit(units=units, kinds=kinds, bound_s=seconds, recomputed=recomputed)
    return FamilyBound(seconds=seconds, split=split)


def _classes(by_row: IntArray, able: IntArray) -> IntArray:
    """
    Return the slowest GPU type of each row, as an index in speed order; fast hosts go where they add the most units
    (layers in each chunk).
    """
    rows = by_row.shape[1]
    classes, taken = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    for place, count in enumerate(np.diff(able, prepend=0).tolist()):
        gain = by_row[place] - by_row[place + 1 :].max(axis=0, initial=0)
        rows_of_class = np.argsort(np.where(taken, -np.inf, gain))[::-1][:count]
        classes[rows_of_class], taken[rows_of_class] = place, True
    return classes


def _dealt(num_units: int, room: IntArray, caps: IntArray, unit_s: FloatArray) -> tuple[int, ...] | None:
    """
    Return the units (layers in each chunk) of each stage, near the limits of a bound and within memory; ``None`` if
    memory is too small.

    Parameters
    ----------
    room
        Number of units for which the bound leaves time on each stage, shape ``(pp,)``.
    caps
        Number of units that fit into the memory of every host of a stage, shape ``(pp,)``.
    unit_s
        Seconds of one unit on each stage, shape ``(pp,)``.
    """
    if caps.min() < 1 or caps.sum() < num_units:
        return None
    units = np.minimum(np.maximum(room, 1), caps)
    while units.sum() > num_units:  # the longest stage gives a unit away
        units[int((np.where(units > 1, units, 0) * unit_s).argmax())] -= 1
    while units.sum() < num_units:
        units[int(np.where(units < caps, (units + 1) * unit_s, np.inf).argmin())] += 1
    return tuple(units.tolist())
