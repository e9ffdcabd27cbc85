"""
Relaxation of a packing as a CP-SAT model: long documents are placed, short ones are a fluid.

Documents longer than half a bin need a bin each. The others form classes of similar length; a class spreads over groups
of bins as a fluid. A group is a lane of several bins, or a wave of single bins. Its bins without a long document hold
fluid up to their tokens, those with a long document up to what is left of tokens and of the group's largest work.
"""

import math
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from ortools.sat.python import cp_model

from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.plans.clock import Clock
from pipette_opt.solver.packing.problem import Packing, PackingProblem
from pipette_opt.solver.packing.start import place_all
from pipette_opt.solver.stoppable import new_solver, solve_within

MAX_CELLS = 20_000
"""Largest number of long documents times groups of a model. Chosen: more takes longer than a usual time limit."""

NUM_CLASSES = 8
"""Number of classes of short documents, of equal tokens. Chosen by benchmarks.packing."""

TICKS = 20_000
"""Units of work of the model in the mean bin. Chosen: rounding is far below any gap of interest."""

ROOM = 10**9
"""Units of the model in the tokens of a bin. Chosen as TICKS."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Relaxed:
    """
    Bound on the time of all steps, and a solution of the relaxation.

    Parameters
    ----------
    group_of
        Group of each long document; empty without a solution.
    classes
        Short documents of each class.
    shares
        Work of each class in each group, shape ``(classes, groups)``.
    sums
        Work of each group.
    """

    bound: int
    group_of: dict[int, int]
    classes: list[IntArray]
    shares: FloatArray
    sums: FloatArray


def group_size(problem: PackingProblem) -> int:
    """Return the number of bins of a group: of a lane, or of a wave where each lane is a bin."""
    return problem.num_replicas if problem.waits_each_microbatch else problem.num_microbatches


def relaxed(problem: PackingProblem, clock: Clock, workers: int, seed: int) -> Relaxed | None:
    """Return bound and solution of the relaxation; ``None`` if it is too large or has no bound in time."""
    long = np.flatnonzero(2 * problem.lengths > problem.bin_tokens)
    num_bins = group_size(problem)
    num_groups = problem.num_bins // num_bins
    if (len(long) + NUM_CLASSES) * num_groups > MAX_CELLS:
        return None
    unit = max(1.0, float(problem.works.sum()) / problem.num_bins / TICKS)
    short = np.flatnonzero(2 * problem.lengths <= problem.bin_tokens)
    short = short[np.argsort(problem.lengths[short], kind="stable")]
    ends = np.cumsum(problem.lengths[short])
    cuts = np.searchsorted(ends, ends[-1] * np.arange(1, NUM_CLASSES) / NUM_CLASSES) if len(short) else []
    classes = [documents for documents in np.split(short, cuts) if len(documents)]
    model = cp_model.CpModel()
    most = math.ceil(int(problem.works.sum()) / unit) + 1
    groups = range(num_groups)
    largest = [model.new_int_var(0, most, "") for _ in groups]
    if problem.waits_each_microbatch or problem.num_steps == 1:
        for first, second in pairwise(largest):
            model.add(first >= second)
    held = {(document, group): model.new_bool_var("") for document in long.tolist() for group in groups}
    for document in long.tolist():
        model.add_exactly_one(held[document, group] for group in groups)
    alone, beside = (
        {(kind, group): model.new_int_var(0, most, "") for kind in range(len(classes)) for group in groups}
        for _ in range(2)
    )
    densities = [float((problem.works[documents] / problem.lengths[documents]).max()) for documents in classes]
    for kind, documents in enumerate(classes):  # each share is rounded down
        spread = sum(alone[kind, group] + beside[kind, group] for group in groups)
        model.add(spread >= math.floor(problem.works[documents].sum() / unit) - 2 * num_groups)
    least_room = [math.floor(ROOM * unit / (density * problem.bin_tokens)) for density in densities]
    left = {document: problem.bin_tokens - int(problem.lengths[document]) for document in long.tolist()}
    work = {document: math.floor(problem.works[document] / unit) for document in left}
    full = {document: _full(problem, document, short, room, unit) for document, room in left.items()}
    sums: list[cp_model.LinearExpr] = []
    for group in groups:
        holds = {document: held[document, group] for document in left}
        rooms = [sum(least * share[kind, group] for kind, least in enumerate(least_room)) for share in (alone, beside)]
        model.add(rooms[0] <= (num_bins - sum(holds.values())) * ROOM)
        model.add(
            rooms[1] <= sum(math.ceil(ROOM * left[document] / problem.bin_tokens) * x for document, x in holds.items())
        )
        filled = []
        for document, is_held in holds.items():
            filled.append(model.new_int_var(0, full[document], ""))
            model.add(filled[-1] <= full[document] * is_held)
            model.add(filled[-1] <= largest[group])
            model.add(largest[group] >= work[document] * is_held)
        shared = [beside[kind, group] for kind in range(len(classes))]
        with_long = cp_model.LinearExpr.sum([*shared, *(work[document] * x for document, x in holds.items())])
        model.add(with_long <= sum(filled) + len(filled))
        sums.append(with_long + cp_model.LinearExpr.sum([alone[kind, group] for kind in range(len(classes))]))
        model.add(sums[-1] <= num_bins * largest[group] + num_bins)
    model.minimize(_objective(problem, model, largest, sums, most * problem.num_stages))
    solver = new_solver()
    status = solve_within(solver, model, clock, workers, seed)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    value = solver.value
    shares = [
        [unit * value(alone[kind, group] + beside[kind, group]) for group in groups] for kind in range(len(classes))
    ]
    return Relaxed(
        bound=math.floor(math.ceil(solver.best_objective_bound - 1e-6) * unit),
        group_of={document: next(group for group in groups if value(held[document, group])) for document in left},
        classes=classes,
        shares=np.array(shares).reshape(len(classes), num_groups),
        sums=np.array([unit * value(total) for total in sums]),
    )


def _full(problem: PackingProblem, document: int, short: IntArray, room: int, unit: float) -> int:
    """Return the most work of a bin with a long document: the rest is at most as dense as the densest that fits."""
    fitting = short[problem.lengths[short] <= room]
    density = float((problem.works[fitting] / problem.lengths[fitting]).max()) if len(fitting) else 0.0
    return math.ceil((int(problem.works[document]) + room * density) / unit)


def _objective(
    problem: PackingProblem,
    model: cp_model.CpModel,
    largest: list[cp_model.IntVar],
    sums: list[cp_model.LinearExpr],
    most: int,
) -> cp_model.LinearExprT:
    """Return the time of all steps from the largest bin and the work of each group."""
    if problem.waits_each_microbatch:
        return cp_model.LinearExpr.weighted_sum(largest, problem.wave_weights.tolist())
    steps = [model.new_int_var(0, most, "") for _ in range(problem.num_steps)]
    for group, (top, total) in enumerate(zip(largest, sums, strict=True)):
        model.add(steps[group // problem.num_replicas] >= problem.largest_weight * top + total)
    return cp_model.LinearExpr.sum(steps)


def rounded(problem: PackingProblem, found: Relaxed, *, by_class: bool) -> Packing | None:
    """
    Return a packing near a solution of the relaxation; ``None`` if a document finds no room.

    Long documents go where the solution has them. The others, the longest first, go to the bin that is farthest below
    its share of the group's work.

    Parameters
    ----------
    by_class
        Whether the group with the largest unused share of the document's class comes first.
    """
    size = group_size(problem)
    group = np.arange(problem.num_bins) // size
    unused, kinds, works = found.shares.copy(), {}, np.zeros(problem.num_bins, np.int64)
    fixed: dict[int, int] = {}
    for document, place in found.group_of.items():
        fixed[document] = place * size + int(np.count_nonzero(works[group == place]))
        works[fixed[document]] = problem.works[document]
    targets = np.concatenate([_levels(works[group == place], total) for place, total in enumerate(found.sums)])
    for kind, documents in enumerate(found.classes):
        kinds.update(dict.fromkeys(documents.tolist(), kind))

    def choose(room: IntArray, tokens: IntArray, works: IntArray, document: int) -> int:
        if document in fixed:
            return fixed[document]
        share = unused[kinds[document]]
        places = np.lexsort((works[room] - targets[room], -share[group[room]] * by_class))
        chosen = int(room[places[0]])
        share[group[chosen]] -= problem.works[document]
        return chosen

    bin_of = place_all(problem, [*fixed, *reversed(kinds)], choose)
    lane_of = np.arange(problem.num_bins) // problem.bins_per_lane
    return None if bin_of is None else Packing(bin_of=bin_of, lane_of=lane_of)


def _levels(works: IntArray, total: float) -> FloatArray:
    """Return works raised to a common level, as water rises in a vessel, so that their sum is ``total``."""
    ordered = np.sort(works)
    levels = (total - works.sum() + np.cumsum(ordered)) / np.arange(1, len(works) + 1)
    raised: FloatArray = np.maximum(works, levels.min())
    return raised
