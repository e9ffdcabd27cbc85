"""Slices of time for patterns of classes: which candidates have them, and what becomes known."""

import threading

import numpy as np
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem import ProblemData
from pipette_opt.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.known import Known
from pipette_opt.solver.merging import FEWEST_CELLS, MOST_CELLS, Merging
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.refining import Refining


def known_of(data: ProblemData, **params: object) -> Known:
    """Nothing but bounds that need no search."""
    known = Known(data, SolverParams(time_limit_s=60.0, workers=1, **params), None, threading.Event())  # type: ignore[arg-type]
    known.bounds = lower_bounds(data)
    return known


def test_it_finds_and_proves() -> None:
    """Ten hosts in racks: in a few slices, without any other engine, something is found and the bound rises."""
    data = one_candidate_cluster(np.random.default_rng(4), "tree", (5, 2, 1))
    known = known_of(data)
    merging = Merging(known, Refining(known, None))
    before = int(known.bounds[0])
    assert merging.suits(0)
    assert merging.search(0)
    for _ in range(3):
        if merging.suits(0):
            merging.search(0)
    assert known.incumbent is not None
    assert before < known.lower <= known.incumbent.objective_ticks
    assert merging.visits[0] >= 1
    assert 0 in known.searched


def test_where_it_applies() -> None:
    """Neither a few cells nor very many, hosts in classes, and not where a run must be repeatable."""
    rng = np.random.default_rng(0)
    few = random_problem(rng, [(2, 2, 1)], 5, Variant())
    assert few.candidates[0].num_cells < FEWEST_CELLS
    many = one_candidate_cluster(rng, "tree", (12, 14, 1))
    assert many.candidates[0].num_cells > MOST_CELLS
    tree, unif = (one_candidate_cluster(rng, kind, (4, 4, 1)) for kind in ("tree", "unif"))
    suits = []
    for data, deterministic in ((few, False), (many, False), (unif, False), (tree, True), (tree, False)):
        known = known_of(data, deterministic=deterministic)
        suits.append(Merging(known, Refining(known, None)).suits(0))
    assert suits == [False, False, False, False, True]


def test_what_is_refined_is_offered() -> None:
    """As it is, and as annealing gives it back, if it does."""
    data = random_problem(np.random.default_rng(1), [(2, 2, 1)], 5, Variant())
    known = known_of(data)
    first, given = np.arange(4), []

    def refine(solution: Solution) -> Solution | None:
        given.append(solution.nodes.copy())
        return Solution(candidate=0, nodes=solution.nodes[::-1], objective_ticks=0) if len(given) == 1 else None

    refining = Refining(known, refine)
    refining.take(0, first)
    assert known.incumbent is not None
    once = known.incumbent.objective_ticks
    assert once >= best_by_enumeration(data, data.candidates[0])
    refining.take(0, first)
    assert known.incumbent.objective_ticks == once
    assert [one.shape for one in given] == [(2, 2, 1), (2, 2, 1)]
