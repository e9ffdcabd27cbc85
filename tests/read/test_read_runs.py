"""Measured runs: what is read, and what is refused."""

import json
import os
from pathlib import Path

import pytest
from factories import GPT_RUN

from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.units import GIB
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_models import SHAPE
from pipette_opt.read.runs import COLUMNS, REQUIRED, MeasuredRun, find_run_gpu, read_runs, unused_columns

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
FIELD_CASES = SHARED / "measured" / "field_cases.csv"

GOOD = {
    **GPT_RUN,
    "gpus_per_node": "8",
    "recompute": "none",
    "iter_time_s": "2.5",
    "peak_mem_gib": "41.5",
    "oom": "False",
}


def write(path: Path, *rows: dict[str, str]) -> Path:
    """A file with these rows."""
    header = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(header), *(",".join(f'"{row.get(name, "")}"' for name in header) for row in rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_row_is_read_in_base_units(tmp_path: Path) -> None:
    """GiB become bytes, empty cells None, further columns stay text."""
    (run,) = read_runs(write(tmp_path / "runs.csv", GOOD | {"zero_stage": "1.0", "mine": "x"}))
    launch = run.launch
    assert (run.row, launch.tensor_model_parallel_size, launch.pipeline_model_parallel_size) == (0, 2, 2)
    assert run.gpu is not None
    assert run.gpu.gpu.name == "a100-80gb"
    assert run.peak_mem_bytes == 41.5 * GIB
    assert (launch.use_distributed_optimizer, launch.sequence_parallel) == (True, False)
    assert launch.recompute_granularity is None
    assert run.cells == GOOD | {"zero_stage": "1.0", "mine": "x"}


def test_optional_columns_are_words_in_any_case_or_nothing(tmp_path: Path) -> None:
    """As other programs write them; ``NaN`` is an empty cell there, too."""
    known = {"tied_embeddings": "TRUE", "kv_channels": "128.0", "peak_mem_stage": "1"}
    nothing = dict.fromkeys(known, "NaN") | {"peak_mem_stage": "Last"}
    first, second = read_runs(write(tmp_path / "runs.csv", GOOD | known, GOOD | nothing))
    assert first.cells == GOOD | known
    assert second.cells == GOOD | dict.fromkeys(known, "") | {"peak_mem_stage": "Last"}


def shape_of(run: MeasuredRun) -> tuple[int, ...] | None:
    """Sizes of a run's model; None without a model."""
    model = run.launch.model
    return None if model is None else (*(getattr(model, name) for name in SHAPE.values()), model.vocab_size)


SHAPELESS = {name: text for name, text in GOOD.items() if name not in (*SHAPE, "vocab")}


def test_a_model_gives_the_shape_that_a_row_lacks(tmp_path: Path) -> None:
    """By a preset's name in any case, its id on the Hub, or a config beside the table; experts as well."""
    config = {"model_type": "llama", "num_hidden_layers": 4, "hidden_size": 256, "intermediate_size": 512}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 2048}
    (tmp_path / "mine.json").write_text(json.dumps(config | heads))
    names = ("Llama-3-8B", "meta-llama/Llama-3.1-8B", "mine.json", "mixtral-8x7b")
    path = write(tmp_path / "runs.csv", *(SHAPELESS | {"model": name, "iter_time_s": "9"} for name in names))
    first, second, own, experts = read_runs(path)
    assert shape_of(first) == (32, 4096, 14336, 32, 8, 128256)
    assert shape_of(second) == (32, 4096, 14336, 32, 8, 128256)
    assert shape_of(own) == (4, 256, 512, 8, 2, 1000)
    assert experts.launch.model is not None
    assert experts.launch.model.num_experts == 8


def test_a_model_completes_a_shape_that_agrees_with_it(tmp_path: Path) -> None:
    """A row that names its model and gives only the number of layers is that model; with other layers it stays open."""
    named = SHAPELESS | {"model": "llama-3-8b", "iter_time_s": "9"}
    whole, cut = read_runs(write(tmp_path / "runs.csv", named | {"num_layers": "32"}, named | {"num_layers": "8"}))
    assert shape_of(whole) == (32, 4096, 14336, 32, 8, 128256)
    assert shape_of(cut) is None
    assert cut.unpredictable == "hidden, heads not given"


