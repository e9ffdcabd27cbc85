"""``capture``, and the commands that read what it writes."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.launch_file import read_launch
from pipette_opt.read.megatron_args import read_megatron_args

Command = Callable[..., tuple[int, str, str]]

JOB = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 11008 --seq-length 4096 "
    "--max-position-embeddings 4096 --vocab-size 32000 --swiglu --bf16 --micro-batch-size 1 --global-batch-size 64 "
    "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 --data-path '0.7 a  b'"
)


@pytest.fixture
def captured(command: Command, tmp_path: Path) -> Path:
    """Launch of a script that keeps an option in an array."""
    (tmp_path / "train.sh").write_text(
        f"P=(--untie-embeddings-and-output-weights)\ntorchrun pretrain_gpt.py {JOB} ${{P[@]}}\n"
    )
    code, out, err = command("capture", "--", "bash", "train.sh")
    assert (code, err) == (0, "")
    first, *rest = out.splitlines()
    assert first.startswith("Running your own script: bash train.sh.")
    assert "nothing is trained" in first
    assert any(line.startswith("Program: pretrain_gpt.py, 27 arguments, launched by torchrun") for line in rest)
    assert "Degrees: micro-batch 1, global batch 64, tensor 2, pipeline 2." in rest
    assert rest[-1].startswith("Written to captured.json. Next: pipette-opt estimate --launch captured.json")
    return tmp_path / "captured.json"


def test_commands_read_it(captured: Path, command: Command) -> None:
    """As Megatron's arguments, as a model, and as what is run today."""
    today = read_megatron_args("captured.json", "the current arguments")
    assert (today.tensor_model_parallel_size, today.micro_batch_size, today.precision) == (2, 1, "bf16")
    code, out, err = command("import", "model", "captured.json", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert (found["num_layers"], found["vocab_size"], found["untie_embeddings_and_output_weights"]) == (32, 32000, True)


def test_document(captured: Path) -> None:
    """The file holds words exactly."""
    document = json.loads(captured.read_text())
    assert document["arguments"][-2:] == ["0.7 a  b", "--untie-embeddings-and-output-weights"]
    assert (document["num_starts"], document["status"]) == (1, 0)
    assert document["command"] == ["bash", "train.sh"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [('"--a"', "arguments must be a list, each text, got '--a'"), ("[]", "'x.py' was started without arguments")],
)
def test_broken_document_is_refused(arguments: str, problem: str) -> None:
    """A document that was edited is checked."""
    text = (
        f'{{"program": "x.py", "launchers": [], "arguments": {arguments}, "environment": {{}}, "sbatch": {{}}, '
        '"notes": []}'
    )
    with pytest.raises(InputError, match=problem):
        read_launch(text, "captured.json")


def test_json_and_standard_output(command: Command, tmp_path: Path) -> None:
    """Standard output holds the document alone where it is asked for."""
    (tmp_path / "train.sh").write_text("torchrun train.py --lr $LR\n")
    for options in (("--json",), ("-o", "-")):
        code, out, _ = command("capture", "--env", "LR=3", *options, "--", "bash", "train.sh")
        assert code == 0
        assert json.loads(out)["arguments"] == ["--lr", "3"]
