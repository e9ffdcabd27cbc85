"""Rows of runs.csv that say their launch as Megatron-LM's arguments."""

from pathlib import Path

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
    assert (run.tp, run.pp, run.dp, run.cp, run.mbs, run.gbs, run.seq_len) == (1, 1, 64, 1, 1, 256, 4096)
    assert run.spec is not None
    assert (run.num_layers, run.spec.num_experts, run.extra["ep"]) == (48, 128, "16")
    assert unused_columns([run]) == ""


def test_other_columns_add_to_it(tmp_path: Path) -> None:
    """Columns of tables, and options of Megatron-LM by their own names."""
    run = read(tmp_path, tp="2", seq_parallel="True", zero_stage="1", recompute_modules="moe_act layernorm",
               recompute="selective", expert_tensor_parallel_size="1")  # fmt: skip
    assert run.launch is not None
    assert (run.launch.sequence_parallel, run.launch.use_distributed_optimizer) == (True, True)
    assert run.launch.recompute_modules == ("moe_act", "layernorm")
    assert run.launch.expert_tensor_parallel_size == 1
    assert (run.tp, run.dp) == (2, 32)
    fp8 = read(tmp_path, args=QWEN.replace(" --bf16", ""), precision="fp8-blockwise").launch
    assert fp8 is not None
    assert (fp8.fp8, fp8.precision, fp8.training_fields["fp8_recipe"]) == (True, "bf16", "blockwise")


def test_a_file_beside_the_table(tmp_path: Path) -> None:
    """A script or a list of arguments, whose model needs a vocabulary that a column may say."""
    (tmp_path / "train.args").write_text(f"{SHAPE} --bf16 --global-batch-size 64 --micro-batch-size 1")
    run = read(tmp_path, args="train.args", model="", vocab="1024")
    assert run.spec is not None
    assert (run.spec.num_layers, run.spec.vocab_size, run.dp) == (4, 1024, 64)
