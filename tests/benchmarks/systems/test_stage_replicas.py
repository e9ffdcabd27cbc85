"""Stages with unequal replicas: the model against brute force, PipeDream's rule by hand, memory of weight versions."""

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from factories import LLAMA_8B, make_cluster, make_job

from benchmarks.systems.stages import (
    StageCosts,
    Way,
    best_stages,
    compare_stages,
    fits,
    seconds_of,
    stage_costs,
    versions_of,
)


def costs_of(work: list[float], workers: int, *, capacity: float = 1e9, reduction: float = 0.0) -> StageCosts:
    """Layers of one byte of weights, activations and states each; a reduction by PipeDream's rule."""
    ones, replicas = np.ones(len(work)), np.arange(workers + 1)
    moved = reduction * 4 * np.maximum(replicas - 1, 0) / np.maximum(replicas, 1)
    return StageCosts(
        work_s=np.array(work),
        reduction_s=np.outer(moved, ones),
        border_s=0.1,
        weight_bytes=ones,
        activation_bytes=ones,
        fixed_bytes=ones,
        capacity_bytes=capacity,
    )


def brute_force(costs: StageCosts, workers: int, m: int, way: Way) -> float:
    """Over all splits of the layers and all replicas that divide the micro-batches."""
    layers, best = len(costs.work_s), np.inf
    for stages in range(1, min(layers, workers) + 1):
        for cuts in combinations(range(1, layers), stages - 1):
            split = tuple(np.diff([0, *cuts, layers]).tolist())
            for replicas in product([r for r in range(1, workers + 1) if m % r == 0], repeat=stages):
                if sum(replicas) <= workers and fits(costs, split, replicas, m, way):
                    best = min(best, seconds_of(costs, split, replicas, m, way))
    return best


@pytest.mark.parametrize("way", ["async", "flush"])
@pytest.mark.parametrize(("seed", "capacity"), [(0, 1e9), (1, 9.0), (2, 12.0), (3, 5.0)])
def test_as_good_as_brute_force(seed: int, capacity: float, way: Way) -> None:
    """Five random layers on five workers, with and without enough memory; nothing is below the bound."""
    rng = np.random.default_rng(seed)
    costs = costs_of(rng.uniform(1, 5, 5).tolist(), 5, capacity=capacity, reduction=rng.uniform(0, 1))
    least, found = brute_force(costs, 5, 12, way), best_stages(costs, 5, 12, way)
    if np.isinf(least):
        assert found is None
        return
    assert found is not None
    assert found.seconds == pytest.approx(least, rel=1e-4)
    assert found.bound_s <= least * (1 + 1e-9)
    assert found.bound_s >= least * 0.999
    assert fits(costs, found.layers, found.replicas, 12, way)


def test_pipedreams_rule_by_hand() -> None:
    """
    A heavy first layer on three of four workers: 3 s / 3 as long as the last layer's 1 s, a micro-batch each second.

    Equal replicas are two of both stages, 1.5 s; or data parallelism, 4 s / 4, if the reduction takes no time.
    """
    costs = costs_of([3.0, 1.0], 4)
    assert seconds_of(costs, (1, 1), (3, 1), 6, "async") == pytest.approx(6.0)
    assert seconds_of(costs, (1, 1), (2, 2), 6, "async") == pytest.approx(9.0)
    dear = costs_of([3.0, 1.0], 4, reduction=1.0)  # 4 * 3 / 4 of each layer: 6 s of all workers, 8/3 s of three
    assert seconds_of(dear, (2,), (3,), 6, "async") == pytest.approx(6 * (16 / 3) / 3)
    found = best_stages(dear, 4, 6, "async")
    assert found is not None
    assert (found.layers, found.replicas) == ((1, 1), (3, 1))
    assert seconds_of(costs, (1, 1), (3, 1), 6, "flush") == pytest.approx(4.0 + 0.1 + max(1 * 3.0, 5 * 1.0))


def test_versions_by_hand() -> None:
    """Four stages of one worker keep 4, 3, 2 and 1 versions (as 1F1B); with (3, 1) the first keeps two."""
    assert versions_of((1, 1, 1, 1)) == (4, 3, 2, 1)
    assert versions_of((3, 1)) == (2, 1)
    assert versions_of((2, 2)) == (2, 1)
    costs = costs_of([1.0, 1.0], 4, capacity=5.0)
    assert fits(costs, (1, 1), (3, 1), 6, "async")  # two versions, two micro-batches, states
    assert not fits(replace(costs, capacity_bytes=4.9), (1, 1), (3, 1), 6, "async")
    assert fits(replace(costs, capacity_bytes=4.0), (1, 1), (3, 1), 6, "flush")


def test_costs_of_a_job() -> None:
    """Layers alike but the ends; unequal replicas are never slower than equal ones, and flushes never faster."""
    job = make_job(make_cluster(3, 20.0, gpus=8), replace(LLAMA_8B, num_layers=6), 12, 2048)
    costs = stage_costs(job)
    assert np.allclose(costs.work_s[1:-1], costs.work_s[1])
    assert costs.work_s[-1] > costs.work_s[1]
    assert (np.diff(costs.reduction_s[1:, 1]) > 0).all()
    found = {(way, equal): one for way, equal, one in compare_stages(job)}
    seconds = {key: one.seconds for key, one in found.items() if one is not None}
    for way in ("async", "flush"):
        assert seconds[way, False] <= seconds[way, True] * (1 + 1e-4)
