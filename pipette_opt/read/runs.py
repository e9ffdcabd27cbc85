"""Reader of measured runs, ``runs.csv``, with a check of each row."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.degrees import EXPERT, EXPERT_TENSOR
from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import GIB, counted, listed, number_of
from pipette_opt.read.attention_words import attention_words, unknown_attention
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.files import read_csv
from pipette_opt.read.gpus import CatalogueEntry, read_gpu_catalogue, recognise_gpu
from pipette_opt.read.kinds_of_files import RUNS_TABLE, reads
from pipette_opt.read.measured_run import MeasuredRun as MeasuredRun
from pipette_opt.read.megatron_table import megatron_options
from pipette_opt.read.named_models import named_model
from pipette_opt.read.precision_words import KNOWN as KNOWN_PRECISIONS
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_bounds import OF_A_LOG, check_time
from pipette_opt.read.run_launches import ARGUMENTS_COLUMN, read_launch
from pipette_opt.read.run_models import truth_of

COLUMNS = (
    "source",
    "gpu",
    "gpu_mem_gib",
    "gpus_per_node",
    "num_gpus",
    "model",
    "num_layers",
    "hidden",
    "ffn_hidden",
    "heads",
    "kv_heads",
    "vocab",
    "seq_len",
    "gbs",
    "mbs",
    "tp",
    "pp",
    "dp",
    "vpp",
    "cp",
    "seq_parallel",
    "zero_stage",
    "recompute",
    "attention_kernel",
    "precision",
    "iter_time_s",
    "peak_mem_gib",
    "oom",
    "mfu",
    "notes",
)
"""Columns of ``runs.csv``; ``data/README.md`` explains them."""

REQUIRED = ("gpu", "num_gpus", "gbs", "tp", "pp", "dp")
"""Columns that a file must have, besides at least one column of ``MEASURED``; some of their cells may be empty."""

MEASURED = ("iter_time_s", "peak_mem_gib", "oom")


TUNED_COLUMN = "tuned"
"""Optional column: whether the run follows its vendor's performance recipe (NeMo, Megatron-Bridge, MLPerf)."""

FLAGS = (
    TUNED_COLUMN,
    "gated_linear_unit",
    "tied_embeddings",
    "add_bias_linear",
    "add_qkv_bias",
    "fused_norm",
    "fused_attention",
    "grad_reduce_in_fp32",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_moe_expert_parallel_comm",
)
"""Optional columns that are true or false."""

BANDWIDTH_COLUMN = "node_bandwidth_gb_per_s"
"""Optional column: bandwidth from all GPUs of a host to another host, GB/s, if runs are of several clusters."""

FRAMEWORK_COLUMN = "framework"
"""Optional column: name of the training software, whose defaults fill empty cells."""

FIRST_PARAMETERS_COLUMN = "local_params_rank0"
"""Optional column: number of parameters of rank 0, to at least three digits, as nanotron reports it."""

OPTIONAL = (
    *FLAGS,
    BANDWIDTH_COLUMN,
    FRAMEWORK_COLUMN,
    FIRST_PARAMETERS_COLUMN,
    "layers_per_stage",
    "kv_channels",
    "peak_mem_stage",
    "loss_chunks",
    "cuda_graph",
    "hybrid",
    "stack_version",
    "num_experts",
    "moe_router_topk",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "ep",
    "etp",
    "dispatcher",
)
"""Optional columns that are read; ``data/README.md`` explains them."""

STAGE_WORDS = ("first", "last", "largest")
"""Values of the optional column ``peak_mem_stage``, besides a stage number."""

LONGEST_ITERATION_S = 86400.0


def unused_columns(runs: Sequence[MeasuredRun]) -> str:
    """Return a sentence on the columns of a table that are not used; empty if all are used."""
    names = list(dict.fromkeys(name for run in runs for name in run.extra if not _is_read(name, run)))
    if not names:
        return ""
    hints = [hint for name in names if (hint := did_you_mean(name, [*COLUMNS, *OPTIONAL]))]
    return f"{counted(len(names), 'column')} not used: {listed(names, 12)}.{''.join(hints[:1])}"


