"""
Reader of nccl-tests and rccl-tests output: the printed text, and the JSON of option ``-J``.

Columns are those of nccl-tests 2.13 to 2.20 (github.com/NVIDIA/nccl-tests, ``src/util.cu``), or those of older
rccl-tests without ``redop`` or ``root``. Older text does not name its test; :func:`_kind` then infers the name.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import typed
from pipette_opt.base.units import GB, KIB, MIB, US, counted, number_of, whole_number
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.fields import unused_keys
from pipette_opt.read.files import parse_json
from pipette_opt.read.gpus import recognise_gpu
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.log_lines import Log, LogLine, by_source
from pipette_opt.read.matrices import gb_text
from pipette_opt.read.measurements import Fact, Failure, Host, InsideRate, Latency, Note, Rate

_OWN = re.compile(r"# nccl-tests version|#\s*nThread\s+[0-9]+\s+nGpus|#\s*Using devices|#\s+size\s+count\s+type")
"""Pattern of any line that nccl-tests print, whatever their version."""

_START = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_PROGRAM = re.compile(r"(?<!\w)(?P<name>[a-z]+(?:_[a-z]+){0,2})_perf(?![\w.])")
_COLUMNS = re.compile(r"#\s+size\s+count\s+type\b")
_HEADER = re.compile(r"#\s*nThread\s")
_SIZES = re.compile(
    r"minBytes\s+(?P<least>[0-9]{1,18})\s+maxBytes\s+(?P<most>[0-9]{1,18})\s+"
    r"step:\s*(?P<step>[0-9]{1,18})\((?P<unit>factor|bytes)\)"
)
_ALGORITHM = re.compile(r"\bNCCL_ALGO(?:=|\s+set by environment to\s+)[\"']?(?P<name>[\w^:;,]{1,100})")
_END = re.compile(r"#\s*Collective test concluded")
_AVERAGE = re.compile(r"#\s*Avg bus bandwidth\s*:\s*(\S+)")
_OUT_OF_BOUNDS = re.compile(r"#\s*Out of bounds values\s*:\s*([0-9]+)")
_RANK = re.compile(
    r"#\s*Rank\s+(?P<rank>[0-9]+)\s+(?:Group\s+(?P<group>[0-9]+)\s+)?Pid\s+(?P<pid>[0-9]+)\s+on\s+(?P<host>\S+)\s+"
    r"device\s+[0-9]+\s+\[(?P<pci>[^\]]*)\]\s*(?P<device>.*)"
)
_ROW = re.compile(r"\s*[0-9]+\s+[0-9]+\s+[a-z]")
_FAILURES = (
    "Test NCCL failure",
    "Test CUDA failure",
    "Test failure",
    "NCCL WARN",
    "srun: error",
    "slurmstepd: error",
    "CANCELLED AT",
    "mpirun noticed",
    "prterun noticed",
    "prterun detected",
    "Segmentation fault",
)
"""Words of lines that report a failure; the test failed unless its summary follows."""

WRONG_RESULTS = "computed wrong results"
"""Problem text of a test that finished with wrong results, so that its links cannot be trusted."""

_NCCL = re.compile(
    r"R?CCL (?:INFO|WARN|TRACE) |R?CCL version |NET/\w|(?:HIP|ROCm|rccl-tests) version|Librccl path|Hostname +:"
)
"""Pattern of lines of NCCL and RCCL among the output of a test."""

KINDS = {
    "sendrecv": "sendrecv",
    "alltoall": "alltoall",
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
}
"""Names of tests, by name without underscores, as in ``--test`` and file names."""

KNOWN_KEYS = (
    "version",
    "start_time",
    "args",
    "env",
    "nccl_version",
    "config",
    "results",
    "out_of_bounds",
    "average_bus_bandwidth",
    "errors",
    "end_time",
)
"""Top-level keys of the JSON of ``-J`` (nccl-tests, ``src/util.cu``)."""

LARGE_BYTES = 16 * MIB
"""Smallest message that counts for bandwidth, bytes: the fixed cost is below about 5 % of its time. Chosen."""

SMALL_BYTES = 64 * KIB
"""Largest message that counts for latency, bytes. Chosen."""

METHOD = (
    "nccl-tests load both directions of a pair at once and print one figure: both directions got it. "
    f"A rate is the mean over the sizes from {LARGE_BYTES // MIB} MiB on; of several measurements of the same "
    "pair and number of flows the slowest counts, since the GPU that will use the link is not known."
)

_PAIR_KINDS = ("sendrecv", "alltoall")
_ONE_LINK_KINDS = ("all_reduce", "all_gather", "reduce_scatter")
"""Collective tests whose bus bandwidth is the link's bandwidth if two hosts have one rank each."""

