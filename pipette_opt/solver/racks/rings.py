"""
Rings of rows by rack and kind, in a CP-SAT model.

Each host has two hops, and those inside a rack, or a rack's kind, are fewer than the hosts there unless these are the
whole row. In which order the columns are is left out here; the model of cells adds it where they are few.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import BoolArray, IntArray
from pipette_opt.solver.racks.structure import Racks

Term = LinearExpr | IntVar | int
Sort = tuple[int, int, int]
Counts = dict[tuple[int, int], IntVar]
"""Hosts of one row by rack and kind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ring:
    """
    The ring of a watched stage's row.

    Parameters
    ----------
    slowest
        Its slowest hop.
    reached
        By what hops cost, ascending, whether there is one as slow or slower; the first always is.
    """

    slowest: Term
    reached: dict[int, IntVar | None]


def add_ring(model: CpModel, racks: Racks, watched: int, num_columns: int, counts: Counts, limit: int) -> Ring:
    """
    The ring of one watched stage, by its number among these.

    Parameters
    ----------
    counts
        Hosts of its row.
    limit
        The slowest hop that there is time for.
    """
    hop = racks.costs.hop[watched]
    cost = racks.of_links(np.minimum(hop, hop.T))
    hops = _add_hops(model, racks, num_columns, counts, cost <= limit)
    return _by_cost(model, cost, hops, num_columns)


def _add_hops(
    model: CpModel, racks: Racks, num_columns: int, counts: Counts, usable: BoolArray
) -> dict[Sort, list[IntVar]]:
    """Hops of one ring by sort, in either direction; their sum over the racks is the number of hops of a sort."""
    ends: dict[tuple[int, int], list[Term]] = {pair: [] for pair in counts}
    inside: list[list[IntVar]] = [[] for _ in range(racks.num_racks)]
    hops: dict[Sort, list[IntVar]] = {}
    for i, j in itertools.combinations_with_replacement(range(racks.num_kinds), 2):
        if usable[i, j, 0]:
            hops[i, j, 0] = []
            for rack in range(racks.num_racks):
                if (rack, i) in counts and (rack, j) in counts:
                    hop = model.new_int_var(0, num_columns, "")
                    hops[i, j, 0].append(hop)
                    inside[rack].append(hop)
                    ends[rack, i].append(hop)
                    ends[rack, j].append(hop)
                    if i == j:
                        _join(model, [hop], [counts[rack, i]], num_columns)
        if usable[i, j, 1]:
            one_end = {rack: model.new_int_var(0, num_columns, "") for rack, kind in counts if kind == i}
            other_end = {rack: model.new_int_var(0, num_columns, "") for rack, kind in counts if kind == j}
            hops[i, j, 1] = list(one_end.values())
            model.add(_sum(list(one_end.values())) == _sum(list(other_end.values())))
            for rack in range(racks.num_racks):
                here = [one[rack] for one in (one_end, other_end) if rack in one]
                model.add(_sum(here) <= _sum(list(one_end.values())))  # one of its ends is elsewhere
            for kind, found in ((i, one_end), (j, other_end)):
                for rack, end in found.items():
                    ends[rack, kind].append(end)
    for pair, number in counts.items():
        model.add(_sum(ends[pair]) == 2 * number)
    for rack, within in enumerate(inside):
        _join(model, within, [one for pair, one in counts.items() if pair[0] == rack], num_columns)
    return hops


def _join(model: CpModel, within: Sequence[IntVar], members: Sequence[IntVar], num_columns: int) -> None:
    """Hosts that are not the whole row have fewer hops among them than they are."""
    here = LinearExpr.sum(list(members))
    some, all_ = model.new_bool_var(""), model.new_bool_var("")
    model.add(here == 0).only_enforce_if(~some)
    model.add(here == num_columns).only_enforce_if(all_)
    model.add(_sum(list(within)) <= here - some + all_)


def _by_cost(model: CpModel, cost: IntArray, hops: dict[Sort, list[IntVar]], num_columns: int) -> Ring:
    """The slowest hop, as a sum of steps from level to level."""
    by_level: dict[int, list[IntVar]] = {}
    for sort, number in hops.items():
        by_level.setdefault(int(cost[sort]), []).extend(number)
    levels = sorted(by_level)
    if not levels:
        return Ring(slowest=int(cost.min()), reached={})
    total: list[Term] = [levels[0]]
    reached: dict[int, IntVar | None] = {levels[0]: None}
    for low, high in itertools.pairwise(levels):
        is_reached, before = model.new_bool_var(""), reached[low]
        model.add(_sum(by_level[high]) <= num_columns * is_reached)
        if before is not None:
            model.add_implication(is_reached, before)
        total.append((high - low) * is_reached)
        reached[high] = is_reached
    return Ring(slowest=LinearExpr.sum(total), reached=reached)


def _sum(terms: Sequence[Term]) -> LinearExpr | int:
    return LinearExpr.sum(list(terms)) if terms else 0
