"""The table says who works on which grid."""

import time
from dataclasses import replace

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import ENGINES, MODEL, SolverParams
from pipette_opt.solver.portfolio import ENGINE_CLASSES, TABLE, Portfolio
from pipette_opt.solver.solve import solve

PARAMS = SolverParams(time_limit_s=3600.0, workers=2)


def portfolio_of(data: ProblemData, params: SolverParams = PARAMS) -> Portfolio:
    """Nothing is known but bounds without a search."""
    incumbent = Incumbent(data, params)
    incumbent.bounds = lower_bounds(data)
    return Portfolio(incumbent)


def engines_of(portfolio: Portfolio) -> list[str]:
    """Who may work on the only candidate in turns."""
    return [row.engine for row in portfolio._rows(0)]


@pytest.mark.parametrize(
    ("kind", "grid", "num_nodes", "turn"),
    [
        ("tree", (2, 2, 1), 4, []),
        ("tree", (4, 4, 1), 16, ["class-assignment"]),
        ("unif", (4, 4, 1), 16, []),
        ("tree", (8, 4, 1), 32, ["class-assignment"]),
        ("tree", (10, 16, 1), 160, ["class-assignment"]),
        ("tree", (12, 14, 1), 168, []),
        ("unif", (2, 2, 2), 8, []),
    ],
)
def test_who_works_on_which_grid(kind: str, grid: tuple[int, int, int], num_nodes: int, turn: list[str]) -> None:
    """Classes from 9 to 160 cells, where hosts fall into some; the model that names the hosts if it can be built."""
    if grid[2] > 1:
        data = random_problem(np.random.default_rng(0), [grid], num_nodes, Variant())
    else:
        data = one_candidate_cluster(np.random.default_rng(0), kind, grid, num_nodes=num_nodes)
    portfolio = portfolio_of(data)
    assert engines_of(portfolio) == turn
    assert portfolio.left_to_model([0]) == [0] * (num_nodes <= 160)


def test_the_table_is_whole() -> None:
    """Each engine has a row but the model that names the hosts, and each row an engine."""
    assert {*MODEL, *(row.engine for row in TABLE)} == {kind.name for kind in ENGINE_CLASSES}
    assert set(ENGINES) == {kind.name for kind in ENGINE_CLASSES}


@pytest.mark.parametrize("without", ENGINES)
def test_nothing_is_proven_wrongly_without_an_engine(without: str) -> None:
    """Only less: small grids are closed without any single one but the model, and bounds hold."""
    rng = np.random.default_rng(ENGINES.index(without))
    params = replace(PARAMS, engines=tuple(name for name in ENGINES if name != without))
    for trial in range(4):
        shape = [one for one in SMALL_SHAPES if one[2] == 1][trial]
        data = random_problem(rng, [shape], 5, Variant())
        result = solve(data, params)
        best = best_by_enumeration(data, data.candidates[0])
        assert result.lower_bound_ticks <= best
        assert result.status == "OPTIMAL" or without in MODEL
        assert result.lower_bound_ticks == best or without in MODEL


def test_no_engine_at_all_ends_at_once() -> None:
    """With bounds that need no search."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    started = time.perf_counter()
    result = solve(data, replace(PARAMS, engines=()))
    assert time.perf_counter() - started < 10.0
    assert result.lower_bound_ticks > 0


def test_unknown_engines_are_named() -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"engines must be of class-assignment, .* got tea-leaves"):
        SolverParams(engines=("tea-leaves",))
