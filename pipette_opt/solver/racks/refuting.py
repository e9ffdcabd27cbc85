"""Ceilings refuted for ranges of the slowest column's period: what does that, and how by the rack and kind of cells."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.solver.racks.model import RackModel, build_racks
from pipette_opt.solver.racks.placements import placement
from pipette_opt.solver.racks.structure import Racks
from pipette_opt.solver.stoppable import TimeSlice

OnPlacement = Callable[[IntArray], None]
"""Called with the hosts of each cell, shape ``(P, D)``, of placements that racks and kinds promise to be good."""


class Refuter(Protocol):
    """Refutes ceilings for ranges of the slowest column's period."""

    @property
    def first_parts(self) -> int:
        """Ranges at first: wide ones only cost time."""

    @property
    def slice_share(self) -> float:
        """Of the time of the first run, what a range has at first."""

    @property
    def reach(self) -> float:
        """Of what is between bound and ceiling, what is tried next, until there is a pattern; then half of the rest."""

    @property
    def joins(self) -> int:
        """Ranges that are tried together at most, as long as that is soon done."""

    @property
    def lowers(self) -> bool:
        """
        Whether a lower ceiling is tried where a range takes too long, and not only once it cannot be split.

        Then it is not split the first time: its parts would take as long as it does, each.
        """

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        """
        Whether no placement with a period of the range costs at most the ceiling; ``None`` if that took too long.

        Unless ``thorough`` only what is soon done is tried. May raise :class:`OutOfTimeError`, which says ``None``.
        """


@dataclass(eq=False)
class PlacingRefuter:
    """
    What refuters by racks and kinds have in common.

    Parameters
    ----------
    on_placement
        Called with what racks and kinds promise, if they are not refuted.
    """

    data: ProblemData
    candidate: CandidateData
    racks: Racks
    on_placement: OnPlacement = lambda nodes: None
    random: np.random.Generator = field(init=False, default_factory=lambda: np.random.default_rng(0))

    def refutes_cells(self, built: RackModel, solver: cp_model.CpSolver, time_slice: TimeSlice) -> bool | None:
        """Whether a model of cells has no solution; one that is found is placed."""
        refuted = is_refuted(time_slice.solve(built.model, solver))
        if refuted is False:
            self.on_placement(placement(built, solver, self.racks, self.random))
        return refuted


class CellRefuter(PlacingRefuter):
    """By the rack and the kind of each cell."""

    first_parts = 16
    slice_share = 0.5
    reach = 0.75
    joins = 1
    lowers = False

    def __call__(
        self, ceiling: int, shortest: int, longest: int, time_slice: TimeSlice, *, thorough: bool = True
    ) -> bool | None:
        """Whether the model has no solution."""
        solver = cp_model.CpSolver()
        solver.parameters.linearization_level = 0  # relaxations cost more than they tell here
        built = build_racks(self.candidate, self.data.p2p, self.racks, ceiling, shortest, longest)
        return self.refutes_cells(built, solver, time_slice)


def is_refuted(status: int) -> bool | None:
    """Whether there is no solution; ``None`` if that is not known."""
    return {int(cp_model.INFEASIBLE): True, int(cp_model.OPTIMAL): False, int(cp_model.FEASIBLE): False}.get(status)
