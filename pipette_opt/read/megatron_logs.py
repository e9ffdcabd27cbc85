"""Import of Megatron-LM training logs as rows of ``runs.csv``."""

import csv
import io
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from pipette_opt.base.degrees import EXPERT, EXPERT_TENSOR
from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.base.units import whole_number
from pipette_opt.parallel.recompute import known_word
from pipette_opt.read.kinds_of_files import HEAD_CHARACTERS, MEGATRON_LOG, binary_kind, looks_like
from pipette_opt.read.log_lines import MAX_CHARACTERS, MAX_LINES, Log, within_caps
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.megatron_printed import ARGUMENT, HEADER, unread_arguments
from pipette_opt.read.run_bounds import OF_A_LOG
from pipette_opt.read.runs import COLUMNS, read_row
from pipette_opt.read.sizing_words import named

logger = logging.getLogger(__name__)

SUFFIXES = (".log", ".out", ".txt", ".err")

WARM_UP = 3
"""Number of reported iterations left out as warm-up; with no more reports than this, only the first. Chosen."""

_TIME = re.compile(
    r"elapsed time per iteration \(ms\):\s*([0-9]+(?:\.[0-9]+)?)(?:/[0-9]+(?:\.[0-9]+)?)?\s*[|\n]", re.ASCII
)  # Primus: time/mean
_FIRST = re.compile(r"\biteration\s+1/")
_GBS = re.compile(r"global batch size:\s*([0-9]+)\s*\|", re.ASCII)
_RESERVED = re.compile(r"max reserved:\s*([0-9]+(?:\.[0-9]*)?)\s*[|\n\[]", re.ASCII)
_HIP_USED = re.compile(r"hip mem usage/free/total/usage_ratio:\s*([0-9]+(?:\.[0-9]+)?)GB/", re.ASCII)
_OOM = re.compile(
    r"OutOfMemoryError:|(?:CUDA|HIP) out of memory\. Tried to allocate"
    r"|RuntimeError: (?:CUDA|HIP)(?: error:)? out of memory",
    re.IGNORECASE,
)
"""Pattern of an error of PyTorch; any other mention of it may be a hint (``_OOM_MENTION``)."""

_OOM_MENTION = re.compile(r"(?:CUDA|HIP) out of memory|OutOfMemoryError", re.IGNORECASE)
_END_OF_ARGUMENTS = "end of arguments"
_GPU = re.compile(
    r"NVIDIA\s+(?P<nvidia>(?:GB|GH|B|H|A|V|L|T)[0-9]{1,3}[\w\- ]*)|AMD Instinct (?P<amd>MI[0-9]{2,3}[A-Z]*)"
)

RECOMPUTE = {"selective": "selective", "full": "full"}


def import_runs(paths: list[Path], *, gpu: str | None = None, gpus_per_node: int = 8) -> tuple[str, list[str]]:
    """
    Return the CSV text of ``runs.csv`` for logs of one run each, and notes on assumptions and omissions.

    A log has Megatron-LM's arguments (``name ....... value``), lines with ``elapsed time per iteration (ms)``, and
    ``[Rank r] (after n iterations) memory (MB)`` reports. The variants of Primus, with its prefix, are read as well.
    The time of a run is the median of its reports after warm-up. Its memory is the largest ``max reserved`` of all
    reporting ranks. A log without arguments, or without both results, is left out. Lines of several ranks may be mixed,
    with or without a prefix. An incomplete report is not read. If a restarted job appended to a log, the last start is
    read.

    Parameters
    ----------
    paths
        Log files, or folders of logs.
    gpu
        GPU type; by default from the log.
    """
    found = [_files(path) for path in paths]
    files, others = (sorted(file for pair in found for file in pair[index]) for index in (0, 1))
    notes = [f"{file.name}: not read, a log ends in {', '.join(SUFFIXES)}.{_looks_like(file)}" for file in others]
    where = ", ".join(map(str, paths))
    if not files:
        raise InputError(where, " ".join([f"has no logs; they end in {', '.join(SUFFIXES)}.", *notes[:_NAMED]]))
    rows, unused = [], []
    for file in files:
        row, lines = _read_log(file, gpu, gpus_per_node)
        if isinstance(row, str):
            notes.append(f"{file.name}{row}")
        else:
            rows.append(row)
            unused += [f"{file.name}: {lines}"] if lines else []
    if not rows:
        reasons = [f"{note.removesuffix('.')}." for note in notes if "left out" in note][:_NAMED]
        raise InputError(where, f"no log could be used. {' '.join(reasons)}")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=[*COLUMNS, *EXTRA], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    notes += unused[:_NAMED]
    if len(unused) > _NAMED:
        notes.append(f"{len(unused) - _NAMED} more logs have lines that were not used")
    notes.append(
        "time: median over the reported iterations; memory: largest max reserved of the reporting ranks, or what "
        "Primus says is used on the device"
    )
    return text.getvalue(), notes


