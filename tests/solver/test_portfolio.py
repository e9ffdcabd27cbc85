"""The table says who works on which grid."""

import time
from dataclasses import replace

import numpy as np
import pytest
from instances import SMALL_SHAPES, Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.problem.data import ProblemData
from pipette_opt.solver.bounds import lower_bounds
from pipette_opt.solver.incumbent import Incumbent
from pipette_opt.solver.params import ENGINES, MODEL, PROVERS, SolverParams
from pipette_opt.solver.portfolio import ENGINE_CLASSES, TABLE, Portfolio, When
from pipette_opt.solver.solve import solve

PARAMS = SolverParams(time_limit_s=3600.0, workers=2, first_s=0.0)


def portfolio_of(data: ProblemData, params: SolverParams = PARAMS) -> Portfolio:
    """Nothing is known but bounds without a search."""
    incumbent = Incumbent(data, params)
    incumbent.bounds = lower_bounds(data)
    return Portfolio(incumbent)


def engines_of(portfolio: Portfolio, when: When) -> list[str]:
    """Who may work on the only candidate."""
    return [row.engine for row in portfolio._rows(when, 0)]


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
    assert engines_of(portfolio, When.TURN) == turn
    assert engines_of(portfolio, When.MODEL) == ["cp-sat-model"] * (num_nodes <= 160)


@pytest.mark.parametrize(
    ("grid", "workers", "deterministic", "whens"),
    [
        ((4, 4, 1), 2, False, {When.FIRST, When.LAST}),
        ((5, 4, 1), 2, False, {When.FIRST, When.LAST}),
        ((7, 3, 1), 2, False, {When.FIRST, When.BESIDE, When.AFTER, When.LAST}),
        ((7, 3, 1), 1, False, {When.FIRST, When.LAST}),
        ((7, 3, 1), 2, True, {When.FIRST}),
    ],
)
def test_when_it_anneals(grid: tuple[int, int, int], workers: int, deterministic: bool, whens: set[When]) -> None:
    """Beside the proof from 21 cells and two threads on; never after a proof that must repeat; not if left out."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", grid)
    params = replace(PARAMS, workers=workers, deterministic=deterministic)
    assert {when for when in When if portfolio_of(data, params).anneals(when)} == whens
    without = portfolio_of(data, replace(params, engines=PROVERS))
    assert not any(without.anneals(when) for when in When)


def test_the_table_is_whole() -> None:
    """Each engine has a row and each row an engine."""
    assert {row.engine for row in TABLE} == {kind.name for kind in ENGINE_CLASSES}
    assert set(ENGINES) == {kind.name for kind in ENGINE_CLASSES}


@pytest.mark.parametrize("without", ENGINES)
def test_nothing_is_proven_wrongly_without_an_engine(without: str) -> None:
    """Only less: small grids are closed without any single one but the model, and bounds hold."""
    rng = np.random.default_rng(ENGINES.index(without))
    params = replace(PARAMS, engines=tuple(name for name in ENGINES if name != without))
    for trial in range(4):
        shape = [one for one in SMALL_SHAPES if one[2] == 1][trial]
        data = random_problem(rng, [shape], 5, Variant(p2p="async" if trial % 2 else "blocking"))
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


def test_a_repeatable_run_has_annealing_and_the_model() -> None:
    """As others take what time allows."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1))
    assert set(portfolio_of(data, replace(PARAMS, deterministic=True)).engines) == {"annealing", "cp-sat-model"}


def test_unknown_engines_are_named() -> None:
    """With those that there are."""
    with pytest.raises(ValueError, match=r"engines must be of annealing, .* got tea-leaves"):
        SolverParams(engines=("tea-leaves",))