def _is_read(name: str, run: MeasuredRun) -> bool:
    """Return whether a further column of a row is used; with a launch, any option of Megatron-LM is."""
    return name in (*OPTIONAL, ARGUMENTS_COLUMN) or (run.launch is not None and name in megatron_options())


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadRow:
    """Row with an invalid cell: its number, its line in the file, and the error text."""

    row: int
    line: int
    problem: str


def read_runs(path: str | Path) -> list[MeasuredRun]:
    """
    Return all rows of ``runs.csv``, in file order.

    ``InputError`` names file, line, column and value of the first invalid cell; see :func:`read_rows`.
    """
    runs, unread = read_rows(path)
    if unread:
        raise InputError(f"{path}, line {unread[0].line}", unread[0].problem)
    return runs


@reads(RUNS_TABLE)
def read_rows(path: str | Path) -> tuple[list[MeasuredRun], list[UnreadRow]]:
    """
    Return the valid rows of ``runs.csv`` in file order, and the invalid rows.

    A row is invalid with text in place of a number, with degrees whose product is not the number of GPUs, or with a
    batch size that is no multiple. So is a row with a time below the hardware's bound or above a day, or with more
    memory than the GPU has. ``InputError`` for a file that is no table of runs.
    """
    header, rows = read_csv(path)
    _check_header(str(path), header)
    runs, unread = [], []
    for index, (line, cells) in enumerate(rows):
        try:
            runs.append(read_row(f"{path}, line {line}", index, cells, Path(path).parent))
        except InputError as error:
            unread.append(UnreadRow(row=index, line=line, problem=error.problem))
    if not runs and not unread:
        raise InputError(str(path), "has no rows.")
    return runs, unread


def find_run_gpu(name: str, memory_gib: float | None = None) -> CatalogueEntry | None:
    """
    Return the catalogue entry of a GPU's name in a table: ``A100``, ``T4-16GB``, ``H100-96GB-HBM2e-500W``.

    The family is the first word. Of several memory sizes, the nearest to ``memory_gib`` counts, else the nearest to the
    size in the name, else the largest. PCIe and NVL cards count as SXM modules, as tables rarely give the form.
    ``None`` if the catalogue lacks the family.
    """
    catalogue = read_gpu_catalogue()
    wanted = name.strip().lower().replace("_", "-").replace(" ", "-").removeprefix("nvidia-").removesuffix("-(dgx)")
    if wanted in catalogue:
        return catalogue[wanted]
    family = re.split(r"-(?=[0-9])|-(?=sxm|pcie|nvl|hbm)", wanted)[0]
    members = {key: entry for key, entry in catalogue.items() if re.fullmatch(rf"{re.escape(family)}(-[0-9]+gb)?", key)}
    if not members:
        return recognise_gpu(name)
    found = re.search(r"(?<![0-9])([0-9]+)\s*g(?:i?b)?(?![a-z0-9])", wanted)
    size = memory_gib if memory_gib is not None else float(found.group(1)) if found else math.inf
    if math.isinf(size):
        return max(members.values(), key=lambda entry: entry.gpu.memory_bytes)
    return min(members.values(), key=lambda entry: abs(entry.gpu.memory_bytes / GIB - size))


def _check_header(where: str, header: list[str]) -> None:
    if not any(header):
        raise InputError(where, "is empty; the first line must name the columns.")
    duplicates = sorted(name for name, number in Counter(header).items() if number > 1)
    if duplicates:
        raise InputError(where, f"has the column {shown(duplicates[0])} more than once.")
    for name in REQUIRED[:2] if ARGUMENTS_COLUMN in header else REQUIRED:
        if name not in header:
            hint = did_you_mean(name, header)
            raise InputError(where, f"needs the column {name}.{hint} All: {', '.join(COLUMNS)}.")
    if not any(name in header for name in MEASURED):
        raise InputError(where, f"has no measured value: add at least one of the columns {', '.join(MEASURED)}.")


