"""A folder of Megatron-LM training logs as rows of ``runs.csv``."""

import csv
import io
import re
from pathlib import Path
from statistics import median

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import MegatronArgs
from pipette_opt.read.runs import COLUMNS

SUFFIXES = (".log", ".out", ".txt", ".err")

WARM_UP = 3
"""First reported iterations left out, if there are more."""

_ARGUMENT = re.compile(r"^\s*(?:\S+:\s*)?(?:\[[^\]]*\]:?\s*)?([a-z][a-z0-9_]+) \.{2,} (.*?)\s*$")
_TIME = re.compile(r"elapsed time per iteration \(ms\):\s*(\d+(?:\.\d+)?)\s*\|")
_GBS = re.compile(r"global batch size:\s*(\d+)")
_MEMORY = re.compile(r"\[Rank \d+\].*?memory \(MB\).*?max allocated:\s*([\d.]+).*?max reserved:\s*(\d+\.?\d*)\s*?[|\n]")
_OOM = re.compile(r"CUDA out of memory|OutOfMemoryError", re.IGNORECASE)
_HEADER = re.compile(r"-{3,} arguments -{3,}")
_GPU = re.compile(r"(?:NVIDIA\s+)((?:GB|GH|B|H|A|V|L|T)\d{1,3}[\w\- ]*)")

RECOMPUTE = {"selective": "selective", "full": "full"}


def import_runs(paths: list[Path], *, gpu: str | None = None, gpus_per_node: int = 8) -> tuple[str, list[str]]:
    """
    Read logs, one run each; give the CSV text and what was assumed or left out, for people.

    A log is what Megatron-LM prints: its arguments (``name ....... value``), lines with ``elapsed time per iteration
    (ms)``, and ``[Rank r] (after n iterations) memory (MB)`` reports. The time of a run is the median over its reports
    after the first few; the memory the largest ``max reserved`` of the ranks that report. Files without arguments or
    without either result are left out. Lines of several ranks may come mixed, with or without a prefix. A report that
    breaks off in the middle is not read. A file to which a restarted job appended is read from its last start.

    Parameters
    ----------
    gpu
        Kind of GPU; by default what a log says, if it does.
    """
    files = sorted(file for path in paths for file in _files(path))
    if not files:
        raise InputError(", ".join(map(str, paths)), f"has no logs; they end in {', '.join(SUFFIXES)}.")
    rows, notes = [], []
    for file in files:
        row = _read_log(file, gpu, gpus_per_node)
        if isinstance(row, str):
            notes.append(f"{file.name}: left out, {row}")
        else:
            rows.append(row)
    if not rows:
        raise InputError(", ".join(map(str, paths)), f"no log could be used. {' '.join(notes)}")
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=[*COLUMNS, *EXTRA], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    notes.append("time: median over the reported iterations; memory: largest max reserved of the reporting ranks")
    return text.getvalue(), notes


EXPERTS = {
    "moe_router_topk": "moe_router_topk",
    "moe_ffn_hidden_size": "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size": "moe_shared_expert_intermediate_size",
    "ep": "expert_model_parallel_size",
    "etp": "expert_tensor_parallel_size",
}
"""Columns of a mixture of experts, and Megatron's arguments for them; what is ``None`` there stays empty."""

NOT_READ = ("use_megatron_fsdp", "use_custom_fsdp", "use_torch_fsdp2", "fp4")
"""Arguments of runs that would pass for others: of sharded parameters, and of products in 4 bits."""

EXTRA = (
    "gated_linear_unit",
    "tied_embeddings",
    "add_bias_linear",
    "add_qkv_bias",
    "kv_channels",
    "layers_per_stage",
    "num_experts",
    *EXPERTS,
)
"""Columns beyond the common ones that Megatron's arguments tell."""


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return [file for file in path.rglob("*") if file.is_file() and file.suffix in SUFFIXES]
    if not path.exists():
        raise InputError(str(path), "there is no such file or folder.")
    return [path]