EXPERTS = {
    "moe_router_topk": "moe_router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    **{degree.short: degree.field for degree in (EXPERT, EXPERT_TENSOR)},
}
"""Columns of ``runs.csv`` on experts, and Megatron's argument for each; an absent argument gives an empty cell."""

NOT_READ = (
    "use_megatron_fsdp",
    "use_custom_fsdp",
    "use_torch_fsdp2",
    "fp4",
    "multi_latent_attention",
    "mtp_num_layers",
    "hybrid_override_pattern",
    "hybrid_layer_pattern",
    "hybrid_attention_ratio",
    "heterogeneous_layers_config_path",
    "experimental_attention_variant",
    "window_size",
)
"""Arguments without a column in ``runs.csv``: sharded parameters, 4-bit products, other kinds of layers."""

_OFF = ("None", "False", "", "0", "0.0")

_NAMED = 12

EXTRA = (
    "gated_linear_unit",
    "tied_embeddings",
    "add_bias_linear",
    "add_qkv_bias",
    "kv_channels",
    "layers_per_stage",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "cuda_graph",
    "num_experts",
    *EXPERTS,
    "dispatcher",
    "overlap_moe_expert_parallel_comm",
)
"""Optional columns of ``runs.csv`` that Megatron's arguments fill."""


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the logs and the other files of a folder. A file given by itself counts as a log, whatever its name."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
        logs = [file for file in files if file.suffix in SUFFIXES]
        return logs, [file for file in files if file not in set(logs)]
    if not path.exists():
        raise InputError(str(path), "the file or folder does not exist.")
    return [path], []


def _looks_like(file: Path) -> str:
    """Return a sentence on the likely kind of a file that is no log; empty if unknown or unreadable."""
    try:
        data = read_bytes(file)[:HEAD_CHARACTERS]
    except (OSError, InputError):
        return ""
    kind = binary_kind(data)
    return f" It looks like {kind}." if kind else looks_like(data.decode("utf-8", errors="replace"))


@dataclass(slots=True)
class Reports:
    """
    Arguments and reports of a log, collected line by line.

    Parameters
    ----------
    arguments
        Megatron's printed arguments, by name.
    ended
        Whether the list of arguments is complete.
    times
        Seconds of an iteration and the batch size, as text, of each report; the batch size is empty if not reported.
    has_first
        Whether the first report covers only the first iteration of the job.
    reserved_gib, used_gib
        Reports of memory that PyTorch reserved, and that the device used (Primus), GiB.
    has_error, has_mention
        Whether an out-of-memory error was logged; whether a line has its words, as a hint may.
    warm_up
        Number of reported iterations left out as warm-up.
    time_line
        Number of the line with the last time; 0 without times.
    """

    arguments: dict[str, str] = field(default_factory=dict)
    ended: bool = False
    times: list[tuple[float, str]] = field(default_factory=list)
    has_first: bool = False
    reserved_gib: list[float] = field(default_factory=list)
    used_gib: list[float] = field(default_factory=list)
    has_error: bool = False
    has_mention: bool = False
    warm_up: int = WARM_UP
    time_line: int = 0

    def add(self, line: str) -> bool:
        """Add the report in a line; return whether the line has one. Only an incomplete last line has no line break."""
        if argument := ARGUMENT.match(line):
            self.arguments[argument["name"]] = argument["value"].rstrip()
            return True
        self.ended |= _END_OF_ARGUMENTS in line
        time, batch = _TIME.search(line), _GBS.search(line)
        memory = [
            float(found[1]) / 1024.0
            for report in line.split("[Rank ")[1:]
            if "memory (MB)" in report and (found := _RESERVED.search(report))
        ]
        hip = _HIP_USED.search(line)
        on_memory = "memory" in line.lower()
        error, mention = (on_memory and pattern.search(line) is not None for pattern in (_OOM, _OOM_MENTION))
        if time:
            self.has_first |= _FIRST.search(line) is not None
            self.times.append((float(time[1]) / 1e3, batch[1] if batch else ""))
        self.reserved_gib += memory
        self.used_gib += [float(hip[1])] if hip else []
        self.has_error |= error
        self.has_mention |= mention
        return bool(
            time
            or memory
            or hip
            or error
            or mention
            or HEADER in line
            or _END_OF_ARGUMENTS in line
            or _GPU.search(line)
        )

    @property
    def oom(self) -> bool:
        """Return whether memory ran out: by an error, or by a mention of it in a log without an iteration."""
        return self.has_error or (self.has_mention and not self.times)

    @property
    def batch(self) -> str:
        """Batch size, as text, in the last report that has a batch size; empty without."""
        return next((batch for _, batch in reversed(self.times) if batch), "")

    @property
    def memory_gib(self) -> list[float]:
        """Reports of memory that PyTorch reserved, or else that the device used, GiB."""
        return self.reserved_gib or self.used_gib

    @property
    def steady_s(self) -> list[float]:
        """Seconds of each reported iteration after warm-up, only with the final batch size if it was ramped up."""
        enough = len(self.times) > self.warm_up
        left_out = self.warm_up if enough else int(len(self.times) > 1 or self.has_first)
        times, last = self.times[left_out:], self.batch
        return [time for time, batch in times if batch in ("", last)]


