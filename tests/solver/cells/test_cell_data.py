"""Stages that are not watched never end last."""

import itertools

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.base.types import IntArray, P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS, CandidateData, ProblemData
from pipette_opt.problem.objective import objective_ticks
from pipette_opt.solver.cells.data import Grid, grid_of

SHAPES = [(3, 1, 1), (4, 1, 1), (2, 2, 1), (3, 2, 1), (2, 3, 1)]


def _problem(seed: int, p2p: P2PMode) -> tuple[ProblemData, CandidateData]:
    rng = np.random.default_rng([13, seed])
    shape = SHAPES[seed % len(SHAPES)]
    variant = Variant(p2p=p2p, directed=bool(seed % 2), num_kinds=1 + seed % 3, missing_share=0.1 * (seed % 4 == 0))
    data = random_problem(rng, [shape], min(6, shape[0] * shape[1] + 1), variant, max_block=3)
    return data, data.candidates[0]


def _without_periods(g: Grid, nodes: IntArray) -> int:
    """The latest end of the watched stages with their rings, as if periods took no time."""
    P, D = nodes.shape
    rows = np.arange(P)
    latest = 0
    for w, stage_row in enumerate(g.row.tolist()):
        ends = [
            int(g.node[w, rows, column].sum() + g.transfer[g.arc[:, w], column[:-1], column[1:]].sum())
            for column in nodes.T
        ]
        ring = nodes[stage_row]
        hops = g.hop[w, ring, np.roll(ring, -1)] if D > 1 else g.hop[w, ring, ring]
        latest = max(latest, max(ends) + int(hops.max() + g.after[w]))
    return latest


@pytest.mark.parametrize("p2p", ["blocking", "async"])
@pytest.mark.parametrize("seed", range(30))
def test_what_ends_early_is_left_out(seed: int, p2p: P2PMode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of every placement the latest end is the same with all stages watched."""
    data, candidate = _problem(seed, p2p)
    few = grid_of(data, candidate)
    with monkeypatch.context() as patched:
        patched.setattr("pipette_opt.solver.cells.data._without_early", lambda g: g)
        every = grid_of(data, candidate)
    assert set(few.row.tolist()) <= set(every.row.tolist())
    P, D, _ = candidate.grid
    for hosts in itertools.permutations(range(data.num_nodes), P * D):
        nodes = np.array(hosts).reshape(P, D)
        if objective_ticks(data, candidate, nodes[:, :, None]) < UNUSABLE_TICKS:
            assert _without_periods(few, nodes) == _without_periods(every, nodes)


def test_a_chain_watches_its_first_stage() -> None:
    """Without rings over hosts, and with equal ones inside them, nothing ends after the first stage."""
    data = random_problem(np.random.default_rng(0), [(4, 1, 1)], 6, Variant(num_kinds=1), max_block=1)
    assert grid_of(data, data.candidates[0]).row.tolist() == [0]
