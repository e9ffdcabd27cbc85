"""
Reader of tests between two processes: OSU's ``osu_bw``, ``osu_bibw``, ``osu_latency``, and perftest's ``ib_write_bw``.

These programs do not print the hosts. Host names come from a line ``# hosts: SENDER RECEIVER``, the launcher's command
in the log (``mpirun -H a,b``, ``srun -w a,b``), the user's option, or the file name ``SENDER_to_RECEIVER``.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import MIB, US, number_of, whole_number
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.log_lines import Log, LogLine, by_source
from pipette_opt.read.measurements import Fact, Latency, Note, Rate

LARGE_PAIR_BYTES = MIB
"""Smallest message that shows the bandwidth, bytes. Chosen: these programs keep many messages in flight."""

SMALL_PAIR_BYTES = 8
"""Largest message of ``osu_latency`` that shows the latency, bytes. Chosen."""

METHOD = "OSU's and perftest's programs measure one pair at a time: other traffic is not in their figures."

MB = 10**6

GBIT_PER_S = 10**9 / 8

_OSU = re.compile(r"#\s*OSU MPI.{0,100}?(?P<name>Bi-Directional Bandwidth|Bandwidth|Latency) Test")
_PERFTEST = re.compile(r"(RDMA_Write|RDMA_Read|Send)\s+(?P<both>Bidirectional\s+)?BW Test")
_PERFTEST_UNIT = re.compile(r"BW average\[(?P<unit>MB/sec|MiB/sec|Gb/sec)\]")
_HOSTS_LINE = re.compile(r"^#\s*hosts:\s*(?P<hosts>.+)$")
_LAUNCHER = re.compile(r"(?:mpirun|mpiexec|srun)\b.{0,1000}?\s(?:-H|--?hosts?|-w|--nodelist)[ =](?P<hosts>\S+)")
_OWN = re.compile(
    r"^(?:\s*(?:#|-{5}|\*{5}|\* Waiting for client|(?:RDMA_\w+|Send)\s.*BW Test|(?:local|remote) address: |GID: )"
    r"|\s*BW peak won't be measured|\s(?!.*(?i:fail|error|unable|couldn't))[\w*/.()' -]{2,40}?[ \t]*: ?\S)"
)
"""Pattern of titles, rulers and settings that these programs print around results."""

_TEST_NAME = re.compile(r"^(?:osu_(?:bw|bibw|latency)|ib_(?:write|read|send)_bw)[_.-]*")
_SEPARATOR = re.compile(r"_to_|-to-|__|_|,")


def is_pair_test(text: str) -> bool:
    """Return whether a text looks like output of OSU's or perftest's programs."""
    return bool(_OSU.search(text) or (_PERFTEST.search(text) and _PERFTEST_UNIT.search(text)))


@link_format("osu_bw, osu_latency, ib_write_bw", lambda file: is_pair_test(file.log.text), order=30)
def read_pair_tests(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the result of a test."""
    return pair_facts(file.log, file.where, asked.pair)


def pair_facts(log: Log, where: str, hosts: str | None = None) -> Iterator[Fact]:
    """
    Yield the result of a test, once for each process that printed it.

    A MB of OSU is 10^6 bytes; perftest's MB/sec is 2^20 bytes/s, its Gb/sec 10^9 bits/s (its ``--help``). In
    ``osu_bw``, rank 0 sends. In ``ib_write_bw`` and ``ib_send_bw``, the client, named first, sends; in ``ib_read_bw``
    it receives. A test of both directions at once prints their sum, of which each has half.

    Parameters
    ----------
    hosts
        Sender and receiver if the log does not name them, such as ``gpu01,gpu02``.
    """
    first, second, hosts_from = _hosts(log, where, hosts)
    log.use_like(_OWN)
    tests = [lines for lines in by_source(log.lines).values() if is_pair_test(_text(lines))]
    for lines in tests if len(tests) > 1 else [log.lines]:
        row = (_osu if _OSU.search(_text(lines)) else _perftest)(log, lines, where, first, second)
        yield row
        if isinstance(row, Rate) and not row.is_one_way:
            yield replace(row, sender=row.receiver, receiver=row.sender)
        if hosts_from:
            named = f"its log does not name its hosts; {row.sender} and {row.receiver}, from {hosts_from}"
            yield Note(kind="remark", text=named)
        yield Note(kind="used", text=row.program)
        yield Note(kind="method", text=METHOD)


def _text(lines: Sequence[LogLine]) -> str:
    return "\n".join(line.text for line in lines)


