"""Plans as a Python prompt shows them."""

from dataclasses import replace

import pytest
from factories import make_plan

from pipette_opt.plans.summary import MAX_LINES, WIDTH, lines_at_most
from pipette_opt.plans.verdict import expected_time


@pytest.mark.search
def test_a_plan_is_at_most_ten_lines() -> None:
    """Its label, expected time, gap, risk and hosts; it was 15,000 characters."""
    plan = make_plan()
    text = repr(plan)
    assert len(text.splitlines()) <= MAX_LINES
    assert max(map(len, text.splitlines())) <= WIDTH + 2
    for part in (
        plan.config.label(),
        expected_time(plan.estimate),
        "at most 3.23 % above the best of the searched space",
        "risk of running out 0.1 %",
        "n[0-1,3-4]",
    ):
        assert part in text


def test_a_plan_without_memory_or_alternatives() -> None:
    """What is not known is left out."""
    bare = replace(make_plan(), memory=(), alternatives=(), unused_hosts={})
    assert "memory" not in repr(bare)
    assert "next best" not in repr(bare)


def test_more_lines_are_counted() -> None:
    """Ten lines with the title, however many there are; a line stays one line."""
    assert lines_at_most("title", ["a"] * 9).splitlines()[-1] == "  a"
    assert lines_at_most("title", ["a"] * 30).splitlines()[-1] == "  ... and 22 more"
    assert len(lines_at_most("title", ["a"] * 30).splitlines()) == MAX_LINES
    assert len(lines_at_most("title", ["a\nb"]).splitlines()) == 2
