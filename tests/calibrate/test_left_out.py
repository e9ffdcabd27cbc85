"""Bad rows are left out and named; nothing is learned from what teaches nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from factories import make_run
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.fit import calibrate_runs, usable_cases
from pipette_opt.calibrate.fit_notes import repeat_notes
from pipette_opt.calibrate.left_out import LeftOut, left_out_lines, named
from pipette_opt.calibrate.memory import fit_memory, memory_notes
from pipette_opt.cli.app import app
from pipette_opt.read.runs import read_rows, read_runs
from pipette_opt.read.stack import read_stack
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.stack import DEFAULT_STACK

HEADER = "gpu,num_gpus,model,num_layers,hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,iter_time_s,oom"
ROW = "a100-80gb,8,gpt,24,2048,16,50257,2048,{gbs},{mbs},1,1,8,{time},{oom}"

BAD = {
    "gbs=63 must be a multiple of dp * mbs": {"gbs": 63},
    "iter_time_s must be a number > 0, got 'nan'": {"time": "nan "},
    "iter_time_s must be a number > 0, got '0'": {"time": 0},
    "iter_time_s must be a number > 0, got '-1'": {"time": -1},
    "iter_time_s=0.0025 is": {"time": 0.0025},
    "iter_time_s is more than a day": {"time": 1e6},
    "oom must be True or False": {"oom": "maybe"},
}
"""Parts of the reasons, and what is wrong in the row."""


def write(path: Path, *changes: dict[str, object]) -> Path:
    """A file of runs of one job, each with its changes."""
    usual = {"gbs": 64, "mbs": 1, "time": 2.5, "oom": False}
    path.write_text("\n".join([HEADER, *(ROW.format(**(usual | one)) for one in changes)]) + "\n")
    return path


@pytest.mark.parametrize("said", [said for said in BAD if "nan" not in said])
def test_backtest_leaves_a_bad_row_out(said: str, tmp_path: Path) -> None:
    """The others are predicted; text, JSON and CSV have the row and its reason."""
    path = write(tmp_path / "runs.csv", {}, BAD[said], {"mbs": 2})
    out = tmp_path / "out.csv"
    done = CliRunner().invoke(app, ["backtest", str(path), "-o", str(out), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [group["num_runs"] for group in answer["groups"]] == [2]
    (skipped,) = answer["skipped"]
    assert (answer["rows"], skipped["row"]) == (3, 1)
    assert f"line 3: {said}" in skipped["reason"]
    lines = out.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["row", "0", "1", "2"]
    assert said.split(",")[0] in lines[2]


def test_backtest_of_bad_rows_only(tmp_path: Path) -> None:
    """Nothing remains: an error with the rows by kind of reason."""
    path = write(tmp_path / "runs.csv", {"gbs": 63}, {"time": 0}, {"gbs": 61})
    done = CliRunner().invoke(app, ["backtest", str(path)])
    assert isinstance(done.exception, InputError)
    said = str(done.exception)
    assert "has no row that can be predicted" in said
    assert "2 of 3 rows left out (rows 0, 2): line 2: gbs=63" in said
    assert "1 of 3 rows left out (row 1): line 3: iter_time_s" in said


def test_read_runs_still_names_the_first(tmp_path: Path) -> None:
    """Whoever needs every row gets none with a bad one."""
    path = write(tmp_path / "runs.csv", {}, {"gbs": 63}, {"time": 0})
    runs, unread = read_rows(path)
    assert ([run.row for run in runs], [(one.row, one.line) for one in unread]) == ([0], [(1, 3), (2, 4)])
    with pytest.raises(InputError, match="line 3: gbs=63"):
        read_runs(path)


@pytest.mark.search
def test_calibrate_names_what_it_leaves_out(tmp_path: Path) -> None:
    """A bad row, another unit, and no memory learned from runs that fit; the rest is fitted."""
    good = [{"time": 2.5}, {"mbs": 2, "time": 2.4}, {"mbs": 4, "time": 2.3}]
    path = write(tmp_path / "runs.csv", *good, {"gbs": 63}, {"time": 2500})
    stack = tmp_path / "stack.yaml"
    done = CliRunner().invoke(app, ["calibrate", str(path), "-o", str(stack), "--no-validate", "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert [one["row"] for one in answer["left_out"]] == [3, 4]
    assert "must be in seconds" in answer["left_out"][1]["reason"]
    assert any("all 4 runs fit, which does not determine the constants" in note for note in answer["notes"])
    assert read_stack(stack).memory == MemoryConstants()


@pytest.mark.parametrize("rows", [[{"gbs": 63}], [{"oom": True, "time": ""}]])
def test_calibrate_refuses_rows_without_a_time(rows: list[dict[str, object]], tmp_path: Path) -> None:
    """No row, or none with a time; nothing is written."""
    path = write(tmp_path / "runs.csv", *rows)
    done = CliRunner().invoke(app, ["calibrate", str(path), "-o", str(tmp_path / "stack.yaml")])
    assert isinstance(done.exception, InputError)
    assert any(part in str(done.exception) for part in ("row 0", "1 of 1 row without a time"))
    assert not (tmp_path / "stack.yaml").exists()


def test_runs_that_all_fit_teach_nothing_of_memory() -> None:
    """
    Jobs that hardly fit as described: constants ran to their limits, with 2.5 bytes off for each parameter.

    Other rows then needed less than nothing, chances of running out were no numbers, nor was what was fitted to them.
    """
    shape = {"hidden": 4096, "num_layers": 48, "heads": 32, "ffn_hidden": 16384, "gbs": 256, "zero_stage": 1}
    runs = [
        make_run(row=index, mbs=mbs, tp=1, pp=1, dp=16, oom=False, **shape) for index, mbs in enumerate((4, 8, 16) * 10)
    ]
    memory, untold = fit_memory(runs, DEFAULT_STACK)
    assert untold is not None
    assert memory == DEFAULT_STACK.memory
    assert memory_notes(memory, untold) == [f"memory: constants unchanged: {untold}"]
    cases, left_out = usable_cases(runs, replace(DEFAULT_STACK, memory=memory))
    assert (len(cases), left_out) == (30, [])


def test_labels_of_both_kinds_teach() -> None:
    """One that ran out among those that fit says where the limit is."""
    runs = [make_run(row=mbs, mbs=mbs, gbs=256, oom=mbs > 16) for mbs in (1, 2, 4, 8, 16, 32, 64)]
    memory, untold = fit_memory(runs, DEFAULT_STACK)
    assert untold is None
    assert memory.largest_job


@pytest.mark.search
def test_what_no_constants_fit_is_refused() -> None:
    """One job with three times that are far apart: at most one can come out right."""
    runs = [make_run(row=row, iter_time_s=time_s) for row, time_s in enumerate((0.5, 8.0, 100.0))]
    with pytest.raises(InputError, match=r"no stack fits: . of 3 runs \(rows .*\) are off by more than a factor"):
        calibrate_runs(runs, DEFAULT_STACK, validate=False)


def test_runs_that_contradict_each_other_are_named() -> None:
    """Equal rows with times far apart, the most unequal first; repeats within a few percent are usual."""
    times = [(1, 2.0), (1, 2.1), (2, 2.0), (2, 4.0), (4, 1.0), (4, 9.0)]
    runs = [make_run(row=row, mbs=mbs, iter_time_s=time_s) for row, (mbs, time_s) in enumerate(times)]
    assert repeat_notes(runs) == [
        "rows 4-5 describe the same job and took 1 to 9 s; all are used",
        "rows 2-3 describe the same job and took 2 to 4 s; all are used",
    ]
    assert repeat_notes([]) == []


def test_lines_for_people() -> None:
    """Reasons that differ in numbers are one line; ranges are folded, and many end with dots."""
    rows = [LeftOut(7, "gbs=3 is bad"), LeftOut(1, "gbs=2.5 is bad"), LeftOut(2, "no time"), LeftOut(0, "gbs=1 is bad")]
    assert left_out_lines(rows, 9) == [
        "3 of 9 rows left out (rows 0-1, 7): gbs=1 is bad",
        "1 of 9 rows left out (row 2): no time",
    ]
    assert named(range(0, 20, 2)) == "rows 0, 2, 4, 6, 8, 10, ..."
