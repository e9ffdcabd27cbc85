"""A plan beside what runs today, and how sure the difference is."""

from dataclasses import replace
from functools import cache

import pytest
from consoles import shown
from factories import make_plan

from pipette_opt.base.units import three_digits
from pipette_opt.plans.plan import IterationTime, Plan
from pipette_opt.report.comparison import Uncounted, comparison
from pipette_opt.worlds.bands import gain_band


@cache
def plan() -> Plan:
    """What everything is compared with."""
    return make_plan()


def text_of(time: IterationTime, uncounted: Uncounted | None = None) -> str:
    """The comparison, as text."""
    return shown(comparison(plan().config, time, plan(), "today", uncounted or Uncounted()))


def todays(factor: float) -> IterationTime:
    """A launch that takes so many times the plan's time, a third of it tensor-parallel communication."""
    seconds = plan().estimate.iteration_time_s * factor
    parts = {"compute": seconds * 2 / 3, "tensor_parallel": seconds / 3}
    return replace(plan().estimate, iteration_time_s=seconds, breakdown=parts)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.25, "has 25.0 % more tokens per second"),
        (1.0, "is equally fast"),
        (0.8, "has 20.0 % fewer tokens per second"),
    ],
)
def test_verdicts(factor: float, said: str) -> None:
    """A launch that takes a quarter longer: the plan has a quarter more tokens per second."""
    assert f"The plan {said}" in text_of(todays(factor))


def test_a_gain_has_an_error() -> None:
    """Of pairs of runs, around the gain, in the same sentence."""
    low, high = (100 * abs(end - 1) for end in gain_band(1.25))
    said = (
        f"({three_digits(low)} % fewer to {three_digits(high)} % more in nine of ten pairs of public runs of one job)"
    )
    assert said in " ".join(text_of(todays(1.25)).split())


def test_what_is_not_counted_makes_a_range() -> None:
    """Overlap may hide all tensor-parallel communication: 1.25 becomes 0.8333, a sixth fewer tokens per second."""
    time = todays(1.25)
    hidden = Uncounted(
        saved_s={"--tp-comm-overlap": time.breakdown["tensor_parallel"]},
        parts={"--tp-comm-overlap": "tensor_parallel"},
        others=2,
    )
    text = text_of(time, hidden)
    assert "The plan has between 16.7 % fewer and 25.0 % more tokens per second (" in text
    assert "--tp-comm-overlap saves today's launch up to" in text
    assert "2 more options change today's time by an unknown amount" in text


def test_parts_are_saved_once() -> None:
    """Two options that hide the same communication hide it once."""
    time = todays(1.0)
    part = time.breakdown["tensor_parallel"]
    both = Uncounted(saved_s={"--a": part, "--b": part}, parts={"--a": "tensor_parallel", "--b": "tensor_parallel"})
    assert both.least_s(time) == pytest.approx(time.iteration_time_s - part)