BUS_SLACK, BUS_SLACK_BYTES_PER_S = 0.02, 0.02 * GB
"""Largest error of a printed bus bandwidth: relative, and in bytes/s for rounding. Chosen."""

NumGpus = Annotated[int, Meta(ge=1, le=1024)]
"""Number of GPUs, and of threads, of a process; the largest is chosen: no host has more."""

MAX_SIZES = 100_000
"""Largest number of sizes that a header announces and that is counted. Chosen: a log has fewer lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRow:
    """
    Result of a test for one message size.

    Parameters
    ----------
    time_s
        Time of the operation, seconds; mean of out-of-place and in-place.
    algorithm_bytes_per_s
        ``algbw``, size over time in bytes/s; mean of out-of-place and in-place.
    bus_bytes_per_s
        ``busbw`` in bytes/s, mean of out-of-place and in-place; ``None`` if not read.
    """

    size_bytes: int
    time_s: float
    algorithm_bytes_per_s: float
    bus_bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTest:
    """
    Run of a test of nccl-tests.

    Parameters
    ----------
    kind
        ``sendrecv``, ``alltoall`` or the name of another test; empty if unknown.
    kind_from
        Text that says how ``kind`` was inferred; empty if the output names the test.
    gpus_of_host
        Number of ranks of each host, hosts in rank order.
    groups
        Number of ranks of each host in each group of ranks (``NCCL_TESTS_SPLIT``); all groups run at once.
    is_ring
        Whether the output shows ``NCCL_ALGO=RING``.
    num_announced
        Number of sizes that the header announces, for a test without its last lines that has them all; else 0.
    device_names
        Driver's names of the GPUs of each host.
    problem
        Reason why the test is not used; empty for a complete test with correct results.
    failed
        Whether the test failed: an error, wrong results, or no line after the list of ranks. A log that is only partly
        readable does not count as failed.
    """

    source: str
    kind: str
    gpus_of_host: Mapping[str, int]
    device_names: Mapping[str, frozenset[str]]
    rows: tuple[NcclRow, ...]
    groups: tuple[Mapping[str, int], ...]
    is_ring: bool = False
    num_announced: int = 0
    kind_from: str = ""
    problem: str = ""
    failed: bool = False

    @property
    def hosts(self) -> tuple[str, ...]:
        """Hosts in rank order."""
        return tuple(self.gpus_of_host)

    @property
    def group(self) -> Mapping[str, int] | None:
        """Number of ranks of each host in a group if all groups equal each other, else ``None``."""
        return self.groups[0] if self.groups and all(group == self.groups[0] for group in self.groups) else None

    @property
    def is_inside_hosts(self) -> bool:
        """Return whether every group of ranks is on a single host."""
        return all(len(group) == 1 for group in self.groups)


@dataclass(slots=True)
class _Draft:
    """Test whose output is still being read."""

    name: str = ""
    program: str = ""
    words_before_time: int = 3
    has_header: bool = False
    num_announced: int = 0
    num_sizes: int = 0
    is_ring: bool = False
    ranks: dict[int, tuple[str, str, int]] = field(default_factory=dict)
    rows: list[NcclRow] = field(default_factory=list)
    failure: str = ""
    damage: str = ""
    wrong: bool = False
    ended: bool = False
    unread: LogLine | None = None

    @property
    def is_headed_only(self) -> bool:
        """Return whether only the header was read so far, without name, ranks or rows."""
        return self.has_header and not (self.name or self.ranks or self.rows)


def is_nccl_json(data: object) -> bool:
    """Return whether parsed JSON looks like output of nccl-tests."""
    return isinstance(data, dict) and isinstance(data.get("config"), dict) and "devices" in data["config"]


@link_format("nccl-tests", lambda file: _OWN.search(file.log.text) is not None, order=10)
def read_nccl_text(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the facts of all tests in a log."""
    for test in parse_nccl_text(file.log, file.where, asked.test):
        yield from facts_of_test(test, asked.only_gpus)


