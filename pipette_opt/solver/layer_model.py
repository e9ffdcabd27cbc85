"""
The joint model: one CP-SAT model over all families of configurations that bounds leave open.

**Decided**: the family (degrees, micro-batch, chunks, recomputation, packing of the hosts), the layers of each stage,
with block recomputation up to how many of them every stage recomputes, and for each grid row how many of its hosts are
of which kind of GPU.

**Minimised**: the longest of some paths through the schedule, with the best links between hosts of the kinds chosen.
Any path is a lower bound of the simulated time, so the optimum bounds every configuration of every family; with the
paths that the simulator found critical it is the simulated time over the best links.

**Subject to**: one family; all layers dealt, each stage at least one; each stage within the memory of every kind of
GPU that holds it, with as many recomputed layers as that asks for; no more hosts of a kind than there are; no split of
layers that was excluded.

The variables of families that are not chosen are zero, and the time is the sum over families. So the linear relaxation
is the convex hull of the families' own, and needs no constants beyond their room.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from ortools.sat.python.cp_model import (
    FEASIBLE,
    INFEASIBLE,
    OPTIMAL,
    CpModel,
    CpSolver,
    LinearExpr,
)

from pipette_opt.base.types import IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.family_model import TICKS_TO_BEAT, FamilyModel
from pipette_opt.solver.stoppable import solve_until


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSplit:
    """
    What the model chose, or what comes near to a bound.

    Parameters
    ----------
    units
        Units of each stage, shape ``(pp,)``.
    kinds
        Hosts of each kind of GPU in each grid row, shape ``(rows, num_kinds)``.
    bound_s
        The model's time of it, or the bound.
    recomputed
        Units of each stage that are recomputed, in a family with block recomputation.
    family
        Index of the family in its model.
    """

    units: tuple[int, ...]
    kinds: IntArray
    bound_s: float
    recomputed: int = 1
    family: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSize:
    """How large a model is, how often it was solved, and in what time."""

    families: int = 0
    variables: int = 0
    constraints: int = 0
    solves: int = 0
    seconds: float = 0.0

    def joined(self, other: "ModelSize") -> "ModelSize":
        """The larger of two models, and what both took."""
        return ModelSize(
            families=max(self.families, other.families),
            variables=max(self.variables, other.variables),
            constraints=max(self.constraints, other.constraints),
            solves=self.solves + other.solves,
            seconds=self.seconds + other.seconds,
        )


class LayerModel:
    """
    The joint model of some families, solved again and again as paths are added and splits excluded.

    Parameters
    ----------
    hosts_of_kind
        Hosts of each kind of GPU, shape ``(num_kinds,)``.
    to_beat_s
        Splits that are not faster are of no interest.
    """

    def __init__(self, families: Sequence[LayerFamily], hosts_of_kind: IntArray, to_beat_s: float) -> None:
        self.families, self.hosts_of_kind = list(families), [int(count) for count in hosts_of_kind]
        self.tick_s = to_beat_s / TICKS_TO_BEAT
        self.model = CpModel()
        self.size = ModelSize(families=len(families))
        """The model as it was solved last, and what that took."""
        self._variables = [
            FamilyModel(self.model, family, self.hosts_of_kind, self.tick_s, str(index))
            for index, family in enumerate(families)
        ]
        self._seen: dict[tuple[int, int, int], set[bytes]] = {}
        self.model.add_exactly_one([one.chosen for one in self._variables])
        self._time = LinearExpr.sum([one.time for one in self._variables])
        self.model.minimize(self._time)
        self._ceiling = TICKS_TO_BEAT
        for schedule in dict.fromkeys(family.schedule for family in families):
            self.add_paths(schedule, plain_counts(schedule[0], schedule[1], schedule[2]))

    def add_paths(self, schedule: tuple[int, int, int], counts: PathCounts) -> int:
        """
        Add paths to all families with a schedule.

        Those that end at the first stage, as none is over before it, and all with the reduction that comes after them.

        Returns
        -------
        int
            How many were new.
        """
        seen, new = self._seen.setdefault(schedule, set()), []
        for path, row in enumerate(counts.table()):
            if (key := row.tobytes()) not in seen:
                seen.add(key)
                new.append(path)
        if new:
            some = counts.take(np.array(new))
            for one in self._variables:
                if one.family.schedule == schedule:
                    one.add_paths(some)
        return len(new)

    def exclude(self, index: int, units: Sequence[int]) -> None:
        """Leave one split of a family out: it is dealt with elsewhere."""
        variables = self._variables[index]
        if len(variables.units) == 1:
            self.model.add(variables.chosen == 0)
            return
        self.model.add_forbidden_assignments(variables.units, [tuple(int(one) for one in units)])

    def below(self, to_beat_s: float) -> None:
        """Look for splits faster than this only."""
        ceiling = int(np.ceil(min(to_beat_s / self.tick_s, TICKS_TO_BEAT))) - 1
        if ceiling < self._ceiling:
            self._ceiling = ceiling
            self.model.add(self._time <= ceiling)

    def solve(
        self, time_limit_s: float, workers: int, seed: int, stop: threading.Event
    ) -> tuple[LayerSplit | None, float]:
        """
        The best split left, and a bound on all that are left in seconds.

        ``None`` if there is none below the time to beat (then the bound is that time), or none was found in time.
        """
        solver = CpSolver()
        solver.parameters.num_workers = workers
        solver.parameters.random_seed = seed
        solver.parameters.max_time_in_seconds = max(time_limit_s, 0.01)
        solver.parameters.catch_sigint_signal = False
        status = solve_until(solver, self.model, stop)
        proto = self.model.proto
        self.size = ModelSize(
            families=len(self.families),
            variables=len(proto.variables),
            constraints=len(proto.constraints),
            solves=1,
            seconds=solver.wall_time,
        )
        if status == INFEASIBLE:
            return None, (self._ceiling + 1) * self.tick_s
        if status not in (OPTIMAL, FEASIBLE):
            return None, max(0.0, np.floor(solver.best_objective_bound + 0.5)) * self.tick_s
        index = next(index for index, one in enumerate(self._variables) if solver.value(one.chosen))
        variables, family = self._variables[index], self.families[index]
        kinds = np.array(
            [[solver.value(count) for count in row] for row in variables.hosts]
            or [[family.hosts_per_row]] * family.grid[0],
            dtype=np.int64,
        )
        bound, units = np.floor(solver.best_objective_bound + 0.5), [solver.value(one) for one in variables.units]
        split = LayerSplit(
            family=index,
            units=tuple(units),
            kinds=kinds,
            bound_s=solver.objective_value * self.tick_s,
            recomputed=fewest_recomputed(family, units, kinds),
        )
        return split, float(bound) * self.tick_s


def fewest_recomputed(family: LayerFamily, units: Sequence[int], kinds: IntArray) -> int:
    """The fewest recomputed units that the memory of each stage's kinds of GPU asks for; 1 at least."""
    if family.recomputed is None:
        return 1
    fewest = family.recomputed.fewest()
    rows = np.arange(len(units)) // family.block.stages
    asked = [fewest[kinds[row] > 0, stage, units[stage]].max() for stage, row in enumerate(rows.tolist())]
    return max(1, int(max(asked)))
