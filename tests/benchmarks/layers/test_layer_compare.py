"""Ours against Galvatron's decision on the same costs."""

import itertools

import numpy as np
import pytest
from galvatron_profiles import mock_profile

from benchmarks.layers.compare import compare_layers, described
from benchmarks.layers.programme import decide, decision
from benchmarks.layers.proven import own_searches, problem_of, prove, relaxed_s
from benchmarks.layers.space import usable_mb
from benchmarks.layers.strategies import choose_strategies

BUDGETS = (6.0, 8.0, 10.0)


@pytest.mark.search
@pytest.mark.parametrize("stages", [1, 2])
def test_never_slower_and_proven(stages: int) -> None:
    """Within every budget ours is as fast as Galvatron's at least, and the gap is that of ticks."""
    rows = list(compare_layers(mock_profile(3), [8], BUDGETS, stages))
    assert [row.budget_gb for row in rows] == list(BUDGETS)
    assert any(row.galvatron_s is not None for row in rows)
    for row in rows:
        assert row.gap < 1e-6
        assert (row.ours_s is None) == (row.galvatron_s is None)
        if row.ours_s is not None and row.galvatron_s is not None and row.bound_s is not None:
            assert row.ours_s <= row.galvatron_s * (1 + 1e-9)
            assert row.bound_s <= row.ours_s


@pytest.mark.search
@pytest.mark.parametrize("stages", [1, 2])
def test_no_strategies_are_faster(stages: int) -> None:
    """All choices of two layers, of all options, of some searches."""
    profile, budget = mock_profile(2), 9.0 if stages == 1 else 16.0
    searches = [one for one in own_searches(profile, 4, stages) if one.most_degree == 4][:2]
    assert searches
    proven = prove(searches, budget)
    best = float("inf")
    for search in searches:
        cuts = np.cumsum([0, *search.pipeline.layers()])
        for option in range(len(search.options)):
            for flat in itertools.product(range(len(search.strategies)), repeat=2):
                one = decision(search, tuple(flat[a:b] for a, b in itertools.pairwise(cuts)), option)
                if one.memory_mb <= usable_mb(budget):
                    best = min(best, one.seconds)
    assert proven.best is not None
    assert proven.best.seconds == pytest.approx(best, rel=1e-9)


def test_bounds_are_bounds() -> None:
    """The relaxation of a search is never above its optimum, and infinite only if nothing fits."""
    for search in own_searches(mock_profile(3), 8)[::5]:
        problem = problem_of(search, usable_mb(8))
        bound, found = relaxed_s(problem), choose_strategies(problem)
        if found.status == "INFEASIBLE":
            continue
        assert bound <= found.seconds * (1 + 1e-9)


def test_description() -> None:
    """Strategies in words; nothing in one message."""
    found = decide(mock_profile(3), 8, [10.0], 1)[10.0]
    assert found is not None
    assert described(found) == "pp1, 4 micro-batches; 3 tp4; vocabulary tp8"
    assert described(None) == "nothing fits"