def _osu(log: Log, lines: Sequence[LogLine], where: str, first: str, second: str) -> Rate | Latency:
    rows = _rows(log, lines, where, columns=2)
    name = _OSU.search(_text(lines))["name"]  # type: ignore[index]
    if name == "Latency":
        small = [value for size, value in rows if size <= SMALL_PAIR_BYTES]
        if not small:
            raise InputError(where, f"osu_latency must have sizes up to {SMALL_PAIR_BYTES} bytes.")
        return Latency(sender=first, receiver=second, program="osu_latency", latency_s=min(small) * US)
    if name == "Bandwidth":
        return Rate(sender=first, receiver=second, program="osu_bw", bytes_per_s=_rate(rows) * MB, is_one_way=True)
    return Rate(sender=first, receiver=second, program="osu_bibw", bytes_per_s=_rate(rows) * MB / 2)


def _perftest(log: Log, lines: Sequence[LogLine], where: str, first: str, second: str) -> Rate:
    text = _text(lines)
    title, unit = _PERFTEST.search(text), _PERFTEST_UNIT.search(text)
    if title is None or unit is None:
        raise InputError(where, "is not output of ib_write_bw: its title or the column BW average is missing.")
    rows = _rows(log, lines, where, columns=4)
    both = title["both"] is not None
    rate = _rate(rows) * (GBIT_PER_S if unit["unit"] == "Gb/sec" else MIB) / (2 if both else 1)
    operation = {"RDMA_Write": "write", "RDMA_Read": "read", "Send": "send"}[title.group(1)]
    sender, receiver = (second, first) if operation == "read" else (first, second)
    program = f"ib_{operation}_bw"
    return Rate(sender=sender, receiver=receiver, program=program, bytes_per_s=rate, is_one_way=not both)


def _rows(log: Log, lines: Sequence[LogLine], where: str, columns: int) -> list[tuple[int, float]]:
    """Return the rows of a table as message size in bytes and the value in column ``columns``: bandwidth or latency."""
    rows: list[tuple[int, float]] = []
    for line in lines:
        cells = line.text.split()
        if not cells or whole_number(cells[0]) is None:
            continue
        log.use(line)
        place = f"{where}, line {line.number}"
        try:
            size, value = int(cells[0]), number_of(cells[columns - 1])
        except (IndexError, ValueError):
            raise InputError(place, f"must have {columns} numbers, got {line.text.strip()!r}.") from None
        if not 0 < value < float("inf"):
            raise InputError(place, f"must be a measurement > 0, got {cells[columns - 1]!r}.")
        if rows and size <= rows[-1][0]:
            problem = f"size {size} follows {rows[-1][0]}: several tests are mixed; give each test a separate file."
            raise InputError(place, problem)
        if "Fail" in cells:
            raise InputError(place, "the test received wrong data; run the test again.")
        rows.append((size, value))
    if not rows:
        raise InputError(where, "has no results; the test failed or its output breaks off.")
    if log.is_cut and lines[-1] is log.lines[-1] and lines[-1].text.split()[:1] == [str(rows[-1][0])]:
        raise InputError(where, "is cut off in its last line; give the whole log.")
    return rows


def _rate(rows: Sequence[tuple[int, float]]) -> float:
    """Return the mean of the bandwidths of large messages; without large messages, the bandwidth of the largest."""
    large = [value for size, value in rows if size >= LARGE_PAIR_BYTES] or [rows[-1][1]]
    return sum(large) / len(large)


def _hosts(log: Log, where: str, given: str | None) -> tuple[str, str, str]:
    """Return sender, receiver, and a text that says where the names come from, empty if the log names them."""
    for pattern in (_HOSTS_LINE, _LAUNCHER):
        named = next(((line, match) for line in log.lines if (match := pattern.search(line.text))), None)
        if named is not None:
            line, match = named
            log.use(line)
            names = expand_hosts(re.sub(r":[0-9]+(?=,|$)", "", ",".join(match["hosts"].split())), where)
            return *_two(names, where, f"{match.group(0).strip()!r}"), ""
    if given is not None:
        return *_two(expand_hosts(given, "--pair"), where, f"--pair {given}"), "--pair"
    stem = _TEST_NAME.sub("", Path(where).name.removesuffix(Path(where).suffix))
    return *_two([part for part in _SEPARATOR.split(stem) if part], where, "its name"), "the name of the file"


def _two(names: Sequence[str], where: str, origin: str) -> tuple[str, str]:
    if len(names) != 2 or names[0] == names[1]:
        raise InputError(
            where,
            f"does not name the two hosts it measured: {origin} must name the sender and the receiver. Give them with "
            "--pair gpu01,gpu02; or call the file SENDER_to_RECEIVER.txt, or add the line '# hosts: SENDER RECEIVER'.",
        )
    return names[0], names[1]
