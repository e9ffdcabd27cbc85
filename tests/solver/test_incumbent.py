"""What engines tell each other."""

from dataclasses import replace

import numpy as np
from instances import one_candidate_cluster

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import largest_ticks, objective_ticks
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import SolverParams


def test_a_candidate_that_cannot_be_placed_is_closed() -> None:
    """Also if another was placed, at far more than it could cost, while that was being proven."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (2, 2, 1))
    impossible = data.candidates[0]
    placed = replace(impossible, optimizer_ticks=50 * largest_ticks(impossible))
    data = replace(data, candidates=(impossible, placed))
    known = Incumbent(data, SolverParams())
    ceiling = known.ceiling_of(0)
    nodes = np.arange(4).reshape(2, 2, 1)
    known.offer(Solution(candidate=1, nodes=nodes, objective_ticks=objective_ticks(data, placed, nodes)))
    known.prove(0, ceiling)
    assert known.is_open(0)
    known.prove(0, ceiling + 1)
    assert not known.is_open(0)
    assert known.bounds[0] == UNUSABLE_TICKS
