"""
How many hosts of each class are in each row: the relaxation as a CP-SAT model.

Decisions, all counts of hosts or columns:

- of each row and class, its hosts; each row has as many as there are columns, no class more than it has hosts, all
  of them where every host must be used;
- of each boundary and pair of classes, the columns that cross it so; they leave and reach the hosts counted;
- of each three consecutive rows and triple of classes, the columns that run so; they agree with the crossings;
- of each row and ordered pair of classes, the hops of its ring; every host is left once and reached once, and hosts
  of a set of classes that are not the whole row have fewer hops among them than they are (the ring is one cycle).

At most the ceiling are: the least end of a stage in a column with the slowest window used, plus ``m - 1`` times that
window's period, plus the slowest hop of the stage's row; and the mean end over all columns plus that hop.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python.cp_model import CpModel, CpSolver, IntVar, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.classes import HostClasses
from pipette_opt.solver.rows.costs import RowCosts
from pipette_opt.solver.rows.levels import Levels
from pipette_opt.solver.rows.means import Term, add_means, summed_periods
from pipette_opt.solver.rows.runs import add_slow_runs

Window = tuple[int, int, int, int]


@dataclass(slots=True, kw_only=True, eq=False)
class RowModel:
    """
    The model with handles to read a solution.

    Parameters
    ----------
    hosts
        Hosts of each row and class, lists of variables.
    hops
        Of each row, ring hops by pair of classes; empty with one column.
    windows
        How many columns go through each window, by its index in ``RowCosts.window``.
    """

    model: CpModel
    hosts: list[list[IntVar]]
    hops: list[dict[tuple[int, int], IntVar]]
    windows: dict[Window, IntVar]
    num_columns: int
    joined: set[frozenset[int]] = field(default_factory=set)

    def join(self, classes: frozenset[int]) -> None:
        """In no row are the hosts of these classes a ring of their own, unless they are the whole row."""
        if classes in self.joined or self.num_columns < 2:
            return
        self.joined.add(classes)
        for hosts, hops in zip(self.hosts, self.hops, strict=True):
            within = [hop for (a, b), hop in hops.items() if a in classes and b in classes]
            if not within:
                continue
            here = LinearExpr.sum([hosts[one] for one in classes])
            some, all_ = self.model.new_bool_var(""), self.model.new_bool_var("")
            self.model.add(here == 0).only_enforce_if(~some)
            self.model.add(here == self.num_columns).only_enforce_if(all_)
            self.model.add(LinearExpr.sum(within) <= here - some + all_)

    def separate(self, solver: CpSolver) -> bool:
        """Join classes that a solution keeps in rings of their own; False if it has none."""
        apart: set[frozenset[int]] = set()
        for hosts, hops in zip(self.hosts, self.hops, strict=True):
            counts = [solver.value(one) for one in hosts]
            used = [pair for pair, hop in hops.items() if solver.value(hop)]
            parts = _components([one for one, count in enumerate(counts) if count], used)
            apart |= {part for part in parts if len(parts) > 1}
            for a, b in used:
                pair = frozenset((a, b))
                inside = sum(solver.value(hops[one]) for one in used if pair.issuperset(one))
                number = sum(counts[one] for one in pair)
                if inside >= number and number < self.num_columns:
                    apart.add(pair)
        new = apart - self.joined
        for one in sorted(new, key=sorted):
            self.join(one)
        return bool(new)


def build_rows(
    candidate: CandidateData,
    classes: HostClasses,
    costs: RowCosts,
    levels: Levels,
    joined: Iterable[frozenset[int]] = (),
    *,
    runs: bool = True,
) -> RowModel:
    """
    The model of placements that cost at most the ceiling of these levels, and whose slowest column has one of them.

    Nothing is minimised: that a model has no solution is shown much sooner than what its least cost is.

    Parameters
    ----------
    joined
        Sets of classes that are joined from the start.
    runs
        Whether the mean over the columns, and over runs of rows, is looked at: with blocking sends it rarely says more
        than the slowest.
    """
    P, D, _ = candidate.grid
    model = CpModel()
    sizes = classes.sizes.tolist()
    hosts = [
        [model.new_int_var(0, min(size, D) if costs.room[row, one] else 0, "") for one, size in enumerate(sizes)]
        for row in range(P)
    ]
    for row in hosts:
        model.add(LinearExpr.sum(row) == D)
    for one, size in enumerate(sizes):
        total = LinearExpr.sum([row[one] for row in hosts])
        model.add(total == size if sum(sizes) == candidate.num_cells else total <= size)
    reached = [model.new_bool_var("") for _ in range(1, len(levels.periods))]
    for below, above in itertools.pairwise(reached):
        model.add_implication(above, below)
    arcs, windows = _add_columns(model, candidate, hosts, levels, reached)
    hops = _add_hops(model, candidate, costs, hosts, levels)
    left: list[Term] = []
    for watched, stage in enumerate(costs.watched.tolist()):
        row = stage // candidate.block.stages
        _exclude_slow_hops(model, costs.hop[watched], hops[row], levels.ring_limit(costs, watched), reached)
        if runs:
            left.append(levels.ceiling - _slowest_hop(model, costs.hop[watched], hops[row], D))
    if runs:
        longest = levels.ceiling // max(1, candidate.num_microbatches - 1) if levels.longest is None else levels.longest
        periods = summed_periods(model, candidate, costs, hosts, arcs, windows, longest)
        add_means(model, candidate, costs, hosts, arcs, periods, left)
        if levels.longest is not None:
            add_slow_runs(model, candidate, costs, hosts, levels.longest)
    built = RowModel(model=model, hosts=hosts, hops=hops, windows=windows, num_columns=D)
    for members in (*(frozenset((one,)) for one in range(len(sizes))), *sorted(joined, key=sorted)):
        built.join(members)
    return built


def _add_columns(
    model: CpModel, candidate: CandidateData, hosts: list[list[IntVar]], levels: Levels, reached: list[IntVar]
) -> tuple[list[dict[tuple[int, int], IntVar]], dict[Window, IntVar]]:
    """Columns through each pair of classes at each boundary, and through each window if its level is reached."""
    P, D, _ = candidate.grid
    windows: dict[Window, IntVar] = {}
    arcs: list[dict[tuple[int, int], IntVar]] = [{} for _ in range(P - 1)]
    if P == 1:
        for one, level in enumerate(levels.of_window[0, 0, :, 0].tolist()):
            if level < 0:
                model.add(hosts[0][one] == 0)
            else:
                windows[0, 0, one, 0] = hosts[0][one]
    elif P == 2:
        for x, y in np.argwhere(levels.of_window[0, :, :, 0] >= 0).tolist():
            arcs[0][x, y] = windows[0, x, y, 0] = model.new_int_var(0, D, "")
    else:
        for center in range(1, P - 1):
            _add_triples(model, center, levels.of_window[center - 1], D, arcs, windows)
    for row, crossing in enumerate(arcs):
        for one in range(len(hosts[row])):
            model.add(_sum(arc for (x, _), arc in crossing.items() if x == one) == hosts[row][one])
            model.add(_sum(arc for (_, y), arc in crossing.items() if y == one) == hosts[row + 1][one])
    by_level: dict[int, list[IntVar]] = {}
    for window, number in windows.items():
        by_level.setdefault(int(levels.of_window[window]), []).append(number)
    for level, used in sorted(by_level.items()):
        if level > 0:
            model.add(LinearExpr.sum(used) <= len(used) * D * reached[level - 1])
    return arcs, windows


def _add_triples(
    model: CpModel,
    center: int,
    level: IntArray,
    num_columns: int,
    arcs: list[dict[tuple[int, int], IntVar]],
    windows: dict[Window, IntVar],
) -> None:
    """Columns through each triple of classes around a row, and what they are at its two boundaries."""
    into: dict[tuple[int, int], list[IntVar]] = {}
    out: dict[tuple[int, int], list[IntVar]] = {}
    for x, y, z in np.argwhere(level >= 0).tolist():
        if center > 1 and (x, y) not in arcs[center - 1]:
            continue  # no column reaches it
        through = model.new_int_var(0, num_columns, "")
        into.setdefault((x, y), []).append(through)
        out.setdefault((y, z), []).append(through)
        windows[center - 1, x, y, z] = through
    for boundary, sides in ((center - 1, into), (center, out)):
        crossing = arcs[boundary]
        for pair in sides.keys() - crossing.keys():
            crossing[pair] = model.new_int_var(0, num_columns, "")
        for pair, arc in sorted(crossing.items()):
            model.add(_sum(sides.get(pair, ())) == arc)


def _add_hops(
    model: CpModel, candidate: CandidateData, costs: RowCosts, hosts: list[list[IntVar]], levels: Levels
) -> list[dict[tuple[int, int], IntVar]]:
    """Ring hops of each row by pair of classes, in either direction where both cost the same."""
    P, D, _ = candidate.grid
    hops: list[dict[tuple[int, int], IntVar]] = [{} for _ in range(P)]
    if D == 1:
        return hops
    for row in range(P):
        here = np.flatnonzero(costs.watched // candidate.block.stages == row).tolist()
        usable = np.logical_and.reduce([costs.hop[one] <= levels.ring_limit(costs, one)[0] for one in here])
        either = all((costs.hop[one] == costs.hop[one].T).all() for one in here)
        pairs = [(a, b) for a, b in np.argwhere(usable).tolist() if a <= b or not either]
        hops[row] = {pair: model.new_int_var(0, D, "") for pair in pairs}
        for one, number in enumerate(hosts[row]):
            out = [hop for (a, _), hop in hops[row].items() if a == one]
            into = [hop for (_, b), hop in hops[row].items() if b == one]
            if either:
                model.add(_sum(out + into) == (2 if D > 2 else 1) * number)
            else:
                model.add(_sum(out) == number)
                model.add(_sum(into) == number)
    return hops


def _exclude_slow_hops(
    model: CpModel, cost: IntArray, hops: dict[tuple[int, int], IntVar], limits: IntArray, reached: list[IntVar]
) -> None:
    """
    Hops that are too slow together with a period are not used if it is reached.

    Parameters
    ----------
    limits
        The slowest hop that each level of periods leaves, never rising, shape ``(levels,)``.
    """
    too_slow: dict[int, list[IntVar]] = {}
    for pair, hop in hops.items():
        level = int((cost[pair] <= limits).sum())  # the first with which it is too slow
        if level < len(limits):
            too_slow.setdefault(level, []).append(hop)
    for level, slow in too_slow.items():
        model.add(LinearExpr.sum(slow) == 0).only_enforce_if(reached[level - 1])


def _slowest_hop(
    model: CpModel, cost: IntArray, hops: dict[tuple[int, int], IntVar], num_columns: int
) -> LinearExpr | IntVar | int:
    """The slowest hop, as a sum of steps from level to level."""
    by_level: dict[int, list[IntVar]] = {}
    for pair, hop in hops.items():
        by_level.setdefault(int(cost[pair]), []).append(hop)
    values = sorted(by_level)
    if not values:
        return int(cost.min())
    total: list[LinearExpr | IntVar | int] = [values[0]]
    before: IntVar | None = None
    for low, high in itertools.pairwise(values):
        reached = model.new_bool_var("")
        model.add(LinearExpr.sum(by_level[high]) <= num_columns * reached)
        if before is not None:
            model.add_implication(reached, before)
        total.append((high - low) * reached)
        before = reached
    return LinearExpr.sum(total)


def _sum(variables: Iterable[IntVar]) -> LinearExpr | int:
    found = list(variables)
    return LinearExpr.sum(found) if found else 0


def _components(nodes: list[int], edges: list[tuple[int, int]]) -> list[frozenset[int]]:
    """Connected parts."""
    parent = {node: node for node in nodes}

    def root(node: int) -> int:
        while parent[node] != node:
            node = parent[node]
        return node

    for a, b in edges:
        parent[root(a)] = root(b)
    parts: dict[int, set[int]] = {}
    for node in nodes:
        parts.setdefault(root(node), set()).add(node)
    return [frozenset(part) for part in parts.values()]
