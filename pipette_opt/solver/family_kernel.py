"""
Compiled constraint propagation that limits the layers of each stage of a partition family for a given iteration time.

A unit is one layer in each chunk of a stage. The loops are plain because numba runs array expressions half as fast.
"""

import numpy as np

from pipette_opt.base.jit import njit
from pipette_opt.base.types import FloatArray, IntArray

MAX_ROUNDS = 12
"""Largest number of propagation rounds; the limits are valid after every round. Chosen."""


def least_time(
    low: float,
    high: float,
    halvings: int,
    base: FloatArray,
    fixed: FloatArray,
    unit: FloatArray,
    again: FloatArray,
    extra: IntArray,
    most: IntArray,
    units: int,
    per_row: int,
    able: IntArray,
    spare: int,
    moved: FloatArray,
    links: FloatArray,
    nodes: int,
    least: IntArray,
    room: IntArray,
) -> float:
    """
    Return a lower bound on the time of every partition, seconds, by bisection; ``high`` if no partition is faster.

    Not compiled: numba would compile all functions that it calls once more.

    Parameters
    ----------
    low, high
        Interval that contains the answer, seconds.
    halvings
        Number of bisection steps.
    base
        Seconds of each path outside its stages, shape ``(paths,)``.
    fixed, unit, again
        Seconds as in :class:`~pipette_opt.problem.family_paths.FamilyPaths`, GPU types in order of speed.
    extra
        Recomputed units (layers in each chunk) beyond the first that memory requires for each number of units, shape
        ``(kinds, pp, 1 + units)``. No recomputation if the last axis has length 1.
    most
        Number of units that fit into each stage, shape ``(kinds, pp)``.
    per_row
        Number of stages in a grid row.
    able
        Number of rows that hosts of each GPU type and all faster types can fill, shape ``(kinds,)``.
    spare
        Number of hosts of the fastest type that filling those rows leaves over; -1 if a row is a single host.
    moved
        Number of transfers of each path from a row to the next (cyclic), shape ``(paths, rows)``.
    links
        Seconds of a transfer between two GPU types beyond the least transfer, which is in ``base``; ``(kinds, kinds)``.
    nodes
        Node limit of the search over the GPU types of all rows; with 0, types stay undecided.
    least, room
        Output: least and largest units of each stage at the last feasible time, shape ``(kinds, pp)``.
    """
    lower, upper = np.zeros_like(most), np.zeros_like(most)

    def in_time(total: float) -> bool:
        found = _search(
            total, base, fixed, unit, again, extra, most, units, per_row, able, spare, moved, links, nodes, lower, upper
        )
        if found:
            least[:], room[:] = lower, upper
        return bool(found)

    if not in_time(high):
        return high
    for _ in range(halvings):
        middle = 0.5 * (low + high)
        low, high = (low, middle) if in_time(middle) else (middle, high)
    return low


