"""Public runs by model, GPU and format: each shipped row says what it is."""

from dataclasses import replace
from pathlib import Path

import pytest
from factories import LLAMA_8B, TINY

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.backtests import precision_of, read_backtests, runs_by_gpu, shape_of
from pipette_opt.read.gpus import read_gpu_catalogue
from pipette_opt.specs import TrainingSpec

TRAINING = TrainingSpec(global_batch_size=8, seq_length=1024)


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


def test_runs_are_counted_by_gpu() -> None:
    """Rows of one GPU type add up, whichever model ran."""
    first, second, *_ = read_backtests()
    rows = [replace(first, gpu="a", runs=3), replace(second, gpu="a", runs=4), replace(first, gpu="b", runs=1)]
    assert runs_by_gpu(rows) == {"a": 7, "b": 1}


def test_a_row_with_another_field(tmp_path: Path) -> None:
    """The row and the field are named."""
    path = tmp_path / "rows.yaml"
    path.write_text("- {by: one.py, speed: 3}\n")
    with pytest.raises(InputError, match="row 1: unknown field 'speed'"):
        read_backtests(path)
