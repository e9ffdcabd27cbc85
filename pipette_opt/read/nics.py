"""The network cards of a host as people write them, ``8x400``, and what links they promise where none was measured."""

import re
from dataclasses import dataclass

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB

NIC_EFFICIENCY = 0.9
"""
Share of a NIC's nominal rate that GPU-to-GPU flows are taken to attain where nothing was measured.

Chosen, fitted to nothing; the public runs whose links nobody published are predicted with the same share
(``benchmarks/backtest/bands.py``). A busy fabric attains less.
"""

INTER_NODE_LATENCY_US = 12.0
"""Latency of a message between hosts where none was measured, microseconds; chosen, as in ``import links``."""

MAX_NICS = 128
"""NICs of one host; more than any host has (32 in Amazon's p5)."""

MAX_GBIT_PER_S = 10_000
"""Gbit/s of one NIC; more than any has (800 in 2026)."""

_NICS = re.compile(
    r"^\s*(\d{1,18})\s*[x*\u00d7]\s*(\d+(?:\.\d+)?)(?:\s*(g|gb|gbe|gbps|gbit|gbits|gb/s|gbit/s))?\s*$", re.IGNORECASE
)
_GBYTES = re.compile(r"GB(ps|/s)?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nics:
    """Network cards of one host: how many, and the nominal rate of each, one direction."""

    count: int
    gbit_per_s: float

    def __str__(self) -> str:
        return f"{self.count}x{self.gbit_per_s:g}"

    @property
    def nominal_bytes_per_s(self) -> float:
        """Nominal rate of all together."""
        return self.count * self.gbit_per_s * GB / 8

    def flows(self, num_gpus: int) -> int:
        """Flows of a host that do not share a NIC: at most one for each GPU, which uses several NICs if it has them."""
        return min(self.count, num_gpus)

    def flow_bytes_per_s(self, num_gpus: int) -> float:
        """What one flow of a host is taken to attain."""
        return self.host_bytes_per_s / self.flows(num_gpus)

    @property
    def host_bytes_per_s(self) -> float:
        """What all flows that leave a host are taken to attain in sum."""
        return NIC_EFFICIENCY * self.nominal_bytes_per_s


def parse_nics(text: str, where: str) -> Nics:
    """Read ``8x400``: number of NICs x Gbit/s of each."""
    right = "8x400 for eight NICs of 400 Gbit/s"
    match = _NICS.match(text)
    if match is None:
        raise InputError(where, f"must be NICs x Gbit/s, such as {right}, got {text!r}.")
    count, rate = int(match[1]), float(match[2])
    if _GBYTES.search(text):
        raise InputError(where, f"counts Gbit/s, not GB/s: {count}x{8 * rate:g} if {text!r} are gigabytes.")
    if count > MAX_NICS and 1 <= rate <= MAX_NICS:
        raise InputError(where, f"has the number of NICs first: did you mean {rate:g}x{count}?")
    if not 1 <= count <= MAX_NICS:
        raise InputError(where, f"must be 1 to {MAX_NICS} NICs, such as {right}, got {text!r}.")
    if not 0 < rate <= MAX_GBIT_PER_S:
        raise InputError(where, f"must be more than 0 and at most {MAX_GBIT_PER_S:,} Gbit/s, got {text!r}.")
    return Nics(count=count, gbit_per_s=rate)
