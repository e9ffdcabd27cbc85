"""Reader of measured runs, ``runs.csv``, with a check of each row."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import GIB, counted, listed
from pipette_opt.read.attention_words import attention_words, unknown_attention
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.files import read_csv
from pipette_opt.read.gpus import CatalogueEntry, read_gpu_catalogue, recognise_gpu
from pipette_opt.read.kinds_of_files import RUNS_TABLE, reads
from pipette_opt.read.measured_run import MeasuredRun as MeasuredRun
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.megatron_table import megatron_options
from pipette_opt.read.precision_words import KNOWN as KNOWN_PRECISIONS
from pipette_opt.read.precision_words import precision_of
from pipette_opt.read.run_bounds import OF_A_LOG, check_time
from pipette_opt.read.run_cells import Cells
from pipette_opt.read.run_finetune import COLUMNS as FINETUNE_COLUMNS
from pipette_opt.read.run_finetune import METHOD_COLUMN, has_documents, with_usual_cells
from pipette_opt.read.run_launches import ARGUMENTS_COLUMN, launch_in_columns, read_launch
from pipette_opt.read.run_models import EXPERT_COLUMNS, Sizes, model_by_name
from pipette_opt.read.run_software import FRAMEWORK_COLUMN
from pipette_opt.read.run_stages import FIRST_PARAMETERS_COLUMN, layers_in_column

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
"""Columns of measured values."""

WHOLE = (
    *("num_layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "seq_len"),
    *("gbs", "mbs", "tp", "pp", "dp", "vpp", "cp"),
)
"""Columns of whole numbers; others are read apart."""

TUNED_COLUMN = "tuned"
"""Optional column: whether the run follows its vendor's performance recipe (NeMo, Megatron-Bridge, MLPerf)."""

FLAGS = (
    TUNED_COLUMN,
    "gated_linear_unit",
    "tied_embeddings",
    "add_bias_linear",
    "add_qkv_bias",
    "fused_norm",
    "fused_loss",
    "fused_attention",
    "grad_reduce_in_fp32",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "overlap_moe_expert_parallel_comm",
)
"""Optional columns that are true or false."""

BANDWIDTH_COLUMN = "node_bandwidth_gb_per_s"
"""Optional column: bandwidth from all GPUs of a host to another host, GB/s, if runs are of several clusters."""

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
    *EXPERT_COLUMNS,
    *FINETUNE_COLUMNS,
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
    names = list(dict.fromkeys(name for run in runs for name in run.cells if not _is_read(name, run)))
    if not names:
        return ""
    hints = [hint for name in names if (hint := did_you_mean(name, [*COLUMNS, *OPTIONAL]))]
    return f"{counted(len(names), 'column')} not used: {listed(names, 12)}.{''.join(hints[:1])}"


def _is_read(name: str, run: MeasuredRun) -> bool:
    """Return whether a column of a row is used; with a launch in words, any option of Megatron-LM is."""
    return name in (*COLUMNS, *OPTIONAL, ARGUMENTS_COLUMN) or (bool(run.launch.text) and name in megatron_options())


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
        where = f"{path}, line {line}"
        try:
            if None in cells:
                raise InputError(where, f"has more cells than the header: {shown(cells[None])}.")
            runs.append(read_row(where, index, cells, Path(path).parent))
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
    for name in REQUIRED[:2] if {ARGUMENTS_COLUMN, METHOD_COLUMN} & set(header) else REQUIRED:
        if name not in header:
            hint = did_you_mean(name, header)
            raise InputError(where, f"needs the column {name}.{hint} All: {', '.join(COLUMNS)}.")
    if not any(name in header for name in MEASURED):
        raise InputError(where, f"has no measured value: add at least one of the columns {', '.join(MEASURED)}.")


def read_row(where: str, index: int, cells: Mapping[str, str | None], folder: Path) -> MeasuredRun:
    """
    Return the run in a row of ``runs.csv``, checked; ``InputError`` at ``where`` for a row that cannot be right.

    Parameters
    ----------
    cells
        Text of each column; ``None`` for a column that the row ends before.
    folder
        Folder of the files that the row names.
    """
    given = with_usual_cells(Cells(where, {name: (text or "").strip() for name, text in cells.items()}))
    row = Cells(where, {name: given.text(name) for name in given.cells})
    memory_gib = row.number("gpu_mem_gib", above_zero=True)
    gpu = find_run_gpu(row.needed("gpu"), memory_gib)
    gpus_per_node, num_gpus = row.whole("gpus_per_node") or 8, row.needed_whole("num_gpus")
    sizes = {name: row.whole(name, broken=name in ("mbs", "vpp")) for name in WHOLE}
    row.flag("seq_parallel")
    row.word("zero_stage", ("0", "1", "2", "3"))
    layers_in_column(row)
    time_s, peak_gib = row.number("iter_time_s", above_zero=True), row.number("peak_mem_gib", above_zero=True)
    oom, mfu = row.flag("oom"), row.number("mfu")
    named = model_by_name(row, sizes, folder)
    _check_words(row)
    if row.text(ARGUMENTS_COLUMN):
        launch = read_launch(row.cells, where, folder, named)
        sizes |= _sizes_of(launch, num_gpus, sizes["dp"])
        missing = ", ".join(name for name in ("seq_len", "gbs") if sizes[name] is None)
        unpredictable = f"{missing} not given" if missing else ""
    else:
        launch, unpredictable = launch_in_columns(row, sizes, named)
    run = MeasuredRun(
        row=index,
        source=row.text("source"),
        gpu=gpu,
        gpu_name=row.text("gpu"),
        gpus_per_node=gpus_per_node,
        num_gpus=num_gpus,
        model=row.text("model"),
        launch=launch,
        unpredictable=unpredictable if gpu is not None else f"the catalogue has no GPU {row.text('gpu')!r}",
        iter_time_s=time_s,
        peak_mem_bytes=None if peak_gib is None else peak_gib * GIB,
        oom=oom,
        mfu=mfu,
        notes=row.text("notes"),
        cells=row.cells,
    )
    _check_stage(row, sizes["pp"])
    run = _with_units_checked(where, run)
    _check_shape(row, sizes, num_gpus)
    return run


