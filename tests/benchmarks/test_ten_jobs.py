"""The page of ten jobs: what in a plan is not plain, and the screens."""

from dataclasses import replace

import pytest
from factories import make_plan

from benchmarks.ten_jobs import JOBS, Answer, page, solved


def test_a_row_says_what_is_not_plain() -> None:
    """A plan with even layers on hosts as listed; the same with another order; no plan."""
    plan = make_plan()
    shuffled = replace(plan, listed=plan.alternatives[0])
    first, second, third = list(JOBS)[:3]
    text = page(
        {
            first: Answer(screen="Fits.", plan=plan),
            second: Answer(screen="Fits.", plan=shuffled),
            third: Answer(screen="error: nothing fits", plan=None),
        }
    )
    rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
    assert "| even | as listed |" in rows[0]
    assert "at most 3.23 % above the best" in rows[0]
    assert "| another order |" in rows[1]
    assert rows[2].startswith(f"| {third} | none |")
    assert f"pipette-opt solve {JOBS[third]}" in text
    assert "error: nothing fits" in text


def test_a_layout_stays_in_its_cell() -> None:
    """Its bars are escaped, so that the row has the cells of the head."""
    plan = make_plan()
    layout = {"pipeline_model_parallel_layout": "Et*2|t*2|t|t*3L", "layers_per_stage": (3, 5)}
    config = replace(plan.config, virtual_pipeline_model_parallel_size=2, **layout)
    text = page({next(iter(JOBS)): Answer(screen="", plan=replace(plan, config=config))})
    head, _, row = [line for line in text.splitlines() if line.startswith("|")]
    assert r"layout Et*2\|t*2\|t\|t*3L" in row
    assert row.replace(r"\|", "").count("|") == head.count("|")


@pytest.mark.search
def test_an_answer_is_what_people_see() -> None:
    """The screen of the command line, and its plan; an error where there is none."""
    small = "--model llama-3.2-1b --nodes 1 --gpu h100 --global-batch-size 64 --seq-length 4096 --time-limit 5"
    found = solved(small.split())
    assert found.plan is not None
    assert " ".join(found.plan.verdict.split()) in " ".join(found.screen.split())
    assert "error" in solved(["--model", "no-such-model"]).screen