def read_row(where: str, index: int, cells: Mapping[str | None, Any], folder: Path) -> MeasuredRun:
    """
    Return the run in a row of ``runs.csv``, checked; ``InputError`` at ``where`` for a row that cannot be right.

    Parameters
    ----------
    cells
        Text of each column; cells without a column, as a list, have no name.
    folder
        Folder of the files that the row names.
    """
    if None in cells:
        raise InputError(where, f"has more cells than the header: {shown(cells[None])}.")
    row = _Cells(where, {str(name): (text or "").strip() for name, text in cells.items()})
    memory_gib = row.number("gpu_mem_gib", above_zero=True)
    gpu = find_run_gpu(row.needed("gpu"), memory_gib)
    recompute_text = row.text("recompute") or "none"
    run = MeasuredRun(
        row=index,
        source=row.text("source"),
        gpu=gpu,
        gpu_name=row.text("gpu"),
        gpus_per_node=row.whole("gpus_per_node") or 8,
        num_gpus=row.needed_whole("num_gpus"),
        model=row.text("model"),
        num_layers=row.whole("num_layers"),
        hidden=row.whole("hidden"),
        ffn_hidden=row.whole("ffn_hidden"),
        heads=row.whole("heads"),
        kv_heads=row.whole("kv_heads"),
        vocab=row.whole("vocab"),
        seq_len=row.whole("seq_len"),
        gbs=row.whole("gbs"),
        mbs=row.whole("mbs", broken=True),
        tp=row.whole("tp"),
        pp=row.whole("pp"),
        dp=row.whole("dp"),
        vpp=row.whole("vpp", broken=True) or 1,
        cp=row.whole("cp") or 1,
        seq_parallel=row.flag("seq_parallel"),
        zero_stage=row.choice("zero_stage", ("0", "1", "2", "3")),
        recompute=_recompute(recompute_text),
        recompute_text=recompute_text,
        attention_kernel=row.text("attention_kernel"),
        precision=row.text("precision").lower().replace("_", "-"),
        layers_per_stage=_layers_per_stage(row),
        iter_time_s=row.number("iter_time_s", above_zero=True),
        peak_mem_bytes=None if (peak := row.number("peak_mem_gib", above_zero=True)) is None else peak * GIB,
        oom=row.flag("oom"),
        mfu=row.number("mfu"),
        notes=row.text("notes"),
        extra={name: row.text(name) for name in row.cells if name not in COLUMNS},
    )
    run = _with_shape(run, folder)
    if row.text(ARGUMENTS_COLUMN):
        run = _with_launch(row, run, folder)
    _check_extra(row, run)
    _check_units(where, run)
    _check_shape(where, run)
    return run


MODEL_SIZES = {
    "num_layers": "num_layers",
    "hidden": "hidden_size",
    "ffn_hidden": "ffn_hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_query_groups",
}
"""Fields of a run that give the shape of its model, and the model's names of them."""

SHAPE = tuple(MODEL_SIZES)


def _with_shape(run: MeasuredRun, folder: Path) -> MeasuredRun:
    """Return the run with the shape of the model that it names; unchanged if its own sizes are complete, or differ."""
    given = {name: size for name in SHAPE if (size := getattr(run, name)) is not None}
    if not run.model or {"num_layers", "hidden", "heads"} <= set(given):
        return run
    model = named_model(run.model, folder)
    if model is None or any(size != getattr(model, MODEL_SIZES[name]) for name, size in given.items()):
        return run
    vocab, length = run.vocab or model.vocab_size, max(run.seq_len or 0, model.max_position_embeddings)
    model = replace(model, vocab_size=vocab, max_position_embeddings=length)
    experts = {
        name: str(value) for name in ("num_experts", "moe_router_topk") if (value := getattr(model, name)) is not None
    }
    return replace(
        run,
        num_layers=model.num_layers,
        hidden=model.hidden_size,
        ffn_hidden=model.ffn_hidden_size,
        heads=model.num_attention_heads,
        kv_heads=model.num_query_groups,
        vocab=vocab,
        extra={**run.extra, **experts},
        spec=model,
    )


