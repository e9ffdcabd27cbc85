"""Moves of plain grids exchange different cells, and only spare hosts lie outside the grid."""

import numpy as np
import pytest

from pipette_opt.annealing.grid_moves import cell_of_slowest_column, cell_of_slowest_hop, draw_move


@pytest.mark.parametrize(("rows", "columns", "hosts"), [(1, 1, 2), (1, 4, 4), (4, 1, 5), (3, 4, 14)])
def test_a_move_exchanges_pairs(rows: int, columns: int, hosts: int) -> None:
    """No place is in two pairs, moves of many cells stay in the grid, and nothing is written past the buffers."""
    state, nodes, cells = np.ones(1, dtype=np.uint64), np.arange(hosts), rows * columns
    seen = set()
    for choice in range(100):
        for _ in range(20):
            first, second = np.full(cells + 1, -1), np.full(cells + 1, -1)
            number = draw_move(choice, rows, columns, hosts, nodes, first, second, state)
            places = [*first[:number].tolist(), *second[:number].tolist()]
            assert len(set(places)) == 2 * number
            assert all(0 <= place < (hosts if number == 1 else cells) for place in places)
            assert (first[number:] == -1).all()
            assert (first[:number] < cells).all()
            seen.update(places)
    assert seen == set(range(hosts))


def test_moves_start_where_time_is_lost() -> None:
    """The slowest column is the second of three; the heavier ring's slowest hop goes from the last to the first."""
    state = np.ones(1, dtype=np.uint64)
    total = np.array([5, 9, 7])
    assert {cell_of_slowest_column(total, 4, state) for _ in range(100)} == {1, 4, 7, 10}
    weight, hop, watched_row = np.array([0.1, 1.0]), np.array([[9, 0, 0], [1, 2, 3]]), np.array([0, 2])
    assert {cell_of_slowest_hop(weight, hop, watched_row, state) for _ in range(100)} == {2 * 3 + 2, 2 * 3 + 0}
