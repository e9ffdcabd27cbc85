"""
Variables and constraints of one partition family in the joint CP-SAT model.

The time of a family is at least the length of each known path through its schedule. All variables of a family that is
not chosen are zero. A unit is one layer in each chunk of a stage.
"""

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.problem.families import LayerFamily
from pipette_opt.problem.path_counts import PathCounts

TICKS_TO_BEAT = 10_000_000
"""Number of ticks (integer time units) in the time to beat. Chosen."""

HEAVY = 0.5
"""Rows that take at least this fraction of a path's busiest row get a constraint for each GPU type. Chosen."""


def num_variables(family: LayerFamily, num_kinds: int) -> int:
    """Return the approximate number of CP-SAT variables of a partition family."""
    rows, pp = family.grid[0], family.config.pipeline_model_parallel_size
    if num_kinds == 1:
        return pp + 3
    of_kinds = num_kinds * (rows + pp) if family.hosts_per_row == 1 else num_kinds * (3 * rows + 2 * pp)
    return of_kinds + rows + pp + 3


class FamilyModel:
    """
    CP-SAT variables and constraints of one partition family.

    Parameters
    ----------
    hosts_of_kind
        Number of hosts of each GPU type.
    name
        Suffix of the variables' names.

    Attributes
    ----------
    chosen
        1 if the model chooses this family.
    units
        Units (layers in each chunk) of each stage.
    step, time
        Ticks of the optimizer step of the slowest stage, and of the iteration.
    present, hosts
        Presence and number of hosts of each GPU type in each row, by row and type; empty with one type.
    fastest
        GPU type of the host in each row on a fast path, by row and type.
    taken, held
        Units of a stage, by stage and GPU type: on the type of a fast path, and on every type in its row.
    further
        Largest number of recomputed units of a stage beyond the first; ``None`` without block recomputation.
    again, taken_again, held_again
        Recomputed units of each stage beyond the first; with ``taken`` and ``held`` as for units.
    links
        Ticks of a transfer from one row to the next.
    """

    def __init__(self, model: CpModel, family: LayerFamily, hosts_of_kind: list[int], tick_s: float, name: str) -> None:
        self.model, self.family, self.hosts_of_kind, self.tick_s = model, family, hosts_of_kind, tick_s
        self.num_kinds = len(hosts_of_kind)
        self.present: list[list[IntVar]] = []
        self.hosts: list[list[IntVar]] = []
        self.fastest: list[list[IntVar]] = []
        self.taken: list[list[IntVar]] = []
        self.held: list[list[IntVar]] = []
        self.further: IntVar | None = None
        self.again: list[IntVar] = []
        self.taken_again: list[list[IntVar]] = []
        self.held_again: list[list[IntVar]] = []
        self.links: list[IntVar] = []
        most = family.most_units.max(axis=0)
        # CP-SAT branches in the order of variables by default: the time, which follows from the others, comes last.
        self.chosen = model.new_bool_var(f"family_{name}")
        self.units = [
            model.new_int_var(0, int(min(cap, family.num_units)), f"units_{name}_{stage}")
            for stage, cap in enumerate(most)
        ]
        self.step = model.new_int_var(0, TICKS_TO_BEAT, f"step_{name}")
        unit, fixed = int(self._floor(np.array(family.step_s))), self._floor(family.fixed_step_s).tolist()
        for held, extra in zip(self.units, fixed, strict=True):
            model.add(self.step >= unit * held + extra * self.chosen)
        if family.recomputed is not None:
            self._add_recomputation()
        if self.num_kinds > 1:
            self._add_kinds()
        if family.recomputed is not None:
            self._add_fewest(family.recomputed.fewest())
        self.time = model.new_int_var(0, TICKS_TO_BEAT, f"time_{name}")
        model.add(self.time <= TICKS_TO_BEAT * self.chosen)
        model.add(LinearExpr.sum(self.units) == family.num_units * self.chosen)
        for held, cap in zip(self.units, most.tolist(), strict=True):
            if cap < 1:
                model.add(self.chosen == 0)
                break
            model.add(held >= self.chosen)
            model.add(held <= min(cap, family.num_units) * self.chosen)

    def _add_kinds(self) -> None:
        """Add the number of hosts of each GPU type in each row; the memory of every type in a row limits its stages."""
        model, family, kinds = self.model, self.family, range(self.num_kinds)
        rows, per_row = family.grid[0], family.hosts_per_row
        for row in range(rows):
            present = [model.new_bool_var(f"present_{row}_{kind}") for kind in kinds]
            if per_row == 1:  # a row of one host has one kind
                model.add(LinearExpr.sum(present) == self.chosen)
                self.present.append(present)
                self.hosts.append(present)
                self.fastest.append(present)
                continue
            hosts = [model.new_int_var(0, per_row, f"hosts_{row}_{kind}") for kind in kinds]
            fastest = [model.new_bool_var(f"fastest_{row}_{kind}") for kind in kinds]
            model.add(LinearExpr.sum(hosts) == per_row * self.chosen)
            model.add(LinearExpr.sum(fastest) == self.chosen)
            for here, count, quick in zip(present, hosts, fastest, strict=True):
                model.add(count >= here)
                model.add(count <= per_row * here)
                model.add_implication(quick, here)
            self.present.append(present)
            self.hosts.append(hosts)
            self.fastest.append(fastest)
        for kind, available in enumerate(self.hosts_of_kind):
            model.add(LinearExpr.sum([hosts[kind] for hosts in self.hosts]) <= available)
        for stage, units in enumerate(self.units):
            taken, held = self._on_kinds(stage, units)
            self.taken.append(taken)
            self.held.append(held)
        for stage, again in enumerate(self.again):
            taken, held = self._on_kinds(stage, again)
            self.taken_again.append(taken)
            self.held_again.append(held)
        self._add_links()

    def _on_kinds(self, stage: int, units: IntVar) -> tuple[list[IntVar], list[IntVar]]:
        """Return variables for the units of a stage by GPU type: that of a fast path, and every type in its row."""
        family = self.family
        model, kinds, row, most = self.model, range(self.num_kinds), stage // family.tile.stages, family.num_units
        taken = [model.new_int_var(0, most, f"taken_{stage}_{kind}") for kind in kinds]
        caps = np.minimum(family.most_units[:, stage], most).tolist()
        model.add(LinearExpr.sum(taken) == units)
        for kind in kinds:
            model.add(taken[kind] <= caps[kind] * self.fastest[row][kind])
        if family.hosts_per_row == 1:
            return taken, taken
        held = [model.new_int_var(0, most, f"held_{stage}_{kind}") for kind in kinds]
        for kind in kinds:
            here = self.present[row][kind]
            model.add(held[kind] <= caps[kind] * here)
            model.add(held[kind] <= units)
            model.add(held[kind] == units).only_enforce_if(here)
        return taken, held

    def _add_recomputation(self) -> None:
        """
        Add recomputed units (layers in each chunk): each stage recomputes its first units, up to a number that all
        stages share.

        The fixed times already include one recomputed unit.
        """
        family = self.family
        most = max(family.num_units - 1, 0)
        further = self.further = self.model.new_int_var(0, most, "further")
        for stage, units in enumerate(self.units):
            again = self.model.new_int_var(0, most, f"again_{stage}")
            self.model.add_min_equality(again, [units - self.chosen, further])
            self.again.append(again)

    def _add_fewest(self, fewest: IntArray) -> None:
        """
        Require as many recomputed units (layers in each chunk) as memory demands on every GPU type of each stage.

        ``fewest`` has the least number for each GPU type, stage and number of units.
        """
        family = self.family
        assert self.further is not None
        for stage, units in enumerate(self.units):
            for kind, table in enumerate(np.maximum(fewest[:, stage] - 1, 0)):
                if not table.any():
                    continue
                needed = self.model.new_int_var(0, int(table.max()), f"needed_{stage}_{kind}")
                last = len(table) - 1
                place = self.model.new_int_var(0, last, f"place_{stage}_{kind}")
                self.model.add_min_equality(place, [units, last])
                self.model.add_element(place, table.tolist(), needed)
                enough = self.model.add(self.further >= needed)
                if self.present:
                    enough.only_enforce_if(self.present[stage // family.tile.stages][kind])

    def _add_links(self) -> None:
        """Require that a transfer between rows takes at least the time of the best link between their GPU types."""
        family = self.family
        ticks = self._floor(np.where(np.isfinite(family.link_s), family.link_s, 0.0))
        least, most = int(ticks.min()), int(ticks.max())
        rows = family.grid[0]
        wraps = family.config.num_chunks > 1 and rows > 1  # only then the last row sends to the first
        for row in range(rows if wraps else rows - 1):
            link = self.model.new_int_var(0, most, "link")
            self.model.add(link >= least * self.chosen)
            here, next_row = self.present[row], self.present[(row + 1) % rows]
            for kind_here in range(self.num_kinds):
                for kind_there in range(self.num_kinds):
                    apart = [here[kind] for kind in range(self.num_kinds) if kind != kind_here]
                    apart += [next_row[kind] for kind in range(self.num_kinds) if kind != kind_there]
                    pure = [~literal for literal in apart]
                    if not np.isfinite(family.link_s[kind_here, kind_there]):
                        self.model.add_bool_or([*apart, ~self.chosen])
                    elif ticks[kind_here, kind_there] > least:
                        self.model.add(link >= int(ticks[kind_here, kind_there])).only_enforce_if([*pure, self.chosen])
            self.links.append(link)

    def add_paths(self, counts: PathCounts) -> None:
        """Require that the iteration time is at least the length of each of these paths through the schedule."""
        family = self.family
        overlaps, chunks = family.config.overlap_grad_reduce, family.config.num_chunks
        if not overlaps or chunks == 1:
            counts = counts.take(counts.parts == 1)
        again = family.recompute_path_s(family.before_reduction(counts))
        for *seconds, moved in zip(*family.reduced_path_s(counts), again, counts.up + counts.down, strict=True):
            self._add_path(moved, *map(self._floor, seconds))
        if overlaps and chunks == 1:  # the first stage's reduction may end with its last backward pass
            own = counts.take(counts.stage == 0)
            again = family.recompute_path_s(own)
            fixed, unit = family.path_s(own)
            fixed[:, :, 0] += family.after_s(own)[:, None]
            for *seconds, moved in zip(fixed, unit, again, own.up + own.down, strict=True):
                self._add_path(moved, *map(self._floor, seconds))

    def _add_path(self, transfers: IntArray, fixed: IntArray, unit: IntArray, again: IntArray) -> None:
        """
        Require that the iteration time is at least the length of one path.

        Parameters
        ----------
        transfers
            Number of transfers from each stage to the next.
        fixed, unit, again
            Ticks by GPU type and stage: with zero units (layers in each chunk), per unit, and per recomputed unit
            beyond the first.
        """
        family = self.family
        optimizer = int(self._floor(np.array(family.optimizer_s))) * self.chosen + self.step
        rest = self._sent(transfers) + optimizer
        if self.num_kinds == 1:
            work = LinearExpr.weighted_sum(self.units, unit[0].tolist())
            if self.again:
                work += LinearExpr.weighted_sum(self.again, again[0].tolist())
            self.model.add(self.time >= work + int(fixed[0].sum()) * self.chosen + rest)
        else:
            self._add_mixed_path(fixed, unit, again, rest)

    def _add_mixed_path(self, fixed: IntArray, unit: IntArray, again: IntArray, rest: LinearExpr) -> None:
        """
        Add a path where a row may have hosts of several GPU types.

        For each GPU type in a row, some column has that type there. In other rows, this column is at least as slow as
        their fastest type. So each row and type gives a constraint: that type in that row, the fastest type elsewhere.
        Rows with little of the path's work are left out.
        """
        family = self.family
        per_row = family.tile.stages
        quick: list[LinearExpr] = []
        for row in range(family.grid[0]):
            stages = range(row * per_row, (row + 1) * per_row)
            by_kind = fixed[:, stages.start : stages.stop].sum(axis=1)
            parts = [LinearExpr.weighted_sum(self.taken[stage], unit[:, stage].tolist()) for stage in stages]
            parts.append(LinearExpr.weighted_sum(self.fastest[row], by_kind.tolist()))
            if self.again:
                more = [(self.taken_again[stage], again[:, stage].tolist()) for stage in stages]
                parts += [LinearExpr.weighted_sum(taken, ticks) for taken, ticks in more]
            quick.append(LinearExpr.sum(parts))
        everywhere = LinearExpr.sum(quick) + rest
        if family.hosts_per_row == 1:
            self.model.add(self.time >= everywhere)
            return
        weights = unit.max(axis=0).reshape(family.grid[0], per_row).sum(axis=1)
        for row in np.flatnonzero(weights >= HEAVY * weights.max()).tolist():
            stages = range(row * per_row, (row + 1) * per_row)
            others = everywhere - quick[row]
            for kind in range(self.num_kinds):
                own = [int(unit[kind, stage]) * self.held[stage][kind] for stage in stages]
                if self.again:
                    own += [int(again[kind, stage]) * self.held_again[stage][kind] for stage in stages]
                own.append(int(fixed[kind, stages.start : stages.stop].sum()) * self.present[row][kind])
                self.model.add(self.time >= LinearExpr.sum(own) + others)

    def _sent(self, transfers: IntArray) -> LinearExpr:
        """Return the ticks of a path's transfers; ``transfers`` counts them from each stage to the next (cyclic)."""
        family = self.family
        pp, per_row = family.config.pipeline_model_parallel_size, family.tile.stages
        rows = np.arange(pp) // per_row
        inside = rows == np.roll(rows, -1)
        constant = float(transfers[inside].sum()) * family.inside_s
        parts: list[LinearExpr] = []
        if self.num_kinds == 1:
            sent = float(transfers[~inside].sum())
            constant += sent * float(family.link_s[0, 0]) if sent else 0.0  # infinite without a link
            if family.far_after >= 0:
                constant += float(transfers[family.far_stage]) * family.far_s
        else:
            for stage in np.flatnonzero(~inside).tolist():
                if transfers[stage]:
                    parts.append(int(transfers[stage]) * self.links[rows[stage]])
        constant_ticks = int(self._floor(np.array(min(constant, 2.0 * TICKS_TO_BEAT * self.tick_s))))
        return LinearExpr.sum([*parts, constant_ticks * self.chosen])

    def _floor(self, seconds: FloatArray) -> IntArray:
        return np.floor(seconds / self.tick_s).astype(np.int64)
