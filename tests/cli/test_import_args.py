"""``import args``: arguments on standard output, one a line, and nothing else there."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Command = Callable[..., tuple[int, str, str]]

SCRIPT = """#!/bin/bash
#SBATCH --nodes=2
export NCCL_DEBUG=INFO
TP=${TP:-8}
A=(--bf16 --note 'a  b')
srun torchrun --nnodes $SLURM_NNODES /opt/pretrain_gpt.py --tensor-model-parallel-size $TP "${A[@]}" --size "$1" $MORE
"""


@pytest.fixture
def script(command: Command, tmp_path: Path) -> Path:
    """A script in the folder of the command."""
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_arguments_one_a_line(command: Command, script: Path) -> None:
    """Notes go to standard error; variables and positional arguments come from the command line."""
    code, out, err = command("import", "args", "train.sh", "--env", "TP=4", "--", "70b")
    assert (code, out.splitlines()) == (
        0,
        ["--tensor-model-parallel-size", "4", "--bf16", "--note", "a  b", "--size", "70b"],
    )
    assert " ".join(err.split()) == "line 6 starts /opt/pretrain_gpt.py not set, and taken for empty: MORE (line 6)"


def test_document(command: Command, script: Path) -> None:
    """Program, launchers, environment and header; other commands read it as Megatron's arguments."""
    code, out, _ = command("import", "args", "train.sh", "--json")
    found = json.loads(out)
    assert (code, found["program"], found["line"]) == (0, "/opt/pretrain_gpt.py", 6)
    assert found["launchers"] == [
        {"name": "srun", "options": []},
        {"name": "torchrun", "options": ["--nnodes", "2"]},
    ]
    assert (found["environment"]["NCCL_DEBUG"], found["sbatch"]) == ("INFO", {"nodes": "2"})
    assert (found["unset_variables"], found["defaults_taken"]) == ({"1": 6, "MORE": 6}, {"TP": 4})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("torchrun train.py --x $(hostname)", "train.sh, line 1: $(hostname), in the value of --x, is known only when"),
        ("torchrun train.py 'a\nb'", "argument 1, 'a\\nb', contains a line break; print the arguments with --json"),
        (
            "ray start --head",
            "train.sh: starts no training program; commands that it starts: ray start --head (line 1)",
        ),
        ("", "train.sh: is empty"),
        ("nodes:\n  - host: a\n", "It looks like a cluster file of pipette-opt"),
    ],
)
def test_what_is_refused(command: Command, script: Path, text: str, problem: str) -> None:
    """One line, exit code 2, and nothing on standard output."""
    script.write_text(text)
    code, out, err = command("import", "args", "train.sh")
    assert (code, out) == (2, "")
    assert problem in err
    assert len(err.splitlines()) == 1


def test_wrong_variables(command: Command, script: Path) -> None:
    """``--env`` takes NAME=VALUE."""
    code, _, err = command("import", "args", "train.sh", "--env", "TP")
    assert (code, "--env: must be NAME=VALUE (1=VALUE for the script's first argument), got 'TP'" in err) == (2, True)


PRINTED = """0: ------------------------ arguments ------------------------
0:   bf16 ............................................ True
0:   add_bias_linear ................................. False
0:   fp8 ............................................. None
0:   num_layers ...................................... 32
0:   recompute_modules ............................... ['core_attn', 'mlp']
0:   attention_backend ............................... AttnBackend.flash
0:   tensor_model_parallel_size ...................... 8
0:   virtual_pipeline_model_parallel_size ............ 2
0:   world_size ...................................... 64
0: -------------------- end of arguments ---------------------
"""


def test_printed_arguments_are_options(command: Command, script: Path) -> None:
    """What Megatron prints when it starts; what is no option is left out."""
    script.write_text(PRINTED)
    code, out, _ = command("import", "args", "train.sh")
    assert (code, " ".join(out.split())) == (
        0,
        "--bf16 --disable-bias-linear --num-layers 32 --recompute-modules core_attn mlp --attention-backend flash "
        "--tensor-model-parallel-size 8 --num-virtual-stages-per-pipeline-rank 2",
    )


NEEDS_TP = """torchrun pretrain_gpt.py --num-layers 4 --hidden-size 1024 --num-attention-heads 8 --vocab-size 32000
--seq-length 1024 --global-batch-size 16 --micro-batch-size 1 --tensor-model-parallel-size ${TP:?}
"""
MACHINES = ("--nodes", "1", "--gpu", "h100", "--nics", "8x400")


@pytest.mark.parametrize(
    "words",
    [
        ("import", "model", "train.sh"),
        ("estimate", "--launch", "train.sh", *MACHINES),
        ("explain", "--launch", "train.sh", *MACHINES),
        ("solve", "--compare", "--launch", "train.sh", "--example", "lab-2x8"),
    ],
)
def test_every_command_that_reads_a_script_sets_its_variables(
    command: Command, script: Path, words: tuple[str, ...]
) -> None:
    """The script ends without its variable; with it, it is read (and fits not every job here)."""
    script.write_text(NEEDS_TP.replace("\n--", " --"))
    code, _, err = command(*words)
    assert (code, "TP is not set" in err) == (2, True)
    _, _, err = command(*words, "--env", "TP=2")
    assert "TP is not set" not in err
