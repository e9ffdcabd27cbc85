"""Bounds of one family by itself, before any model: what the paths through its schedule leave to its stages."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.family_paths import family_paths, least_transfers_s
from pipette_opt.problem.path_counts import PathCounts, plain_counts

MARGIN = 1e-6
"""Relative part of a bound that is given up, as bounds are computed in doubles and ticks."""

HALVINGS = 14
"""Number of halvings of the interval in which the bound of a family lies: to 6e-5 of it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FamilyBound:
    """
    How fast a family may be by itself.

    Parameters
    ----------
    seconds
        No split of it is faster, up to the time to beat; infinite if its layers have no room.
    units, kinds
        A split that comes near to it, and the hosts of each kind of GPU in each grid row, as in
        :class:`~pipette_opt.solver.layer_model.LayerSplit`; ``None`` if no split is faster than the time to beat.
    """

    seconds: float
    units: tuple[int, ...] | None = None
    kinds: IntArray | None = None


def load_kernel() -> None:
    """Compile what :func:`family_bound` calls, if that was not done before: a single stage of a single unit."""
    from pipette_opt.solver.family_kernel import least_time

    times, whole = np.ones((1, 1, 1)), np.ones((1, 1), dtype=np.int64)
    least_time(
        0.0, 2.0, 1, np.zeros(1), times, times, times, np.zeros((1, 1, 1), dtype=np.int64), whole,
        1, 1, np.ones(1, dtype=np.int64), -1, whole.copy(), whole.copy(),
    )  # fmt: skip


def family_bound(
    family: LayerFamily,
    hosts_of_kind: IntArray,
    to_beat_s: float = float("inf"),
    counts: PathCounts | None = None,
    halvings: int = HALVINGS,
) -> FamilyBound:
    """
    The least time in which all units have room, to a bisection.

    Every path leaves a stage no more units than what the path takes elsewhere at least, and all stages together have to
    hold all units (:mod:`pipette_opt.solver.family_kernel`).

    Parameters
    ----------
    counts
        Paths of the schedule, of the judge's critical ones; those that every schedule has by default.
    halvings
        Of the interval in which the bound lies; 0 only asks whether a split may be faster than the time to beat.
    """
    from pipette_opt.solver.family_kernel import least_time

    rows, per_row = family.grid[0], family.block.stages
    order = np.argsort(family.layer_s.sum(axis=0), kind="stable")
    able = np.minimum(np.cumsum(hosts_of_kind[order]) // family.hosts_per_row, rows)
    pp, most = family.config.pipeline_model_parallel_size, np.ascontiguousarray(family.most_units[order])
    if able[-1] < rows or family.num_units < pp or int(most.max(axis=0).sum()) < family.num_units:
        return FamilyBound(seconds=float("inf"))
    paths = family_paths(family, plain_counts(*family.schedule) if counts is None else counts)
    base = least_transfers_s(family, paths.moved) + family.least_optimizer_s
    fixed, unit, again = (np.ascontiguousarray(one[:, order]) for one in paths[:3])
    spare = -1 if family.hosts_per_row == 1 else int(hosts_of_kind[order[0]]) - int(able[0]) * family.hosts_per_row
    extra = np.zeros((*most.shape, 1), dtype=np.int64)
    if family.recomputed is not None:
        extra = np.ascontiguousarray(np.maximum(family.recomputed.fewest()[order] - 1, 0))
    slowest = base + fixed.max(axis=1).sum(axis=1)
    slowest += family.num_units * (unit + again).max(axis=(1, 2))
    # Where every unit costs a path the same, rounding alone would leave no room in exactly that time.
    slowest *= 1 + MARGIN
    least, room = np.zeros_like(most), np.zeros_like(most)
    seconds = least_time(
        0.0, min(float(slowest.max()), to_beat_s), halvings, base, fixed, unit, again, extra, most,
        family.num_units, per_row, able, spare, least, room,
    )  # fmt: skip
    if not room.any():
        return FamilyBound(seconds=to_beat_s if to_beat_s < slowest.max() else float("inf"))
    units, classes = _dealt(family, room, unit.max(axis=0), able)
    pool = np.repeat(order, hosts_of_kind[order])
    kinds = np.zeros((rows, len(order)), dtype=np.int64)
    for place, row in enumerate(np.argsort(classes, kind="stable").tolist()):
        hosts = pool[place * family.hosts_per_row : (place + 1) * family.hosts_per_row]
        kinds[row] = np.bincount(hosts, minlength=len(order))
    return FamilyBound(seconds=min(seconds * (1 - MARGIN), to_beat_s), units=units, kinds=kinds)


def _dealt(family: LayerFamily, room: IntArray, unit: np.ndarray, able: IntArray) -> tuple[tuple[int, ...], IntArray]:
    """All units dealt within the room that is left, and the slowest kind of each row, by its place."""
    rows, per_row = family.grid[0], family.block.stages
    by_row = room.reshape(len(room), rows, per_row).sum(axis=2)
    classes, taken = np.zeros(rows, dtype=np.int64), np.zeros(rows, dtype=np.bool_)
    for place, count in enumerate(np.diff(able, prepend=0).tolist()):
        gain = by_row[place] - by_row[place + 1 :].max(axis=0, initial=0)
        some = np.argsort(np.where(taken, -np.inf, gain))[::-1][:count]
        classes[some], taken[some] = place, True
    stages = np.arange(len(room[0]))
    kind = classes[stages // per_row]
    units, each = np.maximum(room[kind, stages], 1), unit[kind, stages]
    while units.sum() > family.num_units:  # the longest stage gives one away
        units[int((np.where(units > 1, units, 0) * each).argmax())] -= 1
    while units.sum() < family.num_units:
        units[int(((units + 1) * each).argmin())] += 1
    return tuple(units.tolist()), classes