def _with_launch(row: "_Cells", run: MeasuredRun, folder: Path) -> MeasuredRun:
    """Return the run with degrees, batch and model of the launch in column ``args``."""
    cells = {name: row.text(name) for name in row.cells}
    launch, model = read_launch(cells, row.where, folder, run.spec)
    config = launch.parallel_config(model.num_layers, run.num_gpus)
    experts = {"num_experts": model.num_experts, "moe_router_topk": model.moe_router_topk}
    sizes = {degree.short: getattr(config, degree.field) for degree in (EXPERT, EXPERT_TENSOR)}
    added = {name: str(value) for name, value in (experts | sizes).items() if value is not None}
    return replace(
        run,
        launch=launch,
        spec=model,
        num_layers=model.num_layers,
        hidden=model.hidden_size,
        ffn_hidden=model.ffn_hidden_size,
        heads=model.num_attention_heads,
        kv_heads=model.num_query_groups,
        vocab=model.vocab_size,
        seq_len=launch.seq_length or run.seq_len,
        gbs=launch.global_batch_size or run.gbs,
        mbs=config.micro_batch_size,
        tp=config.tensor_model_parallel_size,
        pp=config.pipeline_model_parallel_size,
        dp=run.dp or config.data_parallel_size,
        vpp=config.num_chunks,
        cp=config.context_parallel_size,
        layers_per_stage=config.layers_per_stage,
        extra={**run.extra, **added},
    )


def _recompute(text: str) -> str | None:
    """
    Return the kind of recomputation in a cell: ``full`` for ``full_every_layer``, ``ops`` for ``selective op``.

    ``None`` for ``none``; other words, such as modules, are returned in lower case.
    """
    word = text.lower()
    if re.fullmatch(r"ops?|selective \(?(per )?op\)?", word):
        return "ops"
    for known in ("none", "selective"):
        if word.startswith(known):
            return None if known == "none" else known
    return "full" if re.fullmatch(r"full(_every_layer)?|uniform", word) else word


def _layers_per_stage(row: "_Cells") -> tuple[int, ...] | None:
    text = row.text("layers_per_stage")
    if not text:
        return None
    parts = re.split(r"[\s,;]+", text.strip("[]() "))
    if not all(re.fullmatch("[0-9]{1,9}", part) for part in parts):
        raise InputError(row.where, f"layers_per_stage must be whole numbers such as 10,12,12,10, got {shown(text)}.")
    return tuple(int(part) for part in parts)


def _check_extra(row: "_Cells", run: MeasuredRun) -> None:
    """Raise ``InputError`` for an invalid kernel, precision or optional column."""
    if run.attention_kernel and attention_words(run.attention_kernel) is None:
        raise InputError(row.where, unknown_attention(run.attention_kernel))
    if precision_of(run.precision) is None:
        raise InputError(
            row.where, f"precision must be empty or one of {KNOWN_PRECISIONS}, got {shown(run.precision)}."
        )
    for name in FLAGS:
        row.flag(name)
    row.whole("kv_channels")
    row.whole("loss_chunks")
    row.number(BANDWIDTH_COLUMN, above_zero=True)
    row.number(FIRST_PARAMETERS_COLUMN, above_zero=True)
    stage = row.text("peak_mem_stage")
    if not re.fullmatch("[0-9]{1,9}", stage):
        row.word("peak_mem_stage", STAGE_WORDS, " or the number of a stage, 0 for the first")
    elif run.pp is not None and int(stage) >= run.pp:
        raise InputError(row.where, f"peak_mem_stage must be less than pp = {run.pp}, got {stage}; 0 is the first.")


