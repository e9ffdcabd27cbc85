"""Costs between different hosts, counted by hand."""

from dataclasses import replace

import numpy as np
from instances import one_candidate_cluster

from pipette_opt.solver.tree_search.costs import NEVER, after_reductions, ring_hops, transfers

CANDIDATE = replace(
    one_candidate_cluster(np.random.default_rng(0), "unif", (3, 2, 1), num_nodes=6).candidates[0],
    p2p_ticks=np.array([[0, 5, 7], [6, 0, NEVER], [9, 4, 0]]),
    ring_ticks=np.array([[[0, 50, 20], [40, 0, NEVER], [90, 10, 0]]]),
    ring_floor_ticks=np.array([30, 0, 30]),
    optimizer_ticks=8,
)


def test_transfers() -> None:
    """A pair that lacks one direction has neither; a host has no link to itself."""
    there, both, wait = transfers(CANDIDATE, blocking=True)
    assert there.tolist() == [[NEVER, 5, 7], [6, NEVER, NEVER], [9, NEVER, NEVER]]
    assert both.tolist() == [[NEVER, 11, 16], [11, NEVER, NEVER], [16, NEVER, NEVER]]
    assert wait.tolist() == [[NEVER, 6, 9], [6, NEVER, NEVER], [9, NEVER, NEVER]]
    assert (transfers(CANDIDATE, blocking=False)[2] == both).all()


def test_reductions() -> None:
    """At least what they take inside hosts; the optimizer follows."""
    assert ring_hops(CANDIDATE, 0).tolist() == [[NEVER, 50, 30], [40, NEVER, NEVER], [90, 30, NEVER]]
    assert ring_hops(CANDIDATE, 1).tolist() == [[NEVER, 50, 20], [40, NEVER, NEVER], [90, 10, NEVER]]
    assert ring_hops(replace(CANDIDATE, grid=(6, 1, 1)), 0).tolist() == [[30] * 3] * 3
    tied = replace(CANDIDATE, embedding_floor_ticks=3)
    assert after_reductions(tied, np.arange(3)).tolist() == [11, 8, 11]