def _sizes_of(launch: MegatronArgs, num_gpus: int, dp: int | None) -> dict[str, int | None]:
    """Return the numbers of a launch in words by column, for the checks of its row; ``dp`` is that of the row."""
    assert launch.model is not None
    config = launch.parallel_config(launch.model.num_layers, num_gpus)
    return {
        "seq_len": launch.seq_length,
        "gbs": launch.global_batch_size,
        "mbs": config.micro_batch_size,
        "tp": config.tensor_model_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "dp": dp or config.data_parallel_size,
        "vpp": config.num_chunks,
        "cp": config.context_parallel_size,
    }


def _check_words(row: Cells) -> None:
    """Raise ``InputError`` for an invalid kernel, precision or optional column."""
    kernel, precision = row.text("attention_kernel"), row.text("precision")
    if kernel and attention_words(kernel) is None:
        raise InputError(row.where, unknown_attention(kernel))
    if precision_of(precision) is None:
        name = shown(precision.lower().replace("_", "-"))
        raise InputError(row.where, f"precision must be empty or one of {KNOWN_PRECISIONS}, got {name}.")
    for name in FLAGS:
        row.flag(name)
    row.whole("kv_channels")
    row.whole("loss_chunks")
    row.number(BANDWIDTH_COLUMN, above_zero=True)
    row.number(FIRST_PARAMETERS_COLUMN, above_zero=True)


def _check_stage(row: Cells, pp: int | None) -> None:
    """Raise ``InputError`` for a stage of the peak that the run does not have."""
    stage = row.text("peak_mem_stage")
    if not re.fullmatch("[0-9]{1,9}", stage):
        row.word("peak_mem_stage", STAGE_WORDS, " or the number of a stage, 0 for the first")
    elif pp is not None and int(stage) >= pp:
        raise InputError(row.where, f"peak_mem_stage must be less than pp = {pp}, got {stage}; 0 is the first.")


def _with_units_checked(where: str, run: MeasuredRun) -> MeasuredRun:
    """
    Return the run, without a time that only documents shorter than the length of the row explain.

    ``InputError`` for values that cannot be in seconds, GiB and sequences.
    """
    if run.iter_time_s is not None and run.iter_time_s > LONGEST_ITERATION_S:
        raise InputError(where, f"iter_time_s is more than a day: {run.iter_time_s:g}; it must be in seconds.")
    try:
        check_time(where, run)
    except InputError as error:
        if not has_documents(run.cells):
            raise
        run = replace(run, iter_time_s=None, dropped_time=f"documents are shorter than seq_len: {error.problem}")
    if run.peak_mem_bytes is not None and run.gpu is not None and run.peak_mem_bytes > 1.3 * run.gpu.gpu.memory_bytes:
        slip = "check the GPU of the log" if run.source == OF_A_LOG else "it must be in GiB, of one GPU"
        raise InputError(
            where,
            f"peak_mem_gib={run.peak_mem_bytes / GIB:g} is more than a {run.gpu.gpu.name} has "
            f"({run.gpu.gpu.memory_bytes / GIB:.1f} GiB); {slip}.",
        )
    return run


def _check_shape(row: Cells, sizes: Sizes, num_gpus: int) -> None:
    """Raise ``InputError`` for degrees and batch sizes that contradict each other."""
    tp, pp, dp, gbs, mbs = (sizes[name] for name in ("tp", "pp", "dp", "gbs", "mbs"))
    cp, vpp = sizes["cp"] or 1, sizes["vpp"] or 1
    # Stages of unequal degrees have no columns.
    uneven = "per stage" in row.text("notes") or "stage_gpus" in row.cells
    if tp is not None and pp is not None and dp is not None and not uneven:
        degrees = tp * cp * pp * dp
        if degrees != num_gpus:
            raise InputError(
                row.where,
                f"tp * cp * pp * dp = {tp} * {cp} * {pp} * {dp} = {degrees} must be num_gpus = {num_gpus}.",
            )
    if vpp > 1 and pp == 1:
        raise InputError(
            row.where,
            f"vpp={vpp} needs pp > 1, got pp = 1: a single stage cannot be interleaved; leave vpp empty, or "
            "correct pp.",
        )
    if gbs is not None and mbs is not None and dp is not None and gbs % (dp * mbs):
        raise InputError(row.where, f"gbs={gbs} must be a multiple of dp * mbs = {dp} * {mbs}; both count sequences.")
