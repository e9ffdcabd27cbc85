"""Columns by rack and kinds at a boundary, in a CP-SAT model: who stays in its rack, who leaves it, and who comes."""

from collections.abc import Mapping, Sequence

from ortools.sat.python.cp_model import CpModel, LinearExpr

from pipette_opt.solver.classes.racks import Racks
from pipette_opt.solver.column_types.rings import Counts, Term

Kinds = tuple[int, int]
"""Of the hosts on both sides of a boundary."""


def add_flows(
    model: CpModel,
    racks: Racks,
    num_columns: int,
    here: Counts,
    there: Counts,
    inside: Mapping[Kinds, Term],
    across: Mapping[Kinds, Term],
) -> None:
    """
    Hosts of two neighbouring rows agree with the columns between them.

    Parameters
    ----------
    here, there
        Hosts of both rows.
    inside, across
        Of each pair of kinds, the columns that stay in their rack, and those that do not.
    """
    kinds = range(racks.num_kinds)
    stay = {
        (rack, i, j): model.new_int_var(0, num_columns, "") for rack, i in here for j in kinds if (rack, j) in there
    }  # whatever is not usable is zero by the sums below
    leave = {pair: model.new_int_var(0, num_columns, "") for pair in here}
    come = {pair: model.new_int_var(0, num_columns, "") for pair in there}
    for (rack, i), number in here.items():
        model.add(number == leave[rack, i] + _sum([one for flow, one in stay.items() if flow[:2] == (rack, i)]))
    for (rack, j), number in there.items():
        model.add(number == come[rack, j] + _sum([one for flow, one in stay.items() if flow[::2] == (rack, j)]))
    for pair, number_inside in inside.items():
        model.add(_sum([one for flow, one in stay.items() if flow[1:] == pair]) == number_inside)
    for kind in kinds:
        gone = _sum([one for pair, one in leave.items() if pair[1] == kind])
        model.add(gone == _sum([across[kind, j] for j in kinds]))
        arrived = _sum([one for pair, one in come.items() if pair[1] == kind])
        model.add(arrived == _sum([across[i, kind] for i in kinds]))
    for rack in range(racks.num_racks):  # who leaves a rack comes to another
        ends = [one for flows in (leave, come) for pair, one in flows.items() if pair[0] == rack]
        model.add(_sum(ends) <= _sum(list(across.values())))


def _sum(terms: Sequence[Term]) -> LinearExpr | int:
    return LinearExpr.sum(list(terms)) if terms else 0
