"""
Columns of classes whose period is at most so long, sends being asynchronous, as paths through a few states.

A period is at most T if no run of stages takes more than T for each of them, so going down a column only the run that
is worst so far counts: what it takes above T for each of its stages, its excess, which is never positive. With the
class it is all that the rows below depend on. Few excesses can be reached, since a link faster than T asks for ends
every run; and many of those allow the same rows below, so that they are one state.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.solver.rows.costs import NEVER, RowCosts
from pipette_opt.types import IntArray

MOST_EXCESSES, MOST_ARCS = 30_000, 30_000
"""Excesses of all rows and classes, and pairs of states, above which a model of them takes longer than it tells."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """
    The states of each row, and which of them follow each other; every path through them is a column of classes.

    Parameters
    ----------
    of_class
        Class of each state, one array for each row.
    tails, heads
        From a state to one of the next row, two arrays for each boundary.
    """

    of_class: tuple[IntArray, ...]
    tails: tuple[IntArray, ...]
    heads: tuple[IntArray, ...]


def columns_within(costs: RowCosts, period: int) -> Columns | None:
    """All columns of such a period at most; ``None`` if they have too many states."""
    excesses = _excesses(costs, period)
    if excesses is None:
        return None
    columns = _joined(costs, period, excesses)
    return columns if sum(len(tails) for tails in columns.tails) <= MOST_ARCS else None


def excess_after(costs: RowCosts, row: int, one: int, period: int, before: IntArray) -> IntArray:
    """
    Excess of the worst run that ends with a row of a class.

    Parameters
    ----------
    before
        What the run up to the row takes above the period for each of its stages, the transfer into the row included;
        below zero where a run that begins with the row is worse.

    Returns
    -------
    IntArray
        Above zero where a run is too long.
    """
    excess, worst = before, np.zeros_like(before)
    for stage, work in enumerate(costs.stage_work[row, :, one].tolist()):
        excess = np.maximum(excess + (costs.inside if stage else 0), 0) + (work - period)
        worst = np.maximum(worst, excess)
    return np.where(worst > 0, worst, excess)


def _excesses(costs: RowCosts, period: int) -> list[list[IntArray]] | None:
    """Those that can be reached, ascending, of each row and class; ``None`` if they are too many."""
    P, C = costs.room.shape
    found: list[list[IntArray]] = []
    for row in range(P):
        here = []
        for one in range(C):
            before = np.zeros(1, dtype=np.int64)
            if row:
                arcs = costs.period_arc[row - 1, :, one]
                reached = [found[-1][other] + int(arcs[other]) for other in np.flatnonzero(arcs < NEVER).tolist()]
                before = np.unique(np.concatenate([before[:0], *reached]))
            after = excess_after(costs, row, one, period, before)
            here.append(np.unique(after[after <= 0]) if costs.room[row, one] else before[:0])
        found.append(here)
        if sum(len(values) for rows in found for values in rows) > MOST_EXCESSES:
            return None
    return found


def _joined(costs: RowCosts, period: int, excesses: Sequence[Sequence[IntArray]]) -> Columns:
    """Excesses that allow the same states of the next row are one state; those that allow none are left out."""
    P, C = costs.room.shape
    present = [one for one in range(C) if len(excesses[-1][one])]
    state = [np.full(len(excesses[-1][one]), present.index(one) if one in present else -1) for one in range(C)]
    of_class, tails, heads = [np.array(present, dtype=np.int64)], [], []
    for row in range(P - 2, -1, -1):
        allowed = [_allowed(costs, row + 1, one, period, excesses, state) for one in range(C)]
        state, here, there = [], [], []
        classes: list[int] = []
        for one, after in enumerate(allowed):
            alive = (after >= 0).any(axis=1)
            distinct, which = np.unique(after[alive], axis=0, return_inverse=True)
            numbered = np.full(len(after), -1)
            numbered[alive] = which.ravel() + len(classes)
            state.append(numbered)
            at, to = np.nonzero(distinct >= 0)
            here.append(at + len(classes))
            there.append(distinct[at, to])
            classes += [one] * len(distinct)
        of_class.append(np.array(classes, dtype=np.int64))
        tails.append(np.concatenate(here))
        heads.append(np.concatenate(there))
    return Columns(of_class=tuple(of_class[::-1]), tails=tuple(tails[::-1]), heads=tuple(heads[::-1]))


def _allowed(
    costs: RowCosts,
    row: int,
    above: int,
    period: int,
    excesses: Sequence[Sequence[IntArray]],
    state: Sequence[IntArray],
) -> IntArray:
    """States of a row by class, -1 where there is none, after each excess of a class above it, shape ``(..., C)``."""
    given = excesses[row - 1][above]
    allowed = np.full((len(given), costs.room.shape[1]), -1)
    for one in np.flatnonzero(costs.room[row] & (costs.period_arc[row - 1, above] < NEVER)).tolist():
        after = excess_after(costs, row, one, period, given + int(costs.period_arc[row - 1, above, one]))
        fits = after <= 0
        allowed[fits, one] = state[one][np.searchsorted(excesses[row][one], after[fits])]
    return allowed
