"""calibrate, backtest and import runs, from the command line."""

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipette_opt.base.errors import InputError, OverwriteError
from pipette_opt.calibrate.known_runs import KnownRuns
from pipette_opt.cli import main
from pipette_opt.cli.app import app
from pipette_opt.read.stack import read_stack

HEADER = "gpu,num_gpus,model,num_layers,hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,iter_time_s,oom"


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Six runs of a small model on one host, one of them out of memory."""
    rows = [
        f"a100-80gb,8,gpt,24,2048,16,50257,2048,64,{mbs},{tp},{pp},{8 // tp // pp},{time},{oom}"
        for mbs, tp, pp, time, oom in [
            (1, 1, 1, 2.5, False),
            (2, 1, 1, 2.4, False),
            (1, 2, 1, 2.9, False),
            (2, 2, 1, 2.7, False),
            (1, 1, 2, 2.6, False),
            (8, 1, 1, "", True),
        ]
    ]
    path = tmp_path / "runs.csv"
    path.write_text("\n".join([HEADER, *rows]) + "\n")
    return path


def test_calibrate_then_backtest(runs: Path, tmp_path: Path) -> None:
    """The stack fits better than the shipped one; every row has a line."""
    stack, out = tmp_path / "stack.yaml", tmp_path / "predictions.csv"
    done = CliRunner().invoke(app, ["calibrate", str(runs), "-o", str(stack), "--no-validate"])
    assert done.exit_code == 0, done.output
    assert read_stack(stack).source == "fitted to 5 runs of runs.csv"
    shipped = CliRunner().invoke(app, ["backtest", str(runs), "--json"])
    command = ["backtest", str(runs), "--software", str(stack), "-o", str(out), "--json"]
    fitted = CliRunner().invoke(app, command)
    assert fitted.exit_code == 0, fitted.output
    before, after = (json.loads(one.stdout)["groups"][0]["mean_error"] for one in (shipped, fitted))
    assert after < before
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(6))
    assert all(float(row["predicted_iter_time_s"]) > 0 for row in rows)


def test_a_calibration_changes_estimates(tmp_path: Path) -> None:
    """A slower stack gives a longer iteration."""
    stack = tmp_path / "slow.yaml"
    stack.write_text("matmul_speed: 0.4\n")
    command = ["estimate", "--example", "lab-2x8", "--launch", "--tensor-model-parallel-size 8", "--json"]
    usual = CliRunner().invoke(app, command)
    slow = CliRunner().invoke(app, [*command, "--software", str(stack)])
    assert usual.exit_code == slow.exit_code == 0, usual.output + slow.output
    times = [json.loads(one.stdout)["estimate"]["iteration_time_s"] for one in (usual, slow)]
    assert times[1] > 1.3 * times[0]


@pytest.mark.parametrize("command", ["calibrate", "backtest"])
def test_bad_files_are_named(command: str, tmp_path: Path) -> None:
    """Line, column and value."""
    path = tmp_path / "bad.csv"
    path.write_text(f"{HEADER}\na100-80gb,8,gpt,24,2048,16,50257,2048,64,1,1,1,8,fast,False\n")
    done = CliRunner().invoke(app, [command, str(path)])
    assert isinstance(done.exception, InputError)
    assert "line 2: iter_time_s must be a number > 0, got 'fast'" in str(done.exception)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["backtest", "runs.csv", "-o", "./runs.csv"], "would overwrite an input"),
        (["calibrate", "runs.csv", "-o", "runs.csv"], "would overwrite an input"),
        (["backtest", "runs.csv", "--max-oom-risk", "nan"], "must be in (0, 1), got nan"),
        (["backtest", "runs.csv", "--max-oom-risk", "1"], "must be in (0, 1), got 1.0"),
    ],
)
def test_options_that_would_do_harm(runs: Path, monkeypatch: pytest.MonkeyPatch, command: list[str], said: str) -> None:
    """Measured runs are not overwritten."""
    monkeypatch.chdir(runs.parent)
    before = runs.read_text()
    done = CliRunner().invoke(app, command)
    assert isinstance(done.exception, InputError | OverwriteError)
    assert said in str(done.exception)
    assert runs.read_text() == before


def test_a_stack_without_a_finite_time(runs: Path, tmp_path: Path) -> None:
    """It is refused, with the field and the least that it can be."""
    stack = tmp_path / "stack.yaml"
    stack.write_text("matmul_speed: 1.0e-320\n")
    done = CliRunner().invoke(app, ["backtest", str(runs), "--software", str(stack), "--json"])
    assert isinstance(done.exception, InputError)
    assert "stack.yaml: matmul_speed must be a number in" in str(done.exception)


def test_an_interrupt_while_validating_writes_the_stack(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 4; before that, 130 and the old file is as it was."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    stack = tmp_path / "stack.yaml"
    monkeypatch.setattr(KnownRuns, "groups", interrupt)
    done = CliRunner().invoke(app, ["calibrate", str(runs), "-o", str(stack)])
    assert done.exit_code == 4, done.output
    before = stack.read_text()
    assert read_stack(stack).source == "fitted to 5 runs of runs.csv"
    monkeypatch.setattr(KnownRuns, "anchors", interrupt)
    done = CliRunner().invoke(app, ["calibrate", str(runs), "-o", str(stack)])
    assert done.exit_code == 130, done.output
    assert stack.read_text() == before


def test_an_interrupt_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever the command, in one line."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pipette_opt.library.backtest.read_rows", interrupt)
    monkeypatch.setattr("sys.argv", ["pipette-opt", "backtest", "runs.csv"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130
    assert capsys.readouterr().err.startswith("interrupted: unwritten results are lost")
