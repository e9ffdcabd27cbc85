"""Tables of times hold each different replica once."""

import numpy as np

from pipette_opt.parallel.schedule import BACKWARD, FORWARD
from pipette_opt.simulate.program import FIRST, LAST, megatron_program
from pipette_opt.simulate.time_tables import distinct_columns, piece_rows, replica_columns


def test_equal_columns_are_walked_once() -> None:
    """Columns are equal if they are so in all tables, and are given back by their place."""
    first, second = np.array([[1.0, 2.0, 1.0, 1.0]]), np.array([[5.0, 5.0, 5.0, 6.0], [0.0, 0.0, 0.0, 0.0]])
    kept, column = distinct_columns(first, second)
    assert len(kept) == 3
    for table in (first, second):
        assert np.array_equal(table[:, kept][:, column], table)
    assert [one.tolist() for one in distinct_columns(np.ones((3, 1)))] == [[0], [0]]


def test_replicas_of_placements_stand_side_by_side() -> None:
    """Two placements of three replicas, the first one's replicas first."""
    table = np.arange(24.0).reshape(2, 4, 3)
    columns = replica_columns(table)
    assert columns.shape == (4, 6)
    assert np.array_equal(columns, np.concatenate([table[0], table[1]], axis=1))
    assert np.array_equal(replica_columns(table[:1]), table[0])


def test_ends_are_plain_where_no_table_tells_them_apart() -> None:
    """One chunk; the first forward and the last backward have rows of their own only if they take longer."""
    program = megatron_program(2, 2, 1, "async")
    assert piece_rows(program, (FORWARD, BACKWARD), 1).tolist() == [[0, 0, 1, 1], [0, 1, 0, 1]]
    assert piece_rows(program, (FORWARD, FIRST, BACKWARD, LAST), 1).tolist() == [[1, 0, 2, 3], [1, 2, 0, 3]]
