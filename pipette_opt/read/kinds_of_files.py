"""
Kinds of files that people give to a planner, recognised by content, and the command that reads each kind.

A reader that does not understand a file names the kind that the file looks like: :func:`looks_like` for a text,
:func:`reads` as a decorator of a reader. A kind is recognised by words that its program always prints. The first
matching kind of ``KINDS`` counts.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.read.log_lines import untagged

P = ParamSpec("P")
T = TypeVar("T")

HEAD_CHARACTERS = 50_000
"""Number of characters at the start of a file that decide its kind. Chosen: arguments and headers are there."""

LINKS, RUNS, MODEL = "import links", "import runs", "import model"
ARGUMENTS, BESIDE = "estimate --args", "import links (beside measurements)"

CLUSTER_FILE = "a cluster file of pipette-opt"
PLAN_FILE = "a plan of pipette-opt"
STACK_FILE = "a stack of pipette-opt (constants of a framework)"
ARCHITECTURE_FILE = "an architecture file of pipette-opt"
RUNS_TABLE = "a table of measured runs (runs.csv)"
PROFILE_TABLE = "a table of layer times (profile layers)"
REGIONS_TABLE = "a table of links between regions"
HUGGING_FACE_CONFIG = "a config.json of Hugging Face"
LAUNCH_SCRIPT = "a shell script"
PRINTED_ARGUMENTS = "arguments of Megatron-LM, as it prints them"
TYPED_ARGUMENTS = "arguments of Megatron-LM, as they are typed"
CAPTURED_LAUNCH = "a launch that capture wrote"
MEGATRON_LOG = "a log of Megatron-LM"
PIPETTE_MATRICES = "Pipette's bandwidth matrices"


@dataclass(frozen=True, slots=True)
class FileKind:
    """
    Kind of file, and the marks that recognise it.

    Parameters
    ----------
    name
        Name of the kind, with its article.
    reader
        Command and option of ``pipette-opt`` that reads the kind; empty if no command does.
    words
        Texts that all occur in such a file, case-sensitive.
    pattern
        Regular expression that must match, with ``^`` at line starts; empty for none.
    """

    name: str
    reader: str
    words: tuple[str, ...] = ()
    pattern: str = ""

    def matches(self, text: str) -> bool:
        """Return whether a text has all words and the pattern of the kind."""
        return all(word in text for word in self.words) and (
            not self.pattern or re.search(self.pattern, text, re.MULTILINE) is not None
        )

    def __str__(self) -> str:
        if self.reader:
            return f"{self.name}, which `pipette-opt {self.reader}` reads"
        return f"{self.name}, which no command reads"


KINDS = (
    # Files that name their own kind, even if they contain text of other kinds.
    FileKind(LAUNCH_SCRIPT, f"{ARGUMENTS} and {MODEL}", pattern=r"\A#!.*\b(?:ba|z|da|k)?sh\b|^#SBATCH "),
    # Files that pipette-opt writes.
    FileKind(PLAN_FILE, "verify, explain, report and export", ('"schema_version"', '"parallel"', '"placement"')),
    FileKind(CAPTURED_LAUNCH, ARGUMENTS, ('"program"', '"launchers"', '"arguments"')),
    FileKind("a log of profile links", LINKS, ('"pipette_opt_links"',)),
    FileKind(CLUSTER_FILE, "solve --cluster", pattern=r"^nodes:\s*(?:$|\[|#)"),
    FileKind(STACK_FILE, "solve --calibration", pattern=r"^(?:matmul_speed|assumed_links|host_kernel_s):"),
    FileKind(ARCHITECTURE_FILE, "solve --model", ("hidden_size:", "num_attention_heads:"), r"^num_layers: *\d"),
    FileKind(
        RUNS_TABLE, "calibrate and backtest", ("gbs",), r"\A(?=[^\n]*\bgpu\b)(?=[^\n]*\bnum_gpus\b)[^\n]*,tp,pp,dp"
    ),
    FileKind(PROFILE_TABLE, "solve --profile", ("forward_s", "backward_s"), r"\A[^\n]*\bforward_s\b"),
    # Links and the inside of hosts.
    FileKind(
        "output of nccl-tests or rccl-tests", LINKS, pattern=r"^# *nThread\b|^# *nccl-tests version|^# *Using devices"
    ),
    FileKind("JSON of nccl-tests", LINKS, ('"nccl_version"', '"devices"')),
    FileKind("output of mpiGraph", LINKS, ("START mpiGraph",)),
    FileKind("output of the OSU benchmarks", LINKS, pattern=r"^# *OSU MPI"),
    FileKind("output of perftest (ib_write_bw)", LINKS, (" BW Test", "#bytes")),
    FileKind("output of perftest's tests of latency", "", (" Latency Test", "#bytes")),
    FileKind("a topology file of NCCL", BESIDE, ("<system ", "<cpu ")),
    FileKind("output of nvidia-smi topo -m", BESIDE, ("GPU0",), r"^[ \t]*GPU0[ \t]+X[ \t]"),
    FileKind("a table of rocm-smi --showtopo", "", ("between two GPUs",)),
    FileKind("output of rocm-smi or amd-smi", "", pattern=r"ROCm System Management Interface|^ACCESS TABLE:|^AMD-SMI"),
    FileKind("output of nvidia-smi -q", "", ("NVSMI LOG",)),
    FileKind("output of nvidia-smi", "", pattern=r"^\| NVIDIA-SMI "),
    FileKind(
        "NVLink domains of nvidia-smi (clusterUuid, cliqueId)",
        "",
        pattern=r"^(?:[\w.-]{1,253}: )?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}, \d+$",
    ),
    FileKind("output of nvbandwidth", "", ("nvbandwidth",), r"^nvbandwidth Version|\"nvbandwidth\": *\{"),
    FileKind(
        "output of DeepEP's or UCCL-EP's tests",
        "",
        pattern=r"^\[(?:layout|tuning|testing)\] |Dispatch \+ combine bandwidth|> #SM: ",
    ),
    FileKind("output of HybridEP's test", "", ("dispatch_with_permute",)),
    FileKind("output of iblinkinfo", "", pattern=r"==\( *\d+X .{0,60}\)==>"),
    FileKind(
        "output of ibnetdiscover", "", pattern=r"^# Topology file: generated on|^(?:vendid|sysimgguid|switchguid)=0x"
    ),
    FileKind("output of lstopo", "", pattern=r"^Machine \(\d+"),
    # Hosts and switches as schedulers and clouds list them.
    FileKind(
        "Slurm's list of switches (topology.conf or scontrol show topology)", BESIDE, pattern=r"^ *(?i:SwitchName)="
    ),
    FileKind("Slurm's list of blocks (topology.conf or scontrol show topology)", "", pattern=r"^ *(?i:BlockName)="),
    FileKind("Slurm's topology.yaml", "", pattern=r"^- *topology:"),
    FileKind("output of scontrol show nodes", "", pattern=r"^NodeName=\S+ "),
    FileKind("output of scontrol show hostnames", "", pattern=r"^[^#\n=]{0,80}[$#] scontrol show hostnames"),
    FileKind("output of scontrol show job", "", pattern=r"^ *JobId=\d+ "),
    FileKind("output of sinfo or squeue", "", pattern=r"^ *(?:PARTITION +AVAIL|JOBID +PARTITION)"),
    FileKind("AWS's topology of instances (describe-instance-topology)", "", ('"NetworkNodes"',)),
    FileKind("a list of AWS's instances", "", ('"InstanceId"',)),
    FileKind("a table of AWS's instances", "", pattern=r"^i-[0-9a-z]{3,20},"),
    FileKind("a list of Google Cloud's instances with their topology", "", ('"physicalHost', '"resourceStatus"')),
    FileKind("a list of Google Cloud's instances", "", ('"machineType"', '"zone"')),
    FileKind("a table of Google Cloud's instances", "", pattern=r"^NAME +ZONE +"),
    FileKind("a list of Azure's machines", "", ('"vmSize"',)),
    FileKind("a topology graph of Topograph", "", ('"network_layers"',)),
    FileKind("a list of Kubernetes nodes (kubectl get nodes -o json)", "", ('"kind"', '"Node"', '"apiVersion"')),
    FileKind("an object of Kubernetes", "", pattern=r"^apiVersion: |^ *\"apiVersion\": "),
    FileKind("a table of Kubernetes nodes (kubectl get nodes)", "", pattern=r"^NAME +STATUS +ROLES"),
    FileKind(
        "an Ansible inventory or another INI file", "", pattern=r"\A\s*\[[\w .:-]{1,80}\]\s*\n\s*[\w.-]+(?:\s|=|\Z)"
    ),
    # Models and training.
    FileKind("an index of safetensors", "", ('"weight_map"',)),
    FileKind("a tokenizer's settings", "", pattern=r'"(?:tokenizer_class|added_tokens_decoder)" *:'),
    FileKind("a LoRA adapter's config", "", pattern=r'"peft_type" *:'),
    FileKind("settings of generation", "", pattern=r'"_from_model_config" *:|"do_sample" *:'),
    FileKind("Meta's params.json, not Hugging Face's config.json", "", ('"n_layers"', '"n_heads"')),
    FileKind("a trainer_state.json of Hugging Face", "", ('"log_history"',)),
    FileKind(HUGGING_FACE_CONFIG, MODEL, pattern=r'"model_type" *:|"architectures" *:|"num_hidden_layers" *:'),
    FileKind("a config of DeepSpeed", "", pattern=r'"zero_optimization" *:|"train_micro_batch_size_per_gpu" *:'),
    FileKind("a trace of PyTorch's profiler", "", ('"traceEvents"',)),
    FileKind("a dump of NCCL's flight recorder", "", ('"pg_config"',)),
    FileKind("a run of Weights & Biases", "", pattern=r'"_wandb"|"_step" *:|^"?Step"?,.*__MIN'),
    FileKind("an export of MLflow", "", pattern=r'"run_id" *:|^run_id,experiment_id|^\d{13} [-\d.e+]+ \d+$'),
    FileKind("an export of TensorBoard", "", pattern=r"^Wall time,Step,Value|^# .*events\.out\.tfevents"),
    FileKind("a log of Megatron-Bridge", "", pattern=r"megatron\.bridge\.|^Step Time : "),
    FileKind("a log of verl", "", pattern=r"^step:\d+ - .*\bglobal_seqlen/|perf/mfu/actor:"),
    FileKind("a log of slime", "", pattern=r"\.py:\d+ - (?:perf|step) \d+: \{"),
    FileKind("a log of NeMo-RL", "", pattern=r"^=+ Step \d+/\d+ =+$|^timing/train/total_step_time"),
    FileKind("a log of NeMo", "", ("train_step_timing in s",)),
    FileKind(
        "a log of torchtitan", "", pattern=r"\bstep: *\d+ .{0,200}\btps: *[\d,]+|Building device mesh with parallelism"
    ),
    FileKind("a log of nanotron", "", pattern=r"elapsed_time_per_iteration_ms: |Config\(general=GeneralArgs"),
    FileKind("a log of LLM Foundry or Composer", "", pattern=r"throughput/(?:device/)?(?:tokens|batches)_per_sec"),
    FileKind(
        "a log of DeepSpeed",
        "",
        pattern=r"DeepSpeed Flops Profiler|DeepSpeedEngine|iter time \(s\): |\[Rank 0\] .{0,40}time \(ms\) \|",
    ),
    FileKind("a log of DeepSpeed", "", pattern=r"^ *train_micro_batch_size_per_gpu\b"),
    FileKind("a log of Hugging Face's Trainer", "", pattern=r"'train_runtime': |^\{'loss': .*'epoch': "),
    FileKind(
        "a report of slow ranks (NVRx or Megatron-LM's detector)",
        "",
        pattern=r"STRAGGLER|GPU relative perf|\bMnRtt/Rnk\b",
    ),
    FileKind(MEGATRON_LOG, RUNS, ("elapsed time per iteration (ms)",)),
    FileKind(PRINTED_ARGUMENTS, f"{RUNS} and {ARGUMENTS}", pattern=r"^ *[a-z][a-z0-9_]+ \.{3,} "),
    FileKind("metrics of DCGM", "", ("DCGM_FI_",)),
    FileKind("metrics of Prometheus", "", pattern=r"^# TYPE \S+ (?:gauge|counter)|\"resultType\""),
    FileKind(
        "an out-of-memory message of PyTorch or CUDA",
        "",
        pattern=r"(?:CUDA|HIP) out of memory|OutOfMemoryError|CUDA error: out of memory|oom_kill",
    ),
    FileKind("a log of NCCL", "", pattern=r"\bNCCL (?:INFO|WARN) "),
    FileKind("a page of HTML", "", pattern=r"(?i)\A\s*(?:<!doctype html|<html\b)"),
    FileKind("a Dockerfile", "", ("\nRUN ",), r"^FROM \S"),
    FileKind("a Makefile", "", pattern=r"^\.PHONY:"),
    FileKind(
        LAUNCH_SCRIPT,
        f"{ARGUMENTS} and {MODEL}",
        pattern=r"^[ \t]*(?:exec )?(?:torchrun|srun|mpirun|deepspeed|python3?) ",
    ),
    FileKind("a config of Axolotl", "", pattern=r"^base_model:"),
    FileKind("a config of LLaMA-Factory", "", ("finetuning_type:",)),
    FileKind("a config of torchtune", "", ("_component_: torchtune",)),
    FileKind("a config of Accelerate", "", ("compute_environment:",)),
    FileKind("a config of verl", "", ("actor_rollout_ref:",)),
    FileKind("a config of NeMo-RL", "", ("grpo:", "policy:")),
    FileKind("a program in Python", "", pattern=r"\A#!.*\bpython|^(?:import|from) [\w.]+(?: import\b.*)?$|^def \w+\("),
    FileKind(
        TYPED_ARGUMENTS,
        f"{ARGUMENTS} and {MODEL}",
        pattern=r"^[ \t]*--[a-z][a-z0-9-]+(?:[ =]|$)",
    ),
    FileKind(LAUNCH_SCRIPT, f"{ARGUMENTS} and {MODEL}", ("$",), r"^(?:export +)?[A-Za-z_]\w*="),
    FileKind("a diff", "", pattern=r"^diff --git |^@@ -\d+"),
)
"""All kinds of files, the most specific first."""

_SIGNATURES = (
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"PK\x03\x04", "a zip archive (also .xlsx, .docx, .npz and PyTorch's checkpoints)"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "a database of SQLite (Nsight Systems writes them)"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x02", "a pickle of Python"),
    (b"\x80\x04", "a pickle of Python"),
    (b"\xff\xfe", "a text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "a text in UTF-16; save it as UTF-8"),
)
"""First bytes of binary files, and the name of each kind."""


def kind_of(text: str) -> FileKind | None:
    """Return the kind of file that a text is; ``None`` if no kind matches."""
    head = untagged(text[:HEAD_CHARACTERS].removeprefix("\ufeff"))
    return next((kind for kind in KINDS if kind.matches(head)), None)


def looks_like(text: str, *, but: Sequence[str] = ()) -> str:
    """
    Return a sentence that names the kind of file that a text looks like, with a leading blank; empty if none matches.

    Parameters
    ----------
    but
        Names of kinds that the reader accepts, for which no sentence is returned.
    """
    kind = kind_of(text)
    return "" if kind is None or kind.name in but else f" It looks like {kind}."


def binary_kind(data: bytes) -> str:
    """Return the kind of a binary file by its first bytes; empty if unknown."""
    return next((name for start, name in _SIGNATURES if data.startswith(start)), "")


def reads(*kinds: str) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """
    Decorate a reader of a file, its first argument, so that errors name the kind that the file looks like.

    Parameters
    ----------
    kinds
        Names of the kinds that the reader accepts.
    """

    def decorated(reader: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(reader)
        def read(path: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return reader(path, *args, **kwargs)
            except InputError as error:
                hint = _hint(Path(path), kinds)
                if not hint or "It looks like" in error.problem:
                    raise
                raise type(error)(error.where, f"{error.problem}{hint}") from None

        return read

    return decorated


def _hint(path: Path, kinds: Sequence[str]) -> str:
    """Return a sentence that names the kind that a file looks like; empty if the file is not readable text."""
    try:
        return looks_like(read_bytes(path).decode(), but=kinds)
    except (OSError, ValueError):
        return ""
