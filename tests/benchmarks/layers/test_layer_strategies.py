"""Strategies of layers, chosen by CP-SAT: against all choices, by hand, and by its rules."""

import dataclasses
import itertools

import numpy as np
import pytest

from benchmarks.layers.strategies import (
    StageTables,
    StrategyProblem,
    choose_strategies,
    objective_s,
    undominated,
)


def random_problem(seed: int) -> StrategyProblem:
    """Two stages, one or two runs of like layers, four strategies in three layouts, two options."""
    rng = np.random.default_rng(seed)
    runs = 1 + seed % 2
    levels = np.sort(rng.uniform(0.0, 0.5, 3))
    change = np.maximum(levels[:, None], levels[None]) * (1 - np.eye(3))
    stages = []
    for _ in range(2):
        micro = rng.uniform(0.1, 1.0, (runs, 4))
        stages.append(
            StageTables(
                num_layers=rng.integers(1, 4, runs),
                times_s=np.array([micro, micro + rng.uniform(0.0, 1.0, (runs, 4))]),
                memory=rng.integers(1, 10, (runs, 4)),
                option_s=rng.uniform(0.0, 0.3, (2, 2)),
                option_memory=rng.integers(0, 4, 2),
                budget=int(rng.integers(6, 22)),
            )
        )
    # (m - 1) times the slower stage, both stages once, and what the reduction adds to the first stage
    micro_batches = 3
    bottleneck = np.zeros((2, 2, 2), dtype=np.int64)
    bottleneck[0, 0, 0] = bottleneck[1, 0, 1] = micro_batches - 1
    once = np.array([[[1, 1], [0, 0]]])
    exposed = np.array([[[0, 0], [0, 0]], [[-1, 0], [1, 0]]])
    return StrategyProblem(
        stages=tuple(stages), layouts=np.array([0, 1, 1, 2]), change_s=change, terms=(bottleneck, once, exposed)
    )


def brute_force_s(problem: StrategyProblem) -> float:
    """The least objective over every strategy of every single layer, ``inf`` if none fits."""
    best = float("inf")
    for option in range(2):
        of_stages = []
        for stage in problem.stages:
            assert stage.num_layers is not None
            kinds = np.repeat(np.arange(len(stage.num_layers)), stage.num_layers)
            found = []
            for chosen in itertools.product(range(4), repeat=len(kinds)):
                if stage.memory[kinds, list(chosen)].sum() + stage.option_memory[option] > stage.budget:
                    continue
                layouts = problem.layouts[list(chosen)]
                times = stage.times_s[:, kinds, list(chosen)].sum(axis=1) + stage.option_s[:, option]
                found.append(times + problem.change_s[layouts[:-1], layouts[1:]].sum())
            of_stages.append(found)
        for times in itertools.product(*of_stages):
            best = min(best, objective_s(problem, np.array(times).T))
    return best


@pytest.mark.search
@pytest.mark.parametrize("seed", range(12))
def test_no_choice_of_single_layers_is_faster(seed: int) -> None:
    """Counts of layers in runs lose nothing against a strategy for each layer in every order."""
    problem = random_problem(seed)
    expected, found = brute_force_s(problem), choose_strategies(problem)
    if expected == float("inf"):
        assert found.status == "INFEASIBLE"
        return
    assert found.status == "OPTIMAL"
    assert found.seconds == pytest.approx(expected, rel=1e-7)
    assert found.bound_s <= expected * (1 + 1e-12)
    assert found.bound_s == pytest.approx(expected, rel=1e-7)


def one_stage(budget: int, num_layers: int = 4) -> StrategyProblem:
    """One run: 1 s in 3 units, 2 s in 1 unit of the same layout; 1.1 s in 1 unit of another, whose change takes 5 s."""
    stage = StageTables(
        num_layers=np.array([num_layers]),
        times_s=np.array([[[1.0, 2.0, 1.1]]]),
        memory=np.array([[3, 1, 1]]),
        option_s=np.zeros((1, 1)),
        option_memory=np.zeros(1, dtype=np.int64),
        budget=budget,
    )
    change = np.array([[0.0, 5.0], [5.0, 0.0]])
    return StrategyProblem(
        stages=(stage,), layouts=np.array([0, 0, 1]), change_s=change, terms=(np.ones((1, 1, 1), dtype=np.int64),)
    )


@pytest.mark.parametrize(("budget", "seconds"), [(12, 4.0), (11, 4.4), (4, 4.4)])
def test_a_change_is_paid_for(budget: int, seconds: float) -> None:
    """All layers as they are while they fit; then all in the other layout, as a mixture would change layouts."""
    found = choose_strategies(one_stage(budget))
    assert found.seconds == pytest.approx(seconds)
    assert len(found.stages[0].blocks) == 1


def test_nothing_fits() -> None:
    """A budget below the smallest layers has no choice."""
    assert choose_strategies(one_stage(3)).status == "INFEASIBLE"


def test_nothing_faster() -> None:
    """With a time to beat, only faster choices are looked for."""
    assert choose_strategies(one_stage(12), to_beat_s=3.9).status == "INFEASIBLE"
    assert choose_strategies(one_stage(12), to_beat_s=4.1).seconds == pytest.approx(4.0)


def test_layers_are_dealt_out() -> None:
    """Of six layers the stage that is twice as fast takes four, unless its memory allows fewer."""

    def stage(seconds: float, budget: int) -> StageTables:
        return StageTables(
            num_layers=None,
            times_s=np.array([[[seconds]]]),
            memory=np.array([[1]]),
            option_s=np.zeros((1, 1)),
            option_memory=np.zeros(1, dtype=np.int64),
            budget=budget,
        )

    slower = np.array([[[1, 0]], [[0, 1]]])
    for budget, expected in ((6, (4, 2)), (3, (3, 3))):
        problem = StrategyProblem(
            stages=(stage(1.0, budget), stage(2.0, 6)),
            layouts=np.array([0]),
            change_s=np.zeros((1, 1)),
            terms=(slower,),
            total_layers=6,
        )
        found = choose_strategies(problem)
        assert tuple(sum(layers for *_, layers in one.blocks) for one in found.stages) == expected


def test_dominated_strategies_go_only_in_their_layout() -> None:
    """The first of equals stays; a strategy that another layout beats stays, too, as that may cost a change."""
    problem = one_stage(12)
    (stage,) = problem.stages
    times, memory = np.array([[[1.0, 1.0, 1.5]]]), np.array([[2, 2, 3]])
    same = dataclasses.replace(problem, stages=(dataclasses.replace(stage, times_s=times, memory=memory),))
    assert undominated(same).tolist() == [[True, False, True]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([[0.0, 5.0, 1.0], [5.0, 0.0, 1.0], [1.0, 1.0, 0.0]], "detour"),
        ([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]], "zero diagonal"),
    ],
)
def test_costs_of_changes_are_checked(change: list[list[float]], message: str) -> None:
    """A detour that pays would make one visit of each layout suboptimal."""
    problem = one_stage(12)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(problem, change_s=np.array(change))
