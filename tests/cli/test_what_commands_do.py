"""What SECURITY.md says that commands run, read and write, watched by Python's audit events."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from test_every_command import COMMANDS
from test_every_input_stays import INPUTS

PAGE = (Path(__file__).parents[2] / "SECURITY.md").read_text(encoding="utf-8")

STARTERS = ("capture", "tune", "profile links", "profile compute")
"""Commands that may start programs, or run under a launcher that did."""

JOB = "--example lab-2x8 --tensor-parallel 8 --pipeline-parallel 2 --micro-batch-size 1"

SOON = "--time-limit 0.3 --workers 1"

TYPED = (
    f"solve {JOB} {SOON} -o p.json",
    "estimate p.json --trace t.json",
    "verify p.json",
    "report p.json -o page.html",
    "export p.json --format slurm -o launch",
    f"whatif p.json {SOON}",
    f"replan p.json --lost gpu01 {SOON} -o again.json",
    f"explain tp=8 {JOB}",
    f"recommend {JOB} {SOON}",
    "links c.yaml",
    "calibrate runs.csv -o s.yaml",
    "backtest runs.csv -o b.csv",
    "import links links.log -o other.yaml",
    "import model train.sh -o m.yaml",
    "import args train.sh",
    "import runs links.log -o r.csv",
    "init --nodes 2 --gpu h100 -o n.yaml",
    f"benchmark solve {JOB} --time-limit 0.3 --csv rows.csv",
    "pack counts.csv --bin 100 --model llama-3-8b --time-limit 0.3 -o packing.csv",
    "gpus",
    "models",
)
"""Each command with inputs of its own; some refuse them, which starts and writes nothing either."""

WATCHED = """
import json, os, sys
from pathlib import Path
said = []
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.kill", "os.killpg", "socket.connect")
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
def hook(event, given):
    if event in STARTS:
        said.append([event, repr(given)[:300]])
    elif event == "open" and isinstance(given[0], str) and isinstance(given[2], int) and given[2] & WRITES:
        said.append(["write", os.path.abspath(given[0])])
    elif event in ("os.remove", "os.rename", "os.rmdir", "shutil.rmtree", "os.mkdir"):
        said.append(["write", os.path.abspath(os.fsdecode(given[0]))])
sys.addaudithook(hook)
from typer.testing import CliRunner
from pipette_opt.cli.app import app
found = []
for text in json.loads(sys.argv[1]):
    said.clear()
    done = CliRunner().invoke(app, text.split())
    found.append([text, done.exit_code, list(said)])
print(json.dumps(found), file=sys.__stdout__)
"""


def rows() -> dict[str, str]:
    """Rows of the page's table of commands, by each command's name."""
    table = PAGE[PAGE.index("| command | starts |") :].split("\n\n")[0].splitlines()[2:]
    return {name: row for row in table for name in re.findall(r"`([^`]+)`", row.split("|")[1])}


def test_the_page_has_a_row_for_each_command() -> None:
    """No command is missing, none is made up."""
    assert set(rows()) == set(COMMANDS)


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in STARTERS])
def test_what_the_page_says_of_a_command_that_starts_nothing(name: str) -> None:
    """Its row says so, and the commands that are watched have it."""
    assert "no program" in rows()[name]
    assert any(text.startswith(name) for text in TYPED)


def test_commands_start_no_program_and_write_where_they_are_told(tmp_path: Path) -> None:
    """No program, no connection, no signal; files only in the folder, the caches, and temporary ones."""
    for name, source in INPUTS.items():
        (tmp_path / name).write_bytes(source.read_bytes())
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    done = subprocess.run(
        [sys.executable, "-c", WATCHED, json.dumps(TYPED)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout.splitlines()[-1])
    assert sum(code == 0 for _, code, _ in outcomes) >= 14, [(text, code) for text, code, _ in outcomes if code]
    for text, _, events in outcomes:
        started = [event for event in events if event[0] != "write"]
        assert not [event for event in started if sys.executable not in event[1]], (text, started)
        for _, path in (event for event in events if event[0] == "write"):
            assert (
                path.startswith((str(tmp_path), "/dev/", "/tmp/")) or "pipette-opt" in path or "__pycache__" in path
            ), text
    assert {path: path.read_bytes() for path in before} == before


TESTS = {
    "`capture` starts no": "read/test_capture_guard.py::test_programs_that_nothing_says_of_are_stopped_and_named",
    "A text for another host": "read/test_capture_guard.py::test_texts_for_other_places_start_and_write_nothing",
    "No secret is in": "read/test_capture_guard.py::test_no_secret_is_written",
    "`tune` gives each value": "tune/test_hostile_folder.py::test_random_places_never_let_the_shell_read_a_value",
    "A record of a trial": "tune/test_hostile_folder.py::test_records_are_judged_by_the_job",
    "`tune` follows no link": "tune/test_hostile_folder.py::test_links_are_refused",
    "`tune` ends only": "tune/test_hostile_folder.py::test_only_the_own_process_is_ended",
    "No figure of a plan": "verify/test_forgeries.py::test_every_figure_is_checked_or_listed_as_taken_on_trust",
    "A number has digits": "base/test_names_and_numbers.py::test_other_digits_are_no_numbers",
}
"""Sentences of the page by their first words, each with the test that shows it."""


def test_each_sentence_has_a_test() -> None:
    """The sentences below the table are those that are listed here, and their tests exist."""
    part = PAGE[PAGE.index("No command opens a connection") : PAGE.index("Readers and their caps")]
    sentences = [line.removeprefix("- ") for line in part.splitlines() if line.startswith("- ")]
    assert len(sentences) == len(TESTS)
    for sentence in sentences:
        place, _, name = next(test for first, test in TESTS.items() if sentence.startswith(first)).partition("::")
        assert f"def {name}(" in (Path(__file__).parents[1] / place).read_text(encoding="utf-8")
