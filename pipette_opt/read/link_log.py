"""
The log of ``pipette-opt profile links``: one JSON object a line.

The first line names the hosts, later ones are finished measurements. A line that breaks off at the end of the file was
being written when the run was stopped; the measurement counts as not done.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pipette_opt.base.errors import InputError

VERSION = 1

Key = tuple[int, str, str]
"""Concurrent flows, sender, receiver."""


@dataclass(slots=True, kw_only=True)
class LinkLog:
    """
    What was measured.

    Parameters
    ----------
    device_name
        What the driver calls the GPUs; empty without.
    rates
        By flows, sender and receiver: what the flows attain in sum, bytes/s, by message size.
    latencies
        Seconds of a small message, by sender and receiver.
    together
        Whether all pairs of a round were measured at once.
    """

    hosts: tuple[str, ...]
    gpus_per_node: int
    device_name: str
    together: bool
    rates: dict[Key, dict[int, float]] = field(default_factory=dict)
    latencies: dict[tuple[str, str], float] = field(default_factory=dict)

    @property
    def header(self) -> dict[str, Any]:
        """The first line."""
        return {
            "pipette_opt_links": VERSION,
            "hosts": list(self.hosts),
            "gpus_per_node": self.gpus_per_node,
            "device_name": self.device_name,
            "together": self.together,
        }


def is_link_log(text: str) -> bool:
    """Whether a text looks like such a log."""
    return text.startswith('{"pipette_opt_links"')


def link_line(flows: int, sender: str, receiver: str, rates: Mapping[int, float], latency_s: float) -> str:
    """A finished measurement; the latency is only of use for a single flow."""
    content = {
        "flows": flows,
        "sender": sender,
        "receiver": receiver,
        "bytes_per_s": {str(size): rate for size, rate in sorted(rates.items())},
        "latency_s": latency_s,
    }
    return json.dumps(content) + "\n"


def parse_link_log(text: str, where: str) -> LinkLog:
    """Read a log; a measurement repeated later replaces the earlier one."""
    lines = text.split("\n")
    header = _object(lines[0], f"{where}, line 1")
    if header.get("pipette_opt_links") != VERSION:
        raise InputError(
            f"{where}, line 1", f"must be a log of version {VERSION}, got {header.get('pipette_opt_links')}."
        )
    try:
        log = LinkLog(
            hosts=tuple(str(host) for host in header["hosts"]),
            gpus_per_node=int(header["gpus_per_node"]),
            device_name=str(header["device_name"]),
            together=bool(header["together"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}, line 1", f"lacks what every log has: {error}.") from None
    for number, line in enumerate(lines[1:-1], start=2):
        _add(log, _object(line, f"{where}, line {number}"), f"{where}, line {number}")
    return log


def _add(log: LinkLog, entry: dict[str, Any], where: str) -> None:
    try:
        flows, sender, receiver = int(entry["flows"]), str(entry["sender"]), str(entry["receiver"])
        rates = {int(size): float(rate) for size, rate in entry["bytes_per_s"].items()}
        latency = float(entry["latency_s"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InputError(where, f"is no measurement: {error}.") from None
    for host in (sender, receiver):
        if host not in log.hosts:
            raise InputError(where, f"host {host!r} is not in the first line.")
    if flows < 1 or not rates or not all(0 < rate < float("inf") for rate in rates.values()) or not 0 <= latency < 1e9:
        raise InputError(where, "must have flows >= 1, rates > 0 and a latency >= 0.")
    log.rates[flows, sender, receiver] = rates
    if flows == 1:
        log.latencies[sender, receiver] = latency


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(line)
    except ValueError as error:
        raise InputError(where, f"is not JSON: {error}.") from None
    if not isinstance(content, dict):
        raise InputError(where, "must be a JSON object.")
    return content
