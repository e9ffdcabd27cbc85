"""People are shown expected seconds: simulated ones times the job's factor, on the page and in tables."""

import re
from dataclasses import replace

import numpy as np
import pytest
from factories import make_plan, small_instance, whole_plan
from report_pages import Page, section

from pipette_opt.base.units import three_digits
from pipette_opt.export.script_changes import script_changes
from pipette_opt.plans.plan import why_slower, why_unused
from pipette_opt.report.comparison import Uncounted
from pipette_opt.report.page import page_of

FACTOR = 1.3
DATA = re.compile(r'<data value="([^"]+)" data-field="([^"]+)">([^<]+)</data>')
TIME = re.compile(r"(?<!_per)_s$|^estimate\.(?:breakdown|critical_path)\.")
"""Fields of ``plan.json`` that hold seconds of an iteration, or other seconds."""
AS_RECORDED = re.compile(
    r"^estimate\.(?:expected_s|iteration_time_s)$|^certificate\.(?:wall_time_s$|robust\.)|^inputs\."
)
"""Fields shown as they are: expected already, shown as simulated once, of the search, or the upper end of a band."""
SECONDS = re.compile(r"(?<![\w.])([\d,]+(?:\.\d+)?) s\b")


@pytest.fixture(scope="module")
def pages() -> tuple[str, str]:
    """Pages of the plan with a factor of 1, and of 1.3."""
    simulated, expected = (page_of(whole_plan(factor), small_instance()) for factor in (1.0, FACTOR))
    return simulated, expected


def numbers(text: str) -> float:
    """Return the first number of a text."""
    found = re.search(r"[\d,]+(?:\.\d+)?", text)
    assert found is not None, text
    return float(found[0].replace(",", ""))


def test_every_recorded_second_is_shown_as_expected(pages: tuple[str, str]) -> None:
    """A number of the file keeps its value, and its text is 1.3 times as much."""
    found = [(float(value), field, numbers(text)) for value, field, text in DATA.findall(pages[1])]
    seconds = [entry for entry in found if TIME.search(entry[1])]
    assert {field.split(".")[0] for _, field, _ in seconds} >= {"estimate", "certificate", "alternatives", "objective"}
    for value, field, text in seconds:
        factor = 1.0 if AS_RECORDED.search(field) else FACTOR
        assert text == pytest.approx(factor * value, rel=6e-3, abs=6e-5), field


def test_the_simulated_time_is_in_one_sentence(pages: tuple[str, str]) -> None:
    """The sentence has the factor and the simulated time; no other place names simulated seconds."""
    page = pages[1]
    assert len(re.findall('data-field="estimate.iteration_time_s"', page)) == 1
    assert "Expected seconds are 1.30 times the simulated ones" in section(page, "certificate")
    others = [section(page, name) for name in ("time", "schedule", "sensitivity", "search", "placement")]
    assert "simulated" not in " ".join(others).replace("not simulated", "")


@pytest.mark.parametrize("name", ["certificate", "time", "sensitivity", "search"])
def test_seconds_of_each_panel_grow_with_the_factor(pages: tuple[str, str], name: str) -> None:
    """Texts that are no numbers of the file, too."""
    before, after = (SECONDS.findall(section(page, name)) for page in pages)
    assert before
    kept = []
    for old, new in zip(before, after, strict=True):
        if numbers(new) != pytest.approx(FACTOR * numbers(old), rel=6e-3, abs=1.2e-4):
            kept.append((old, new))
    simulated = f"{make_plan().estimate.iteration_time_s:.4f}"
    as_recorded = ["3.0000", "2.5000", "12.5", simulated, "1.5"]  # upper ends, of the search, simulated, of CP-SAT
    assert kept == [(text, text) for text in as_recorded if name == "certificate"]


def test_schedule_is_drawn_in_expected_seconds(pages: tuple[str, str]) -> None:
    """Its axis ends with the expected time, its table adds up to as much."""
    schedule = Page(pages[1]).figures()["schedule"]
    strips, layout, total = schedule["data"][0], schedule["layout"], whole_plan(FACTOR).estimate.expected_s
    assert layout["xaxis"]["range"][1] == pytest.approx(total)
    assert layout["xaxis"]["title"]["text"] == "expected seconds"
    assert strips["x0"] + strips["dx"] * (len(strips["text"][0]) - 0.5) == pytest.approx(total)
    before, after = (
        [float(text) for text in re.findall(r"\b\d+\.\d{4}\b", section(page, "schedule"))] for page in pages
    )
    assert np.array(after) == pytest.approx(FACTOR * np.array(before), abs=1.2e-4)


def test_values_of_an_objective_are_at_the_expected_time(pages: tuple[str, str]) -> None:
    """Rates fall by the factor, prices grow by it."""
    texts = {field: numbers(text) for _, field, text in DATA.findall(pages[1])}
    assert texts["objective.value"] == pytest.approx(400 / FACTOR, rel=1e-3)
    assert texts["objective.sizes.0.value"] == pytest.approx(400 / FACTOR, rel=1e-3)
    plan = whole_plan(FACTOR)
    assert plan.target is not None
    cost = replace(plan, target=replace(plan.target, objective="cost"))
    texts = {field: numbers(text) for _, field, text in DATA.findall(page_of(cost))}
    assert texts["objective.bound"] == pytest.approx(440 * FACTOR, rel=1e-3)


def test_what_options_save_today_is_in_expected_seconds() -> None:
    """Sentences below a comparison, and reasons of changes of a script."""
    plan = whole_plan(FACTOR)
    uncounted = Uncounted(saved_s={"--overlap": 0.01}, parts={"--overlap": "tensor_parallel"})
    assert "up to 0.0130 s" in uncounted.lines(plan.estimate)[0]
    reasons = [change.reason for change in script_changes(plan, {}, estimate=plan.estimate)]
    seconds = f"{plan.estimate.expected_of(plan.estimate.breakdown['tensor_parallel']):.3g}"
    assert any(f"tensor parallel {seconds} -> {seconds} s" in reason for reason in reasons)


def test_repr_of_a_plan_has_expected_seconds_only() -> None:
    """The time in the summary is the one that the first screen shows."""
    plan = whole_plan(FACTOR)
    assert "simulated" not in repr(plan)
    assert f"about {three_digits(plan.estimate.expected_s)} s per iteration" in repr(plan)


def test_recorded_reasons_have_shares_and_no_seconds() -> None:
    """Texts of the file are shown as they are, so they hold what is the same in simulated and expected seconds."""
    estimate = make_plan().estimate
    slower = replace(
        estimate,
        iteration_time_s=1.1 * estimate.iteration_time_s,
        breakdown={**estimate.breakdown, "bubble": estimate.breakdown["bubble"] + 0.1 * estimate.iteration_time_s},
    )
    assert why_slower(estimate, slower) == "10.0 % slower, most of it bubble (+10.0 %)"
    assert why_unused("n0", 2.02, 2.0) == "in place of n0 an iteration would take 1.00 % more"
