"""Bounds by counting hosts: never above an optimum, and tight where slow hosts decide."""

import itertools
import time
from dataclasses import replace

import numpy as np
import pytest
from instances import Variant, best_by_enumeration, one_candidate_cluster, random_problem

from pipette_opt.annealing.anneal import AnnealingParams, anneal
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.best_links import optimistic_ticks
from pipette_opt.problem.data import UNUSABLE_TICKS, ProblemData
from pipette_opt.solver.bounds import candidate_bound
from pipette_opt.solver.many_hosts import counting_bound

SHAPES = [(1, 1, 1), (2, 1, 1), (1, 2, 1), (1, 3, 1), (3, 1, 1), (4, 1, 1), (2, 2, 1), (1, 4, 1), (1, 5, 1), (5, 1, 1)]


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_never_above_the_optimum(p2p: P2PMode) -> None:
    """Random problems with spares, kinds, memory, directed and missing links, blocks, tied embeddings, enumerated."""
    rng = np.random.default_rng(11)
    raised = 0
    for trial in range(150):
        variant = Variant(
            p2p=p2p,
            directed=bool(trial % 2),
            missing_share=0.1 * (trial % 3),
            num_kinds=1 + trial % 2,
            num_capacities=1 + trial % 2,
            levels=3 * (trial % 4 == 0),
        )
        shape = SHAPES[trial % len(SHAPES)]
        data = random_problem(rng, [shape], 5, variant, max_block=1 + trial % 2)
        candidate = data.candidates[0]
        if optimistic_ticks(data, candidate) >= UNUSABLE_TICKS:
            continue
        bound = counting_bound(data, candidate)
        assert bound <= best_by_enumeration(data, candidate)
        raised += bound > optimistic_ticks(data, candidate)
    assert raised > 10


@pytest.mark.parametrize(
    ("p2p", "shape", "kind"),
    list(itertools.product(["blocking", "async"], [(3, 3, 1), (4, 4, 1), (8, 5, 1)], ["unif", "tree"])),
)
def test_never_above_a_placement(p2p: P2PMode, shape: tuple[int, int, int], kind: str) -> None:
    """Grids with rings of three and more and inner rows, with and without compute, against annealed placements."""
    for seed, ring_share, compute in itertools.product(range(3), (0.1, 1.0, 5.0), (0, 100_000)):
        data = one_candidate_cluster(
            np.random.default_rng(seed), kind, shape, p2p=p2p, ring_share=ring_share, compute=compute
        )
        found = anneal(data, AnnealingParams(time_limit_s=None, max_moves=60_000, seed=seed)).solution
        assert found is not None
        assert counting_bound(data, data.candidates[0]) <= found.objective_ticks


def by_hand(num_slow: int) -> ProblemData:
    """A grid of 4 x 4 with some hosts ten times as slow to reach; other links take one unit of 1000 ticks."""
    data = one_candidate_cluster(np.random.default_rng(0), "unif", (4, 4, 1), num_microbatches=8)
    candidate = data.candidates[0]
    factor = np.where(np.arange(16) < num_slow, 10, 1)
    links = np.maximum(factor[:, None], factor[None, :]) * 1000
    np.fill_diagonal(links, UNUSABLE_TICKS)
    one = replace(candidate, p2p_ticks=links, ring_ticks=links[None], optimizer_ticks=7)
    return replace(data, candidates=(one,))


def test_slow_hosts_by_hand() -> None:
    """
    Eight slow hosts fit in the first and last row, nine do not: then some column waits for two slow links.

    Without compute the round trip is 6 links; with 8 micro-batches there are 7 periods of two links.
    """
    fast = 6 * 1000 + 7 * 2000
    assert counting_bound(by_hand(0), by_hand(0).candidates[0]) == fast + 1000 + 7
    nine = by_hand(9)
    assert counting_bound(nine, nine.candidates[0]) > 7 * 20_000 + 10_000


def test_many_hosts_are_counted_in_time() -> None:
    """1,280 hosts take seconds, and the bound is above that of the best links."""
    data = one_candidate_cluster(np.random.default_rng(0), "tree", (32, 40, 1))
    started = time.perf_counter()
    bound = candidate_bound(data, data.candidates[0])
    assert time.perf_counter() - started < 20.0
    assert bound > 1.2 * optimistic_ticks(data, data.candidates[0])