def _read_log(file: Path, gpu: str | None, gpus_per_node: int) -> dict[str, object] | str:
    """A row, or why there is none."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")  # a broken byte must not cost the other runs
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    named = _GPU.search(text)  # jobs print their machines before Megatron its arguments
    starts = [found.start() for found in _HEADER.finditer(text)]
    text = text[starts[-1] :] if starts else text
    arguments = {match[1]: match[2] for line in text.splitlines() if (match := _ARGUMENT.match(line))}
    if "world_size" not in arguments or "num_layers" not in arguments:
        return "no Megatron arguments (`world_size ..... 64` and so on)"
    times = [float(value) / 1e3 for value in _TIME.findall(text)]
    steady = times[WARM_UP:] if len(times) > WARM_UP else times
    reserved = [float(found[1]) / 1024.0 for found in _MEMORY.findall(text)]
    oom = bool(_OOM.search(text))
    if not steady and not reserved and not oom:
        return "neither times nor memory reports nor an out-of-memory error"
    kind = gpu or (named[1].strip() if named else "")
    if not kind:
        return "the log does not name the GPU; give --gpu"
    if _says(arguments, "num_experts") and arguments.get("moe_layer_freq", "1") != "1":
        return f"moe_layer_freq is {arguments['moe_layer_freq']}; runs.csv knows experts in every layer only"
    for name in NOT_READ:
        if arguments.get(name, "None") not in ("None", "False"):
            return f"{name} is {arguments[name]}, which is not read from logs"
    try:
        row = _row_of(arguments)
    except InputError as error:
        return error.problem
    except (KeyError, ValueError) as error:
        return f"the argument {error} is missing or no number"
    batches = _GBS.findall(text)
    return row | {
        "source": "megatron-lm log",
        "gpu": kind,
        "gpus_per_node": min(gpus_per_node, int(str(row["num_gpus"]))),
        "gbs": batches[-1] if batches else row["gbs"],
        "iter_time_s": "" if oom or not steady else f"{median(steady):.6g}",
        "peak_mem_gib": "" if oom or not reserved else f"{max(reserved):.4f}",
        "oom": oom,
        "notes": f"{file.name}; {len(times)} reports of time; memory: max reserved",
    }


def _says(arguments: dict[str, str], name: str) -> bool:
    return arguments.get(name, "None") not in ("None", "")


def _row_of(arguments: dict[str, str]) -> dict[str, object]:
    """Columns that Megatron's arguments tell."""

    def number(name: str, default: int | None = None) -> int:
        if not _says(arguments, name):
            if default is None:
                raise KeyError(name)
            return default
        try:
            return int(arguments[name])
        except ValueError:
            raise ValueError(name) from None

    def experts() -> dict[str, object]:
        if not _says(arguments, "num_experts"):
            return {}
        told = {column: number(name) for column, name in EXPERTS.items() if _says(arguments, name)}
        return {"num_experts": number("num_experts"), **told}

    def flag(name: str) -> bool:
        return arguments.get(name) == "True"

    def stages() -> dict[str, object]:
        """Layers of each stage where the ends are named or counted."""
        first, last = (
            number(name) if _says(arguments, name) else None
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
    recompute = arguments.get("recompute_granularity", "None")
    return {
        "num_gpus": world,
        "model": f"{layers}L-{hidden}h" + ("-swiglu" if flag("swiglu") else ""),
        "num_layers": layers,
        "hidden": hidden,
        "ffn_hidden": number("ffn_hidden_size", 4 * hidden),
        "heads": heads,
        "kv_heads": number("num_query_groups", heads) if grouped else heads,
        "vocab": number("padded_vocab_size", 50304),
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
        "recompute": RECOMPUTE.get(recompute, "none"),
        "attention_kernel": _attention_kernel(arguments),
        "precision": _precision(arguments),
        "gated_linear_unit": flag("swiglu"),
        "tied_embeddings": not flag("untie_embeddings_and_output_weights"),
        "add_bias_linear": biases,
        "add_qkv_bias": biases or flag("add_qkv_bias"),
        "kv_channels": number("kv_channels", hidden // heads),
        **stages(),
        **experts(),
    }


def _precision(arguments: dict[str, str]) -> str:
    """``fp8`` where matrix products are (``--fp8-format``), else the format of parameters."""
    if arguments.get("fp8", "None") != "None":
        return "fp8"
    return next((name for name in ("bf16", "fp16") if arguments.get(name) == "True"), "fp32")


def _attention_kernel(arguments: dict[str, str]) -> str:
    """
    ``flash`` where attention keeps no scores, else ``unfused``.

    ``AttnBackend.flash`` and cuDNN's ``AttnBackend.fused`` keep none, and with Transformer Engine ``AttnBackend.auto``,
    Megatron's default, takes one of the two (Megatron-LM, ``megatron/training/arguments.py``).
    """
    backend = arguments.get("attention_backend", "").removeprefix("AttnBackend.")
    chosen = backend == "auto" and arguments.get("transformer_impl", "transformer_engine") == "transformer_engine"
    fused = arguments.get("use_flash_attn") == "True" or backend in ("flash", "fused") or chosen
    return "flash" if fused else "unfused"
