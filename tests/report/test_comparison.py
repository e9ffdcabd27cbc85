"""A plan beside what runs today, and how sure the difference is."""

from dataclasses import replace
from functools import cache

import pytest
from consoles import shown
from factories import make_plan

from pipette_opt.plans.plan import MEASURED_RUNS, Band, IterationTime, Plan
from pipette_opt.report.comparison import Uncounted, comparison


@cache
def plan() -> Plan:
    """What everything is compared with."""
    return make_plan()


ENDS = (1.125, 1.5)
"""Ends of the measured ratio of the launch's time to the plan's, for a launch of 1.25 times the plan's time."""


def text_of(
    time: IterationTime, uncounted: Uncounted | None = None, ends: tuple[float, float] | None = ENDS, **changes: Band
) -> str:
    """The comparison, as text, with changes of the plan's time."""
    planned = replace(plan(), estimate=replace(plan().estimate, **changes))
    return shown(comparison(plan().config, time, planned, "today", uncounted or Uncounted(), ends))


def todays(factor: float) -> IterationTime:
    """A launch that takes so many times the plan's time, a third of it tensor-parallel communication."""
    seconds = plan().estimate.iteration_time_s * factor
    parts = {"compute": seconds * 2 / 3, "tensor_parallel": seconds / 3}
    return replace(plan().estimate, iteration_time_s=seconds, breakdown=parts)


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (1.25, "has 25.0 % more tokens per second"),
        (1.0, "has as many tokens per second"),
        (1.0004, "has as many tokens per second"),
        (0.8, "has 20.0 % fewer tokens per second"),
    ],
)
def test_verdicts(factor: float, said: str) -> None:
    """A launch that takes a quarter longer: the plan has a quarter more tokens per second."""
    assert f"The plan {said}" in text_of(todays(factor))


def test_a_gain_has_an_error() -> None:
    """1.25, between 1.125 and 1.5, in the same sentence; a pair without a range has none."""
    said = "has 25.0 % more tokens per second (12.5 % more to 50.0 % more in nine of ten jobs like this)."
    assert said in " ".join(text_of(todays(1.25)).split())
    assert "has 25.0 % more tokens per second." in text_of(todays(1.25), ends=None)


def test_the_gain_is_that_of_expected_times() -> None:
    """A launch expected at its simulated time, a plan expected at 1.1 times its own: 1.25 becomes 1.136."""
    seconds = plan().estimate.iteration_time_s
    band = Band(
        low_s=seconds,
        middle_s=1.1 * seconds,
        high_s=2 * seconds,
        share=0.9,
        source=f"2 runs {MEASURED_RUNS}",
        runs=2,
    )
    said = "has 13.6 % more tokens per second (12.5 % more to 50.0 % more in nine of ten jobs, by 2 runs of your own)."
    assert said in " ".join(text_of(replace(todays(1.25), band=None), band=band).split())


def test_what_is_not_counted_makes_a_range() -> None:
    """Overlap may hide all tensor-parallel communication: 1.25 becomes 0.8333, a sixth fewer tokens per second."""
    time = todays(1.25)
    hidden = Uncounted(
        saved_s={"--tp-comm-overlap": time.breakdown["tensor_parallel"]},
        parts={"--tp-comm-overlap": "tensor_parallel"},
        others=2,
    )
    text = text_of(time, hidden)
    said = "The plan has between 16.7 % fewer and 25.0 % more tokens per second (25.0 % fewer to 50.0 % more in nine of"
    assert said in " ".join(text.split())
    assert "--tp-comm-overlap saves today's launch up to" in text
    assert "2 more options change today's time by an unknown amount" in text


def test_parts_are_saved_once() -> None:
    """Two options that hide the same communication hide it once."""
    time = todays(1.0)
    part = time.breakdown["tensor_parallel"]
    both = Uncounted(saved_s={"--a": part, "--b": part}, parts={"--a": "tensor_parallel", "--b": "tensor_parallel"})
    assert both.least_s(time) == pytest.approx(time.iteration_time_s - part)
