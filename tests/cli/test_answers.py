"""What all commands have in common: where answers, errors and logs go."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from consoles import shown
from factories import make_plan
from hugging_face_configs import LLAMA_3_8B

from pipette_opt import cli
from pipette_opt.cli.solve import MAX_CHANGES, _changes_lines
from pipette_opt.export.script_changes import Change
from pipette_opt.report.plan_file import write_plan

Run = Callable[..., tuple[int, str, str]]

RUNS = (
    "source,gpu,gpus_per_node,num_gpus,num_layers,hidden,ffn_hidden,heads,vocab,seq_len,gbs,mbs,tp,pp,dp,iter_time_s\n"
    "mine,a100-80gb,8,8,24,2048,8192,16,51200,2048,32,1,8,1,1,2.5\n"
)

HYBRID = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 "
    "--vocab-size 1024 --normalization RMSNorm --position-embedding-type none --hybrid-layer-pattern M*-M/*- "
    "--disable-bias-linear --mamba-num-heads 8"
)


ESTIMATED = ("--example", "lab-2x8", "--launch", "--tensor-model-parallel-size 8")
"""Options of an estimate."""


@pytest.fixture
def level() -> Iterator[None]:
    """The level of logging is as before."""
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)


@pytest.mark.parametrize(
    "words",
    [("-v", "import", "model", "llama-3-8b"), ("estimate", *ESTIMATED, "-v"), ("estimate", "--verbose", *ESTIMATED)],
)
def test_verbose_before_and_after_the_command(command: Run, level: None, words: tuple[str, ...]) -> None:
    """People add -v where they are."""
    code, _, err = command(*words)
    assert code == 0, err
    assert logging.getLogger().level == logging.DEBUG


def test_without_it_only_warnings_are_logged(command: Run, level: None) -> None:
    """The default."""
    assert command("import", "model", "llama-3-8b")[0] == 0
    assert logging.getLogger().level == logging.WARNING


@pytest.mark.parametrize(
    ("words", "place", "problem"),
    [
        (("verify", "nowhere.json"), "nowhere.json", "the file does not exist"),
        (("solve", "--nodes", "4"), "--gpu", "is required with --nodes"),
        (("explain", "--no-such-option"), "the command line", "No such option: --no-such-option"),
        (("verify",), "the command line", "Missing argument"),
        (("no-such-command",), "the command line", "No such command"),
    ],
)
def test_errors_are_documents_under_json(command: Run, words: tuple[str, ...], place: str, problem: str) -> None:
    """Place, problem and exit code; the exit code is the same without --json."""
    code, out, err = command(*words, "--json")
    error = json.loads(out)["error"]
    assert error["place"] == place
    assert problem in error["problem"]
    assert error["exit_code"] == code == 2
    assert err == ""
    plain, out, err = command(*words)
    assert (plain, out) == (2, "")
    assert problem.split()[0].strip(":") in err


def test_an_infeasible_search_is_a_document_too(command: Run) -> None:
    """Exit code 3, and no single place that is wrong."""
    job = ("--model", "llama-2-13b", "--global-batch-size", "8", "--seq-length", "4096")
    pinned = ("--tensor-parallel", "8", "--micro-batch-size", "1", "--virtual-pipeline", "1", "--recompute", "full")
    code, out, _ = command("solve", "--nodes", "1", "--gpu", "t4", *job, "--precision", "fp16", *pinned, "--json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"], error["place"]) == (3, 3, None)
    assert "memory" in error["problem"]


@pytest.mark.parametrize(("ended", "code"), [(4, 4), (130, 130), (None, 0)])
def test_exit_codes_are_the_same_under_json(ended: int | None, code: int) -> None:
    """What a command ends with, an interrupt included, in whatever way typer tells it."""
    abort = type("Abort", (RuntimeError,), {})  # as click raises it

    def app(standalone_mode: bool) -> int | None:
        assert not standalone_mode
        if ended == 130:
            raise abort
        return ended

    with pytest.raises(SystemExit) as stopped:
        cli._run_for_machines(app)  # type: ignore[arg-type]
    assert stopped.value.code == code


def test_a_dash_is_standard_output(command: Run) -> None:
    """The file alone is on standard output, tables are beside it; no file of that name is made."""
    Path("runs.csv").write_text(RUNS)
    code, out, err = command("backtest", "runs.csv", "-o", "-")
    assert code == 0, err
    assert out.startswith("row,predicted_iter_time_s")
    assert "rank" in err
    code, out, err = command("import", "model", "llama-3-8b", "-o", "-")
    assert (code, out.count("num_layers: 32")) == (0, 1)
    assert [path.name for path in Path().iterdir()] == ["runs.csv"]


def test_a_plan_on_standard_output(command: Run) -> None:
    """A pipe gets the plan and nothing else, once."""
    words = ("solve", "--example", "lab-2x8", "--tensor-parallel", "8", "--pipeline-parallel", "2")
    code, out, err = command(*words, "--micro-batch-size", "1", "--time-limit", "1", "-o", "-")
    assert code in (0, 4), err
    assert json.loads(out)["schema_version"] == 2
    assert "Proof" in err
    assert list(Path().iterdir()) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("import", "links", "logs", "-o", "-"), "--out: must be a file name, not -: link matrices are written beside"),
        (("backtest", "runs.csv", "-o", "-", "--json"), "and -o - both write to standard output"),
        (("solve", "--example", "lab-2x8", "-o", "-", "--trace", "-"), "standard output takes only one"),
    ],
)
def test_where_standard_output_cannot_serve(command: Run, words: tuple[str, ...], message: str) -> None:
    """Said before any work."""
    code, out, err = command(*words)
    assert code == 2
    assert message in out + err


def test_an_output_that_takes_no_more_is_said_in_one_line() -> None:
    """A full disk behind ``>``: no traceback, also for a JSON document."""
    for words in (["models"], ["gpus", "--json"]):
        command = [sys.executable, "-m", "pipette_opt", *words]
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.stderr == "error: standard output: cannot be written: No space left on device.\n"
        assert done.returncode == 2


def test_messages_that_nobody_can_read_end_no_run(tmp_path: Path) -> None:
    """Standard error full, or its reader gone, as in ``2>&1 | head``: the files are written all the same."""
    write_plan(make_plan(), tmp_path / "plan.json")
    command = [sys.executable, "-m", "pipette_opt", "export", "plan.json", "--format", "rankmap-csv", "-o"]
    read, write = os.pipe()
    os.close(read)
    with Path("/dev/full").open("w") as full:
        for folder, errors in (("full", full.fileno()), ("gone", write)):
            done = subprocess.run([*command, folder], stderr=errors, cwd=tmp_path, check=False)
            assert done.returncode == 0
            assert (tmp_path / folder / "rankmap.csv").is_file()
    os.close(write)


def test_a_warning_names_no_logger(tmp_path: Path) -> None:
    """A key of a config that is not used is said in a line that begins as errors do."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B | {"a_key_of_tomorrow": 3}))
    command = [sys.executable, "-m", "pipette_opt", "import", "model", "config.json"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, check=False)
    assert "warning: config.json: not used: " in done.stderr
    assert "pipette_opt." not in done.stderr
    assert "WARNING" not in done.stderr


