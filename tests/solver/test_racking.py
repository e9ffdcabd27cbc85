"""Racks and kinds of one candidate: where they are looked at, and what becomes known."""

import threading

import numpy as np
from instances import one_candidate_cluster

from pipette_opt.problem import ProblemData
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.known import Known
from pipette_opt.solver.params import SolverParams
from pipette_opt.solver.racking import FEWEST_CELLS, MOST_CELLS, Racking


def known_of(data: ProblemData) -> Known:
    """Nothing but bounds that need no search."""
    known = Known(data, SolverParams(time_limit_s=4.0, workers=1), None, threading.Event())
    known.bounds = lower_bounds(data)
    return known


def test_where_it_applies() -> None:
    """Neither few cells nor many, and only hosts in racks."""
    rng = np.random.default_rng(0)
    suits = []
    for kind, shape in (("tree", (4, 4)), ("tree", (12, 8)), ("unif", (8, 6)), ("tree", (8, 6))):
        data = one_candidate_cluster(rng, kind, (*shape, 1))
        suits.append(Racking(known_of(data)).suits(0))
    assert 4 * 4 < FEWEST_CELLS <= 8 * 6 <= MOST_CELLS < 12 * 8
    assert suits == [False, False, False, True]


def test_it_raises_the_bound() -> None:
    """Without any other engine."""
    known = known_of(one_candidate_cluster(np.random.default_rng(1), "tree", (8, 6, 1), compute=2_000))
    before, racking = int(known.bounds[0]), Racking(known)
    assert racking.suits(0)
    racking.search(0)
    assert known.bounds[0] > before
    assert 0 in known.searched
