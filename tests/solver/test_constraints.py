"""Each rule of a placement, on both sides of its edge."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, one_candidate_cluster, random_problem
from ortools.sat.python import cp_model

from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.solver import constraints
from pipette_opt.solver.variables import Variables


def two_rows(**changes: object) -> ProblemData:
    """Two rows of two columns on five hosts, with a second candidate that needs more memory."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (2, 2, 1), num_nodes=5)
    small = replace(data.candidates[0], memory_need_mib=np.array([40, 40]), **changes)
    large = replace(small, memory_need_mib=np.array([40, 80]))
    return ProblemData(
        candidates=(small, large),
        p2p="blocking",
        tick_s=1.0,
        kind_of_node=np.zeros(5),
        capacity_mib=np.array([40, 80, 80, 80, 80]),
    )


def is_possible(data: ProblemData, rule: Callable, fixed: dict, chosen: int = 0) -> bool:
    """Whether a candidate may have these hosts of cells by one rule alone."""
    model = cp_model.CpModel()
    variables = Variables(model, data, dict.fromkeys(range(len(data.candidates)), 0), 10)
    rule(model, data, variables)
    model.add(variables.chosen[chosen] == 1)
    grid = variables.grid_of(chosen)
    for cell in grid.cells:
        for node, host in grid.hosts_of(cell).items():
            if cell in fixed:
                model.add(host == (fixed[cell] == node))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    return bool(solver.solve(model) == cp_model.OPTIMAL)


FULL = {(0, 0, 0): 1, (0, 1, 0): 2, (1, 0, 0): 3, (1, 1, 0): 4}


def test_one_candidate() -> None:
    """One may be chosen, and not both."""
    data = two_rows()
    assert is_possible(data, constraints.add_one_candidate, {})

    def with_second(model: cp_model.CpModel, data: ProblemData, variables: Variables) -> None:
        constraints.add_one_candidate(model, data, variables)
        model.add(variables.chosen[1] == 1)

    assert not is_possible(data, with_second, {})


def test_one_host_per_cell() -> None:
    """Every cell filled is possible; one cell without a host is not."""
    rule = constraints.add_one_host_per_cell
    assert is_possible(two_rows(), rule, FULL)
    assert not is_possible(two_rows(), rule, {**FULL, (1, 1, 0): None})


def test_one_cell_per_host() -> None:
    """Four different hosts are possible; one host twice is not."""
    rule = constraints.add_one_cell_per_host
    assert is_possible(two_rows(), rule, FULL)
    assert not is_possible(two_rows(), rule, {**FULL, (1, 1, 0): 1})


@pytest.mark.parametrize(("chosen", "possible"), [(0, True), (1, False)])
def test_memory_capacity(chosen: int, possible: bool) -> None:
    """Host 0 has 40 MiB: room for the second row of the candidate that needs 40 there, not for 80."""
    rule = constraints.add_memory_capacity
    assert is_possible(two_rows(), rule, {**FULL, (1, 1, 0): 0}, chosen) is possible
    assert is_possible(two_rows(), rule, FULL, chosen)


@pytest.mark.parametrize(("hosts", "possible"), [((1, 3), False), ((3, 1), False), ((1, 4), True)])
def test_links_exist_in_both_directions(hosts: tuple[int, int], possible: bool) -> None:
    """Rows send forward and backward, so a link that lacks one direction carries no pipeline."""
    link = two_rows().candidates[0].p2p_ticks.copy()
    link[3, 1] = UNUSABLE_TICKS
    data = two_rows(p2p_ticks=link)
    assert is_possible(data, constraints.add_links_exist, {(0, 0, 0): hosts[0], (1, 0, 0): hosts[1]}) is possible


def test_links_of_the_chosen_candidate_only() -> None:
    """What one candidate may not use another may."""
    data = two_rows()
    link = data.candidates[0].p2p_ticks.copy()
    link[3, 1] = UNUSABLE_TICKS
    data = replace(data, candidates=(data.candidates[0], replace(data.candidates[1], p2p_ticks=link)))
    for chosen, possible in ((0, True), (1, False)):
        fixed = {(0, 0, 0): 1, (1, 0, 0): 3}
        assert is_possible(data, constraints.add_links_exist, fixed, chosen) is possible


def test_first_column_has_least_host() -> None:
    """Of the two ways to turn a ring of two columns one is left."""
    rule = constraints.add_first_column_has_least_host
    assert is_possible(two_rows(), rule, FULL)
    assert not is_possible(two_rows(), rule, {(0, 0, 0): 2, (0, 1, 0): 1, (1, 0, 0): 4, (1, 1, 0): 3})


def test_all_rules_are_listed() -> None:
    """A rule that is not in the list is not in the model."""
    named = {name for name in dir(constraints) if name.startswith("add_")}
    assert {rule.__name__ for rule in constraints.CONSTRAINTS} == named
    assert all(rule.__doc__ for rule in constraints.CONSTRAINTS)


def test_other_grids_stay_empty() -> None:
    """Cells of a grid that is not chosen have no host."""
    data = random_problem(np.random.default_rng(0), [(2, 1, 1), (1, 2, 1)], 4, Variant())
    model = cp_model.CpModel()
    variables = Variables(model, data, {0: 0, 1: 0}, 10)
    constraints.add_one_candidate(model, data, variables)
    constraints.add_one_host_per_cell(model, data, variables)
    model.add(variables.chosen[0] == 1)
    grid = variables.grid_of(1)
    model.add(sum(grid.hosts_of(grid.cells[0]).values()) == 1)
    assert cp_model.CpSolver().solve(model) == cp_model.INFEASIBLE