def test_prediction_layers_of_a_hybrid_are_printed_and_read_back(command: Run, tmp_path: Path) -> None:
    """Written as an architecture file, the model has the same parameters; before, this was a traceback."""
    assert command("import", "model", HYBRID, "-o", str(tmp_path / "m.yaml"))[0] == 0
    counts = []
    for model in (HYBRID, str(tmp_path / "m.yaml")):
        code, out, err = command("import", "model", model, "--json")
        assert code == 0, err
        model_of = json.loads(out)
        counts.append((model_of["num_parameters"], model_of["num_mtp_parameters"], model_of["mtp_layer_pattern"]))
    assert counts[0] == counts[1]
    assert counts[0][1] > 0


@pytest.mark.parametrize("number", [1, 8, MAX_CHANGES, MAX_CHANGES + 1, 30])
def test_changes_of_a_script_are_always_listed(number: int) -> None:
    """All up to a dozen, whatever else is on the screen; of more, a dozen, and how many follow."""
    changes = [Change(option=f"--option-{n}", before="8", after="4", reason="word " * n, line=n) for n in range(number)]
    text = shown(*_changes_lines(changes, "train.sh", MAX_CHANGES))
    assert sum(f"~ --option-{n} " in text for n in range(number)) == min(number, MAX_CHANGES)
    assert ("more: pipette-opt export" in text) == (number > MAX_CHANGES)
    assert "more:" not in shown(*_changes_lines(changes, "train.sh", None))
