"""The annealing of plain grids: its running sums give the plain objective, and it can be cut into parts."""

import time

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing import kernels
from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.annealing.compiled import tables
from pipette_opt.annealing.plain_grid import grid_of, has_grid
from pipette_opt.annealing.swaps import NUM_ARCHIVED, REBUILD, anneal_grid
from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.problem.objective import objective_ticks

SHAPES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (3, 1, 1), (1, 3, 1), (2, 2, 1), (2, 3, 1), (3, 2, 1), (4, 1, 1), (1, 5, 1)]


def run(data: ProblemData, moves: int, parts: int = 1, seed: int = 1) -> tuple[int, IntArray, IntArray, IntArray]:
    """Best objective and all hosts, the grid first; the archive's terms and placements."""
    candidate = data.candidates[0]
    t = tables(data, candidate)
    assert has_grid(t)
    random = np.array([seed], dtype=np.uint64)
    nodes = np.empty(data.num_nodes, dtype=np.int64)
    kernels.random_start(t, nodes, random)
    best, best_nodes = UNUSABLE_TICKS, nodes.copy()
    archive = np.full((NUM_ARCHIVED, 2), -1, dtype=np.int64)
    archived = np.zeros((NUM_ARCHIVED, candidate.num_cells), dtype=np.int64)
    step = moves // parts
    for begin in range(0, moves, step):
        best = anneal_grid(
            grid_of(t), nodes, best, best_nodes, random, begin, begin + step, moves, 50.0, 1.0, 5.0, archive, archived
        )
    return int(best), best_nodes, archive, archived


@pytest.mark.search
@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_value_is_the_plain_objective(p2p: P2PMode) -> None:
    """Several stages on a host, kinds, memory, directed and missing links, tied embeddings; optimal on few hosts."""
    rng = np.random.default_rng(5)
    checked = 0
    for trial in range(90):
        shape = SHAPES[trial % len(SHAPES)]
        variant = Variant(p2p=p2p, missing_share=0.05 * (trial % 3), num_kinds=2, num_capacities=2)
        data = random_problem(rng, [shape], 6, variant, max_block=3)
        candidate = data.candidates[0]
        optimum = best_by_enumeration(data, candidate) if shape[0] * shape[1] <= 3 or trial < 20 else None
        if not kernels.random_start(tables(data, candidate), np.empty(6, dtype=np.int64), np.ones(1, dtype=np.uint64)):
            continue
        value, nodes, _, _ = run(data, 2 * REBUILD)
        cells = nodes[: candidate.num_cells].reshape(shape)
        plain = objective_ticks(data, candidate, cells)
        assert sorted(nodes.tolist()) == list(range(6))
        assert data.allowed(candidate)[np.arange(shape[0])[:, None], cells[:, :, 0]].all()
        if plain < UNUSABLE_TICKS:
            assert value == plain
            checked += 1
            if optimum is not None:
                assert value == optimum
    assert checked > 50


def test_archive_holds_what_it_says() -> None:
    """Placements in it are whole, and none is worse than another in both terms."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_nodes=18)
    value, nodes, archive, archived = run(data, 50 * REBUILD)
    kept = np.flatnonzero(archive[:, 0] >= 0)
    assert len(kept) > 0
    for place in kept:
        assert len(np.unique(archived[place])) == 16
        worse = (archive[kept] >= archive[place]).all(axis=1)
        assert worse.sum() == 1
    values = [objective_ticks(data, data.candidates[0], archived[place].reshape(4, 4, 1)) for place in kept]
    assert value == objective_ticks(data, data.candidates[0], nodes[:16].reshape(4, 4, 1)) <= min(values)


@pytest.mark.search
def test_parts_go_on_where_the_last_ended() -> None:
    """Many parts are as good as one, on average; each keeps the best of those before."""
    whole, parted = [], []
    for seed in range(5):
        data = one_candidate_cluster(np.random.default_rng(seed), "unif", (4, 4, 1))
        whole.append(run(data, 40 * REBUILD, 1, seed + 1)[0])
        parted.append(run(data, 40 * REBUILD, 10, seed + 1)[0])
    assert np.mean(parted) == pytest.approx(np.mean(whole), rel=0.01)


def test_candidates_of_a_shape_share_placements() -> None:
    """The second candidate has another weight of rings; annealed for few moves, it profits from the first one's."""
    first = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1), ring_share=1.0)
    second = one_candidate_cluster(np.random.default_rng(0), "tree", (4, 4, 1), ring_share=1.01)
    both = ProblemData(
        candidates=(first.candidates[0], second.candidates[0]),
        p2p=first.p2p,
        tick_s=first.tick_s,
        kind_of_node=first.kind_of_node,
        capacity_mib=first.capacity_mib,
    )
    params = AnnealingParams(time_limit_s=None, max_moves=300_000, first_moves=5_000, seed=3)
    result = anneal(both, params)
    assert result.solution is not None
    values = {one.candidate: one.objective_ticks for one in (result.solution, *result.pool)}
    for index, candidate in enumerate(both.candidates):
        nodes = next(one.nodes for one in (result.solution, *result.pool) if one.candidate != index)
        assert values[index] <= objective_ticks(both, candidate, nodes)


@pytest.mark.search
def test_speed() -> None:
    """Far above what the general kernel does, on whatever machine this is: at least three times its moves."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (8, 8, 1))
    t = tables(data, data.candidates[0])
    run(data, REBUILD)
    started = time.thread_time()
    run(data, 100 * REBUILD)
    fast = 100 * REBUILD / (time.thread_time() - started)
    nodes, random = np.arange(64), np.ones(1, dtype=np.uint64)
    kernels.anneal_tuned(t, nodes, nodes.copy(), random, 100, 50.0, 1.0, 3.0)
    started = time.thread_time()
    kernels.anneal_tuned(t, nodes, nodes.copy(), random, 10 * REBUILD, 50.0, 1.0, 3.0)
    assert fast > 3 * 10 * REBUILD / (time.thread_time() - started)
