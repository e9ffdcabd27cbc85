"""Dataset of traced random points: collected in parallel into one CSV file, and continued where it stopped."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from models.memory.sample import Point, sample_point
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import MAX_FILE_BYTES, note_continued, read_bytes, write_atomically
from pipette_opt.base.units import MIB
from pipette_opt.parallel import ParallelConfig
from pipette_opt.specs import ModelSpec, TrainingSpec

TRACES = Path(__file__).with_name("traces.csv.gz")
"""Traced points that the shipped network was trained on; in a checkout alone."""

_TARGETS = (
    "weight_bytes",
    "gradient_bytes",
    "optimizer_bytes",
    "placeholder_bytes",
    "activation_bytes",
    "step_bytes",
    "peak_bytes",
)
_MODEL = (
    "name",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "vocab_size",
    "max_position_embeddings",
    "gated_linear_unit",
    "untie_embeddings_and_output_weights",
    "add_bias_linear",
    "add_qkv_bias",
    "qk_layernorm",
    "normalization",
    "position_embedding_type",
    "hidden_dropout",
    "attention_dropout",
    "make_vocab_size_divisible_by",
    "num_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "num_dense_layers",
)
_TRAINING = (
    "global_batch_size",
    "seq_length",
    "precision",
    "accumulate_allreduce_grads_in_fp32",
    "attention_kernel",
    "fp8",
    "main_params_dtype",
    "exp_avg_dtype",
    "exp_avg_sq_dtype",
)
_CONFIG = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "data_parallel_size",
    "micro_batch_size",
    "layers_per_stage",
    "context_parallel_size",
    "expert_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "sequence_parallel",
    "recompute_granularity",
    "use_distributed_optimizer",
    "recompute_method",
    "recompute_num_layers",
    "expert_tensor_parallel_size",
    "zero_stage",
)
COLUMNS = ("seed", "index", *_MODEL, *_TRAINING, *_CONFIG, "stage", *_TARGETS)
"""Columns of the dataset: seed and index of the point, its model, training and configuration, and its traced bytes."""

_CHUNK = 64


def trace_point(seed: int, index: int) -> dict[str, str]:
    """Trace the random point with this seed and index; return its row of the dataset."""
    from models.memory.trace import trace_stage

    point = sample_point(seed, index)
    trace = trace_stage(point.model, point.training, point.config, point.stage)
    row = {"seed": str(seed), "index": str(index), "stage": str(point.stage)}
    for part, names in ((point.model, _MODEL), (point.training, _TRAINING), (point.config, _CONFIG)):
        row |= {name: _text(getattr(part, name)) for name in names}
    return row | {name: str(getattr(trace, name)) for name in _TARGETS}


def point_of_row(row: Mapping[str, str]) -> Point:
    """Return the point that a row of the dataset describes."""
    values: list[dict[str, Any]] = [
        {name: _value(name, row[name]) for name in names} for names in (_MODEL, _TRAINING, _CONFIG)
    ]
    return Point(
        model=ModelSpec(**values[0]),
        training=TrainingSpec(**values[1]),
        config=ParallelConfig(**values[2]),
        stage=int(row["stage"]),
    )


def collect_traces(
    path: Path,
    *,
    num_points: int,
    seed: int = 0,
    workers: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """
    Trace points 0 to ``num_points - 1`` that the file ``path`` lacks, and append them.

    The whole file is rewritten after every few points, so the collection can be stopped and started again.

    Parameters
    ----------
    progress
        Function that takes the number of finished points and the number of wanted points.

    Returns
    -------
    int
        Number of points traced in this call.
    """
    if path.suffix == ".gz":
        raise InputError(str(path), "must be an uncompressed .csv to be continued; compress it when it is complete.")
    note_continued(path)
    rows = read_rows(path) if path.exists() else []
    other = sorted({row["seed"] for row in rows} - {str(seed)})
    if other:
        raise InputError(str(path), f"holds points of seed {', '.join(other)}, not {seed}; choose another file.")
    have = {int(row["index"]) for row in rows}
    wanted = [index for index in range(num_points) if index not in have]
    done = 0
    for batch in _batches(_traces(seed, wanted, workers), _CHUNK * workers):
        rows.extend(batch)
        done += len(batch)
        write_rows(path, rows)
        if progress is not None:
            progress(len(have) + done, num_points)
    return done


def read_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a dataset, unpacked if its name ends in ``.gz``; raises ``InputError`` if it is no dataset."""
    try:
        reader = csv.DictReader(io.StringIO(_content(path), newline=""))
        if tuple(reader.fieldnames or ()) != COLUMNS:
            missing = sorted(set(COLUMNS) - set(reader.fieldnames or ()))
            raise InputError(str(path), f"is no memory dataset: columns {missing or 'in another order'}.")
        rows = [dict(row) for row in reader]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise InputError(str(path), f"cannot be read as CSV: {error}.") from error
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise InputError(f"{path}:{number}", f"must have {len(COLUMNS)} columns.")
    return rows


def write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> None:
    """Write a dataset, ordered by the index of its points, replacing the file atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(sorted(rows, key=lambda row: int(row["index"])))
    write_atomically(path, text.getvalue())


def _content(path: Path) -> str:
    """Return the text of a file; an unpacked ``.gz`` file may be as large as any other file (``MAX_FILE_BYTES``)."""
    content = read_bytes(path)
    if path.suffix == ".gz":
        with gzip.open(io.BytesIO(content)) as file:
            content = file.read(MAX_FILE_BYTES + 1)
        if len(content) > MAX_FILE_BYTES:
            raise InputError(str(path), f"is larger than {MAX_FILE_BYTES // MIB} MiB when unpacked.")
    return content.decode()


def _traces(seed: int, indices: Sequence[int], workers: int) -> Iterator[dict[str, str]]:
    """Yield the rows of the points, in any order."""
    if workers == 1:
        yield from (trace_point(seed, index) for index in indices)
        return
    from joblib import Parallel, delayed

    parallel = Parallel(n_jobs=workers, return_as="generator_unordered", batch_size=8)
    yield from parallel(delayed(trace_point)(seed, index) for index in indices)


def _batches(rows: Iterable[dict[str, str]], size: int) -> Iterator[list[dict[str, str]]]:
    batch: list[dict[str, str]] = []
    for row in rows:
        batch.append(row)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


def _text(value: object) -> str:
    """Return the text of a cell: booleans as 0 and 1, ``None`` as nothing, layers separated by spaces."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    if isinstance(value, bool):
        return str(int(value))
    return "" if value is None else str(value)


_TYPES = {field.name: field.type for part in (ModelSpec, TrainingSpec, ParallelConfig) for field in fields(part)}


def _value(name: str, text: str) -> object:
    """Return the value of a cell, by the declared type of its field."""
    if name == "layers_per_stage":
        return tuple(int(count) for count in text.split())
    if text == "":
        return None
    kind = _TYPES[name]
    if kind is bool:
        return text == "1"
    if kind is float:
        return float(text)
    return int(text) if text.isdigit() and kind is not str else text
