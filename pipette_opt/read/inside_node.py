"""Topology inside a host: its GPUs, NVLinks and NICs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from types import MappingProxyType

import numpy as np

from pipette_opt.base.types import BoolArray
from pipette_opt.base.units import GB, counted

NVLINK_BYTES_PER_S: Mapping[int, float] = MappingProxyType(
    {60: 18.0 * GB, 70: 20.0 * GB, 80: 20.0 * GB, 86: 12.0 * GB, 90: 20.6 * GB, 100: 40.1 * GB}
)
"""Bandwidth of an NVLink one way, bytes/s, by compute capability times ten (NCCL 2.27, ``src/graph/topo.h``)."""

PCIE_BYTES_PER_S: Mapping[int, float] = MappingProxyType({60: 10.0 * GB, 80: 20.0 * GB, 90: 40.0 * GB})
"""
Assumed bandwidth between two GPUs over PCIe x16 one way, bytes/s, by least compute capability times ten.

0.65 of the nominal rate of PCIe 3, 4 and 5, as in ``data/gpus.yaml``.
"""

MAX_NVLINKS = 18
"""Most NVLinks of a GPU; with a switch, each pair is listed with all links of its GPUs (H100, B200 datasheets)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsideNode:
    """
    GPUs, NVLinks and NICs of a host; ``None`` for values that the file does not have.

    Parameters
    ----------
    pair_nvlinks
        Number of NVLinks between each two GPUs, the same in both directions; 0 for none. With NVSwitch: NVLinks of the
        GPU that has fewer.
    compute_capability
        CUDA compute capability times ten, such as 90.
    nic_bytes_per_s
        Nominal bandwidth of all NICs together, bytes/s.
    far_nics
        NICs farther from every GPU than the others, for storage and management; not counted in ``num_nics``.
    """

    num_gpus: int
    pair_nvlinks: tuple[tuple[int, ...], ...]
    num_nics: int
    compute_capability: int | None = None
    nic_bytes_per_s: float | None = None
    far_nics: tuple[str, ...] = ()

    @property
    def nvlinks(self) -> int:
        """Smallest number of NVLinks between two GPUs, 0 if a pair has none."""
        return min((self.pair_nvlinks[a][b] for a, b in permutations(range(self.num_gpus), 2)), default=0)

    @property
    def most_nvlinks(self) -> int:
        """Largest number of NVLinks between two GPUs."""
        return max(max(row) for row in self.pair_nvlinks)

    @property
    def is_even(self) -> bool:
        """Return whether each two GPUs have as many NVLinks as any other two, at least one."""
        return self.num_gpus < 2 or 0 < self.nvlinks == self.most_nvlinks

    @property
    def is_direct_mesh(self) -> bool:
        """Return whether NVLinks without a switch lead from each GPU to all others, over other GPUs between them."""
        own_links = np.array(self.pair_nvlinks).sum(axis=1)
        return bool(self._reached.all()) and not self.is_even and bool((own_links <= MAX_NVLINKS).all())

    @property
    def _reached(self) -> BoolArray:
        """Return whether NVLinks lead from GPU a to GPU b, directly or over other GPUs, shape ``(gpus, gpus)``."""
        reached = (np.array(self.pair_nvlinks) > 0) | np.eye(self.num_gpus, dtype=np.bool_)
        for _ in range(self.num_gpus.bit_length()):  # each round doubles the steps
            reached = reached.astype(np.float64) @ reached > 0
        return reached

    @property
    def off_nvlink(self) -> tuple[int, ...]:
        """GPUs that NVLink does not join to the group of most GPUs; without such a group, GPUs without any NVLink."""
        sizes = self._reached.sum(axis=1)
        if not self.most_nvlinks:
            return ()
        off = sizes < sizes.max() if 2 * sizes.max() > self.num_gpus else sizes == 1
        return tuple(np.flatnonzero(off).tolist())

    def without(self, gpus: Collection[int]) -> "InsideNode":
        """Return the topology without these GPUs."""
        left = [gpu for gpu in range(self.num_gpus) if gpu not in gpus]
        links = tuple(tuple(self.pair_nvlinks[a][b] for b in left) for a in left)
        return replace(self, num_gpus=len(left), pair_nvlinks=links)

    @property
    def text(self) -> str:
        """Describe GPUs, NVLinks and NICs, for people."""
        counts = sorted({self.pair_nvlinks[a][b] for a, b in permutations(range(self.num_gpus), 2)})
        links = " or ".join(map(str, counts)) or "0"
        return f"{counted(self.num_gpus, 'GPU')}, {links} NVLinks a pair, {counted(self.num_nics, 'NIC')}"


def of_capability(rates: Mapping[int, float], compute_capability: int | None) -> float | None:
    """Return the entry of the largest capability up to this one; ``None`` without an entry or a capability."""
    known = [key for key in rates if key <= (compute_capability or 0)]
    return rates[max(known)] if known else None


def both_ways(links: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the links of each pair that work in both directions."""
    return tuple(tuple(min(links[a][b], links[b][a]) for b in range(len(links))) for a in range(len(links)))
