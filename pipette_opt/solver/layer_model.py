"""
Joint CP-SAT model over all partition families that bounds have not ruled out.

**Decided**: the family (degrees, micro-batch, chunks, recomputation, host tile), the layers of each stage, the number
of recomputed layers (with block recomputation), and the number of hosts of each GPU type in each grid row.

**Minimised**: the longest of a set of paths through the schedule, over the best links between hosts of the chosen GPU
types. Any path is a lower bound on the simulated time, so the optimum bounds every configuration of every family. With
the simulator's critical paths, the optimum equals the simulated time over the best links.

**Subject to**: one family; all layers assigned, at least one to each stage; each stage within the memory of every GPU
type in its row, with the recomputation that this requires; no more hosts of a type than exist; no excluded partition.

Variables of families that are not chosen are zero, and the time is the sum over families. So the linear relaxation is
the convex hull of the families' relaxations, without big-M constants beyond their limits.
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
    LinearExpr,
)

from pipette_opt.base.types import IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.family_model import TICKS_TO_BEAT, FamilyModel
from pipette_opt.solver.stoppable import new_solver, solve_until


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LayerSplit:
    """
    Layer partition that the model chose, or that was found near a bound.

    Parameters
    ----------
    units
        Units (layers in each chunk) of each stage, shape ``(pp,)``.
    kinds
        Number of hosts of each GPU type in each grid row, shape ``(rows, num_kinds)``.
    bound_s
        Time of the partition in the model, or the bound, seconds.
    recomputed
        Number of recomputed units of each stage, in a family with block recomputation.
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
    """Size of the largest CP-SAT model, number of solves, and their total seconds."""

    families: int = 0
    variables: int = 0
    constraints: int = 0
    solves: int = 0
    seconds: float = 0.0

    def joined(self, other: "ModelSize") -> "ModelSize":
        """Return the larger size of two statistics, with their solves and seconds added up."""
        return ModelSize(
            families=max(self.families, other.families),
            variables=max(self.variables, other.variables),
            constraints=max(self.constraints, other.constraints),
            solves=self.solves + other.solves,
            seconds=self.seconds + other.seconds,
        )


class LayerModel:
    """
    Joint CP-SAT model of several partition families, solved again after each added path or excluded partition.

    Parameters
    ----------
    hosts_of_kind
        Number of hosts of each GPU type, shape ``(num_kinds,)``.
    to_beat_s
        Time to beat, seconds; slower partitions are ignored.
    """

    def __init__(self, families: Sequence[LayerFamily], hosts_of_kind: IntArray, to_beat_s: float) -> None:
        self.families, self.hosts_of_kind = list(families), [int(count) for count in hosts_of_kind]
        self.tick_s = to_beat_s / TICKS_TO_BEAT
        self.model = CpModel()
        self.size = ModelSize(families=len(families))
        """Size of the model at its last solve, and the time of that solve."""
        self._variables = [
            FamilyModel(self.model, family, self.hosts_of_kind, self.tick_s, str(index))
            for index, family in enumerate(families)
        ]
        self._seen: dict[tuple[int, int, int], set[bytes]] = {}
        self.model.add_exactly_one([variables.chosen for variables in self._variables])
        self._time = LinearExpr.sum([variables.time for variables in self._variables])
        self.model.minimize(self._time)
        self._ceiling = TICKS_TO_BEAT
        for schedule in dict.fromkeys(family.schedule for family in families):
            self.add_paths(schedule, plain_counts(schedule[0], schedule[1], schedule[2]))

    def add_paths(self, schedule: tuple[int, int, int], counts: PathCounts) -> int:
        """
        Add paths to all partition families with a given schedule, as constraints on their time.

        Returns
        -------
        int
            Number of new paths.
        """
        seen, new = self._seen.setdefault(schedule, set()), []
        for path, row in enumerate(counts.table()):
            if (key := row.tobytes()) not in seen:
                seen.add(key)
                new.append(path)
        if new:
            new_paths = counts.take(np.array(new))
            for variables in self._variables:
                if variables.family.schedule == schedule:
                    variables.add_paths(new_paths)
        return len(new)

    def exclude(self, index: int, units: Sequence[int]) -> None:
        """Exclude one partition of the family at ``index``, as the search covers it otherwise."""
        variables = self._variables[index]
        if len(variables.units) == 1:
            self.model.add(variables.chosen == 0)
            return
        self.model.add_forbidden_assignments(variables.units, [tuple(int(count) for count in units)])

    def below(self, to_beat_s: float) -> None:
        """Require that partitions are faster than ``to_beat_s``."""
        ceiling = int(np.ceil(min(to_beat_s / self.tick_s, TICKS_TO_BEAT))) - 1
        if ceiling < self._ceiling:
            self._ceiling = ceiling
            self.model.add(self._time <= ceiling)

    def solve(
        self, time_limit_s: float, workers: int, seed: int, stop: threading.Event
    ) -> tuple[LayerSplit | None, float]:
        """
        Return the best partition not excluded, and a lower bound on all of them in seconds.

        The partition is ``None`` if no partition beats the time to beat (the bound is then that time), or if none was
        found in time.
        """
        solver = new_solver()
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
        index = next(index for index, family in enumerate(self._variables) if solver.value(family.chosen))
        variables, family = self._variables[index], self.families[index]
        kinds = np.array(
            [[solver.value(count) for count in row] for row in variables.hosts]
            or [[family.hosts_per_row]] * family.grid[0],
            dtype=np.int64,
        )
        bound, units = np.floor(solver.best_objective_bound + 0.5), [solver.value(count) for count in variables.units]
        split = LayerSplit(
            family=index,
            units=tuple(units),
            kinds=kinds,
            bound_s=solver.objective_value * self.tick_s,
            recomputed=fewest_recomputed(family, units, kinds),
        )
        return split, float(bound) * self.tick_s


def fewest_recomputed(family: LayerFamily, units: Sequence[int], kinds: IntArray) -> int:
    """
    Return the least number of recomputed units (layers in each chunk) with which each stage fits on all GPU types of
    its row; at least 1.
    """
    if family.recomputed is None:
        return 1
    fewest = family.recomputed.fewest()
    rows = np.arange(len(units)) // family.tile.stages
    asked = [fewest[kinds[row] > 0, stage, units[stage]].max() for stage, row in enumerate(rows.tolist())]
    return max(1, int(max(asked)))
