"""
Output of nccl-tests: the text it prints, and the JSON of its option ``-J``.

The columns are those of nccl-tests 2.13 to 2.17 (github.com/NVIDIA/nccl-tests, ``src/util.cu``); older text lacks the
line that names the test, which is then looked for in the file's name.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import GB, US, whole_number
from pipette_opt.read.files import parse_json

_LAUNCHER_PREFIX = re.compile(r"^(\[\d+,\d+\]<std(out|err)>:\s?|\d+:\s)")  # mpirun --tag-output, srun --label
_START = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_HEADER = re.compile(r"#\s*nThread\s")
_END = re.compile(r"#\s*Collective test concluded")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*(\d+)")
_RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>\d+)\s+(?:Group\s+\d+\s+)?Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+"
    r"device\s+\d+\s+\[(?P<pci>[^\]]*)\]\s*(?P<device>.*)"
)
_ROW = re.compile(r"^\s*(?P<size>\d+)\s+\d+\s+[a-z]\w*\s+[a-z]\w*\s+-?\d+\s+(?P<rest>.*)$")
_FAILURE = re.compile(r"(Test (NCCL|CUDA) failure.*|NCCL WARN.*|.*failed: .*error.*|.*srun: error.*)")
_KINDS = ("sendrecv", "alltoall")

MOST_GPUS = 1024
"""GPUs of a process, and threads; no host has more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRow:
    """
    One message size.

    Parameters
    ----------
    time_s
        Mean of the out-of-place and the in-place time.
    algorithm_bytes_per_s
        ``algbw``: size over time, mean of the two.
    """

    size_bytes: int
    time_s: float
    algorithm_bytes_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTest:
    """
    One run of one test.

    Parameters
    ----------
    kind
        ``sendrecv``, ``alltoall`` or the name of another test; empty if unknown.
    gpus_of_host
        How many ranks each host had, hosts in rank order.
    device_names
        The driver's names of the GPUs, per host.
    problem
        Why nothing can be taken from the test; empty if it ran to its end with correct results.
    failed
        Whether the problem is that the test failed, rather than that its output is damaged.
    """

    source: str
    kind: str
    gpus_of_host: Mapping[str, int]
    device_names: Mapping[str, frozenset[str]]
    rows: tuple[NcclRow, ...]
    problem: str = ""
    failed: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in rank order."""
        return tuple(self.gpus_of_host)


@dataclass(slots=True)
class _Draft:
    """A test whose output is being read."""

    name: str = ""
    has_header: bool = False
    ranks: dict[int, tuple[str, str, str]] = field(default_factory=dict)
    rows: list[NcclRow] = field(default_factory=list)
    failure: str = ""
    damage: str = ""
    wrong: bool = False
    ended: bool = False


def is_nccl_text(text: str) -> bool:
    """Whether a text looks like what nccl-tests prints."""
    return bool(re.search(r"# nccl-tests version|#\s*nThread\s+\d+\s+nGpus|#\s*Using devices", text))


def is_nccl_json(data: object) -> bool:
    """Whether parsed JSON looks like what nccl-tests writes."""
    return isinstance(data, dict) and isinstance(data.get("config"), dict) and "devices" in data["config"]


def parse_nccl_text(text: str, source: str) -> tuple[NcclTest, ...]:
    """All tests of a text, several may follow each other; damaged and failed ones say so in ``problem``."""
    drafts: list[_Draft] = []
    for raw in text.splitlines():
        line = _LAUNCHER_PREFIX.sub("", raw)
        start = _START.search(line)
        header = _HEADER.search(line)
        if start or (header and (not drafts or drafts[-1].has_header)):
            drafts.append(_Draft(name=start.group(1) if start else ""))
        if drafts:
            drafts[-1].has_header |= header is not None
            _read_line(drafts[-1], line)
    return tuple(_finish(draft, source) for draft in drafts)


def parse_nccl_json(text: str, source: str) -> NcclTest:
    """The test of a file that ``-J`` wrote."""
    data = parse_json(text, source)
    if not is_nccl_json(data):
        raise InputError(source, "is not the JSON of nccl-tests: config.devices is missing.")
    config = data["config"]
    # Each process reports only its first device (writeDeviceReport in src/util.cu), whatever -t and -g say.
    per_process = _count(config, "nthreads", source) * _count(config, "ngpus", source)
    devices = [device for device in config["devices"] if isinstance(device, dict)]
    args = data.get("args") or [""]
    draft = _Draft(name=Path(str(args[0])).name or Path(source).stem, ended="average_bus_bandwidth" in data)
    for number, device in enumerate(devices):
        entry = str(device.get("hostname", "")), str(device.get("pid", number)), str(device.get("device_info", ""))
        for index in range(per_process):
            draft.ranks[number * per_process + index] = entry
    for entry in data.get("results") or []:
        _read_json_row(draft, entry)
    out_of_bounds = data.get("out_of_bounds") or {}
    draft.wrong |= bool(out_of_bounds.get("count"))
    draft.failure = "; ".join(str(error) for error in data.get("errors") or [] if str(error).strip())
    return _finish(draft, source)


def _count(config: Mapping[str, Any], field: str, source: str) -> int:
    """Threads of a process, or GPUs of a thread."""
    value = config.get(field) or 1
    if type(value) is not int or not 1 <= value <= MOST_GPUS:
        raise InputError(source, f"config.{field} must be a whole number from 1 to {MOST_GPUS:,}, got {shown(value)}.")
    return value


def pair_flows(test: NcclTest) -> int | None:
    """
    How many GPU-to-GPU flows cross between the two hosts at once, each way; ``None`` if not a usable pair test.

    ``sendrecv_perf`` is a ring, rank to next rank: over two hosts one flow crosses each way, however many GPUs.
    ``alltoall_perf`` with G GPUs a host: every GPU talks to the G of the other host, G senders each way.
    """
    counts = list(test.gpus_of_host.values())
    if len(counts) != 2 or counts[0] != counts[1] or test.kind not in _KINDS:
        return None
    return 1 if test.kind == "sendrecv" else counts[0]


def pair_bytes_per_s(test: NcclTest, rows: Sequence[NcclRow]) -> float:
    """
    What crosses between the two hosts in one direction, in sum over the flows; mean over ``rows``.

    ``sendrecv``: a rank sends ``size`` in ``time``, so the one flow attains ``algbw``. ``alltoall``: a rank sends
    ``size / 2G`` to each of 2G ranks, G of them on the other host; G ranks do so, together ``G * size / 2``.
    """
    algorithm = sum(row.algorithm_bytes_per_s for row in rows) / len(rows)
    if test.kind == "sendrecv":
        return algorithm
    return algorithm * next(iter(test.gpus_of_host.values())) / 2


def _read_line(draft: _Draft, line: str) -> None:
    if rank := _RANK.search(line):
        _add_rank(draft, rank)
    elif row := _ROW.match(line):
        _add_row(draft, whole_number(row["size"]), row["rest"].split())
    elif _END.search(line) or _AVERAGE.search(line):
        draft.ended = True
    elif bounds := _OUT_OF_BOUNDS.search(line):
        draft.wrong |= bounds[1].strip("0") != ""
    elif (failure := _FAILURE.search(line)) and not draft.failure:
        draft.failure = failure[0].strip()[:120]


def _add_rank(draft: _Draft, match: re.Match[str]) -> None:
    entry = match["host"], match["pid"], match["device"].strip()
    number = whole_number(match["rank"])
    if number is None:  # the list of ranks is then too short, which is said
        return
    if number in draft.ranks:
        draft.damage = f"rank {number} is listed twice: the output of two runs is mixed"
    draft.ranks[number] = entry


def _add_row(draft: _Draft, size: int | None, cells: list[str]) -> None:
    """Cells are time, algbw, busbw, wrong, out of place then in place; per-iteration columns may stand between."""
    if size is None:
        draft.damage = draft.damage or "a row has a size that no message has"
        return
    try:
        half = len(cells) // 2 if len(cells) % 2 == 0 and len(cells) >= 8 else 4
        values = [_cells(cells[start : start + 4]) for start in (0, half) if len(cells) >= start + 4]
    except ValueError:
        values = []
    if not values:
        draft.damage = draft.damage or f"the row of size {size} is incomplete"
        return
    draft.wrong |= any(wrong > 0 for _, _, wrong in values)
    _append(draft, size, [(time * US, rate * GB) for time, rate, _ in values])


def _cells(cells: list[str]) -> tuple[float, float, float]:
    """Time in us, algbw in GB/s, number of wrong values."""
    wrong = 0.0 if cells[3] == "N/A" else float(cells[3])
    return float(cells[0]), float(cells[1]), wrong


def _read_json_row(draft: _Draft, entry: Any) -> None:
    try:
        size = int(entry["size"])
        sides = [entry[side] for side in ("out_of_place", "in_place") if entry.get(side)]
        values = [(float(side.get("time", side.get("cpu_time"))) * US, float(side["alg_bw"]) * GB) for side in sides]
        draft.wrong |= any((side.get("nwrong") or 0) > 0 for side in sides)
    except (KeyError, TypeError, ValueError, OverflowError):
        values = []
    if not values:
        draft.damage = draft.damage or "a row of results is incomplete"
        return
    _append(draft, size, values)


def _append(draft: _Draft, size: int, values: list[tuple[float, float]]) -> None:
    """Add a row if its numbers agree with each other and with the rows before."""
    if size == 0:
        return
    if draft.rows and size <= draft.rows[-1].size_bytes:
        draft.damage = draft.damage or f"size {size} follows {draft.rows[-1].size_bytes}: the output is mixed"
        return
    for time, rate in values:
        # Printed with two decimals, or one digit after the point in 1.8e+07 us: hence the slack.
        if not (time > 0 and math.isfinite(rate)) or abs(size / time - rate) > 0.06 * rate + 0.006 * GB:
            draft.damage = draft.damage or f"the row of size {size} is damaged: size / time is not algbw"
            return
    draft.rows.append(
        NcclRow(
            size_bytes=size,
            time_s=sum(time for time, _ in values) / len(values),
            algorithm_bytes_per_s=sum(rate for _, rate in values) / len(values),
        )
    )


def _finish(draft: _Draft, source: str) -> NcclTest:
    hosts: dict[str, int] = {}
    names: dict[str, set[str]] = {}
    for number in sorted(draft.ranks):
        host, _, device = draft.ranks[number]
        hosts[host] = hosts.get(host, 0) + 1
        names.setdefault(host, set()).add(device)
    test = NcclTest(
        source=source,
        kind=_kind(draft.name or Path(source).name),
        gpus_of_host=hosts,
        device_names={host: frozenset(devices) for host, devices in names.items()},
        rows=tuple(draft.rows),
    )
    problem, failed = _problem(draft)
    return replace(test, problem=problem, failed=failed)


def _problem(draft: _Draft) -> tuple[str, bool]:
    """What is wrong with a test, and whether the test itself failed."""
    if not draft.ranks:
        return "lists no devices", False
    if draft.ranks and sorted(draft.ranks) != list(range(len(draft.ranks))):
        return f"lists {len(draft.ranks)} of {max(draft.ranks) + 1} ranks", False
    if draft.failure and not draft.ended:  # NCCL also warns in runs that end well
        return f"failed: {draft.failure}", True
    if draft.damage.endswith("mixed"):
        return draft.damage, False
    if not draft.ended:
        return f"broke off after {len(draft.rows)} sizes", True
    if draft.wrong:
        return "computed wrong results", True
    if draft.damage:
        return draft.damage, False
    if not draft.rows:
        return "has no results", True
    return "", False


def _kind(name: str) -> str:
    for kind in _KINDS:
        if re.search(rf"{kind}(?!v)", name.lower().replace("_perf", "").replace("send_recv", "sendrecv")):
            return kind
    return name.removesuffix("_perf") if name.endswith("_perf") else ""