def read_as_log(data: bytes, name: str) -> Log:
    """Return the content of a log file as lines; of a huge log its start and its end, which is said."""
    whole = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", errors="replace").read()  # any line ends
    text, left_out = within_caps(whole)
    if left_out:
        logger.warning(
            "%s: %d of its %d MB, in the middle, are not read, as a log is read up to %s lines and %d MB",
            name,
            -(-left_out // 10**6),
            -(-len(whole) // 10**6),
            f"{MAX_LINES:,}",
            MAX_CHARACTERS // 10**6,
        )
    return Log(text)


def reports_of(log: Log, warm_up: int = WARM_UP) -> Reports:
    """Return the arguments and reports of the last start in a log; lines with any are marked as used."""
    reports = Reports(warm_up=warm_up)
    for line in log.lines:
        if HEADER in line.text:  # a restarted job appends to its log
            reports = Reports(warm_up=warm_up)
        is_cut = log.is_cut and line is log.lines[-1]
        num_times = len(reports.times)
        if reports.add(line.text if is_cut else f"{line.text}\n"):
            log.use(line)
        if len(reports.times) > num_times:
            reports.time_line = line.number
    return reports


def _read_log(file: Path, gpu: str | None, gpus_per_node: int) -> tuple[dict[str, object] | str, str]:
    """
    Return the ``runs.csv`` row of a log, or why there is none, and a sentence on unused lines.

    The reason is the end of a note that begins with the name of the log, and has the line if a time is wrong.
    """
    try:
        data = read_bytes(file)
    except OSError as error:
        return f": left out, it cannot be read: {error.strerror or error}", ""
    except InputError as error:  # larger than any log, or not a regular file: the other runs are read
        return f": left out, {error.problem}", ""
    log = read_as_log(data, file.name)
    named = next((match for line in log.lines if (match := _GPU.search(line.text))), None)
    reports = reports_of(log)
    kind = gpu or ("" if named is None else (named["nvidia"] or named["amd"]).strip())
    row = _row(reports, file.name, kind, gpus_per_node, log.text)
    if isinstance(row, str):
        return f": left out, {row}", ""
    try:
        read_row(file.name, 0, {name: str(value) for name, value in row.items()}, file.parent)
    except InputError as error:
        line = f", line {reports.time_line}" if error.problem.startswith("iter_time_s") else ""
        return f"{line}: left out, {error.problem}", ""
    return row, log.unused()


def _row(reports: Reports, name: str, kind: str, gpus_per_node: int, text: str) -> dict[str, object] | str:
    """Return the ``runs.csv`` row of the reports in a log, or the reason why there is none."""
    arguments = reports.arguments
    if "world_size" not in arguments or "num_layers" not in arguments:
        if arguments and not reports.ended:
            return f"its arguments break off behind {list(arguments)[-1]}; world_size or num_layers is missing"
        return f"no Megatron arguments (`world_size ..... 64` and so on).{looks_like(text, but=(MEGATRON_LOG,))}"
    steady, oom = reports.steady_s, reports.oom
    memory = reports.memory_gib
    if not steady and not memory and not oom and reports.times:
        return "it reports only its first iteration, which takes longer than the others"
    if not steady and not memory and not oom:
        return "neither times nor memory reports nor an out-of-memory error"
    if not kind:
        return "the log does not name the GPU; give --gpu"
    if _is_set(arguments, "num_experts") and arguments.get("moe_layer_freq", "1") != "1":
        return f"moe_layer_freq is {arguments['moe_layer_freq']}; runs.csv knows experts in every layer only"
    for argument in NOT_READ:
        if arguments.get(argument, "None") not in _OFF:
            return f"{argument} is {arguments[argument]}, which is not read from logs"
    unread = unread_arguments(arguments)
    if unread:
        return f"it sets {named(unread)}, which Megatron-LM lacks and no column of runs.csv holds"
    try:
        row = _row_of(arguments)
    except InputError as error:
        return error.problem
    except (KeyError, ValueError) as error:
        return f"the argument {error} is missing or not a number"
    of_memory = "max reserved" if reports.reserved_gib else "used on the device" if memory else "not reported"
    late = "; out of memory after these" if oom and steady else ""
    is_told = {"attention_backend", "transformer_impl", "use_flash_attn"} & arguments.keys()
    assumed = "" if is_told else "; attention: not printed, assumed fused as by Megatron's default"
    return row | {
        "source": OF_A_LOG,
        "gpu": kind,
        "gpus_per_node": min(gpus_per_node, int(str(row["num_gpus"]))),
        "gbs": reports.batch or row["gbs"],
        "iter_time_s": f"{median(steady):.6g}" if steady else "",
        "peak_mem_gib": "" if oom or not memory else f"{max(memory):.4f}",
        "oom": "" if oom and steady else oom,
        "notes": f"{name}; {len(reports.times)} reports of time{late}; memory: {of_memory}{assumed}",
    }


def _is_set(arguments: dict[str, str], name: str) -> bool:
    return arguments.get(name, "None") not in ("None", "")


def _row_of(arguments: dict[str, str]) -> dict[str, object]:
    """Return the ``runs.csv`` columns that Megatron's arguments fill."""

    def number(name: str, default: int | None = None) -> int:
        if not _is_set(arguments, name):
            if default is None:
                raise KeyError(name)
            return default
        value = whole_number(arguments[name])
        if value is None:
            raise ValueError(name)
        return value

    def experts() -> dict[str, object]:
        if not _is_set(arguments, "num_experts"):
            return {}
        columns = {column: number(name) for column, name in EXPERTS.items() if _is_set(arguments, name)}
        return {"num_experts": number("num_experts"), **columns, **_dispatcher(arguments)}

    def flag(name: str) -> bool:
        return arguments.get(name) == "True"

    def stages() -> dict[str, object]:
        """Return the column of layers per stage if the first or last stage has another number; else empty."""
        first, last = (
            number(name) if _is_set(arguments, name) else None
            for name in ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")
        )
        embedding, loss = (flag(f"account_for_{name}_in_pipeline_split") for name in ("embedding", "loss"))
        if first is None and last is None and not embedding and not loss:
            return {}
        dealt = MegatronArgs(
            where="",
            model=None,
            pipeline_model_parallel_size=pp,
            decoder_first_pipeline_num_layers=first,
            decoder_last_pipeline_num_layers=last,
            account_for_embedding=embedding,
            account_for_loss=loss,
        )
        return {"layers_per_stage": ",".join(map(str, dealt.layers_per_stage(layers)))}

    biases = arguments.get("add_bias_linear", "True") == "True"
    world, hidden, heads = number("world_size"), number("hidden_size"), number("num_attention_heads")
    tp, pp, cp = (
        number("tensor_model_parallel_size", 1),
        number("pipeline_model_parallel_size", 1),
        number("context_parallel_size", 1),
    )
    layers = number("num_layers")
    grouped = flag("group_query_attention")
    return {
        "num_gpus": world,
        "model": f"{layers}L-{hidden}h" + ("-swiglu" if flag("swiglu") else ""),
        "num_layers": layers,
        "hidden": hidden,
        "ffn_hidden": number("ffn_hidden_size", 4 * hidden),
        "heads": heads,
        "kv_heads": number("num_query_groups", heads) if grouped else heads,
        "vocab": next((number(name) for name in ("padded_vocab_size", "vocab_size") if _is_set(arguments, name)), ""),
        "seq_len": number("seq_length"),
        "gbs": number("global_batch_size"),
        "mbs": number("micro_batch_size"),
        "tp": tp,
        "pp": pp,
        "dp": number("data_parallel_size", world // (tp * pp * cp)),
        "vpp": number("virtual_pipeline_model_parallel_size", 1),
        "cp": cp,
        "seq_parallel": flag("sequence_parallel"),
        "zero_stage": int(flag("use_distributed_optimizer")),
        "recompute": _recompute(arguments, layers // pp),
        "attention_kernel": _attention_kernel(arguments),
        "precision": _precision(arguments),
        "gated_linear_unit": flag("swiglu"),
        "tied_embeddings": not flag("untie_embeddings_and_output_weights"),
        "add_bias_linear": biases,
        "add_qkv_bias": biases or flag("add_qkv_bias"),
        "kv_channels": number("kv_channels", hidden // heads),
        **_overlaps(arguments),
        **stages(),
        **experts(),
    }


def _overlaps(arguments: dict[str, str]) -> dict[str, object]:
    """Return the columns on communication overlap and CUDA graphs, for arguments that the log has."""
    columns: dict[str, object] = {
        name: arguments[name] == "True" for name in ("overlap_grad_reduce", "overlap_param_gather") if name in arguments
    }
    graphs = [
        arguments[name] for name in ("cuda_graph_impl", "enable_cuda_graph", "external_cuda_graph") if name in arguments
    ]
    if graphs:
        columns["cuda_graph"] = any(value not in ("none", *_OFF) for value in graphs)
    return columns


def _dispatcher(arguments: dict[str, str]) -> dict[str, object]:
    """Return the columns on the token dispatcher: its kind, and whether it overlaps compute."""
    columns: dict[str, object] = {}
    kind, backend = (arguments.get(f"moe_{name}", "") for name in ("token_dispatcher_type", "flex_dispatcher_backend"))
    if kind:
        columns["dispatcher"] = backend if kind == "flex" and backend not in _OFF else kind
    if "overlap_moe_expert_parallel_comm" in arguments:
        columns["overlap_moe_expert_parallel_comm"] = arguments["overlap_moe_expert_parallel_comm"] == "True"
    return columns


def _recompute(arguments: dict[str, str], layers_of_stage: int) -> str:
    """Return recomputation as labels have it: ``none``, ``selective`` or modules, ``full``, ``full block3``."""
    kind = RECOMPUTE.get(arguments.get("recompute_granularity", "None"), "none")
    number = arguments.get("recompute_num_layers", "None")
    if kind == "full" and arguments.get("recompute_method") == "block" and whole_number(number) is not None:
        return kind if int(number) >= layers_of_stage else f"full block{number}"
    listed = arguments.get("recompute_modules", "")
    modules = re.findall(r"\w+", listed, re.ASCII) if listed.startswith("[") else []
    if kind != "selective" or not modules:
        return kind
    try:
        return known_word("+".join(modules)) or kind
    except ValueError as error:
        raise InputError("recompute_modules", str(error)) from None


def _precision(arguments: dict[str, str]) -> str:
    """Return fp8 with its recipe if ``--fp8-format`` is given, else the format of parameters."""
    if arguments.get("fp8", "None") != "None":
        recipe = arguments.get("fp8_recipe", "delayed")
        return {"delayed": "fp8", "mxfp8": "mxfp8"}.get(recipe, f"fp8-{recipe}")
    return next((name for name in ("bf16", "fp16") if arguments.get(name) == "True"), "fp32")


def _attention_kernel(arguments: dict[str, str]) -> str:
    """
    Return ``flash`` if the attention kernel keeps no scores in memory, else ``unfused``.

    ``AttnBackend.flash`` and ``AttnBackend.fused`` (cuDNN) keep none. ``AttnBackend.auto``, the default, leaves the
    choice to Transformer Engine, which takes one of these two. So did the versions before ``--attention-backend`` (0.8
    to 0.10). Layers without Transformer Engine keep scores unless ``--use-flash-attn`` is given. Transformer Engine is
    the default of ``--transformer-impl``, and assumed if a log does not print it (Megatron-LM,
    ``megatron/training/arguments.py``).
    """
    backend = arguments.get("attention_backend", "auto").removeprefix("AttnBackend.")
    if backend == "auto":
        is_local = arguments.get("transformer_impl") == "local"
        return "unfused" if is_local and arguments.get("use_flash_attn") != "True" else "flash"
    return "flash" if backend in ("flash", "fused") else "unfused"