def test_a_shape_that_is_given_counts(tmp_path: Path) -> None:
    """A complete shape counts more than the name of a model; other names stay names."""
    cut = GOOD | {"model": "llama-3-8b", "num_layers": "8"}
    vocab = SHAPELESS | {"model": "llama-3-8b", "vocab": "32000", "iter_time_s": "9"}
    eight, small, other = read_runs(write(tmp_path / "runs.csv", cut, vocab, SHAPELESS | {"model": "mine"}))
    assert shape_of(eight) == (8, 2048, 8192, 16, 16, 50257)
    assert shape_of(small) == (32, 4096, 14336, 32, 8, 32000)
    assert shape_of(other) is None


def test_words_as_tables_have_them(tmp_path: Path) -> None:
    """Truths that were numbers, and precisions in words."""
    words = {"seq_parallel": "1.0", "precision": "fp8 rowwise", "overlap_grad_reduce": "On"}
    (run,) = read_runs(write(tmp_path / "runs.csv", GOOD | words))
    assert run.launch.sequence_parallel is True
    assert precision_of(run.precision) == "tensorwise"


@pytest.mark.parametrize(
    ("names", "meaning"),
    [
        (("", "bf16", "BF16-mixed", "bfloat16", "bf16-true"), "bf16"),
        (("fp8", "FP8_hybrid", "fp8 (delayed scaling)", "fp8"), "delayed"),
        (("fp8-cs", "fp8 tensorwise", "fp8_rowwise"), "tensorwise"),
        (("fp8 blockwise",), "blockwise"),
        (("mxfp8", "FP8-MX"), "mxfp8"),
        (("NVFP4",), "nvfp4"),
        (("fp8 odd", "int8", "8"), None),
    ],
)
def test_precisions_as_people_write_them(names: tuple[str, ...], meaning: str | None) -> None:
    """Case, hyphens, blanks and brackets do not count; what is not known stays unknown."""
    assert {name: precision_of(name) for name in names} == dict.fromkeys(names, meaning)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_lines_end_where_lines_of_files_do(tmp_path: Path, end: str) -> None:
    """What ends a line of text elsewhere stays in a note; a quoted note may have lines."""
    path = write(tmp_path / "runs.csv", GOOD | {"notes": "one\u2028two\x0bthree"}, GOOD | {"notes": "four\nfive"})
    path.write_text(path.read_text(), newline=end)
    notes = [run.notes for run in read_runs(path)]
    assert notes == ["one\u2028two\x0bthree", "four\nfive"]


@pytest.mark.parametrize(
    ("name", "memory", "found"),
    [
        ("A100", None, "a100-80gb"),
        ("A100", 40.0, "a100-40gb"),
        ("T4-16GB", None, "t4"),
        ("V100-16GB", None, "v100-16gb"),
        ("H100-96GB-HBM2e-500W", None, "h100-80gb"),
        ("NVIDIA H100-SXM5-80GB", None, "h100-80gb"),
        ("A100-PCIe", 80.0, "a100-80gb"),
        ("RTX-3090", None, "rtx-3090"),
        ("RTX-2080", None, None),
    ],
)
def test_gpus_as_people_write_them(name: str, memory: float | None, found: str | None) -> None:
    """Family first, then the nearest size; RTX is no family."""
    entry = find_run_gpu(name, memory)
    assert (entry.gpu.name if entry else None) == found


def test_the_format_is_documented() -> None:
    """Every column is in the description of the data."""
    text = Path(__file__).parents[2].joinpath("data", "README.md").read_text()
    assert [name for name in COLUMNS if f"`{name}`" not in text] == []


def test_the_published_schema_has_the_columns() -> None:
    """In the order of the code, and what must be there is required."""
    schema = json.loads(shipped_path("data", "schemas", "runs.schema.json").read_text())
    assert tuple(field["name"] for field in schema["fields"]) == COLUMNS
    required = {field["name"] for field in schema["fields"] if field.get("constraints", {}).get("required")}
    assert required <= set(REQUIRED)


@pytest.mark.skipif(not FIELD_CASES.is_file(), reason=f"{FIELD_CASES} is not here")
def test_field_cases_are_read_with_their_shapes() -> None:
    """Every row of a table that names its models by presets has a shape."""
    runs = read_runs(FIELD_CASES)
    assert len(runs) == 15
    assert all(run.launch.model is not None for run in runs)


def test_columns_that_nothing_reads_are_counted(tmp_path: Path) -> None:
    """With the column that is meant, where a name is nearly known; optional ones are known."""
    runs = read_runs(write(tmp_path / "runs.csv", GOOD | {"overlap_grad_reduces": "True", "mine": "x", "ep": "1"}))
    said = unused_columns(runs)
    assert said.startswith("2 columns not used: overlap_grad_reduces, mine. Did you mean overlap_grad_reduce")
    assert unused_columns(read_runs(write(tmp_path / "runs.csv", GOOD))) == ""
