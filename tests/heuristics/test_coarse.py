"""First placements of many hosts."""

import numpy as np
import pytest
from instances import one_candidate_cluster

from pipette_opt.heuristics.annealing import AnnealingParams, anneal
from pipette_opt.heuristics.coarse import coarse_starts
from pipette_opt.placed import objective_ticks


@pytest.mark.parametrize(("shape", "listed"), [((16, 16, 1), 256), ((8, 4, 1), 40), ((1, 12, 1), 12), ((12, 1, 1), 13)])
def test_every_host_once(shape: tuple[int, int, int], listed: int) -> None:
    """The grid first, then the spare hosts."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", shape, num_nodes=listed)
    starts = coarse_starts(data, data.candidates[0])
    assert starts
    for nodes in starts:
        assert sorted(nodes.tolist()) == list(range(listed))


def test_far_better_than_random_on_racks() -> None:
    """The best of them on four racks with slow hosts; spare hosts are the slow ones."""
    data = one_candidate_cluster(np.random.default_rng(1), "tree", (16, 16, 1))
    candidate = data.candidates[0]
    values = [
        objective_ticks(data, candidate, nodes[:256].reshape(16, 16, 1)) for nodes in coarse_starts(data, candidate)
    ]
    random = [
        objective_ticks(data, candidate, np.random.default_rng(seed).permutation(256).reshape(16, 16, 1))
        for seed in range(20)
    ]
    assert min(values) < 0.8 * min(random)
    spare = one_candidate_cluster(np.random.default_rng(1), "tree", (8, 7, 1), num_nodes=64)
    usual = np.median(spare.candidates[0].p2p_ticks, axis=1)
    for nodes in coarse_starts(spare, spare.candidates[0]):
        assert set(nodes[56:].tolist()) == set(np.argsort(usual, kind="stable")[56:].tolist())


def test_annealing_refines_them() -> None:
    """On large grids annealing starts there, and is never worse."""
    data = one_candidate_cluster(np.random.default_rng(2), "tree", (16, 16, 1))
    candidate = data.candidates[0]
    values = [
        objective_ticks(data, candidate, nodes[:256].reshape(16, 16, 1)) for nodes in coarse_starts(data, candidate)
    ]
    result = anneal(data, AnnealingParams(time_limit_s=None, max_moves=200_000))
    assert result.solution is not None
    assert result.solution.objective_ticks < min(values)


def test_they_differ() -> None:
    """Whole columns one after the other and whole rows at once are the same placement."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (16, 16, 1))
    starts = coarse_starts(data, data.candidates[0])
    assert len({nodes.tobytes() for nodes in starts}) == len(starts) > 5