def _check_units(where: str, run: MeasuredRun) -> None:
    """Raise ``InputError`` for values that cannot be in seconds, GiB and sequences."""
    if run.iter_time_s is not None and run.iter_time_s > LONGEST_ITERATION_S:
        raise InputError(where, f"iter_time_s is more than a day: {run.iter_time_s:g}; it must be in seconds.")
    check_time(where, run)
    if run.peak_mem_bytes is not None and run.gpu is not None and run.peak_mem_bytes > 1.3 * run.gpu.gpu.memory_bytes:
        slip = "check the GPU of the log" if run.source == OF_A_LOG else "it must be in GiB, of one GPU"
        raise InputError(
            where,
            f"peak_mem_gib={run.peak_mem_bytes / GIB:g} is more than a {run.gpu.gpu.name} has "
            f"({run.gpu.gpu.memory_bytes / GIB:.1f} GiB); {slip}.",
        )


def _check_shape(where: str, run: MeasuredRun) -> None:
    # Stages of unequal degrees have no columns.
    uneven = "per stage" in run.notes or "stage_gpus" in run.extra
    if run.tp is not None and run.pp is not None and run.dp is not None and not uneven:
        degrees = run.tp * run.cp * run.pp * run.dp
        if degrees != run.num_gpus:
            raise InputError(
                where,
                f"tp * cp * pp * dp = {run.tp} * {run.cp} * {run.pp} * {run.dp} = {degrees} must be "
                f"num_gpus = {run.num_gpus}.",
            )
    if run.vpp > 1 and run.pp == 1:
        raise InputError(
            where,
            f"vpp={run.vpp} needs pp > 1, got pp = 1: a single stage cannot be interleaved; leave vpp empty, or "
            "correct pp.",
        )
    if None not in (run.gbs, run.mbs, run.dp) and run.gbs % (run.dp * run.mbs):  # type: ignore[operator]
        raise InputError(
            where, f"gbs={run.gbs} must be a multiple of dp * mbs = {run.dp} * {run.mbs}; both count sequences."
        )


@dataclass(frozen=True, slots=True)
class _Cells:
    """Cells of a row, each checked when a field asks for it."""

    where: str
    cells: Mapping[str, str]

    def text(self, name: str) -> str:
        value = self.cells.get(name, "")
        return "" if value.lower() in ("nan", "none", "null") and name != "recompute" else value

    def needed(self, name: str) -> str:
        value = self.text(name)
        if not value:
            raise InputError(self.where, f"{name} must not be empty.")
        return value

    def number(self, name: str, *, above_zero: bool = False) -> float | None:
        text = self.text(name)
        if not text:
            return None
        try:
            value = number_of(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value < 0 or (above_zero and value == 0):
            raise InputError(
                self.where, f"{name} must be a number {'> 0' if above_zero else '>= 0'}, got {shown(text)}."
            )
        return value

    def whole(self, name: str, *, broken: bool = False) -> int | None:
        """
        Return a cell as a whole number, also if written as ``2.0``; ``None`` if empty.

        A fraction is ``None`` with ``broken``, else an ``InputError``.
        """
        text = self.text(name)
        value = self.number(name, above_zero=True)
        if value is None:
            return None
        if value != int(value):
            if broken:
                return None
            raise InputError(self.where, f"{name} must be a whole number >= 1, got {shown(text)}.")
        return int(value)

    def needed_whole(self, name: str) -> int:
        self.needed(name)
        value = self.whole(name)
        assert value is not None
        return value

    def flag(self, name: str) -> bool | None:
        text = self.text(name)
        value = truth_of(text)
        if text and value is None:
            raise InputError(self.where, f"{name} must be True or False, got {shown(text)}.")
        return value

    def word(self, name: str, words: tuple[str, ...], others: str = "") -> None:
        """Raise ``InputError`` for a cell that is neither empty nor one of ``words``, in any case."""
        text = self.text(name)
        if text and text.lower() not in words:
            raise InputError(self.where, f"{name} must be one of {', '.join(words)}{others}, got {shown(text)}.")

    def choice(self, name: str, choices: tuple[str, ...]) -> int | None:
        text = self.text(name).removesuffix(".0")
        if text and text not in choices:
            raise InputError(self.where, f"{name} must be one of {', '.join(choices)}, got {shown(text)}.")
        return int(text) if text else None
