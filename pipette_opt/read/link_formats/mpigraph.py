"""Reader of mpiGraph's output: tables of send and receive bandwidth in MB/s of 2^20 bytes."""

import re
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import number_of
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.log_lines import Log
from pipette_opt.read.matrices import MPIGRAPH_MB, HostMatrix, reduce_to_hosts
from pipette_opt.read.measurements import Fact, Host, Note, Rate

METHOD = "mpiGraph measures one flow of each host while all hosts send and receive; its MB is 2^20 bytes."

_RANK = re.compile(r"^(?P<host>.+):(?P<rank>[0-9]+)$")
_OWN = re.compile(
    r"(?:START|END) mpiGraph|(?:MsgSize|Times|Window|Procs)\b|Gathering results|(?:Send|Recv) (?:max|avg|min)\b"
    r"|[0-9]+ of [0-9]+ \([0-9.]+%\)"
)
"""Pattern of the lines that mpiGraph prints beside its tables."""


@link_format("mpiGraph", lambda file: "START mpiGraph" in file.log.text, order=20)
def read_mpigraph(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the bandwidth of each pair of hosts."""
    return matrix_facts(parse_mpigraph(file.log, file.where), "mpiGraph")


def matrix_facts(matrix: HostMatrix, program: str) -> Iterator[Fact]:
    """Yield the facts of a matrix of bandwidths with one flow per host, measured by mpiGraph on all hosts at once."""
    for host in matrix.hosts:
        yield Host(name=host, is_in_table=True)
    for i, j in np.argwhere(~np.isnan(matrix.bytes_per_s)).tolist():
        rate = float(matrix.bytes_per_s[i, j])
        yield Rate(sender=matrix.hosts[i], receiver=matrix.hosts[j], program=program, bytes_per_s=rate)
    yield Note(kind="used", text=program)
    yield Note(kind="method", text=METHOD)


def parse_mpigraph(log: Log, where: str) -> HostMatrix:
    """
    Return the bandwidth between hosts, bytes/s.

    Both ends report a link: the sender in table ``Send``, the receiver in ``Recv``. The smaller bandwidth counts. With
    several processes per host, the slowest pair of processes counts for two hosts.
    """
    if "END mpiGraph" not in (line.text.strip() for line in log.lines):
        raise InputError(where, "the output of mpiGraph is incomplete: its last line, END mpiGraph, is missing.")
    log.use_like(_OWN)
    names, send = _table(log, "Send", "to", where)
    receivers, received = _table(log, "Recv", "from", where)
    if receivers != names:
        raise InputError(where, "the tables Send and Recv list different hosts.")
    hosts = [_RANK.match(name).group("host") if _RANK.match(name) else name for name in names]  # type: ignore[union-attr]
    by_gpu = [f"{host}:{index}" for index, host in enumerate(hosts)] if len(set(hosts)) < len(hosts) else hosts
    return reduce_to_hosts(by_gpu, np.fmin(send, received.T))


def _table(log: Log, title: str, word: str, where: str) -> tuple[list[str], FloatArray]:
    """Return names and bandwidths (bytes/s) of a table; NaN on the diagonal and for zeros."""
    start = next((i for i, line in enumerate(log.lines) if line.text.rstrip().split("\t")[0] == title), None)
    if start is None:
        raise InputError(where, f"has no table {title!r}; it starts with that word and the host names.")
    names = log.lines[start].text.split()[1:]
    rows = log.lines[start + 1 : start + 1 + len(names)]
    log.use(log.lines[start], *rows)
    values = np.full((len(names), len(names)), np.nan)
    for i, name in enumerate(names):
        cells = rows[i].text.split() if i < len(rows) else []
        if len(cells) != len(names) + 2 or cells[:2] != [name, word]:
            raise InputError(where, f"table {title}: row {i + 1} must be {name!r} {word} and {len(names)} numbers.")
        for j, cell in enumerate(cells[2:]):
            values[i, j] = np.nan if i == j else _number(cell, f"{where}, table {title}, {name} {word} {names[j]}")
    return names, values


def _number(text: str, where: str) -> float:
    try:
        value = number_of(text)
    except ValueError:
        raise InputError(where, f"must be a bandwidth in MB/s, got {text!r}.") from None
    if not (np.isfinite(value) and value >= 0):
        raise InputError(where, f"must be a bandwidth >= 0 in MB/s, got {text!r}.")
    return value * MPIGRAPH_MB if value > 0 else float("nan")
