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

from msgspec import Meta

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import typed
from pipette_opt.base.types import is_number
from pipette_opt.base.units import GB, whole_number
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import parse_json
from pipette_opt.read.hosts import checked_host
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.matrices import MAX_GB_PER_S, MAX_LATENCY_S, MIN_GB_PER_S
from pipette_opt.read.measurements import Fact, Host, Latency, Note, Rate

VERSION = 1

_HEADER = ("hosts", "gpus_per_node", "device_name", "together")
_MEASUREMENT = ("flows", "sender", "receiver", "bytes_per_s", "latency_s")

NumGpus = Annotated[int, Meta(ge=1, le=1024)]
"""Number of GPUs of a host, and of flows between two hosts; the largest is chosen."""

MAX_UNMEASURED = 256
"""Largest number of hosts without a measurement; more would only slow down the reader. Chosen."""

Key = tuple[int, str, str]
"""Number of concurrent flows, sender and receiver."""


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


def _log_of(header: dict[str, Any], where: str) -> LinkLog:
    """Return a log without measurements from the content of its first line."""
    Fields(where, header, ("pipette_opt_links", *_HEADER))
    missing = [name for name in _HEADER if name not in header]
    if missing:
        raise InputError(where, f"lacks {', '.join(missing)}, which every log has.")
    hosts, count = header["hosts"], header["gpus_per_node"]
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        raise InputError(where, f"hosts must be a list of names, got {shown(hosts)}.")
    twice = [host for host, number in Counter(hosts).items() if number > 1]
    if twice:
        raise InputError(where, f"hosts lists {shown(twice[0])} twice; list each host once.")
    if not isinstance(header["device_name"], str) or not header["device_name"].isprintable():
        raise InputError(where, f"device_name must be one line of text, got {shown(header['device_name'])}.")
    if not isinstance(header["together"], bool):
        raise InputError(where, f"together must be true or false, got {shown(header['together'])}.")
    return LinkLog(
        hosts=tuple(checked_host(host, where) for host in hosts),
        gpus_per_node=typed(NumGpus, count, where, "gpus_per_node"),
        device_name=header["device_name"],
        together=header["together"],
    )


def _add(log: LinkLog, entry: dict[str, Any], where: str) -> None:
    Fields(where, entry, _MEASUREMENT)
    try:
        flows, sender, receiver = entry["flows"], str(entry["sender"]), str(entry["receiver"])
        rates = {_size(size): _measured(rate) for size, rate in entry["bytes_per_s"].items()}
        latency = _measured(entry["latency_s"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(where, f"is no measurement: {error}.") from None
    typed(NumGpus, flows, where, "flows")
    for host in (sender, receiver):
        if host not in log.hosts:
            raise InputError(where, f"host {shown(host)} is not in the first line.")
    if sender == receiver:
        raise InputError(where, f"sender and receiver are both {sender!r}; they must be two hosts.")
    if not rates:
        raise InputError(where, "has no rate in bytes_per_s; the line is damaged.")
    for rate in rates.values():
        if not MIN_GB_PER_S <= rate / GB <= MAX_GB_PER_S:
            limits = f"from {MIN_GB_PER_S * GB:g} to {MAX_GB_PER_S * GB:g}"
            raise InputError(where, f"bytes_per_s must be {limits} bytes/s, got {rate:g}.")
    if not 0 <= latency <= MAX_LATENCY_S:
        raise InputError(where, f"latency_s must be seconds from 0 to {MAX_LATENCY_S:g}, got {latency:g}.")
    log.rates[flows, sender, receiver] = rates
    if flows == 1:
        log.latencies[sender, receiver] = latency


def _measured(value: object) -> float:
    """Return a finite number as a float. ``ValueError`` for text, even if it looks like a number."""
    if not is_number(value) or isinstance(value, bool):
        raise ValueError(f"{shown(value)} is no number")
    return float(value)


def _size(text: str) -> int:
    """Return a message size in bytes from its text. ``ValueError`` unless it is written as by :func:`link_line`."""
    size = whole_number(text)
    if not size or str(size) != text:
        raise ValueError(f"{shown(text)} is no size in bytes")
    return size


def _object(line: str, where: str) -> dict[str, Any]:
    content = parse_json(line, where)
    if not isinstance(content, dict):
        raise InputError(where, "must be a JSON object.")
    return content
