"""
What all columns take together, in counts of classes.

The slowest column ends no earlier than all do on average, and with asynchronous sends no column's period is below the
mean over any run of its stages. Summed over the columns both are linear in the counts, and one integer, a sum that the
columns' periods cannot be below, says it for all runs.
"""

from collections.abc import Mapping, Sequence

from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData
from pipette_opt.solver.rows.costs import RowCosts

Term = LinearExpr | IntVar | int
Crossing = Mapping[tuple[int, int], IntVar]
"""Columns through each pair of classes at a boundary."""


def add_means(
    model: CpModel,
    candidate: CandidateData,
    costs: RowCosts,
    hosts: Sequence[Sequence[IntVar]],
    arcs: Sequence[Crossing],
    periods: IntVar,
    left: Sequence[Term],
) -> None:
    """
    The slowest column ends no earlier than all do on average.

    Parameters
    ----------
    periods
        At most the sum of the columns' periods.
    left
        Of each watched stage, the ceiling without its reduction.
    """
    D, rounds = candidate.grid[1], candidate.num_microbatches - 1
    for watched, end in enumerate(left):
        taken = [LinearExpr.weighted_sum(row, costs.end_node[watched, at].tolist()) for at, row in enumerate(hosts)]
        taken += [_crossed(crossing, costs.end_arc[watched, at]) for at, crossing in enumerate(arcs)]
        model.add(D * (end - int(costs.after[watched])) >= LinearExpr.sum(taken) + rounds * periods)


def summed_periods(
    model: CpModel,
    candidate: CandidateData,
    costs: RowCosts,
    hosts: Sequence[Sequence[IntVar]],
    arcs: Sequence[Crossing],
    windows: Mapping[tuple[int, int, int, int], IntVar],
    longest: int,
) -> IntVar:
    """
    An integer that is at most the sum of the columns' periods, sends being asynchronous.

    A column's period is at least that of each of its windows, and the mean over any longer run of rows: what their
    stages and the transfers between them take, over their number.

    Parameters
    ----------
    longest
        Period of a column at most.
    """
    P, D, _ = candidate.grid
    stages = candidate.block.stages
    total = model.new_int_var(0, D * longest, "")
    of_row: dict[int, list[tuple[IntVar, int]]] = {}
    for window, number in windows.items():
        of_row.setdefault(window[0], []).append((number, int(costs.window[window])))
    for used in of_row.values():
        numbers, cost = zip(*used, strict=True)
        model.add(LinearExpr.weighted_sum(numbers, cost) <= total)
    most = P * stages * D * longest
    into: list[Term] = [0]  # transfers into each row
    until: list[Term] = [0]  # all that the rows before each take, with the transfers into them
    for row in range(P):
        if row:
            into.append(_named(model, _crossed(arcs[row - 1], costs.period_arc[row - 1]), most))
        work = LinearExpr.weighted_sum(hosts[row], costs.period_node[row].tolist())
        until.append(_named(model, until[-1] + into[-1] + work, most))
    for first in range(P):
        for last in range(first + 3, P):
            model.add(until[last + 1] - until[first] - into[first] <= (last + 1 - first) * stages * total)
    return total


def _crossed(crossing: Crossing, cost: IntArray) -> LinearExpr:
    """What all columns' transfers at a boundary cost."""
    return LinearExpr.weighted_sum(list(crossing.values()), [int(cost[pair]) for pair in crossing])


def _named(model: CpModel, value: Term, most: int) -> IntVar:
    variable = model.new_int_var(0, most, "")
    model.add(variable == value)
    return variable
