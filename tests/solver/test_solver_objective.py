"""The model's objective is the plain one, tick for tick."""

import numpy as np
import pytest
from instances import SMALL_SHAPES, SPANS, Variant, random_problem
from ortools.sat.python import cp_model

from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.model import build

pytestmark = pytest.mark.search


def test_value_of_fixed_placements() -> None:
    """Hosts fixed, two candidates in the model: the least objective is that of the plain function."""
    rng = np.random.default_rng(6)
    checked = 0
    for trial, shape in enumerate(SMALL_SHAPES * 3):
        spans = SPANS[trial // len(SMALL_SHAPES)]
        variant = Variant(missing_share=0.05, num_kinds=2, spans=spans)
        data = random_problem(rng, [shape, shape], 6, variant)
        index = int(rng.integers(2))
        nodes = rng.permutation(6)[: int(np.prod(shape))].reshape(shape)
        nodes = np.roll(nodes, (-int(nodes[0].argmin() // shape[2]), -int(nodes[0].argmin() % shape[2])), axis=(1, 2))
        allowed = data.allowed(data.candidates[index])
        expected = objective_ticks(data, data.candidates[index], nodes)
        if not all(allowed[row, nodes[row]].all() for row in range(shape[0])):
            expected = UNUSABLE_TICKS
        model = cp_model.CpModel()
        variables = build(model, data, {0: 0, 1: 0}, 1_000_000)
        model.add(variables.chosen[index] == 1)
        grid = variables.grid_of(index)
        for cell in grid.cells:
            for node, host in grid.hosts_of(cell).items():
                model.add(host == int(nodes[cell] == node))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        status = solver.solve(model)
        if expected >= UNUSABLE_TICKS:
            assert status == cp_model.INFEASIBLE
        else:
            assert status == cp_model.OPTIMAL
            assert round(solver.objective_value) == expected
            checked += 1
    assert checked > len(SMALL_SHAPES)


def test_ceiling_below_the_bound_is_refused() -> None:
    """Nothing can be asked for that is known not to exist."""
    data = random_problem(np.random.default_rng(0), [(2, 1, 1)], 3, Variant())
    with pytest.raises(ValueError, match="ceiling"):
        build(cp_model.CpModel(), data, {0: 10}, 9)
