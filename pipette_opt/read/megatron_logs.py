"""Import of Megatron-LM training logs as rows of ``runs.csv``."""

import csv
import io
import logging
import re
import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.base.units import first_notes, whole_number
from pipette_opt.read.frameworks import Report, report_in
from pipette_opt.read.kinds_of_files import MEGATRON_LOG, file_looks_like, looks_like
from pipette_opt.read.log_lines import MAX_CHARACTERS, MAX_LINES, Log, within_caps
from pipette_opt.read.megatron_printed import ARGUMENT, HEADER, words_of
from pipette_opt.read.run_bounds import OF_A_LOG
from pipette_opt.read.run_launches import ARGUMENTS_COLUMN
from pipette_opt.read.runs import read_row

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
    notes = [f"{file.name}: not read, a log ends in {', '.join(SUFFIXES)}.{file_looks_like(file)}" for file in others]
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
    writer = csv.DictWriter(text, fieldnames=WRITTEN, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    notes += first_notes(unused, _NAMED, "logs with unused lines")
    notes.append(
        "time: median over the reported iterations; memory: largest max reserved of the reporting ranks, or what "
        "Primus says is used on the device"
    )
    return text.getvalue(), notes


_NAMED = 12

WRITTEN = (
    "source",
    "gpu",
    "gpus_per_node",
    "num_gpus",
    "model",
    "dp",
    "iter_time_s",
    "peak_mem_gib",
    "oom",
    "notes",
    ARGUMENTS_COLUMN,
)
"""Columns of ``runs.csv`` that are written; the launch stands in the last."""


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """Return the logs and the other files of a folder. A file given by itself counts as a log, whatever its name."""
    if path.is_dir():
        files = [file for file in path.rglob("*") if file.is_file() and not file.name.startswith(".")]
        logs = [file for file in files if file.suffix in SUFFIXES]
        return logs, [file for file in files if file not in set(logs)]
    if not path.exists():
        raise InputError(str(path), "the file or folder does not exist.")
    return [path], []


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
    others
        Reports of other frameworks.
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
    others: list[Report] = field(default_factory=list)

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
        other = None if time or memory else report_in(line)
        self.others += [] if other is None else [other]
        return bool(
            time
            or other
            or memory
            or hip
            or error
            or mention
            or HEADER in line
            or _END_OF_ARGUMENTS in line
            or _GPU.search(line)
        )

    def with_others(self, global_batch_size: int, seq_length: int, num_gpus: int) -> "Reports":
        """Return the reports with those of another framework, of an iteration of these sizes; unchanged without any."""
        if self.times or not self.others:
            return self
        found = [(other, other.iteration_s(global_batch_size, seq_length, num_gpus)) for other in self.others]
        return replace(
            self,
            times=[(seconds, "") for _, seconds in found if seconds is not None],
            has_first=self.others[0].step == 1,
            reserved_gib=[other.reserved_gib for other in self.others if other.reserved_gib is not None],
        )

    @property
    def oom(self) -> bool:
        """Return whether memory ran out: by an error, or by a mention of it in a log without an iteration."""
        return self.has_error or (self.has_mention and not (self.times or self.others))

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
    for argument in ("world_size", "num_layers", "hidden_size"):
        if whole_number(arguments.get(argument, "")) is None:
            return f"the argument {argument} is missing or not a number"
    if reports.batch:
        arguments = {**arguments, "global_batch_size": reports.batch}
    of_memory = "max reserved" if reports.reserved_gib else "used on the device" if memory else "not reported"
    late = "; out of memory after these" if oom and steady else ""
    is_told = {"attention_backend", "transformer_impl", "use_flash_attn"} & arguments.keys()
    assumed = "" if is_told else "; attention: not printed, assumed fused as by Megatron's default"
    world_size = int(arguments["world_size"])
    return {
        "source": OF_A_LOG,
        "gpu": kind,
        "gpus_per_node": min(gpus_per_node, world_size),
        "num_gpus": world_size,
        "model": f"{arguments['num_layers']}L-{arguments['hidden_size']}h",
        "dp": arguments.get("data_parallel_size", ""),
        "iter_time_s": f"{median(steady):.6g}" if steady else "",
        "peak_mem_gib": "" if oom or not memory else f"{max(memory):.4f}",
        "oom": "" if oom and steady else oom,
        "notes": f"{name}; {len(reports.times)} reports of time{late}; memory: {of_memory}{assumed}",
        ARGUMENTS_COLUMN: shlex.join(words_of(arguments)),
    }
