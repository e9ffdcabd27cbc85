"""The forms of plain grids, one by one, against the plain objective."""

import numpy as np
import pytest
from instances import Variant, random_problem

from pipette_opt.annealing.compiled import tables
from pipette_opt.annealing.plain_grid import column_times, ends_below, grid_of, objective, read_placement, slowest_hop
from pipette_opt.base.types import P2PMode
from pipette_opt.problem.data import UNUSABLE_TICKS
from pipette_opt.problem.objective import objective_ticks

SHAPES = [(1, 1, 1), (3, 1, 1), (1, 3, 1), (2, 3, 1), (3, 2, 1)]


@pytest.mark.parametrize("p2p", ["blocking", "async"])
def test_forms_of_a_placement(p2p: P2PMode) -> None:
    """Columns and rings of a placement that was read give its objective; a column alone ends just below its own end."""
    rng = np.random.default_rng(2)
    checked = 0
    for trial in range(60):
        shape = SHAPES[trial % len(SHAPES)]
        data = random_problem(rng, [shape], 6, Variant(p2p=p2p, num_kinds=2, num_capacities=2), max_block=3)
        candidate = data.candidates[0]
        g = grid_of(tables(data, candidate))
        D, pp, W, m = (int(g.sizes[index]) for index in (1, 3, 4, 5))
        nodes = rng.permutation(6)
        between, wait, hop = np.zeros((D, pp), np.int64), np.zeros((D, pp), np.int64), np.zeros((W, D), np.int64)
        work, finish, total = np.zeros((D, pp), np.int64), np.zeros((W, D), np.int64), np.zeros(D, np.int64)
        read_placement(g, nodes, work, between, wait, hop)
        for d in range(D):
            trip, period = column_times(d, pp, work, between, wait, 1, p2p == "blocking")
            total[d] = trip + (m - 1) * period
        ring = np.array([slowest_hop(g.floor[index], hop, index) for index in range(W)])
        plain = objective_ticks(data, candidate, nodes[: candidate.num_cells].reshape(shape))
        if plain >= UNUSABLE_TICKS:
            continue
        assert objective(g, nodes, total, finish, ring) == plain
        end = int((finish[:, 0] + ring).max())
        assert ends_below(g, nodes, 0, total[0], ring, end + 1)
        assert not ends_below(g, nodes, 0, total[0], ring, end)
        checked += 1
    assert checked > 20
