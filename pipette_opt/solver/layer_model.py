"""
The joint model: one CP-SAT model over all families of configurations that bounds leave open.

**Decided**: the family (degrees, micro-batch, chunks, recomputation, packing of the hosts), the layers of each stage,
with block recomputation up to how many of them every stage recomputes, and for each grid row how many of its hosts are
of which kind of GPU.

**Minimised**: the longest of some paths through the schedule, with the best links between hosts of the kinds chosen.
Any path is a lower bound of the judge's time, so the optimum bounds every configuration of every family; with the
paths that the judge found critical it is the judge's time over the best links.

**Subject to**: one family; all layers dealt, each stage at least one; each stage within the memory of every kind of
GPU that holds it, with as many recomputed layers as that asks for; no more hosts of a kind than there are; no split of
layers that was excluded.

The variables of families that are not chosen are zero, and the time is the sum over families. So the linear relaxation
is the convex hull of the families' own, and needs no constants beyond their room.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from ortools.sat.python.cp_model import (
    FEASIBLE,
    INFEASIBLE,
    OPTIMAL,
    CpModel,
    CpSolver,
    IntVar,
    LinearExpr,
)

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts, plain_counts
from pipette_opt.solver.stoppable import solve_until

RESOLUTION = 10_000_000
"""Number of ticks in the time to beat: times of the model are whole ticks."""


HEAVY = 0.5
"""Part of the work that a path does in its busiest row from which another row is looked at by kind, too. Chosen."""


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


def num_variables(family: LayerFamily, num_kinds: int) -> int:
    """Variables of a family in a model, about."""
    rows, pp = family.grid[0], family.config.pipeline_model_parallel_size
    if num_kinds == 1:
        return pp + 3
    of_kinds = num_kinds * (rows + pp) if family.hosts_per_row == 1 else num_kinds * (3 * rows + 2 * pp)
    return of_kinds + rows + pp + 3


@dataclass(slots=True, eq=False)
class _FamilyVariables:
    """The decisions about one family."""

    chosen: IntVar
    units: list[IntVar]
    step: IntVar
    """Ticks of the optimizer's step of the largest stage."""
    time: IntVar = field(init=False)
    present: list[list[IntVar]] = field(default_factory=list)
    """Whether a row has hosts of a kind, by row and kind; empty with one kind."""
    hosts: list[list[IntVar]] = field(default_factory=list)
    """How many it has."""
    fastest: list[list[IntVar]] = field(default_factory=list)
    """The kind that a path takes in a row that it goes through quickly."""
    taken: list[list[IntVar]] = field(default_factory=list)
    """Units of a stage if a path takes that kind there, by stage and kind."""
    held: list[list[IntVar]] = field(default_factory=list)
    """Units of a stage on a kind that is present, by stage and kind."""
    further: IntVar | None = None
    """Units of each stage that are recomputed beside the first, at most; ``None`` without block recomputation."""
    again: list[IntVar] = field(default_factory=list)
    """Units of a stage that are recomputed beside the first."""
    taken_again: list[list[IntVar]] = field(default_factory=list)
    """The same if a path takes that kind there, by stage and kind."""
    held_again: list[list[IntVar]] = field(default_factory=list)
    """The same on a kind that is present, by stage and kind."""
    links: list[IntVar] = field(default_factory=list)
    """Ticks of a transfer from one row to the next."""


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
        self.num_kinds = len(self.hosts_of_kind)
        self.tick_s = to_beat_s / RESOLUTION
        self.model = CpModel()
        self.size = ModelSize(families=len(families))
        """The model as it was solved last, and what that took."""
        self._variables = [self._add_family(index) for index in range(len(families))]
        self._seen: dict[tuple[int, int, int], set[bytes]] = {}
        self.model.add_exactly_one([one.chosen for one in self._variables])
        self._time = LinearExpr.sum([one.time for one in self._variables])
        self.model.minimize(self._time)
        self._ceiling = RESOLUTION
        for schedule in dict.fromkeys(family.schedule for family in families):
            self.add_paths(schedule, plain_counts(schedule[0], schedule[1], schedule[2]))

    # -- variables and constraints -----------------------------------------------------------------------------------

    def _add_family(self, index: int) -> _FamilyVariables:
        model, family = self.model, self.families[index]
        most = family.most_units.max(axis=0)
        # CP-SAT branches in the order of variables where nothing tells more: the time, which follows, comes last.
        chosen = model.new_bool_var(f"family_{index}")
        units = [
            model.new_int_var(0, int(min(cap, family.num_units)), f"units_{index}_{stage}")
            for stage, cap in enumerate(most)
        ]
        step = model.new_int_var(0, RESOLUTION, f"step_{index}")
        unit, fixed = int(self._floor(np.array(family.step_s))), self._floor(family.fixed_step_s).tolist()
        for held, extra in zip(units, fixed, strict=True):
            model.add(step >= unit * held + extra * chosen)
        variables = _FamilyVariables(chosen=chosen, units=units, step=step)
        if family.recomputed is not None:
            self._add_recomputation(family, variables)
        if self.num_kinds > 1:
            self._add_kinds(family, variables)
        if family.recomputed is not None:
            self._add_fewest(family, variables, family.recomputed.fewest())
        variables.time = model.new_int_var(0, RESOLUTION, f"time_{index}")
        model.add(variables.time <= RESOLUTION * variables.chosen)
        model.add(LinearExpr.sum(variables.units) == family.num_units * variables.chosen)
        for held, cap in zip(units, most.tolist(), strict=True):
            if cap < 1:
                model.add(chosen == 0)
                break
            model.add(held >= chosen)
            model.add(held <= min(cap, family.num_units) * chosen)
        return variables

    def _add_kinds(self, family: LayerFamily, variables: _FamilyVariables) -> None:
        """Hosts of each row by kind; the units of a stage on each kind that holds it, within that kind's memory."""
        model, kinds = self.model, range(self.num_kinds)
        rows, per_row = family.grid[0], family.hosts_per_row
        for row in range(rows):
            present = [model.new_bool_var(f"present_{row}_{kind}") for kind in kinds]
            if per_row == 1:  # a single host is of a single kind
                model.add(LinearExpr.sum(present) == variables.chosen)
                variables.present.append(present)
                variables.hosts.append(present)
                variables.fastest.append(present)
                continue
            hosts = [model.new_int_var(0, per_row, f"hosts_{row}_{kind}") for kind in kinds]
            fastest = [model.new_bool_var(f"fastest_{row}_{kind}") for kind in kinds]
            model.add(LinearExpr.sum(hosts) == per_row * variables.chosen)
            model.add(LinearExpr.sum(fastest) == variables.chosen)
            for here, count, quick in zip(present, hosts, fastest, strict=True):
                model.add(count >= here)
                model.add(count <= per_row * here)
                model.add_implication(quick, here)
            variables.present.append(present)
            variables.hosts.append(hosts)
            variables.fastest.append(fastest)
        for kind, available in enumerate(self.hosts_of_kind):
            model.add(LinearExpr.sum([hosts[kind] for hosts in variables.hosts]) <= available)
        for stage, units in enumerate(variables.units):
            taken, held = self._on_kinds(family, variables, stage, units)
            variables.taken.append(taken)
            variables.held.append(held)
        for stage, again in enumerate(variables.again):
            taken, held = self._on_kinds(family, variables, stage, again)
            variables.taken_again.append(taken)
            variables.held_again.append(held)
        self._add_links(family, variables)

    def _on_kinds(
        self, family: LayerFamily, variables: _FamilyVariables, stage: int, units: IntVar
    ) -> tuple[list[IntVar], list[IntVar]]:
        """Units of a stage if a path takes a kind there, and on a kind that is present, within its memory."""
        model, kinds, row, most = self.model, range(self.num_kinds), stage // family.block.stages, family.num_units
        taken = [model.new_int_var(0, most, f"taken_{stage}_{kind}") for kind in kinds]
        caps = np.minimum(family.most_units[:, stage], most).tolist()
        model.add(LinearExpr.sum(taken) == units)
        for kind in kinds:
            model.add(taken[kind] <= caps[kind] * variables.fastest[row][kind])
        if family.hosts_per_row == 1:
            return taken, taken
        held = [model.new_int_var(0, most, f"held_{stage}_{kind}") for kind in kinds]
        for kind in kinds:
            here = variables.present[row][kind]
            model.add(held[kind] <= caps[kind] * here)
            model.add(held[kind] <= units)
            model.add(held[kind] == units).only_enforce_if(here)
        return taken, held

    def _add_recomputation(self, family: LayerFamily, variables: _FamilyVariables) -> None:
        """Each stage recomputes its first units, up to one number for all; the first unit is in the fixed times."""
        most = max(family.num_units - 1, 0)
        further = variables.further = self.model.new_int_var(0, most, "further")
        for stage, units in enumerate(variables.units):
            again = self.model.new_int_var(0, most, f"again_{stage}")
            self.model.add_min_equality(again, [units - variables.chosen, further])
            variables.again.append(again)

    def _add_fewest(self, family: LayerFamily, variables: _FamilyVariables, fewest: IntArray) -> None:
        """The number of recomputed units is as large as the memory of every kind of GPU that holds a stage asks."""
        assert variables.further is not None
        for stage, units in enumerate(variables.units):
            for kind, table in enumerate(np.maximum(fewest[:, stage] - 1, 0)):
                if not table.any():
                    continue
                needed = self.model.new_int_var(0, int(table.max()), f"needed_{stage}_{kind}")
                last = len(table) - 1
                place = self.model.new_int_var(0, last, f"place_{stage}_{kind}")
                self.model.add_min_equality(place, [units, last])
                self.model.add_element(place, table.tolist(), needed)
                enough = self.model.add(variables.further >= needed)
                if variables.present:
                    enough.only_enforce_if(variables.present[stage // family.block.stages][kind])

    def _add_links(self, family: LayerFamily, variables: _FamilyVariables) -> None:
        """A transfer between rows takes at least the best link between kinds that they have."""
        ticks = self._floor(np.where(np.isfinite(family.link_s), family.link_s, 0.0))
        least, most = int(ticks.min()), int(ticks.max())
        rows = family.grid[0]
        wraps = family.config.num_chunks > 1 and rows > 1  # only then the last row sends to the first
        for row in range(rows if wraps else rows - 1):
            link = self.model.new_int_var(0, most, "link")
            self.model.add(link >= least * variables.chosen)
            here, there = variables.present[row], variables.present[(row + 1) % rows]
            for one in range(self.num_kinds):
                for other in range(self.num_kinds):
                    apart = [here[kind] for kind in range(self.num_kinds) if kind != one]
                    apart += [there[kind] for kind in range(self.num_kinds) if kind != other]
                    pure = [~literal for literal in apart]
                    if not np.isfinite(family.link_s[one, other]):
                        self.model.add_bool_or([*apart, ~variables.chosen])
                    elif ticks[one, other] > least:
                        self.model.add(link >= int(ticks[one, other])).only_enforce_if([*pure, variables.chosen])
            variables.links.append(link)

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
            for index, family in enumerate(self.families):
                if family.schedule == schedule:
                    self._add_family_paths(index, some)
        return len(new)

    def _add_family_paths(self, index: int, counts: PathCounts) -> None:
        family = self.families[index]
        overlaps, chunks = family.config.overlap_grad_reduce, family.config.num_chunks
        if not overlaps or chunks == 1:
            counts = counts.take(counts.parts == 1)
        again = family.recompute_path_s(family.before_reduction(counts))
        for *seconds, moved in zip(*family.reduced_path_s(counts), again, counts.up + counts.down, strict=True):
            self._add_path(index, moved, *map(self._floor, seconds))
        if overlaps and chunks == 1:  # the first stage's reduction may be over with its last backward
            own = counts.take(counts.stage == 0)
            again = family.recompute_path_s(own)
            fixed, unit = family.path_s(own)
            fixed[:, :, 0] += family.after_s(own)[:, None]
            for *seconds, moved in zip(fixed, unit, again, own.up + own.down, strict=True):
                self._add_path(index, moved, *map(self._floor, seconds))

    def _add_path(self, index: int, transfers: IntArray, fixed: IntArray, unit: IntArray, again: IntArray) -> None:
        """
        One path: transfers from each stage, and ticks on each kind and stage.

        Without layers, for each unit, and for each unit that is recomputed beside the first.
        """
        family, variables = self.families[index], self._variables[index]
        optimizer = int(self._floor(np.array(family.optimizer_s))) * variables.chosen + variables.step
        rest = self._sent(family, variables, transfers) + optimizer
        if self.num_kinds == 1:
            work = LinearExpr.weighted_sum(variables.units, unit[0].tolist())
            if variables.again:
                work += LinearExpr.weighted_sum(variables.again, again[0].tolist())
            self.model.add(variables.time >= work + int(fixed[0].sum()) * variables.chosen + rest)
        else:
            self._add_mixed_path(family, variables, fixed, unit, again, rest)

    def _add_mixed_path(
        self,
        family: LayerFamily,
        variables: _FamilyVariables,
        fixed: IntArray,
        unit: IntArray,
        again: IntArray,
        rest: LinearExpr,
    ) -> None:
        """
        Some column has any kind that a row has; in the other rows it is at least as slow as their fastest.

        So a path is bounded for each row and kind: there by the kind, elsewhere by the fastest. Rows where a path does
        little are left out, as their kind changes it little.
        """
        per_row = family.block.stages
        quick: list[LinearExpr] = []
        for row in range(family.grid[0]):
            stages = range(row * per_row, (row + 1) * per_row)
            by_kind = fixed[:, stages.start : stages.stop].sum(axis=1)
            parts = [LinearExpr.weighted_sum(variables.taken[stage], unit[:, stage].tolist()) for stage in stages]
            parts.append(LinearExpr.weighted_sum(variables.fastest[row], by_kind.tolist()))
            if variables.again:
                more = [(variables.taken_again[stage], again[:, stage].tolist()) for stage in stages]
                parts += [LinearExpr.weighted_sum(taken, ticks) for taken, ticks in more]
            quick.append(LinearExpr.sum(parts))
        everywhere = LinearExpr.sum(quick) + rest
        if family.hosts_per_row == 1:
            self.model.add(variables.time >= everywhere)
            return
        weights = unit.max(axis=0).reshape(family.grid[0], per_row).sum(axis=1)
        for row in np.flatnonzero(weights >= HEAVY * weights.max()).tolist():
            stages = range(row * per_row, (row + 1) * per_row)
            others = everywhere - quick[row]
            for kind in range(self.num_kinds):
                own = [int(unit[kind, stage]) * variables.held[stage][kind] for stage in stages]
                if variables.again:
                    own += [int(again[kind, stage]) * variables.held_again[stage][kind] for stage in stages]
                own.append(int(fixed[kind, stages.start : stages.stop].sum()) * variables.present[row][kind])
                self.model.add(variables.time >= LinearExpr.sum(own) + others)

    def _sent(self, family: LayerFamily, variables: _FamilyVariables, transfers: IntArray) -> LinearExpr:
        """Ticks of the transfers of a path; from each stage to the next (cyclic)."""
        pp, per_row = family.config.pipeline_model_parallel_size, family.block.stages
        rows = np.arange(pp) // per_row
        inside = rows == np.roll(rows, -1)
        constant = float(transfers[inside].sum()) * family.inside_s
        parts: list[LinearExpr] = []
        if self.num_kinds == 1:
            sent = float(transfers[~inside].sum())
            constant += sent * float(family.link_s[0, 0]) if sent else 0.0  # without a link it is infinite
        else:
            for stage in np.flatnonzero(~inside).tolist():
                if transfers[stage]:
                    parts.append(int(transfers[stage]) * variables.links[rows[stage]])
        constant_ticks = int(self._floor(np.array(min(constant, 2.0 * RESOLUTION * self.tick_s))))
        return LinearExpr.sum([*parts, constant_ticks * variables.chosen])

    def exclude(self, index: int, units: Sequence[int]) -> None:
        """Leave one split of a family out: it is dealt with elsewhere."""
        variables = self._variables[index]
        if len(variables.units) == 1:
            self.model.add(variables.chosen == 0)
            return
        self.model.add_forbidden_assignments(variables.units, [tuple(int(one) for one in units)])

    def below(self, to_beat_s: float) -> None:
        """Look for splits faster than this only."""
        ceiling = int(np.ceil(min(to_beat_s / self.tick_s, RESOLUTION))) - 1
        if ceiling < self._ceiling:
            self._ceiling = ceiling
            self.model.add(self._time <= ceiling)

    def _floor(self, seconds: FloatArray) -> IntArray:
        return np.floor(seconds / self.tick_s).astype(np.int64)

    # -- solving -----------------------------------------------------------------------------------------------------

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
