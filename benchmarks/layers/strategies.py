"""
Proven choice of a strategy for each layer of each stage: distribution of parameters, sequence, samples; recomputation.

**Decided**: the number of layers of each run of equal layers with each strategy; the order in which a stage passes
through the layouts of its strategies; one option for all stages, such as the distribution of the vocabulary; and, where
it is open, the number of layers of each stage. Layers of a run are equal, so only their number matters.

**Minimised**: a sum of maxima of weighted times of the stages, which is the time of a pipeline.

**Subject to**: the memory of each stage. Between neighbouring layers of different layouts the stage pays the cost of
the change. A stage visits a layout at most once in each run. That is optimal if no detour makes a change cheaper, the
triangle inequality, which is checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from ortools.sat.python.cp_model import (
    FEASIBLE,
    INFEASIBLE,
    OPTIMAL,
    CpModel,
    CpSolver,
    IntVar,
    LinearExpr,
    LinearExprT,
)

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.plans.clock import Clock
from pipette_opt.solver.stoppable import solve_within

RESOLUTION = 10**10
"""Integer time units (ticks) in the time of a problem's slowest strategies, weighted as in the objective. Chosen."""

Status = Literal["OPTIMAL", "FEASIBLE", "INFEASIBLE", "UNKNOWN"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageTables:
    """
    Costs of each choice on one stage.

    Parameters
    ----------
    num_layers
        Layers of each run of equal layers, shape ``(runs,)``; ``None`` if the model decides them.
    times_s
        Seconds of one layer, shape ``(parts, runs, strategies)``. Parts are kinds of time, such as a micro-batch, and
        the last micro-batch, which also reduces gradients.
    memory
        Memory of one layer, shape ``(runs, strategies)``, in whole units of the caller, such as bytes.
    option_s, option_memory
        Seconds and memory of each option, shapes ``(parts, options)`` and ``(options,)``.
    budget
        Memory of the stage, in the same unit.
    """

    num_layers: IntArray | None
    times_s: FloatArray
    memory: IntArray
    option_s: FloatArray
    option_memory: IntArray
    budget: int

    def __post_init__(self) -> None:
        parts, runs, strategies = self.times_s.shape
        if self.memory.shape != (runs, strategies):
            raise ValueError(f"memory must have shape {(runs, strategies)}, got {self.memory.shape}.")
        if self.option_s.shape != (parts, len(self.option_memory)) or not self.option_s.size:
            raise ValueError(
                f"option_s must have shape ({parts}, {len(self.option_memory)}), got {self.option_s.shape}."
            )
        if self.num_layers is not None and (len(self.num_layers) != runs or min(self.num_layers) < 1):
            raise ValueError(f"num_layers must be >= 1 for each of {runs} runs, got {self.num_layers}.")
        if not (np.isfinite(self.times_s).all() and np.isfinite(self.option_s).all()):
            raise ValueError("times_s and option_s must be finite.")
        if min(self.times_s.min(), self.option_s.min()) < 0.0 or min(self.memory.min(), self.option_memory.min()) < 0:
            raise ValueError("times and memory must be >= 0.")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StrategyProblem:
    """
    Stages of a pipeline, and the objective.

    Parameters
    ----------
    layouts
        Layout of each strategy, shape ``(strategies,)``, 0 to ``len(change_s) - 1``.
    change_s
        Seconds of a change from the layout of the row to that of the column, in each part, shape ``(layouts,
        layouts)``.
    terms
        Terms whose sum is the objective. Each is the maximum of several weighted sums of stage times; it has shape
        ``(alternatives, parts, stages)`` and whole numbers. A weight may be negative.
    total_layers
        Layers of all stages together if the model decides them, at least one each; else ``None``.
    """

    stages: tuple[StageTables, ...]
    layouts: IntArray
    change_s: FloatArray
    terms: tuple[IntArray, ...]
    total_layers: int | None = None

    def __post_init__(self) -> None:
        num = len(self.change_s)
        if self.change_s.shape != (num, num) or not (np.diagonal(self.change_s) == 0.0).all():
            raise ValueError("change_s must be square with a zero diagonal.")
        if min(self.layouts) < 0 or max(self.layouts) >= num:
            raise ValueError(f"layouts must be 0 to {num - 1}, got {sorted(set(self.layouts.tolist()))}.")
        through = (self.change_s[:, :, None] + self.change_s[None]).min(axis=1)
        if (self.change_s > through * (1 + 1e-9) + 1e-15).any():
            raise ValueError("change_s must not be cheaper by a detour over a third layout.")
        free = [stage.num_layers is None for stage in self.stages]
        if any(free) and (not all(free) or self.total_layers is None or self.stages[0].memory.shape[0] != 1):
            raise ValueError("layers are dealt out for all stages at once, and of one run of like layers.")

    @property
    def num_parts(self) -> int:
        """Number of kinds of time of each layer."""
        return len(self.stages[0].times_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageChoice:
    """
    Choice for one stage: blocks of layers in order.

    Parameters
    ----------
    blocks
        Run, strategy and number of layers of each block, in the order in which the stage passes through them.
    times_s
        Seconds of the stage in each part, changes and option included, shape ``(parts,)``.
    memory
        Memory of the stage.
    """

    blocks: tuple[tuple[int, int, int], ...]
    times_s: FloatArray
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StrategyChoice:
    """
    Best choice found, and its proof.

    Parameters
    ----------
    status
        ``OPTIMAL``: no choice is faster than ``bound_s``, which is ``seconds`` up to the rounding to ticks.
        ``INFEASIBLE``: none fits, or none is faster than the time to beat.
    option, stages
        Option, and choice of each stage; ``None`` and empty without a choice.
    seconds
        Exact objective of the choice; ``inf`` without a choice.
    bound_s
        Lower bound on the objective of all choices.
    """

    status: Status
    bound_s: float
    seconds: float = float("inf")
    option: int | None = None
    stages: tuple[StageChoice, ...] = ()


def choose_strategies(
    problem: StrategyProblem,
    clock: Clock | None = None,
    to_beat_s: float = float("inf"),
    workers: int = 1,
    seed: int = 0,
) -> StrategyChoice:
    """
    Return the strategies of all layers with the least time that fit, by CP-SAT.

    Parameters
    ----------
    clock
        Time limit; ten seconds by default.
    to_beat_s
        Upper bound; slower choices are not searched.
    """
    return _Model(problem, to_beat_s).solve(clock or Clock().after(10.0), workers, seed)


def objective_s(problem: StrategyProblem, times_s: FloatArray) -> float:
    """Return the objective for times of the stages, shape ``(parts, stages)``, seconds."""
    return float(sum((term * times_s).sum(axis=(1, 2)).max() for term in problem.terms))


def undominated(problem: StrategyProblem) -> BoolArray:
    """
    Return the mask of strategies that may be part of a best choice, shape ``(runs, strategies)``.

    A strategy is dominated if another of its layout is at least as fast in every part and at least as small, on every
    stage.
    """
    figures = np.concatenate([np.concatenate([stage.times_s, stage.memory[None]]) for stage in problem.stages])
    runs, strategies = figures.shape[1:]
    kept = np.ones((runs, strategies), dtype=np.bool_)
    for run in range(runs):
        for strategy in range(strategies):
            better = (figures[:, run] <= figures[:, run, [strategy]]).all(axis=0)
            equal = (figures[:, run] == figures[:, run, [strategy]]).all(axis=0)
            better &= (problem.layouts == problem.layouts[strategy]) & ~(equal & (np.arange(strategies) >= strategy))
            kept[run, strategy] = not better.any()
    return kept


class _Stage:
    """Variables of one stage in the CP-SAT model."""

    def __init__(self, model: CpModel, problem: StrategyProblem, tables: StageTables, kept: BoolArray) -> None:
        self.model, self.problem, self.tables = model, problem, tables
        runs = len(tables.memory)
        most = [problem.total_layers or 0] * runs if tables.num_layers is None else tables.num_layers.tolist()
        self.counts: dict[tuple[int, int], IntVar] = {
            (int(run), int(strategy)): model.new_int_var(0, int(most[run]), "") for run, strategy in np.argwhere(kept)
        }
        self.uses: dict[tuple[int, int], IntVar] = {}
        self.arcs: list[tuple[tuple[int, int], tuple[int, int], IntVar]] = []
        for run in range(runs):
            of_run = [count for (other, _), count in self.counts.items() if other == run]
            if tables.num_layers is None:
                model.add(sum(of_run) >= 1)
            else:
                model.add(sum(of_run) == most[run])
            for layout in sorted({int(problem.layouts[strategy]) for other, strategy in self.counts if other == run}):
                used = self.uses[run, layout] = model.new_bool_var("")
                inside = sum(
                    c for (r, strategy), c in self.counts.items() if (r, problem.layouts[strategy]) == (run, layout)
                )
                model.add(inside >= used)
                model.add(inside <= int(most[run]) * used)
        if problem.change_s.any():
            self._add_order(runs)

    def _add_order(self, runs: int) -> None:
        """Order the layouts that the stage uses in a path, run after run."""
        nodes = {key: index + 1 for index, key in enumerate(self.uses)}
        arcs: list[tuple[int, int, Any]] = []
        for node, index in nodes.items():
            arcs.append((index, index, ~self.uses[node]))
            if node[0] == 0:
                arcs.append((0, index, self.model.new_bool_var("")))
            if node[0] == runs - 1:
                arcs.append((index, 0, self.model.new_bool_var("")))
            for other, after in nodes.items():
                if other != node and other[0] - node[0] in (0, 1):
                    taken = self.model.new_bool_var("")
                    arcs.append((index, after, taken))
                    self.arcs.append((node, other, taken))
        self.model.add_circuit(arcs)

    def num_layers(self) -> LinearExprT:
        """Return the number of layers of the stage as an expression."""
        return sum(self.counts.values())

    def time(self, part: int, options: Sequence[IntVar], tick_s: float) -> LinearExpr:
        """Return the time of one part in ticks, with each coefficient rounded down."""
        variables: list[IntVar] = [*self.counts.values(), *options, *(taken for _, _, taken in self.arcs)]
        seconds = [self.tables.times_s[part, run, strategy] for run, strategy in self.counts]
        seconds += self.tables.option_s[part].tolist()
        seconds += [self.problem.change_s[node[1], other[1]] for node, other, _ in self.arcs]
        return LinearExpr.weighted_sum(variables, [int(value / tick_s) for value in seconds])

    def memory(self, options: Sequence[IntVar]) -> LinearExpr:
        """Return the memory of the stage as an expression."""
        sizes = [int(self.tables.memory[key]) for key in self.counts] + self.tables.option_memory.tolist()
        return LinearExpr.weighted_sum([*self.counts.values(), *options], sizes)

    def chosen(self, solver: CpSolver, option: int) -> StageChoice:
        """Return the stage's choice in the solver's solution."""
        order = self._order(solver)
        blocks = []
        for run, layout in order:
            for (other, strategy), count in self.counts.items():
                if other == run and self.problem.layouts[strategy] == layout and (layers := solver.value(count)):
                    blocks.append((run, strategy, layers))
        times = self.tables.option_s[:, option].copy()
        times += sum(layers * self.tables.times_s[:, run, strategy] for run, strategy, layers in blocks)
        times += sum(self.problem.change_s[a[1], b[1]] for a, b in pairwise(order))
        memory = sum(layers * int(self.tables.memory[run, strategy]) for run, strategy, layers in blocks)
        memory += int(self.tables.option_memory[option])
        return StageChoice(blocks=tuple(blocks), times_s=read_only(times), memory=memory)

    def _order(self, solver: CpSolver) -> list[tuple[int, int]]:
        """Return runs and layouts in the order in which the stage passes through them."""
        used = [key for key, value in self.uses.items() if solver.boolean_value(value)]
        after = {node: other for node, other, taken in self.arcs if solver.boolean_value(taken)}
        if not after:
            return sorted(used)
        order = [next(key for key in used if key not in after.values())]
        while order[-1] in after:
            order.append(after[order[-1]])
        return order


class _Model:
    """CP-SAT model of one problem."""

    def __init__(self, problem: StrategyProblem, to_beat_s: float) -> None:
        self.problem, self.model = problem, CpModel()
        kept = undominated(problem)
        self.options = [self.model.new_bool_var("") for _ in problem.stages[0].option_memory]
        self.model.add_exactly_one(self.options)
        self.stages = [_Stage(self.model, problem, tables, kept) for tables in problem.stages]
        for stage in self.stages:
            self.model.add(stage.memory(self.options) <= stage.tables.budget)
        if problem.total_layers is not None:
            self.model.add(sum(stage.num_layers() for stage in self.stages) == problem.total_layers)
        scale = self._weighted(problem, self._slowest_s())
        self.tick_s = (scale or 1.0) / RESOLUTION
        layers = max(1, self._most_layers())
        self.rounding = int(self._weighted(problem, np.full(problem.terms[0].shape[1:], layers + 1.0)))
        times = [
            [stage.time(part, self.options, self.tick_s) for stage in self.stages] for part in range(problem.num_parts)
        ]
        total = sum(self._largest(term, times) for term in problem.terms)
        if to_beat_s < float("inf"):
            self.model.add(total <= int(to_beat_s / self.tick_s) + self.rounding)
        self.model.minimize(total)

    @staticmethod
    def _weighted(problem: StrategyProblem, times: FloatArray) -> float:
        """Return the objective for these times with the absolute values of all weights."""
        return float(sum((abs(term) * times).sum(axis=(1, 2)).max() for term in problem.terms))

    def _most_layers(self) -> int:
        """Return the maximum number of layers and changes of a stage."""
        stages = self.problem.stages
        layers = [
            self.problem.total_layers or 0 if stage.num_layers is None else stage.num_layers.sum() for stage in stages
        ]
        return int(max(layers)) + len(self.problem.change_s) * len(stages[0].memory)

    def _slowest_s(self) -> FloatArray:
        """Return the seconds if all layers and options were as slow as the slowest, shape ``(parts, stages)``."""
        problem, slowest = self.problem, []
        for stage in problem.stages:
            layers = np.array([problem.total_layers]) if stage.num_layers is None else stage.num_layers
            changes = problem.change_s.max() * len(problem.change_s) * len(layers)
            slowest.append((stage.times_s.max(axis=2) * layers).sum(axis=1) + stage.option_s.max(axis=1) + changes)
        return np.array(slowest).T

    def _largest(self, term: IntArray, times: list[list[LinearExpr]]) -> LinearExprT:
        """Return the maximum of the weighted times, ticks."""
        sums: list[LinearExprT] = [
            sum(int(weights[part, stage]) * times[part][stage] for part, stage in np.argwhere(weights).tolist())
            for weights in term
        ]
        if len(sums) == 1:
            return sums[0]
        largest = self.model.new_int_var(-RESOLUTION, RESOLUTION, "")
        for total in sums:
            self.model.add(largest >= total)
        return largest

    def solve(self, clock: Clock, workers: int, seed: int) -> StrategyChoice:
        """Solve the model and return the best choice."""
        solver = CpSolver()
        status = solve_within(solver, self.model, clock, workers, seed)
        if status == INFEASIBLE:
            return StrategyChoice(status="INFEASIBLE", bound_s=float("inf"))
        bound_s = (solver.best_objective_bound - self.rounding) * self.tick_s
        if status not in (OPTIMAL, FEASIBLE):
            return StrategyChoice(status="UNKNOWN", bound_s=max(0.0, bound_s))
        option = next(index for index, variable in enumerate(self.options) if solver.boolean_value(variable))
        stages = tuple(stage.chosen(solver, option) for stage in self.stages)
        seconds = objective_s(self.problem, np.array([stage.times_s for stage in stages]).T)
        found: Status = "OPTIMAL" if status == OPTIMAL else "FEASIBLE"
        return StrategyChoice(
            status=found, bound_s=min(bound_s, seconds), seconds=seconds, option=option, stages=stages
        )
