"""A table of cells, and its values as a pandas frame."""

import numpy as np

from pipette_opt.base.table import Table, count_cell, gib_cell, share_cell
from pipette_opt.base.units import GIB


def test_values_without_a_total() -> None:
    """A frame has named columns only, also those that people do not see; unknown values are NaN, the total is out."""
    table = Table(
        headers=("part", "size >", "", "share >"),
        names=("part", "size_gib", "number", ""),
        rows=[("weights", gib_cell(3 * GIB), count_cell(7), share_cell(0.75)), ("rest", gib_cell(None), "", "-")],
        total=("all", gib_cell(4 * GIB), "", share_cell(1.0)),
    )
    frame = table.as_frame()
    assert list(frame) == ["part", "size_gib", "number"]
    assert frame["part"].tolist() == ["weights", "rest"]
    assert np.array_equal(frame["size_gib"], [3.0, np.nan], equal_nan=True)
    assert [[cell.text for cell in table.shown_cells(row)] for row in table.rows] == [
        ["weights", "3.0", "75.0 %"],
        ["rest", "-", "-"],
    ]
    assert list(Table(headers=("a", "b"), names=("a", ""), rows=()).as_frame()) == ["a"]
