"""Replay of trials on a table of measured runs."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_run
from plain_worlds import plain_worlds

from pipette_opt.read.runs import MeasuredRun
from pipette_opt.read.stack import read_stack
from pipette_opt.tune.replay import COLUMNS, Step, job_name, replay, replay_jobs, trials_csv

pytestmark = pytest.mark.search


def steps_of(runs: list[MeasuredRun], *, budget: int = 8, until: float | None = None) -> list[Step]:
    """Trials of all jobs of a table."""
    jobs = replay_jobs(runs, read_stack())
    return [step for job in jobs for step in replay(job, plain_worlds(), budget=budget, until=until)]


def table(**cells: object) -> list[MeasuredRun]:
    """Four configurations of a job: a fast, a slow, one out of memory, and one of which nothing is known."""
    job = {"tp": 2, "pp": 1, "dp": 8, "mbs": 1} | cells
    return [
        make_run(**job),
        make_run(**job | {"row": 1, "tp": 8, "dp": 2, "iter_time_s": 2.0}),
        make_run(**job | {"row": 2, "tp": 1, "dp": 16, "mbs": job["mbs"] and 2, "iter_time_s": None, "oom": True}),
        make_run(**job | {"row": 3, "tp": 4, "dp": 4, "iter_time_s": None, "oom": None}),
    ]


def test_every_row_with_a_result_is_tried_once() -> None:
    """Rows without time and label are no candidates; a row out of memory is a trial without time."""
    steps = steps_of(table())
    assert sorted(step.row for step in steps) == [0, 1, 2]
    assert [step.trial for step in steps] == [1, 2, 3]
    failed = next(step for step in steps if step.row == 2)
    assert failed.time_s is None
    assert steps[-1].best_s == 1.0
    assert steps[-1].regret == 0.0


def test_times_decide_nothing_before_they_are_tried() -> None:
    """The first trial, and every later one up to the changed row, stays when an untried row's time changes."""
    runs = table()
    order = [step.row for step in steps_of(runs)]
    for position, row in enumerate(order):
        changed = [
            replace(run, iter_time_s=run.iter_time_s * 7) if run.row == row and run.iter_time_s else run for run in runs
        ]
        assert [step.row for step in steps_of(changed)][: position + 1] == order[: position + 1]


def test_jobs_are_apart() -> None:
    """Runs with another batch are another job, with trials of its own."""
    runs = table()
    other = [replace(run, row=run.row + 10) for run in table(gbs=128)]
    steps = steps_of([*runs, *other])
    assert len({step.job for step in steps}) == 2
    assert steps[3].trial == 1
    assert job_name(runs[0]) != job_name(other[0])


def test_budget_and_regret_end_a_job() -> None:
    """No more trials than the budget, and none after the stated regret is small enough."""
    assert len(steps_of(table(), budget=2)) == 2
    assert len(steps_of(table(), until=5.0)) == 1 + (steps_of(table())[0].time_s is None)


def test_rows_that_cannot_be_predicted_come_last() -> None:
    """A configuration without a micro-batch has no predicted time; it is tried last, without a bound before."""
    runs = table()
    steps = steps_of([replace(table(mbs=None)[0], row=9, iter_time_s=0.5), *runs])
    assert steps[-1].row == 9
    assert steps[-1].best_s == 0.5
    assert all(step.regret is None for step in steps[:-1])


def test_a_job_of_which_nothing_is_predicted() -> None:
    """Its rows are tried in the order of the table, and no bound is given."""
    steps = steps_of(table(mbs=None))
    assert [step.row for step in steps] == [0, 1, 2]
    assert [step.regret for step in steps] == [None, None, None]
    assert steps[-1].best_s == 1.0


def test_the_file_has_a_row_per_trial() -> None:
    """Columns as documented, empty where there is no time."""
    rows = list(csv.DictReader(io.StringIO(trials_csv(steps_of(table())))))
    assert tuple(rows[0]) == COLUMNS
    assert [row["iter_time_s"] for row in rows if row["row"] == "2"] == [""]
    assert rows[-1]["best_so_far_s"] == "1"


def test_a_file_of_runs_is_replayed(tmp_path: Path) -> None:
    """The function of the library reads the table."""
    from pipette_opt.library.tune import replayed

    runs = tmp_path / "runs.csv"
    lines = [
        "source,gpu,gpus_per_node,num_gpus,model,seq_len,gbs,mbs,tp,pp,dp,iter_time_s,oom",
        "mine,a100-80gb,8,8,llama-3-8b,4096,64,1,8,1,1,9.5,false",
        "mine,a100-80gb,8,8,llama-3-8b,4096,64,1,4,2,1,8.5,false",
    ]
    runs.write_text("\n".join(lines) + "\n")
    found = replayed(runs, budget=8, until=None, leave_out_source=True, software=None)
    assert found.num_jobs == 1
    assert found.steps[-1].best_s == 8.5
