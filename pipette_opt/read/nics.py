"""Reader of a host's NICs, such as ``8x400``, and nominal bandwidths of links that were not measured."""

import re
from dataclasses import dataclass

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB

NIC_EFFICIENCY = 0.9
"""
Share of a NIC's nominal bandwidth that GPU-to-GPU flows are assumed to attain if no link was measured.

Chosen, not fitted. Predictions of public runs without published links use this share, too
(``benchmarks/worlds``). A busy network attains less.
"""

INTER_NODE_LATENCY_US = 12.0
"""Assumed latency of a message between hosts, microseconds; chosen, as in ``import links``."""

MAX_NICS = 128
"""Largest number of NICs of a host. Chosen: Amazon's p5 has 32."""

MAX_GBIT_PER_S = 10_000
"""Largest bandwidth of a NIC, Gbit/s. Chosen: the fastest in 2026 have 800."""

_NICS = re.compile(
    r"^\s*([0-9]{1,18})\s*[x*\u00d7]\s*([0-9]+(?:\.[0-9]+)?)(?:\s*(g|gb|gbe|gbps|gbit|gbits|gb/s|gbit/s))?\s*$",
    re.IGNORECASE,
)
_GBYTES = re.compile(r"GB(ps|/s)?\s*$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nics:
    """NICs of a host: their number, and the nominal bandwidth of each in one direction, Gbit/s."""

    count: int
    gbit_per_s: float

    def __str__(self) -> str:
        return f"{self.count}x{self.gbit_per_s:g}"

    @property
    def nominal_bytes_per_s(self) -> float:
        """Nominal bandwidth of all NICs together, bytes/s."""
        return self.count * self.gbit_per_s * GB / 8

    def flows(self, num_gpus: int) -> int:
        """Return the number of concurrent flows of a host that do not share a NIC: NICs or GPUs, the smaller number."""
        return min(self.count, num_gpus)

    def flow_bytes_per_s(self, num_gpus: int) -> float:
        """Return the assumed bandwidth of a flow that leaves a host, bytes/s."""
        return self.host_bytes_per_s / self.flows(num_gpus)

    @property
    def host_bytes_per_s(self) -> float:
        """Assumed aggregate bandwidth of all flows that leave a host, bytes/s."""
        return NIC_EFFICIENCY * self.nominal_bytes_per_s


def parse_nics(text: str, where: str) -> Nics:
    """Return the NICs that a text such as ``8x400`` describes: number of NICs x Gbit/s of each."""
    right = "8x400 for eight NICs of 400 Gbit/s"
    match = _NICS.match(text)
    if match is None:
        raise InputError(where, f"must be NICs x Gbit/s, such as {right}, got {text!r}.")
    count, rate = int(match[1]), float(match[2])
    if _GBYTES.search(text):
        raise InputError(where, f"must be in Gbit/s, not GB/s: {count}x{8 * rate:g} if {text!r} are gigabytes.")
    if count > MAX_NICS and 1 <= rate <= MAX_NICS:
        raise InputError(where, f"must have the number of NICs first: did you mean {rate:g}x{count}?")
    if not 1 <= count <= MAX_NICS:
        raise InputError(where, f"must be 1 to {MAX_NICS} NICs, such as {right}, got {text!r}.")
    if not 0 < rate <= MAX_GBIT_PER_S:
        raise InputError(where, f"must be more than 0 and at most {MAX_GBIT_PER_S:,} Gbit/s, got {text!r}.")
    return Nics(count=count, gbit_per_s=rate)
