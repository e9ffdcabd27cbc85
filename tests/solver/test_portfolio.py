"""The table says who works on which grid."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem.data import ProblemData
from pipette_opt.problem.solution import Solution
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import ENGINES, MODEL, SolverParams
from pipette_opt.solver.portfolio import ENGINE_CLASSES, TABLE, Portfolio, When
from pipette_opt.solver.refining import Refining
from pipette_opt.solver.solve import solve

PARAMS = SolverParams(time_limit_s=30.0, workers=2)


def portfolio_of(data: ProblemData, params: SolverParams = PARAMS) -> Portfolio:
    """Nothing is known but bounds without a search."""
    incumbent = Incumbent(data, params, None, threading.Event())
    incumbent.bounds = lower_bounds(data)
    return Portfolio(incumbent, incumbent.offer_hosts)


def engines_of(portfolio: Portfolio, when: When) -> list[str]:
    """Who may work on the only candidate."""
    portfolio.is_alone = True
    return [row.engine for row in portfolio._rows(when, 0)]


@pytest.mark.parametrize(
    ("kind", "grid", "num_nodes", "bound", "turn", "model"),
    [
        ("unif", (2, 2, 1), 4, [], ["tree-search"], ["cp-sat-model"]),
        ("tree", (4, 4, 1), 16, [], ["tree-search", "class-assignment"], ["cp-sat-model"]),
        ("unif", (4, 4, 1), 16, [], ["tree-search"], ["cp-sat-model"]),
        ("tree", (16, 1, 1), 16, ["subset-dp"], ["subset-dp", "class-assignment"], ["cp-sat-model"]),
        ("unif", (16, 1, 1), 20, [], ["tree-search"], ["cp-sat-model"]),
        ("tree", (8, 4, 1), 32, ["row-counts"], ["tree-search", "class-assignment", "tree-search"], []),
        ("tree", (8, 6, 1), 48, [], ["rack-assignment", "class-assignment", "tree-search"], []),
        ("tree", (12, 8, 1), 96, [], ["column-types", "class-assignment", "row-tree-search"], []),
        ("unif", (8, 8, 1), 64, ["row-counts", "row-counts"], ["row-tree-search", "promising-counts"], []),
        ("tree", (12, 14, 1), 168, [], ["column-types", "row-tree-search"], []),
        ("unif", (2, 2, 2), 8, [], [], ["cp-sat-model"]),
        ("tree", (4, 4, 1), 300, [], ["class-assignment"], ["cp-sat-model"]),
    ],
)
def test_who_works_on_which_grid(
    kind: str, grid: tuple[int, int, int], num_nodes: int, bound: list[str], turn: list[str], model: list[str]
) -> None:
    """By cells, hosts, columns and structure."""
    if grid[2] > 1:
        data = random_problem(np.random.default_rng(0), [grid], num_nodes, Variant())
    else:
        data = one_candidate_cluster(np.random.default_rng(0), kind, grid, num_nodes=num_nodes)
    portfolio = portfolio_of(data)
    assert engines_of(portfolio, When.BOUND) == bound
    found = engines_of(portfolio, When.TURN)
    assert [name for name in found if name != "promising-counts" or name in turn] == turn
    assert engines_of(portfolio, When.MODEL) == model


def test_the_table_is_whole() -> None:
    """Each engine has a row and each row an engine."""
    assert {row.engine for row in TABLE} == {kind.name for kind in ENGINE_CLASSES}
    assert {name for name in ENGINES if name not in MODEL} == {kind.name for kind in ENGINE_CLASSES} - {"cp-sat-model"}


@pytest.mark.parametrize("without", ENGINES)
def test_nothing_is_proven_wrongly_without_an_engine(without: str) -> None:
    """Only less: small grids are closed without any single one, and bounds hold."""
    rng = np.random.default_rng(ENGINES.index(without))
    params = replace(PARAMS, engines=tuple(name for name in ENGINES if name != without))
    for trial in range(4):
        shape = [one for one in SMALL_SHAPES if one[2] == 1][trial]
        data = random_problem(rng, [shape], 5, Variant(p2p="async" if trial % 2 else "blocking"))
        result = solve(data, params)
        assert result.status == "OPTIMAL"
        assert result.lower_bound_ticks == best_by_enumeration(data, data.candidates[0])


def test_no_engine_at_all_ends_at_once() -> None:
    """With bounds that need no search."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1))
    for engines in ((), ("subset-dp",)):
        started = time.perf_counter()
        result = solve(data, replace(PARAMS, engines=engines))
        assert time.perf_counter() - started < 10.0
        assert result.lower_bound_ticks > 0


def test_a_repeatable_run_has_only_the_model() -> None:
    """As others take what time allows."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1))
    assert set(portfolio_of(data, replace(PARAMS, deterministic=True)).engines) == {"cp-sat-model"}


def test_unknown_engines_are_named() -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"engines must be of subset-dp, .* got tea-leaves"):
        SolverParams(engines=("tea-leaves",))


def test_what_is_refined_is_offered() -> None:
    """As it is, and as annealing gives it back, if it does."""
    data = random_problem(np.random.default_rng(1), [(2, 2, 1)], 5, Variant())
    incumbent = portfolio_of(data).incumbent
    first, given = np.arange(4), []

    def refine(solution: Solution) -> Solution | None:
        given.append(solution.nodes.copy())
        return Solution(candidate=0, nodes=solution.nodes[::-1], objective_ticks=0) if len(given) == 1 else None

    refining = Refining(incumbent, refine)
    refining.take(0, first)
    assert incumbent.best is not None
    once = incumbent.best.objective_ticks
    assert once >= best_by_enumeration(data, data.candidates[0])
    refining.take(0, first)
    assert incumbent.best.objective_ticks == once
    assert [one.shape for one in given] == [(2, 2, 1), (2, 2, 1)]
