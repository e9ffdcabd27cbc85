"""
Integer objective of the exact placement model as linear constraints.

Every time has a non-negative weight. So costs are variables bounded from below, and a maximum becomes one constraint
for each of its terms.
"""

import itertools
from functools import cached_property

import numpy as np
from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

from pipette_opt.base.types import IntArray
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, Paths, ProblemData
from pipette_opt.solver.variables import Cell, GridVariables, Variables, pairs_apart, ring_hops, slot_hops

Expr = LinearExpr | IntVar | int


def add_objective(model: CpModel, data: ProblemData, variables: Variables) -> None:
    """Minimise the objective of the chosen candidate configuration."""
    known = [variables.bounds[index] * variables.chosen[index] for index in variables.indices]
    model.add(variables.objective >= LinearExpr.sum(known))
    for index in variables.indices:
        _CandidateObjective(model, data, variables, index).add()
    model.minimize(variables.objective)


class _CandidateObjective:
    """Times of one candidate configuration as expressions over the variables of its grid."""

    def __init__(self, model: CpModel, data: ProblemData, variables: Variables, index: int) -> None:
        self.model, self.data, self.variables, self.index = model, data, variables, index
        self.candidate: CandidateData = data.candidates[index]
        self.grid: GridVariables = variables.grid_of(index)
        self._known: dict[tuple[int, int, int], Expr] = {}
        self._largest: dict[int, int] = {}
        self._tied: Expr | None = None
        self._beside: dict[tuple[int, int], Expr] = {}
        self._reached: dict[int, list[IntVar]] = {}
        self.rows: list[int] = (np.arange(self.candidate.num_stages) // self.candidate.tile.stages).tolist()

    def add(self) -> None:
        """
        Add constraints of the relaxation: no stage of any column ends before the longest of its paths.

        Paths that stay below the candidate configuration's bound even on the slowest hosts and links are left out.
        """
        paths, rings = self.candidate.paths, [self._ring(stage) for stage in range(self.candidate.num_stages)]
        known = self.variables.bounds[self.index] - self.candidate.optimizer_ticks
        columns = [self._links(column) for column in range(self.grid.shape[1])]
        most_added = paths.added_ticks(np.full(self.grid.shape[0], paths.shape_of_rings[0] - 1)).tolist()
        for column, links in enumerate(columns):
            hops = [self._tensor_hop(row, column) for row in range(self.grid.shape[0])]
            for path in range(len(paths)):
                stage = int(paths.stage[path])
                terms = [self._path_work(paths, path, row, column) for row in range(self.grid.shape[0])]
                terms += [(1, rings[stage]), (1, self._embedding(stage))]
                for counts, ends in ((paths.up, 0), (paths.down, 1)):
                    terms += [(n, link[ends]) for n, link in zip(counts[path].tolist(), links, strict=False)]
                for counts, ends in ((paths.forward_layers, 0), (paths.backward_layers, 1)):
                    terms += [(n, hops[row][ends]) for n, row in zip(counts[path].tolist(), self.rows, strict=True)]
                self._add_path(terms, known)
                if most_added[path] > 0 and self._most_of(terms) + most_added[path] > known:
                    of_rows = enumerate(paths.row_ring[path].tolist())
                    beside = [(1, self._ring_beside(paths, ring, row)) for row, ring in of_rows]
                    self._add_path([*terms, *beside, (-1, int(paths.least_ticks[path]))], known)

    def _add_path(self, terms: list[tuple[int, Expr]], known: int) -> None:
        """Add a path as a lower bound of the objective, unless it cannot exceed ``known`` ticks."""
        if self._most_of(terms) > known:
            self._ends([*(count * term for count, term in _together(terms)), self.candidate.optimizer_ticks])

    def _most_of(self, terms: list[tuple[int, Expr]]) -> int:
        return sum(count * self._most(term) for count, term in _together(terms))

    def _ring_beside(self, paths: Paths, ring: int, row: int) -> Expr:
        """Return what the overlapped rings of a grid row add to a path, by the level of their slowest hop."""
        by_level = paths.ring_ticks[ring, self._steps]
        least, more = int(by_level[0]), np.diff(by_level)
        if not more.any():
            return least
        if (ring, row) not in self._beside:
            added = self._time("beside", least, int(by_level[-1]))
            self._at_least(added, least + LinearExpr.weighted_sum(self._reached_steps(row), more.tolist()))
            self._beside[ring, row] = added
        return self._beside[ring, row]

    @cached_property
    def _steps(self) -> IntArray:
        """Levels of ring hops that two hosts can have, ascending."""
        level = self.candidate.ring_level
        usable = (level < UNUSABLE_TICKS) & pairs_apart(self.variables.copies)
        return np.unique(level[usable])

    def _reached_steps(self, row: int) -> list[IntVar]:
        """Return a literal for each of the levels but the first: the slowest ring hop of a row is at least there."""
        if row not in self._reached:
            level, steps = self.candidate.ring_level, self._steps
            step = np.where(level < UNUSABLE_TICKS, np.searchsorted(steps, level), UNUSABLE_TICKS)
            slowest = self._slowest_hop(ring_hops(self.candidate, row), step)
            self._reached[row] = [self.model.new_bool_var(f"level_{self.index}_{row}") for _ in steps[1:]]
            self._at_least(LinearExpr.sum(self._reached[row]), slowest)
            for lower, higher in itertools.pairwise(self._reached[row]):
                self.model.add_implication(higher, lower)
            if len(self._reached) == self.grid.shape[0]:
                self._add_room_for_rings()
        return self._reached[row]

    def _add_room_for_rings(self) -> None:
        """
        Add that only as many grid rows have fast rings as there is room for.

        These constraints follow from the hosts of the rows. They strengthen the linear relaxation.
        """
        rows = self.grid.shape[0]
        room = np.minimum(rows_within(self.candidate, self._steps, self.variables.copies), rows).tolist()
        for step, (here, above) in enumerate(itertools.pairwise(room)):
            if here < above:
                slower = [reached[step] for reached in self._reached.values()]
                self._at_least(LinearExpr.sum(slower), rows - here)

    def _path_work(self, paths: Paths, path: int, row: int, column: int) -> tuple[int, Expr]:
        """Return the compute of a path on the stages of a grid row, as a weighted term."""
        stages = self.candidate.tile.stages
        by_kind = paths.work_ticks[path, :, row * stages : (row + 1) * stages].sum(axis=1)
        return 1, self._slowest_host(row, column, by_kind)

    def _links(self, column: int) -> list[tuple[Expr, Expr]]:
        """Return the transfer times of a column from each stage to the next (cyclic if interleaved), and back."""
        pp, inside = self.candidate.num_stages, self.candidate.intra_p2p_ticks
        known: dict[int, tuple[Expr, Expr]] = {}
        for row in range(self.grid.shape[0] - 1 + self.candidate.wraps):
            forth = self.candidate.p2p_ticks
            following = (row + 1) % self.grid.shape[0]
            hops = [((row, column, k), (following, column, k)) for k in range(self.grid.shape[2])]
            send = self._slowest_hop(hops, forth)
            known[row] = (send, send if (forth == forth.T).all() else self._slowest_hop(hops, forth.T))
        return [
            (inside, inside) if self.rows[stage] == self.rows[(stage + 1) % pp] else known[self.rows[stage]]
            for stage in range(self.candidate.num_links)
        ]

    def _ends(self, times: list[Expr]) -> None:
        self._at_least(self.variables.objective, LinearExpr.sum(times))

    def _slowest_host(self, row: int, column: int, by_kind: IntArray) -> Expr:
        hosts = [self.grid.hosts_of((row, column, k)) for k in range(self.grid.shape[2])]
        by_host = by_kind[self.data.kind_of_node]
        possible = by_host[list(hosts[0])]
        least, most = int(possible.min()), int(possible.max())
        if least == most:
            return least
        parts = [LinearExpr.weighted_sum(list(cell.values()), by_host[list(cell)].tolist()) for cell in hosts]
        if len(parts) == 1 and len(self.variables.indices) == 1:
            return parts[0]
        slowest = self._time("work", least, most)
        for part in parts:
            self._at_least(slowest, part)
        return slowest

    def _ring(self, stage: int) -> Expr:
        """Return the gradient reduction of a stage: slowest hop of its row's rings, or the time inside hosts."""
        floor, ring_class = int(self.candidate.ring_floor_ticks[stage]), int(self.candidate.ring_class[stage])
        row = self.rows[stage]
        hops = ring_hops(self.candidate, row)
        if not hops:
            return floor
        if (row, ring_class, floor) not in self._known:
            self._known[row, ring_class, floor] = self._slowest_hop(hops, self.candidate.ring_ticks[ring_class], floor)
        return self._known[row, ring_class, floor]

    def _embedding(self, stage: int) -> Expr:
        """Return the tied-embedding reduction after that of the first or last stage; 0 for other stages."""
        if stage not in (0, self.candidate.num_stages - 1):
            return 0
        if not self.candidate.embedding_ticks.size:
            return self.candidate.embedding_floor_ticks
        if self._tied is None:
            P, D, K = self.grid.shape
            hops = [((0, d, k), (P - 1, d, k)) for d in range(D) for k in range(K)]
            self._tied = self._slowest_hop(hops, self.candidate.embedding_ticks)
        return self._tied

    def _tensor_hop(self, row: int, column: int) -> tuple[Expr, Expr]:
        """Return the slowest hop between hosts of the rings inside a slot, forward and backward."""
        hops = slot_hops(self.candidate, row, column)
        if not hops:
            return 0, 0
        return (
            self._slowest_hop(hops, self.candidate.tensor_forward_ticks),
            self._slowest_hop(hops, self.candidate.tensor_backward_ticks),
        )

    def _slowest_hop(self, hops: list[tuple[Cell, Cell]], ticks: IntArray, floor: int = 0) -> Expr:
        """Return a variable of at least ``floor`` and the cost of every hop; another rule excludes unusable links."""
        usable = (ticks < UNUSABLE_TICKS) & pairs_apart(self.variables.copies)
        costs = np.where(usable, np.maximum(ticks, floor), 0)
        least, most = int(costs[usable].min(initial=UNUSABLE_TICKS)), int(costs.max(initial=floor))
        if least >= most:
            return most
        slowest = self._time("hop", least, most)
        for tail, head in hops:
            self._follow(slowest, self.grid.hosts_of(tail), self.grid.hosts_of(head), costs, least)
        return slowest

    def _follow(
        self, time: IntVar, tails: dict[int, IntVar], heads: dict[int, IntVar], costs: IntArray, least: int
    ) -> None:
        """Require that a time is at least the cost between hosts of two cells; a constraint per host of the first."""
        for u, tail in tails.items():
            row = [int(costs[u, v]) for v in heads]
            if max(row) > least:
                self._at_least(time, LinearExpr.weighted_sum(list(heads.values()), row), tail)

    def _time(self, name: str, least: int, most: int) -> IntVar:
        variable = self.model.new_int_var(least, most, f"{name}_{self.index}")
        self._largest[variable.index] = most
        return variable

    def _most(self, time: Expr) -> int:
        """Return the largest value of a constant or a time variable; ``UNUSABLE_TICKS`` for other expressions."""
        if isinstance(time, int):
            return time
        return self._largest.get(time.index, UNUSABLE_TICKS) if isinstance(time, IntVar) else UNUSABLE_TICKS

    def _at_least(self, value: LinearExpr | IntVar, least: Expr, *when: IntVar) -> None:
        constraint = self.model.add(value >= least)
        condition = [*self.variables.condition(self.index), *when]
        if condition:
            constraint.only_enforce_if(condition)


def rows_within(candidate: CandidateData, levels: IntArray, copies: IntArray) -> IntArray:
    """
    Return the largest number of grid rows whose rings have no hop above each of the levels, shape ``(len(levels),)``.

    The hosts of such a ring are connected by hops of that level.

    Parameters
    ----------
    copies
        Number of cells that each host may be in, shape ``(num_nodes,)``.
    """
    from scipy.sparse.csgraph import connected_components  # takes a while to load

    hops = np.minimum(candidate.ring_level, candidate.ring_level.T)
    room = np.zeros(len(levels), dtype=np.int64)
    for index, level in enumerate(levels.tolist()):
        _, group = connected_components(hops <= level, directed=False)
        hosts = np.bincount(group, weights=copies).astype(np.int64)
        room[index] = (hosts // candidate.ring_length).sum() // candidate.tile.tensor_nodes
    return room


def _together(terms: list[tuple[int, Expr]]) -> list[tuple[int, Expr]]:
    """Return the terms with each variable only once, and with all constants added up."""
    constant, counts = 0, {}  # type: ignore[var-annotated]
    others: list[tuple[int, Expr]] = []
    for count, term in terms:
        if isinstance(term, int):
            constant += count * term
        elif isinstance(term, IntVar):
            counts[term.index] = (counts.get(term.index, (0, term))[0] + count, term)
        elif count:
            others.append((count, term))
    return [(1, constant), *(pair for pair in counts.values() if pair[0]), *others]
