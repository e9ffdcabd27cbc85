"""Rows of runs.csv that say their launch as Megatron-LM's arguments."""

from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.read.runs import MeasuredRun, read_runs, unused_columns

QWEN = "--expert-model-parallel-size 16 --micro-batch-size 1 --global-batch-size 256 --seq-length 4096 --bf16"
ROW = {
    "source": "mine",
    "gpu": "h100-80gb",
    "num_gpus": "64",
    "model": "qwen3-30b-a3b",
    "args": QWEN,
    "iter_time_s": "6",
}
SHAPE = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --max-position-embeddings 512 --seq-length 512"


def read(folder: Path, **cells: str) -> MeasuredRun:
    """Read the row with other cells."""
    row = {name: cell for name, cell in (ROW | cells).items() if cell}
    path = folder / "runs.csv"
    path.write_text(",".join(row) + "\n" + ",".join(f'"{cell}"' for cell in row.values()) + "\n")
    return read_runs(path)[0]


def test_the_arguments_say_degrees_batch_and_model(tmp_path: Path) -> None:
    """No other column is needed than GPU, their number and what was measured."""
    run = read(tmp_path)
    launch, model = run.launch, run.launch.model
    assert (launch.micro_batch_size, launch.global_batch_size, launch.seq_length) == (1, 256, 4096)
    assert model is not None
    assert (model.num_layers, model.num_experts, launch.expert_model_parallel_size) == (48, 128, 16)
    assert launch.parallel_config(48, run.num_gpus).data_parallel_size == 64
    assert unused_columns([run]) == ""


def test_other_columns_add_to_it(tmp_path: Path) -> None:
    """Columns of tables, and options of Megatron-LM by their own names."""
    run = read(tmp_path, tp="2", seq_parallel="True", zero_stage="1", recompute_modules="moe_act layernorm",
               recompute="selective", expert_tensor_parallel_size="1")  # fmt: skip
    assert (run.launch.sequence_parallel, run.launch.use_distributed_optimizer) == (True, True)
    assert run.launch.recompute_modules == ("moe_act", "layernorm")
    assert run.launch.expert_tensor_parallel_size == 1
    assert run.launch.tensor_model_parallel_size == 2
    fp8 = read(tmp_path, args=QWEN.replace(" --bf16", ""), precision="fp8-blockwise").launch
    assert (fp8.fp8, fp8.precision, fp8.training_fields["fp8_recipe"]) == (True, "bf16", "blockwise")


def test_a_file_beside_the_table(tmp_path: Path) -> None:
    """A script or a list of arguments, whose model needs a vocabulary that a column may say."""
    (tmp_path / "train.args").write_text(f"{SHAPE} --bf16 --global-batch-size 64 --micro-batch-size 1")
    run = read(tmp_path, args="train.args", model="", vocab="1024")
    assert run.launch.model is not None
    assert (run.launch.model.num_layers, run.launch.model.vocab_size) == (4, 1024)


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("full block3", ("full", "block", 3, ("core_attn",))),
        ("full (block 21)", ("full", "block", 21, ("core_attn",))),
        ("uniform", ("full", "uniform", 1, ("core_attn",))),
        ("moe_act+layernorm", ("selective", "uniform", 1, ("moe_act", "layernorm"))),
        ("none", (None, "uniform", 1, ("core_attn",))),
    ],
)
def test_recomputation_beside_arguments(word: str, expected: tuple[object, ...], tmp_path: Path) -> None:
    """Labels count as in rows without arguments; ``block`` passed for all layers, and modules for none."""
    launch = read(tmp_path, recompute=word).launch
    found = launch.recompute_granularity, launch.recompute_method, launch.recompute_num_layers
    assert (*found, launch.recompute_modules) == expected


def test_unknown_recomputation_beside_arguments(tmp_path: Path) -> None:
    """The row is refused rather than read without it."""
    with pytest.raises(InputError, match=r"recomputation 'op-level 0\.7' is not one of none, selective"):
        read(tmp_path, recompute="op-level 0.7")