@link_format(
    "nccl-tests (-J)",
    lambda file: is_nccl_json(file.content) or (file.content is None and '"nccl_version"' in file.text),
    order=11,
    is_json=True,
)
def read_nccl_json(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the facts of the test in a JSON file of option ``-J``."""
    yield from facts_of_test(parse_nccl_json(file.text, file.where, asked.test), asked.only_gpus)
    if unused := unused_keys(file.content, KNOWN_KEYS):
        yield Note(kind="unused", text=unused)


def kind_asked(test: str) -> str:
    """Return the name of a test as nccl-tests has it, from a name with or without underscores and ``_perf``."""
    word = test.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    if test and word not in KINDS:
        raise InputError("--test", f"must be one of {', '.join(KINDS.values())}, got {test!r}.")
    return KINDS.get(word, "")


def facts_of_test(test: NcclTest, only_gpus: int | None = None) -> Iterator[Fact]:
    """Yield the facts of a run of nccl-tests; of one without ``only_gpus`` GPUs per host, if given, only its hosts."""
    file = Path(test.source).name
    if test.problem and not test.failed:
        yield Note(kind="not used", about=f"{test.kind or 'A test'} in {file}", text=f"{test.problem}.")
        return
    if len(test.hosts) <= 2:
        for host, gpus in test.gpus_of_host.items():
            yield Host(name=host, gpus=gpus, device_names=test.device_names[host])
    if only_gpus is not None and set(test.gpus_of_host.values()) != {only_gpus}:
        return
    flows = pair_flows(test)
    if flows is None:
        yield from _inside_or_not_used(test)
        return
    first, second = test.hosts
    program = f"{test.kind}_perf with {counted(test.gpus_of_host[first], 'GPU')} a host"
    large = _large(test.rows)
    if test.problem or not large:
        problem = f"{test.kind} in {file} {test.problem}".strip()
        is_wrong = test.problem == WRONG_RESULTS
        yield Failure(sender=first, receiver=second, program=program, flows=flows, problem=problem, is_wrong=is_wrong)
        return
    rate = pair_bytes_per_s(test, large)
    for sender, receiver in ((first, second), (second, first)):
        yield Rate(sender=sender, receiver=receiver, program=program, flows=flows, bytes_per_s=rate)
    for row in test.rows if test.kind == "sendrecv" else ():
        if row.size_bytes <= SMALL_BYTES:
            latency_s = row.time_s - row.size_bytes / rate
            yield Latency(sender=first, receiver=second, program=program, latency_s=latency_s)
    yield Note(kind="used", text=program)
    yield Note(kind="method", text=METHOD)
    for remark in _remarks(test, flows, rate):
        yield Note(kind="remark", text=remark)


def _remarks(test: NcclTest, flows: int, rate: float) -> Iterator[str]:
    """Yield a sentence on each assumption about a test whose rate, in bytes/s, counts."""
    if test.num_announced:
        announced = f"the {counted(test.num_announced, 'size')} that its header announces"
        yield f"its log lacks its last lines, but has {announced}, and counts as complete"
    if test.kind_from:
        yield f"its log does not name the test; {test.kind}, from {test.kind_from}"
    if len(test.groups) > 1:
        groups = f"{len(test.groups)} groups of ranks ran at once (NCCL_TESTS_SPLIT)"
        yield f"{groups}; the log has the figures of one, and their sum counts, {flows} flows"
    if test.kind not in _PAIR_KINDS:
        bus = f"its bus bandwidth of {rate / len(test.groups) / GB:.2f} GB/s"
        yield f"{test.kind} of two ranks on two hosts: {bus} is that of the link between them, each way"


def _inside_or_not_used(test: NcclTest) -> Iterator[Fact]:
    """Yield the bandwidth of a sendrecv ring inside each host; of any other test, the reason why it is not used."""
    sizes = {sum(group.values()) for group in test.groups}
    if not (test.is_inside_hosts and len(sizes) == 1 < max(sizes) and test.kind == "sendrecv" and not test.problem):
        yield Note(kind="not used", text=f"{_no_pair(test)}.")
        return
    for row in _large(test.rows):
        yield InsideRate(bytes_per_s=row.algorithm_bytes_per_s)
    yield Note(kind="used", text="sendrecv_perf inside a host")


def _no_pair(test: NcclTest) -> str:
    """Return the reason why a test measures no link between two hosts, and the other use of the test, if any."""
    if not test.kind:
        known = ", ".join(dict.fromkeys(KINDS.values()))
        return f"its log does not name the test; give it with --test, one of {known}, or in the file's name"
    if test.kind not in KINDS.values():
        return f"{test.kind} does not measure pairs of hosts; sendrecv_perf and alltoall_perf do"
    if test.is_inside_hosts:
        return f"{test.kind} inside one host does not measure links between hosts"
    if test.group is None:
        return f"its {len(test.groups)} groups of ranks (NCCL_TESTS_SPLIT) are not on the same hosts, with equal GPUs"
    counts = list(test.group.values())
    gpus = counted(counts[0], "GPU") if len(set(counts)) == 1 else " and ".join(map(str, counts)) + " GPUs"
    if len(counts) == 2 and test.kind in ("sendrecv", "alltoall"):
        return f"{test.kind} with {gpus} does not load a pair evenly"
    if len(counts) == 2:
        reason = f"{test.kind} over 2 hosts of {gpus} does not measure a pair; run it with one GPU a host"
    else:
        reason = f"{test.kind} over {len(counts)} hosts does not tell the pairs apart"
    return reason if test.problem else f"{reason}{_of_nics(test)}"


def _of_nics(test: NcclTest) -> str:
    """Return a clause on the speed of a host's NICs that a collective shows, empty for none."""
    rate = host_bytes_per_s(test, _large(test.rows))
    if rate is None:
        return (
            "; of the NICs it says nothing, as on two hosts only rings send what its bus bandwidth supposes "
            "(NCCL_ALGO=RING)"
            if len(test.hosts) == 2
            else ""
        )
    found = f"{rate / GB:.0f} GB/s each way together"
    nominal = _usual_nics_bytes_per_s(test)
    if nominal is not None and rate > nominal:
        return (
            f"; its figures would have the NICs of a host carry {found}, more than the {gb_text(nominal)} GB/s of the "
            "usual NICs of this GPU, so they are not taken"
        )
    at_least = "" if test.is_ring or test.kind != "all_reduce" else "at least "
    return (
        f"; it says that the NICs of a host carry {at_least}{found} (inter_node.node_bandwidth_gb_per_s of a cluster "
        "file)"
    )


def _usual_nics_bytes_per_s(test: NcclTest) -> float | None:
    """Return the nominal bandwidth of all usual NICs of a test's hosts, bytes/s; ``None`` for unknown GPUs."""
    entries = [recognise_gpu(device) for devices in test.device_names.values() for device in devices]
    hosts = [entry.usual_host for entry in entries if entry is not None and entry.usual_host is not None]
    return max(host.nics.nominal_bytes_per_s for host in hosts) if hosts else None


def parse_nccl_text(log: Log, source: str, test: str = "") -> tuple[NcclTest, ...]:
    """
    Return all tests in a log; a damaged or failed test has a ``problem``.

    Parameters
    ----------
    log
        Log to read; lines of the tests and of NCCL are marked as used.
    test
        Name of the tests if the log does not say it, such as ``sendrecv``.
    """
    sources = by_source(log.lines)
    if sum(any(_HEADER.search(line.text) for line in own) for own in sources.values()) > 1:
        return tuple(found for own in sources.values() for found in _tests(log, own, source, test))
    return _tests(log, log.lines, source, test)


def _tests(log: Log, lines: Sequence[LogLine], source: str, given: str) -> tuple[NcclTest, ...]:
    """Return the tests in ``lines``, printed by a single process or by all processes of a job."""
    drafts: list[_Draft] = []
    before = _Draft()
    program, is_ring = "", False
    for line in lines:
        start, header = _START.search(line.text), _HEADER.search(line.text)
        if not line.text.lstrip().startswith("#") and (named := _PROGRAM.search(line.text)):
            program = named["name"]
        if start and drafts and drafts[-1].is_headed_only:  # rccl-tests name the test behind their header
            drafts[-1].name = start[1]
        elif start or (header and (not drafts or drafts[-1].has_header)):
            drafts.append(_Draft(name=start[1] if start else "", program=program, is_ring=is_ring))
        if drafts and header is not None:
            drafts[-1].has_header = True
            drafts[-1].num_announced = _num_announced(line.text)
        draft = drafts[-1] if drafts else before
        if algorithm := _ALGORITHM.search(line.text):
            is_ring = _is_ring(algorithm["name"])
            draft.is_ring = is_ring if not draft.num_sizes else draft.is_ring
        if _read_line(draft, line.text):
            log.use(line)
        elif draft.unread is None and line.text.strip()[:1].isdigit():
            draft.unread = line
    if log.is_cut and drafts and lines[-1] is log.lines[-1] and _is_cut_row(drafts[-1], lines[-1].text):
        drafts[-1].num_announced = 0
    if not drafts and (before.ranks or before.rows or before.damage):  # the head of the log is missing
        drafts = [replace(before, program=program)]
    elif drafts:
        drafts[0].failure = drafts[0].failure or before.failure
    return tuple(_finish(draft, source, given) for draft in drafts)


def _is_cut_row(draft: _Draft, line: str) -> bool:
    """Return whether a row lacks a part of its in-place half."""
    return _ROW.match(line) is not None and len(line.split()) < 2 + draft.words_before_time + 8


def _is_ring(algorithm: str) -> bool:
    """Return whether a value of ``NCCL_ALGO`` allows rings only."""
    return algorithm.lower().removeprefix("allreduce:") == "ring"


def _num_announced(header: str) -> int:
    """Return the number of sizes that a test's header announces; 0 if it does not say them."""
    sizes = _SIZES.search(header)
    if sizes is None:
        return 0
    size, most, step = int(sizes["least"]), int(sizes["most"]), int(sizes["step"])
    if sizes["unit"] == "bytes":
        return (most - size) // step + 1 if step and size <= most else 0
    number = 0
    while size <= most and number < MAX_SIZES:
        size, number = size * step, number + 1
    return number if number < MAX_SIZES else 0


def parse_nccl_json(text: str, source: str, test: str = "") -> NcclTest:
    """Return the test in a JSON file of option ``-J``; ``test`` is its name if the file does not say it."""
    data = parse_json(text, source)
    if not is_nccl_json(data):
        raise InputError(source, "is not the JSON of nccl-tests: config.devices is missing.")
    config = data["config"]
    # Each process reports only its first device (writeDeviceReport in src/util.cu), whatever -t and -g say.
    per_process = _count(config, "nthreads", source) * _count(config, "ngpus", source)
    devices = [device for device in config["devices"] if isinstance(device, dict)]
    args = data.get("args") or [""]
    draft = _Draft(name=Path(str(args[0])).name, ended="average_bus_bandwidth" in data)
    environment = data.get("env")
    for entry in environment if isinstance(environment, list) else ():  # NAME=value
        draft.is_ring |= (found := _ALGORITHM.match(str(entry))) is not None and _is_ring(found["name"])
    for number, device in enumerate(devices):
        group = device.get("group")
        number_of_group = group if isinstance(group, int) else 0
        entry = str(device.get("hostname", "")), str(device.get("device_info", "")), number_of_group
        for index in range(per_process):
            draft.ranks[number * per_process + index] = entry
    for entry in data.get("results") or []:
        _read_json_row(draft, entry)
    out_of_bounds = data.get("out_of_bounds") or {}
    draft.wrong |= bool(out_of_bounds.get("count"))
    draft.failure = "; ".join(str(error) for error in data.get("errors") or [] if str(error).strip())
    return _finish(draft, source, test)


def _count(config: Mapping[str, Any], field: str, source: str) -> int:
    """Return ``field`` of the test's settings: threads per process, or GPUs per thread."""
    return typed(NumGpus, config.get(field) or 1, source, f"config.{field}")


def pair_flows(test: NcclTest) -> int | None:
    """
    Return the number of concurrent flows between two hosts in each direction; ``None`` if the test measures no pair.

    ``sendrecv_perf`` is a ring of ranks: with any number of GPUs, a single flow crosses between two hosts each way. In
    ``alltoall_perf`` with G GPUs per host, every GPU sends to the G GPUs of the other host: G flows each way. A
    collective of two ranks on two hosts sends over the link between them. Groups of ranks run at once; their flows add.
    """
    counts = list(test.group.values()) if test.group is not None else []
    if len(counts) != 2 or counts[0] != counts[1]:
        return None
    if test.kind == "alltoall":
        return counts[0] * len(test.groups)
    is_pair = test.kind == "sendrecv" or (test.kind in _ONE_LINK_KINDS and counts[0] == 1)
    return len(test.groups) if is_pair else None


def pair_bytes_per_s(test: NcclTest, rows: Sequence[NcclRow]) -> float:
    """
    Return the aggregate bandwidth between two hosts in one direction, bytes/s; mean over ``rows``.

    ``sendrecv``: a rank sends ``size`` in ``time``, so its flow attains ``algbw``. ``alltoall``: a rank sends ``size /
    2G`` to each of 2G ranks, of which G are on the other host; G ranks together send ``G * size / 2``. Other
    collectives of two ranks: their bus bandwidth (nccl-tests, ``doc/PERFORMANCE.md``). The output has the figures of a
    single group of ranks (nccl-tests, ``README.md``); each group sends as much.
    """
    algorithm = len(test.groups) * _mean(row.algorithm_bytes_per_s for row in rows)
    if test.kind in _ONE_LINK_KINDS:
        return algorithm * _bus_factor(test.kind, 2)
    assert test.group is not None
    return algorithm if test.kind == "sendrecv" else algorithm * next(iter(test.group.values())) / 2


def host_bytes_per_s(test: NcclTest, rows: Sequence[NcclRow]) -> float | None:
    """
    Return the bandwidth at which each host sends through its NICs while all hosts send, bytes/s; ``None`` if unknown.

    ``alltoall`` over N hosts of G GPUs: G ranks send all but 1/N of their data to other hosts, ``G * algbw * (N - 1) /
    N`` on average over ``rows``. Collectives over several hosts: bus bandwidth of the largest size, if rings run. Other
    algorithms (trees, NVLS) of ``all_reduce`` reduce inside each host first: on N hosts, each sends only the share of N
    ranks; on two hosts, they send least, and nothing is known. Groups of ranks add up.
    """
    group = test.group
    if group is None or len(group) < 2 or len(set(group.values())) != 1 or not rows:
        return None
    num_hosts, gpus = len(group), next(iter(group.values()))
    if test.kind == "alltoall":
        rate = _mean(row.algorithm_bytes_per_s for row in rows) * gpus * (num_hosts - 1) / num_hosts
    elif test.kind in _ONE_LINK_KINDS and (test.is_ring or num_hosts > 2 or gpus == 1):
        by_host = test.kind == "all_reduce" and not test.is_ring
        num_ranks = num_hosts if by_host else num_hosts * gpus
        rate = rows[-1].algorithm_bytes_per_s * _bus_factor(test.kind, num_ranks)
    else:
        return None
    return rate * len(test.groups)


def _bus_factor(kind: str, num_ranks: int) -> float:
    """Return the ratio of bus bandwidth to ``algbw`` (nccl-tests, ``doc/PERFORMANCE.md``)."""
    share = (num_ranks - 1) / num_ranks
    return {"sendrecv": 1.0, "all_reduce": 2 * share}.get(kind, share)


def _mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def _read_line(draft: _Draft, line: str) -> bool:
    """Add a line to a test; return whether the line belongs to the test or to NCCL."""
    if rank := _RANK.search(line):
        _add_rank(draft, rank)
    elif _ROW.match(line):
        cells = line.split()
        _add_row(draft, whole_number(cells[0]), cells[2 + draft.words_before_time :])
    elif _COLUMNS.search(line):
        draft.words_before_time = 1 + sum(name in line.split() for name in ("redop", "root"))
    elif _END.search(line) or _AVERAGE.search(line):
        draft.ended = True
    elif bounds := _OUT_OF_BOUNDS.search(line):
        draft.wrong |= bounds[1].strip("0") != ""
    elif failure := _failure(line):
        draft.failure = draft.failure or failure
    else:
        return line.lstrip().startswith("#") or _NCCL.search(line) is not None
    return True


def _failure(line: str) -> str:
    """Return the message of a line that reports a failure; empty for other lines."""
    for words in _FAILURES:
        if words in line:
            start = line.index(words) if words.startswith(("Test", "NCCL")) else 0
            return line[start:].strip()[:120]
    before, failed, why = line.partition("failed: ")
    return f"{before}{failed}{why}".strip()[:120] if failed and "error" in why else ""


def _add_rank(draft: _Draft, match: re.Match[str]) -> None:
    entry = match["host"], match["device"].strip(), whole_number(match["group"] or "0") or 0
    number = whole_number(match["rank"])
    if number is None:  # the list of ranks is then too short, which _problem reports
        return
    if number in draft.ranks:
        draft.damage = f"rank {number} is listed twice: the output of two runs is mixed"
    draft.ranks[number] = entry


def _add_row(draft: _Draft, size: int | None, cells: list[str]) -> None:
    """
    Add a row of the table: time, algbw, busbw and wrong values, out-of-place then in-place.

    Some versions have per-iteration columns between the two halves.
    """
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
    draft.wrong |= any(wrong > 0 for *_, wrong in values)
    _append(draft, size, [(time * US, rate * GB, bus * GB) for time, rate, bus, _ in values])


def _cells(cells: list[str]) -> tuple[float, float, float, float]:
    """Return time in us, algbw and busbw in GB/s, and the number of wrong values."""
    wrong = 0.0 if cells[3] == "N/A" else number_of(cells[3])
    return number_of(cells[0]), number_of(cells[1]), number_of(cells[2]), wrong


def _read_json_row(draft: _Draft, entry: Any) -> None:
    try:
        size = int(entry["size"])
        sides = [entry[side] for side in ("out_of_place", "in_place") if entry.get(side)]
        values = [
            (float(side.get("time", side.get("cpu_time"))) * US, float(side["alg_bw"]) * GB, _bus_of(side))
            for side in sides
        ]
        draft.wrong |= any((side.get("nwrong") or 0) > 0 for side in sides)
    except (KeyError, TypeError, ValueError, OverflowError):
        values = []
    if not values:
        draft.damage = draft.damage or "a row of results is incomplete"
        return
    _append(draft, size, values)


def _bus_of(side: Mapping[str, Any]) -> float | None:
    """Return the bus bandwidth (bytes/s) of the out-of-place or in-place half of a JSON row; ``None`` if absent."""
    return float(side["bus_bw"]) * GB if "bus_bw" in side else None


def _append(draft: _Draft, size: int, values: Sequence[tuple[float, float, float | None]]) -> None:
    """Add a row if its numbers agree with each other and its size exceeds the row before; else note the damage."""
    draft.num_sizes += 1
    if size == 0:
        return
    if draft.rows and size <= draft.rows[-1].size_bytes:
        draft.damage = draft.damage or f"size {size} follows {draft.rows[-1].size_bytes}: the output is mixed"
        return
    for time, rate, _ in values:
        # Printed with two decimals, or one digit after the point in 1.8e+07 us: hence the slack.
        if not (time > 0 and math.isfinite(rate)) or abs(size / time - rate) > 0.06 * rate + 0.006 * GB:
            draft.damage = draft.damage or f"the row of size {size} is damaged: size / time is not algbw"
            return
    buses = [bus for *_, bus in values if bus is not None and math.isfinite(bus)]
    draft.rows.append(
        NcclRow(
            size_bytes=size,
            time_s=_mean(time for time, *_ in values),
            algorithm_bytes_per_s=_mean(rate for _, rate, _ in values),
            bus_bytes_per_s=_mean(buses) if len(buses) == len(values) else None,
        )
    )


def _finish(draft: _Draft, source: str, given: str) -> NcclTest:
    ranks = [draft.ranks[number] for number in sorted(draft.ranks)]
    hosts = Counter(host for host, _, _ in ranks)
    names = {host: frozenset(device for owner, device, _ in ranks if owner == host) for host in hosts}
    groups = dict.fromkeys(group for *_, group in ranks)
    kind, kind_from = _kind(draft, source, given)
    test = NcclTest(
        source=source,
        kind=kind,
        kind_from=kind_from,
        gpus_of_host=hosts,
        device_names=names,
        rows=tuple(draft.rows),
        groups=tuple(Counter(host for host, _, own in ranks if own == group) for group in groups),
        is_ring=draft.is_ring,
        num_announced=0 if draft.ended else draft.num_announced,
    )
    problem, failed = _problem(draft)
    return replace(test, problem=problem or _other_kind(test), failed=failed)


def _problem(draft: _Draft) -> tuple[str, bool]:
    """Return the problem of a test as text, empty for none, and whether the test itself failed."""
    if not draft.ranks:
        return "lists no devices; the log must begin with its first line", False
    if draft.ranks and sorted(draft.ranks) != list(range(len(draft.ranks))):
        return f"lists {len(draft.ranks)} of {max(draft.ranks) + 1} ranks", False
    if draft.failure and not draft.ended:  # NCCL also warns in runs that end well
        return f"failed: {draft.failure}", True
    if draft.wrong and not draft.damage.endswith("mixed"):
        return WRONG_RESULTS, True
    if draft.damage:
        return draft.damage, False
    if not draft.rows:
        if draft.unread is not None:
            line = draft.unread
            return f"has no row that can be read; line {line.number} is {shown(line.text.strip())}", False
        return ("has no results", False) if draft.ended else ("ended before its first size", True)
    if not (draft.ended or 0 < draft.num_announced <= draft.num_sizes):
        return (
            f"broke off after {counted(len(draft.rows), 'size')}, without an error message; run the test again",
            False,
        )
    return "", False


def _kind(draft: _Draft, source: str, given: str) -> tuple[str, str]:
    """
    Return the name of a test, and a text that says how it was inferred, empty if the output names the test.

    The command in the log overrides the user's option, which overrides the name of the file.
    """
    if draft.name:
        return _kind_of_name(draft.name), ""
    if draft.program:
        return _kind_of_name(draft.program), "the command in the log"
    if given:
        return given, "--test"
    found = _kind_in(Path(source).name)
    return found, "the name of the file" if found else ""


def _kind_of_name(name: str) -> str:
    """Return the usual name of a test, such as ``all_reduce`` for ``all_reduce_perf``; others keep their name."""
    plain = name.removesuffix("_perf")
    return KINDS.get(plain.replace("_", "").lower(), plain)


def _kind_in(text: str) -> str:
    """Return the name of a test in the name of a file; empty for none or several."""
    squeezed = re.sub(r"[\W_]", "", text.lower())
    found = [kind for word, kind in KINDS.items() if re.search(rf"{word}(?!v)", squeezed)]
    return found[0] if len(found) == 1 else ""


def _other_kind(test: NcclTest) -> str:
    """Return a problem text if a bus bandwidth contradicts the inferred test; else empty."""
    if not test.kind_from or test.kind not in KINDS.values() or test.group is None:
        return ""
    factor = _bus_factor(test.kind, sum(test.group.values()))
    for row in test.rows:
        bus, expected = row.bus_bytes_per_s, factor * row.algorithm_bytes_per_s
        if bus is not None and abs(bus - expected) > BUS_SLACK * expected + BUS_SLACK_BYTES_PER_S:
            return (
                f"is not {test.kind}, as {test.kind_from} says: its busbw of {bus / GB:.2f} GB/s is not {factor:.3g} "
                f"times its algbw of {row.algorithm_bytes_per_s / GB:.2f}"
            )
    return ""


def _large(rows: Sequence[NcclRow]) -> list[NcclRow]:
    """Return the rows of messages of at least ``LARGE_BYTES``; if none, the row of the largest message."""
    return [row for row in rows if row.size_bytes >= LARGE_BYTES] or list(rows[-1:])
