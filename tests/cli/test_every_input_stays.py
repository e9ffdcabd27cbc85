"""Each command with an output, told to write it over each kind of its inputs, under each name that a file can have."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_every_command import COMMANDS

SEEDS = Path(__file__).parents[2] / "benchmarks" / "hardening" / "seeds"

Command = Callable[..., tuple[int, str, str]]

JOB = "--model llama-3.1-8b --global-batch-size 64 --seq-length 4096 --time-limit 1"

INPUTS = {
    "plan.json": SEEDS / "plan.json",
    "c.yaml": SEEDS / "cluster.yaml",
    "m.csv": SEEDS / "matrix.csv",
    "runs.csv": SEEDS / "runs.csv",
    "layers.csv": SEEDS / "profile.csv",
    "config.json": SEEDS / "config-llama.json",
    "train.sh": SEEDS / "train.sh",
    "links.log": SEEDS / "links" / "nccl.log",
}

TYPED = {
    "report": ["report plan.json -o {}: plan.json c.yaml m.csv"],
    "import links": ["import links links.log -o {}: links.log"],
    "import model": ["import model train.sh -o {}: train.sh", "import model config.json -o {}: config.json"],
    "import runs": ["import runs megatron.log -o {} --gpu h100-80gb: megatron.log"],
    "solve": [
        f"solve --cluster c.yaml {JOB} -o {{}}: c.yaml m.csv",
        f"solve --cluster c.yaml {JOB} --trace {{}} -o p.json: c.yaml m.csv",
        f"solve --cluster c.yaml {JOB} --software s.yaml -o {{}}: s.yaml",
        f"solve --cluster c.yaml {JOB} --profile layers.csv -o {{}}: layers.csv",
        f"solve --cluster c.yaml {JOB} --launch train.sh --compare -o {{}}: train.sh",
        "solve --cluster c.yaml --model config.json --global-batch-size 64 --seq-length 4096 -o {}: config.json",
    ],
    "estimate": [
        "estimate plan.json --trace {}: plan.json c.yaml m.csv",
        "estimate --cluster c.yaml --launch train.sh --trace {}: c.yaml m.csv train.sh",
    ],
    "replan": [
        "replan plan.json --lost n1 -o {}: plan.json c.yaml m.csv",
        "replan plan.json --lost n1 -o p.json --moves {}: plan.json c.yaml m.csv",
        "replan plan.json --cluster other.yaml -o {}: other.yaml",
    ],
    "calibrate": ["calibrate runs.csv -o {}: runs.csv", "calibrate runs.csv --base s.yaml -o {}: s.yaml"],
    "backtest": [
        "backtest runs.csv -o {}: runs.csv",
        "backtest runs.csv --software s.yaml -o {}: s.yaml",
    ],
    "pack": ["pack lengths.csv --bin 10 --model llama-3-8b -o {}: lengths.csv"],
    "tune": ["tune --replay runs.csv -o {}: runs.csv"],
    "profile compute": [
        "profile compute --model config.json --seq-length 128 --device cpu -o {}: config.json",
        "profile compute --model train.sh --seq-length 128 --device cpu -o {}: train.sh",
    ],
    "benchmark solve": [f"benchmark solve --cluster c.yaml {JOB} --csv {{}}: c.yaml m.csv"],
    "capture": ["capture -o {} -- bash train.sh: train.sh", "capture -o {} -- sh -c true c.yaml: c.yaml"],
}
"""Commands by their words, with ``{}`` for the output, and behind a colon the inputs that it is named after."""

ELSEWHERE = {
    "export": "writes into a folder, see test_folder",
    "init": "reads nothing",
    "profile links": "goes on with its log",
}
"""Other commands with an output, and why it cannot be an input of theirs."""

PAIRS = [
    (line.rpartition(": ")[0], name)
    for lines in TYPED.values()
    for line in lines
    for name in line.rpartition(": ")[2].split()
]

WAYS = ("name", "path", "absolute", "symlink", "hard link")

CASES = [(*pair, way) for pair in PAIRS[:2] for way in WAYS]
CASES += [(*pair, WAYS[place % len(WAYS)]) for place, pair in enumerate(PAIRS[2:])]
"""Each pair of a command and an input with a way to name it; the first with every way, as all share the check."""


def test_every_command_with_an_output_is_here() -> None:
    """A new command says what it reads and writes."""
    outputs = {"out", "csv", "plot", "trace", "moves_out", "log"}
    having = {
        name for name, command in COMMANDS.items() if any(parameter.name in outputs for parameter in command.params)
    }
    assert having == {*TYPED, *ELSEWHERE}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """All kinds of inputs."""
    for name, source in INPUTS.items():
        shutil.copy(source, tmp_path / name)
    (tmp_path / "c.yaml").write_text(
        "nodes: [{hosts: 'n[1-2]', gpu: a100-80gb}]\nintra_node: {bandwidth_gb_per_s: 300}\n"
        "inter_node: {matrices: [{file: m.csv, concurrent_flows: 1}]}\n"
    )
    (tmp_path / "m.csv").write_text("x,n1,n2\nn1,,20\nn2,20,\n")
    shutil.copy(tmp_path / "c.yaml", tmp_path / "other.yaml")
    content = json.loads((tmp_path / "plan.json").read_text())
    content["inputs"]["cluster"] = {"path": "c.yaml", "sha256": "0" * 64, "matrices": {"m.csv": "0" * 64}}
    (tmp_path / "plan.json").write_text(json.dumps(content))
    (tmp_path / "s.yaml").write_text("name: s\n")
    (tmp_path / "lengths.csv").write_text("5\n")
    for name in ("megatron.log", "anything"):
        (tmp_path / name).write_text("anything")
    return tmp_path


def named(folder: Path, name: str, way: str) -> str:
    """A name of the file: its own, through other folders, or a link of either kind."""
    if way == "symlink":
        (folder / "link").symlink_to(name)
        return "link"
    if way == "hard link":
        os.link(folder / name, folder / "link")
        return "link"
    if way == "absolute":
        return str(folder / name)
    return f"sub/../{name}" if way == "path" else name


@pytest.mark.parametrize(("typed", "name", "way"), CASES)
def test_an_output_is_no_input(command: Command, folder: Path, typed: str, name: str, way: str) -> None:
    """Refused in a line that names the output, and every file is as it was."""
    (folder / "sub").mkdir()
    target = named(folder, name, way)
    before = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    code, _, err = command(*(target if word == "{}" else word for word in typed.split()))
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == before
    assert code == 2, err
    assert f"{target}: would overwrite an input file of this command" in err
