"""
Log of ``pipette-opt profile links``: a JSON object per line.

The first line lists the hosts; each later line is a finished measurement. An incomplete last line was being written
when the run stopped, and is ignored.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from msgspec import Meta, Struct

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import typed
from pipette_opt.base.units import GB, whole_number
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.files import parse_json
from pipette_opt.read.hosts import checked_host
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.matrices import MAX_GB_PER_S, MAX_LATENCY_S, MIN_GB_PER_S
from pipette_opt.read.measurements import Fact, Host, Latency, Note, Rate

VERSION = 1

NumGpus = Annotated[int, Meta(ge=1, le=1024)]
"""Number of GPUs of a host, and of flows between two hosts; the largest is chosen."""

BytesPerS = Annotated[float, Meta(ge=MIN_GB_PER_S * GB, le=MAX_GB_PER_S * GB)]
"""Valid bandwidth, bytes/s."""

Seconds = Annotated[float, Meta(ge=0, le=MAX_LATENCY_S)]
"""Valid latency of a message, seconds."""

MAX_UNMEASURED = 256
"""Largest number of hosts without a measurement; more would only slow down the reader. Chosen."""

Key = tuple[int, str, str]
"""Number of concurrent flows, sender and receiver."""


class _Header(Struct):
    """First line of a log."""

    pipette_opt_links: int
    hosts: list[str]
    gpus_per_node: NumGpus
    device_name: str
    together: bool


class _Line(Struct):
    """Later line of a log, a measurement."""

    flows: NumGpus
    sender: str
    receiver: str
    bytes_per_s: dict[str, BytesPerS]
    latency_s: Seconds


@dataclass(slots=True, kw_only=True)
class LinkLog:
    """
    Measurements in a log of ``profile links``.

    Parameters
    ----------
    device_name
        Driver's name of the GPUs; empty without GPUs.
    together
        Whether all pairs of a round were measured at once.
    rates
        Aggregate bandwidth in bytes/s, by (flows, sender, receiver) and by message size in bytes.
    latencies
        Seconds of a small message, by (sender, receiver).
    """

    hosts: tuple[str, ...]
    gpus_per_node: int
    device_name: str
    together: bool
    rates: dict[Key, dict[int, float]] = field(default_factory=dict)
    latencies: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def header(self) -> dict[str, Any]:
        """Content of the first line."""
        return {
            "pipette_opt_links": VERSION,
            "hosts": list(self.hosts),
            "gpus_per_node": self.gpus_per_node,
            "device_name": self.device_name,
            "together": self.together,
        }


def is_link_log(text: str) -> bool:
    """Return whether a text looks like a log of ``profile links``."""
    return text.startswith('{"pipette_opt_links"')


@link_format("profile links", lambda file: is_link_log(file.text), order=40, is_json=True)
def read_link_log(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the bandwidth of the largest message, and the latency, of each measured pair."""
    log = parse_link_log(file.text, file.where)
    devices = frozenset({log.device_name} - {""})
    program = "profile links, " + ("all pairs of a round at once" if log.together else "one pair at a time")
    for host in log.hosts:
        yield Host(name=host, gpus=log.gpus_per_node, device_names=devices)
    for (flows, sender, receiver), rates in log.rates.items():
        yield Rate(sender=sender, receiver=receiver, program=program, flows=flows, bytes_per_s=rates[max(rates)])
    for (sender, receiver), latency_s in log.latencies.items():
        yield Latency(sender=sender, receiver=receiver, program=program, latency_s=latency_s)
    yield Note(kind="used", text=program)


def link_line(flows: int, sender: str, receiver: str, rates: Mapping[int, float], latency_s: float) -> str:
    """Return the line of a finished measurement. Readers use the latency only of measurements with a single flow."""
    content = {
        "flows": flows,
        "sender": sender,
        "receiver": receiver,
        "bytes_per_s": {str(size): rate for size, rate in sorted(rates.items())},
        "latency_s": latency_s,
    }
    return json.dumps(content) + "\n"


def parse_link_log(text: str, where: str) -> LinkLog:
    """Return the measurements in a log; a later measurement of the same link replaces the earlier one."""
    lines = text.split("\n")
    header = _object(lines[0], f"{where}, line 1")
    version = header.get("pipette_opt_links")
    if type(version) is not int or version != VERSION:
        raise InputError(f"{where}, line 1", f"must be a log of version {VERSION}, got {shown(version)}.")
    log = _log_of(header, f"{where}, line 1")
    for number, line in enumerate(lines[1:-1], start=2):
        _add(log, _object(line, f"{where}, line {number}"), f"{where}, line {number}")
    measured = {host for _, *pair in log.rates for host in pair}
    if len(log.hosts) - len(measured) > MAX_UNMEASURED:
        problem = (
            f"lists {len(log.hosts):,} hosts, but measures only {len(measured):,} of them; run `profile "
            "links` again to continue."
        )
        raise InputError(where, problem)
    return log


def _log_of(content: dict[str, Any], where: str) -> LinkLog:
    """Return a log without measurements from the content of its first line."""
    header = typed(_Header, content, where, closed=True)
    twice = [host for host, number in Counter(header.hosts).items() if number > 1]
    if twice:
        raise InputError(where, f"hosts lists {shown(twice[0])} twice; list each host once.")
    if not header.device_name.isprintable():
        raise InputError(where, f"device_name must be one line of text, got {shown(header.device_name)}.")
    return LinkLog(
        hosts=tuple(checked_host(host, where) for host in header.hosts),
        gpus_per_node=header.gpus_per_node,
        device_name=header.device_name,
        together=header.together,
    )


def _add(log: LinkLog, content: dict[str, Any], where: str) -> None:
    line = typed(_Line, content, where, closed=True)
    for host in (line.sender, line.receiver):
        if host not in log.hosts:
            raise InputError(where, f"host {shown(host)} is not in the first line.")
    if line.sender == line.receiver:
        raise InputError(where, f"sender and receiver are both {line.sender!r}; they must be two hosts.")
    if not line.bytes_per_s:
        raise InputError(where, "has no rate in bytes_per_s; the line is damaged.")
    log.rates[line.flows, line.sender, line.receiver] = {
        _size(size, where): rate for size, rate in line.bytes_per_s.items()
    }
    if line.flows == 1:
        log.latencies[line.sender, line.receiver] = line.latency_s


def _size(text: str, where: str) -> int:
    """Return a message size in bytes from its text; ``InputError`` unless it is written as by :func:`link_line`."""
    size = whole_number(text)
    if not size or str(size) != text:
        raise InputError(where, f"bytes_per_s has {shown(text)}, which is no size in bytes.")
    return size


def _object(line: str, where: str) -> dict[str, Any]:
    content = parse_json(line, where)
    if not isinstance(content, dict):
        raise InputError(where, "must be a JSON object.")
    return content
