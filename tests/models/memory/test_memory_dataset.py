"""The dataset: points depend on seed and number only, and a stopped collection goes on."""

import gzip
from pathlib import Path

import pytest

from models.memory import dataset
from models.memory.dataset import COLUMNS, collect_traces, point_of_row, read_rows, write_rows
from models.memory.sample import sample_point
from models.memory.trace import trace_stage
from pipette_opt.base.errors import InputError

pytestmark = pytest.mark.search


def test_points_are_reproducible_and_legal() -> None:
    """The same number gives the same point; layers add up; heads and groups divide."""
    for index in range(60):
        point = sample_point(3, index)
        assert point == sample_point(3, index)
        assert sum(point.config.layers_per_stage) == point.model.num_layers
        assert point.model.num_attention_heads % point.config.tensor_model_parallel_size == 0
        assert 1e8 <= point.model.num_parameters <= 1.1e12
        assert 0 <= point.stage < point.config.pipeline_model_parallel_size


def test_collection_continues(tmp_path: Path) -> None:
    """Two halves are the same file as one whole; rows come back as the points they were."""
    whole, halves = tmp_path / "whole.csv", tmp_path / "halves.csv"
    calls: list[tuple[int, int]] = []
    assert collect_traces(whole, num_points=3, progress=lambda done, total: calls.append((done, total))) == 3
    assert calls[-1] == (3, 3)
    assert collect_traces(halves, num_points=1) == 1
    assert collect_traces(halves, num_points=3) == 2
    assert whole.read_bytes() == halves.read_bytes()
    for index, row in enumerate(read_rows(whole)):
        point = point_of_row(row)
        assert point == sample_point(0, index)
        trace = trace_stage(point.model, point.training, point.config, point.stage)
        assert int(row["peak_bytes"]) == trace.peak_bytes


def test_processes_give_the_same_file(tmp_path: Path) -> None:
    """Order of completion does not matter."""
    one, two = tmp_path / "one.csv", tmp_path / "two.csv"
    collect_traces(one, num_points=2)
    rows = read_rows(one)
    write_rows(two, rows[::-1])
    assert one.read_bytes() == two.read_bytes()


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """Another seed, other columns, a cut row, something that is no text."""
    path = tmp_path / "points.csv"
    collect_traces(path, num_points=1)
    with pytest.raises(InputError, match="seed 0, not 1"):
        collect_traces(path, num_points=1, seed=1)
    path.write_text(",".join(COLUMNS) + "\n1,2,3\n")
    with pytest.raises(InputError, match=r"points\.csv:2"):
        read_rows(path)
    path.write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match="is no memory dataset"):
        read_rows(path)
    with pytest.raises(InputError, match="uncompressed"):
        collect_traces(tmp_path / "points.csv.gz", num_points=1)
    (tmp_path / "cut.csv.gz").write_bytes(gzip.compress(b"a,b\n" * 1000)[:-10])
    with pytest.raises(InputError, match="cut"):
        read_rows(tmp_path / "cut.csv.gz")
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(path)


def test_a_compressed_table_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bomb of gzip is not unpacked further than that."""
    monkeypatch.setattr(dataset, "MAX_FILE_BYTES", 1000)
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(b"0" * 100_000))
    with pytest.raises(InputError, match="when unpacked"):
        dataset.read_rows(tmp_path / "t.csv.gz")
