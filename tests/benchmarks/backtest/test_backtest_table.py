"""Rows of public runs: those of a command replace its own."""

from dataclasses import replace
from pathlib import Path

from factories import LLAMA_8B

from benchmarks.backtest.table import ComparedRun, write_backtests
from pipette_opt.read.backtests import read_backtests
from pipette_opt.specs import TrainingSpec

TRAINING = TrainingSpec(global_batch_size=8, seq_length=1024)


def run(ratio: float, *, num_gpus: int = 8, **training: object) -> ComparedRun:
    """A run of Llama 8B on H100 that took so much of its prediction."""
    return ComparedRun(
        name="Llama",
        model=LLAMA_8B,
        training=replace(TRAINING, **training),
        gpu="h100-80gb",
        num_gpus=num_gpus,
        ratio=ratio,
    )


def test_rows_by_hand(tmp_path: Path) -> None:
    """Two runs of 0.8 and 2.0 times the prediction: 25 % too long and half of it, 37.5 % in the mean."""
    path = tmp_path / "rows.yaml"
    write_backtests("one.py", [run(0.8), run(2.0, num_gpus=64), run(1.0, fp8=True)], path)
    plain, narrow = read_backtests(path)
    assert (plain.runs, plain.gpus, plain.middle, plain.error) == (2, (8, 64), 1.4, 0.375)
    assert (plain.precision, narrow.precision, narrow.error) == ("bf16", "fp8 delayed", 0.0)
    write_backtests("two.py", [run(1.0)], path)
    write_backtests("one.py", [run(1.0, fp4=True)], path)
    assert [(one.by, one.precision) for one in read_backtests(path)] == [("one.py", "nvfp4"), ("two.py", "bf16")]
