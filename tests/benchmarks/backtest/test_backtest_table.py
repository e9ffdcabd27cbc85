"""Rows of public runs: those of a command replace its own."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories import LLAMA_8B, TINY

from benchmarks.backtest.table import ComparedRun, precision_of, read_backtests, shape_of, write_backtests
from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.gpus import read_gpu_catalogue
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


def test_models_are_alike_by_shape() -> None:
    """Another vocabulary is the same model, another number of layers is not."""
    assert shape_of(replace(LLAMA_8B, vocab_size=1000)) == shape_of(LLAMA_8B)
    assert shape_of(replace(TINY, num_layers=77)) != shape_of(TINY)
    assert precision_of(replace(TRAINING, fp8=True, fp8_recipe="mxfp8")) == "fp8 mxfp8"


def test_shipped_rows_name_a_command_and_a_gpu() -> None:
    """Each was written by a program of the repository, about a GPU of the catalogue."""
    root = shipped_path("data", "backtests.yaml").parents[1]
    for one in read_backtests():
        assert one.gpu in read_gpu_catalogue()
        assert one.runs >= 1
        assert one.gpus[0] <= one.gpus[1]
        if (root / "benchmarks").is_dir():
            assert (root / one.by).exists()


def test_a_row_with_another_field(tmp_path: Path) -> None:
    """The row and the field are named."""
    path = tmp_path / "rows.yaml"
    path.write_text("- {by: one.py, speed: 3}\n")
    with pytest.raises(InputError, match="row 1: unknown field 'speed'"):
        read_backtests(path)