@njit(cache=True, nogil=True)
def _search(  # type: ignore[no-untyped-def]
    total, base, fixed, unit, again, extra, most, units, per_row, able, spare, moved, links, nodes, least, room
):
    """
    Return whether GPU types can be assigned to rows so that every path ends in time.

    The search is depth first; a node fixes the types of some rows. After ``nodes`` nodes, the answer is that without
    fixed types. ``least`` and ``room`` receive the limits at the last node.
    """
    kinds, pp = most.shape
    rows = pp // per_row
    if nodes == 0 or kinds == 1:
        return _in_time(total, base, fixed, unit, again, extra, most, units, per_row, able, spare, least, room)
    stack, depth = np.full((rows * kinds + 1, rows), -1, dtype=np.int64), 1
    own, classes = np.zeros((kinds, pp), dtype=np.int64), np.zeros(rows, dtype=np.int64)
    sent = np.zeros(len(base))
    for _ in range(nodes):
        if depth == 0:
            return False
        depth -= 1
        for row in range(rows):
            classes[row] = stack[depth, row]
        for kind in range(kinds):
            for stage in range(pp):
                of_row = classes[stage // per_row]
                own[kind, stage] = most[kind, stage] if of_row < 0 or of_row == kind else 0
        _send(base, moved, links, classes, _are_pure(classes, able, spare), sent)
        if not _in_time(total, sent, fixed, unit, again, extra, own, units, per_row, able, spare, least, room):
            continue
        # Branch on the open row whose class changes the most units.
        chosen, most_at_stake = -1, -1
        for row in range(rows):
            if classes[row] >= 0:
                continue
            fewest, largest = units, 0
            for kind in range(kinds):
                held = 0
                for stage in range(row * per_row, (row + 1) * per_row):
                    held += room[kind, stage] if room[kind, stage] >= least[kind, stage] else 0
                fewest, largest = min(fewest, held), max(largest, held)
            if largest - fewest > most_at_stake:
                chosen, most_at_stake = row, largest - fewest
        if chosen < 0:
            return True
        for kind in range(kinds - 1, -1, -1):  # the fastest first
            for row in range(rows):
                stack[depth, row] = classes[row]
            stack[depth, chosen] = kind
            depth += 1
    if depth == 0:
        return False
    return _in_time(total, base, fixed, unit, again, extra, most, units, per_row, able, spare, least, room)


@njit(cache=True, nogil=True)
def _are_pure(classes, able, spare):  # type: ignore[no-untyped-def]
    """
    Return whether every row has hosts of its own GPU type only.

    True if rows are single hosts, or if the faster of two types fills its rows with no host left over.
    """
    if spare < 0:
        return True
    fastest = 0
    for row in range(len(classes)):
        fastest += classes[row] == 0
    return len(able) == 2 and spare == 0 and fastest == able[0]


@njit(cache=True, nogil=True)
def _send(base, moved, links, classes, are_pure, sent):  # type: ignore[no-untyped-def]
    """Write to ``sent`` the seconds of each path outside its stages, over links between rows of fixed GPU types."""
    rows = len(classes)
    for path in range(len(base)):
        sent[path] = base[path]
    for row in range(rows):
        kind, next_kind = classes[row], classes[(row + 1) % rows]
        if min(kind, next_kind) < 0 or (max(kind, next_kind) > 0 and not are_pure):
            continue
        for path in range(len(base)):
            if moved[path, row] > 0:
                sent[path] += moved[path, row] * links[kind, next_kind]


@njit(cache=True, nogil=True)
def _in_time(  # type: ignore[no-untyped-def]
    total, base, fixed, unit, again, extra, most, units, per_row, able, spare, least, room
):
    """
    Return whether the units of the stages can be limited so that every path ends in time.

    A row counts as its slowest GPU type. ``least`` and ``room`` receive the limits of each stage for each type of its
    row; a type that is impossible for the row leaves no room.
    """
    kinds, pp = most.shape
    rows = pp // per_row
    for kind in range(kinds):
        for stage in range(pp):
            least[kind, stage] = 1
            room[kind, stage] = min(most[kind, stage], units - pp + 1)
    held, gain = np.zeros((kinds, rows)), np.zeros(rows)
    for _ in range(MAX_ROUNDS):
        # Rows: all units must fit, so a stage holds at least what the other stages have no room for.
        _of_rows(room, least, per_row, held)
        if _most_held(held, able, -1, 0, gain) < units:
            return False
        changed = False
        for row in range(rows):
            for kind in range(kinds):
                if held[kind, row] < 0:
                    continue
                others = _most_held(held, able, row, kind, gain)
                for stage in range(row * per_row, (row + 1) * per_row):
                    own = units - others - (held[kind, row] - room[kind, stage])
                    if own > least[kind, stage]:
                        least[kind, stage] = np.int64(own)
                        changed = True
        # Paths: a stage has the time that the least times of the other stages leave.
        slow = _slow_rows(held, able, units, spare)
        if _limit_by_paths(total, base, fixed, unit, again, extra, units, per_row, slow, spare, least, room):
            changed = True
        if not changed:
            break
    _of_rows(room, least, per_row, held)
    return _most_held(held, able, -1, 0, gain) >= units


@njit(cache=True, nogil=True)
def _of_rows(room, least, per_row, held):  # type: ignore[no-untyped-def]
    """
    Write to ``held`` the number of units (layers in each chunk) that fit into each row with each GPU type; -1 if a
    stage has no valid number.
    """
    kinds, rows = held.shape
    for kind in range(kinds):
        for row in range(rows):
            held[kind, row] = 0
            for stage in range(row * per_row, (row + 1) * per_row):
                if room[kind, stage] < least[kind, stage]:
                    held[kind, row] = -1
                    break
                held[kind, row] += room[kind, stage]


@njit(cache=True, nogil=True)
def _most_held(held, able, without, kind, best):  # type: ignore[no-untyped-def]
    """
    Return an upper bound on the units (layers in each chunk) that all rows can hold, without row ``without``, which has
    GPU type ``kind``.

    The rows that gain most may have any type, the next rows any but the fastest type, and so on. Very negative if some
    row has no possible type.
    """
    kinds, rows = held.shape
    total, count = 0.0, 0
    for place in range(kinds):
        most = rows
        for slower in range(place, kinds):
            most = min(most, int(able[slower]) - (1 if without >= 0 and slower >= kind else 0))
        if most < 0:
            return -1e18
        more = most - count
        if more <= 0:
            continue
        count = most
        for row in range(rows):
            best[row] = -1e9
            for slower in range(place, kinds):
                if row != without and held[slower, row] >= 0 and held[slower, row] > best[row]:
                    best[row] = held[slower, row]
        if without >= 0:
            best[without] = -1e18
        for _ in range(more):
            chosen = 0
            for row in range(1, rows):
                if best[row] > best[chosen]:
                    chosen = row
            total += best[chosen]
            best[chosen] = -np.inf
    return total


@njit(cache=True, nogil=True)
def _slow_rows(held, able, units, spare):  # type: ignore[no-untyped-def]
    """
    Return the number of rows that hosts of the slower of two GPU types fill alone; -1 if unknown.

    The number is known under two conditions. The units (layers in each chunk) need all rows that the faster type can
    fill, and the faster type has no host left over.
    """
    kinds, rows = held.shape
    if kinds != 2 or spare > 0 or able[1] < rows:
        return -1
    fewer = np.empty(2, dtype=np.int64)
    fewer[0], fewer[1] = able[0] - 1, rows
    if able[0] > 0 and _most_held(held, fewer, -1, 0, np.zeros(rows)) >= units:
        return -1
    return rows - able[0]


@njit(cache=True, nogil=True)
def _limit_by_paths(  # type: ignore[no-untyped-def]
    total, base, fixed, unit, again, extra, units, per_row, slow, spare, least, room
):
    """
    Reduce the largest number of units (layers in each chunk) of each stage to what all paths leave time for. Return
    whether a limit changed.

    Each unit costs at least as much as a unit on the fastest stage. Each stage also costs its additional time.
    """
    paths, kinds, pp = fixed.shape
    rows, changed = pp // per_row, False
    cost, of_row, rise = np.zeros((kinds, pp)), np.zeros((kinds, rows)), np.zeros(rows)
    for path in range(paths):
        # Least time of a unit, and the additional time of each stage.
        cheapest = np.inf
        for kind in range(kinds):
            for stage in range(pp):
                if room[kind, stage] >= least[kind, stage]:
                    for faster in range(kind + 1):
                        cheapest = min(cheapest, unit[path, faster, stage])
        if cheapest == np.inf:
            return True
        for kind in range(kinds):
            for stage in range(pp):
                cost[kind, stage] = np.inf
                if room[kind, stage] < least[kind, stage]:
                    continue
                further = extra[kind, stage, least[kind, stage]] if extra.shape[2] > 1 else 0
                for taken in range(kind if slow >= 0 or spare < 0 else 0, kind + 1):
                    here = fixed[path, taken, stage] + again[path, taken, stage] * further
                    here += (unit[path, taken, stage] - cheapest) * least[kind, stage]
                    cost[kind, stage] = min(cost[kind, stage], here)
        for kind in range(kinds):
            for row in range(rows):
                of_row[kind, row] = 0.0
                for stage in range(row * per_row, (row + 1) * per_row):
                    of_row[kind, row] += cost[kind, stage]
        left = total - base[path] - units * cheapest
        for row in range(rows):
            for kind in range(kinds):
                if of_row[kind, row] == np.inf:
                    continue
                others = _least_of_others(of_row, row, slow - kind if slow >= 0 else -1, rise)
                for stage in range(row * per_row, (row + 1) * per_row):
                    beside = others + of_row[kind, row] - cost[kind, stage]
                    rest, each = left - beside - fixed[path, kind, stage], unit[path, kind, stage] - cheapest
                    most = room[kind, stage]
                    if each * most > rest:
                        most = np.int64(np.floor(rest / each)) if rest >= 0 and each > 0 else 0
                    if extra.shape[2] > 1:
                        while most > 0 and each * most + again[path, kind, stage] * extra[kind, stage, most] > rest:
                            most -= 1
                    if most < room[kind, stage]:
                        room[kind, stage] = most
                        changed = True
    return changed


@njit(cache=True, nogil=True)
def _least_of_others(of_row, without, slow, rise):  # type: ignore[no-untyped-def]
    """
    Return the least seconds of all rows except ``without``.

    If ``slow`` is not negative, exactly ``slow`` of these rows have the slower of two GPU types.
    """
    rows = of_row.shape[1]
    total = 0.0
    if slow < 0:
        for row in range(rows):
            if row != without:
                least = of_row[0, row]
                for kind in range(1, of_row.shape[0]):
                    least = min(least, of_row[kind, row])
                total += least
        return total
    for row in range(rows):
        rise[row] = np.inf
        if row == without:
            continue
        fast, slower = of_row[0, row], of_row[1, row]
        if fast == np.inf:  # the row can only be of the slower kind
            total += slower
            slow -= 1
        else:
            total += fast
            rise[row] = slower - fast
    if slow <= 0:
        return total if slow == 0 else np.inf
    for _ in range(slow):
        chosen = 0
        for row in range(1, rows):
            if rise[row] < rise[chosen]:
                chosen = row
        total += rise[chosen]
        rise[chosen] = np.inf
    return total
