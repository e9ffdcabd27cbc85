"""The file of predictions that every change of the code is compared with."""

from types import ModuleType
from typing import Any

import pytest
from benchmark_modules import loaded


@pytest.fixture(scope="module")
def golden() -> ModuleType:
    """The benchmark's module."""
    return loaded("golden", ".")


def line(**figures: object) -> dict[str, Any]:
    """A line of the file."""
    return {"name": "pair 0", "job": {}, "config": {}, "figures": figures}


def test_figures_that_moved(golden: ModuleType) -> None:
    """A sum in another order is no move; a figure that comes, goes or changes is."""
    before = line(seconds={"iteration": 1.0, "compute": 0.5}, label="tp1", parameters=8.0)
    after = line(seconds={"iteration": 1.0 + 1e-12, "compute": 0.6}, label="tp2", bound_s=1.0)
    assert golden.moves(before, before) == []
    assert golden.moves(before, after) == [
        ("seconds.compute", 0.5, 0.6),
        ("label", "tp1", "tp2"),
        ("parameters", 8.0, None),
        ("bound_s", None, 1.0),
    ]


def test_table_names_the_largest_move(golden: ModuleType) -> None:
    """How many lines moved, and of each figure the one that moved most."""
    rows = [line(bound_s=1.0), line(bound_s=2.0) | {"name": "pair 1"}, line(bound_s=4.0)]
    found = [[("bound_s", 1.0, 1.1)], [("bound_s", 2.0, 1.0)], []]
    text = golden.table(rows, found)
    assert text.startswith("2 of 3 lines moved.")
    assert "| bound_s | 2 | 50 | pair 1 | 2.0 | 1.0 |" in text
    assert golden.table(rows, [[], [], []]) == "0 of 3 lines moved."


def test_lines_say_the_whole_configuration(golden: ModuleType) -> None:
    """A configuration read from a line is written as the same line; models and kinds of GPU are all there."""
    rows = golden.read_rows()
    pairs = [row for row in rows if golden.is_of(row, "pairs")]
    assert len(pairs) == 300
    assert len(rows) - len(pairs) > 20
    for row in pairs:
        said = golden.said_of(golden.config_of(row["config"]))
        assert {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()} == row[
            "config"
        ]
    assert not any("error" in row["figures"] for row in rows)


@pytest.mark.search
def test_an_error_is_a_figure(golden: ModuleType) -> None:
    """A job that cannot be read any more is a line that moved, not the end of the comparison."""
    row = golden.read_rows()[0]
    wrong = row | {"job": row["job"] | {"model": "no-such-model"}}
    moved = golden.moves(row, golden.evaluated(wrong))
    assert ("error", None, golden.evaluated(wrong)["figures"]["error"]) in moved
