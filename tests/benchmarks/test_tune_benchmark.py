"""Searches by trials, compared on tables of measured runs."""

import numpy as np
import pytest
from factories import make_run

from benchmarks.tune import (
    BUDGET,
    Curve,
    after,
    at_random,
    by_hand,
    curve,
    fastest_predicted,
    gaussian_process,
    held,
    page,
    trials_needed,
)
from pipette_opt.read.stack import read_stack
from pipette_opt.tune.replay import ReplayJob, replay_jobs

pytestmark = pytest.mark.search


@pytest.fixture(scope="module")
def job() -> ReplayJob:
    """Five configurations; the second is the fastest, the last ran out of memory."""
    job = {"tp": 1, "pp": 1, "dp": 16, "mbs": 1, "iter_time_s": 1.2}
    others = [
        {"tp": 2, "dp": 8, "iter_time_s": 1.0},
        {"tp": 4, "dp": 4, "iter_time_s": 2.0},
        {"tp": 8, "dp": 2, "iter_time_s": 4.0},
        {"mbs": 4, "iter_time_s": None, "oom": True},
    ]
    rows = [make_run(**job | other, row=row) for row, other in enumerate([{}, *others])]
    (found,) = replay_jobs(rows, read_stack())
    return found


def test_every_search_tries_each_row_once(job: ReplayJob) -> None:
    """All end at the fastest, in at most as many trials as there are rows."""
    for order in (fastest_predicted(job), by_hand(job), gaussian_process(job, 0), at_random(job, 0)):
        rows = list(order)
        assert sorted(rows) == [0, 1, 2, 3, 4]
        assert curve(job, iter(rows)).regrets[-1] == 0.0


def test_rules_by_hand_begin_with_the_least_model_ranks(job: ReplayJob) -> None:
    """First one rank with the largest micro-batch, then after its failure a smaller one."""
    rows = [job.runs[place].row for place in by_hand(job)]
    assert rows[:3] == [4, 0, 1]


def test_regret_after_some_trials() -> None:
    """A search that ended keeps its last regret; one that never comes near counts as one trial more than the budget."""
    curves = [Curve(np.array([0.5, 0.01]), (0.4, 0.02)), Curve(np.array([0.5, 0.3, 0.1]), (None, 0.3, 0.2))]
    assert after(curves, 3).tolist() == [0.01, 0.1]
    assert trials_needed(curves).tolist() == [2, BUDGET + 1]
    assert held(curves) == 0.75


def test_the_page_begins_with_the_answer() -> None:
    """Regret after three trials by source, then a table with a row for each search."""
    curves = [Curve(np.array([0.5, 0.01]), (0.4, 0.02))]
    text = page({"a table": {"worlds": curves, "random": curves}})
    assert text.splitlines()[2] == "Regret after three trials, mean over jobs: a table 1 %."
    assert "| random | 50.00 % | 1.00 % | 1.00 % | 1.00 % | 1 % | 2 | 2.0 |" in text
