"""Readers of the topology inside a host: NCCL's file (``NCCL_TOPO_DUMP_FILE``) and ``nvidia-smi topo -m``."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import permutations
from types import MappingProxyType

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import BoolArray
from pipette_opt.base.units import GB, counted, whole_number
from pipette_opt.read.log_lines import Log

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

_NVSWITCH, _GPU = "0x068000", "0x03"
"""PCI classes of NVSwitch and GPU, the possible ends of an NVLink, in NCCL's file."""

WAYS: Mapping[str, int] = MappingProxyType({"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2})
"""Distance classes of PCIe paths in ``nvidia-smi topo -m``: 0 through switches, 1 within a socket, 2 across sockets."""

_MBIT_PER_S = 10**6 / 8
_LEGEND = re.compile(r"\s*(?:(?:NIC )?Legend:|(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+= |NIC[0-9]+: \S+\s*$)")
_NVLINKS = re.compile(r"^NV([0-9]{1,18})$")


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


def is_nccl_topology(text: str) -> bool:
    """Return whether a text looks like NCCL's topology file."""
    return text.lstrip().startswith("<system")


def is_nvidia_smi_topology(text: str) -> bool:
    """Return whether a text looks like the output of ``nvidia-smi topo -m``."""
    return re.search(r"^[ \t]*GPU0[ \t]+X[ \t]", text, re.MULTILINE) is not None


def parse_nccl_topology(text: str, where: str) -> InsideNode:
    """Return the GPUs, NVLinks and NICs in NCCL's topology file (XML)."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as error:
        raise InputError(f"{where}, line {error.position[0]}", f"is not valid XML: {error}.") from None
    bus_of = {pci.get("busid", "").lower(): gpu for pci in root.iter("pci") if (gpu := pci.find("gpu")) is not None}
    if not bus_of:
        raise InputError(where, "has no GPU; let NCCL write it on a host with NCCL_TOPO_DUMP_FILE.")
    nets = list(root.iter("net"))
    return InsideNode(
        num_gpus=len(bus_of),
        pair_nvlinks=_pair_nvlinks(bus_of, where),
        num_nics=len(nets),
        compute_capability=min(_whole(gpu, "sm", where) for gpu in bus_of.values()),
        nic_bytes_per_s=sum(_whole(net, "speed", where) for net in nets) * _MBIT_PER_S if nets else None,
    )


def _pair_nvlinks(bus_of: Mapping[str, ET.Element], where: str) -> tuple[tuple[int, ...], ...]:
    switched, direct = {}, {}
    for bus, gpu in bus_of.items():
        links = list(gpu.iter("nvlink"))
        switched[bus] = sum(_whole(link, "count", where) for link in links if link.get("tclass") == _NVSWITCH)
        direct[bus] = {
            link.get("target", "").lower(): _whole(link, "count", where)
            for link in links
            if link.get("tclass", "").startswith(_GPU)
        }
    return _both_ways(
        [[min(switched[a], switched[b]) or direct[a].get(b, 0) if a != b else 0 for b in bus_of] for a in bus_of]
    )


def _both_ways(links: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """Return the links of each pair that work in both directions."""
    return tuple(tuple(min(links[a][b], links[b][a]) for b in range(len(links))) for a in range(len(links)))


def parse_nvidia_smi_topology(log: Log, where: str) -> InsideNode:
    """
    Return the GPUs, NVLinks and NICs in the table of ``nvidia-smi topo -m``.

    ``NV#`` is the number of NVLinks of a pair; other words are PCIe paths.
    """
    lines = [line.text for line in log.lines]
    start = next((i for i, line in enumerate(lines) if line.split()[:1] == ["GPU0"]), None)
    if start is None:
        raise InputError(where, "has no row of column names that starts with GPU0.")
    names = re.split(r"\t+|\s{2,}", lines[start].strip())
    columns = [name for name in names if re.fullmatch(r"(GPU|NIC|mlx)\S*", name)]
    gpus = [name for name in columns if name.startswith("GPU")]
    rows = {cells[0]: cells[1:] for line in lines[start + 1 :] if (cells := line.split()) and cells[0] in columns}
    log.use(*(line for line in log.lines[start:] if line.text.split()[:1] and line.text.split()[0] in columns))
    log.use_like(_LEGEND)
    nics = [name for name in columns if name not in gpus]
    ways = {nic: _nearest(rows, nic, gpus, columns, where) for nic in nics}
    far = tuple(nic for nic in nics if ways[nic] > min(ways.values()))
    return InsideNode(
        num_gpus=len(gpus),
        pair_nvlinks=_both_ways([_nvlinks(rows, gpu, gpus, columns, where) for gpu in gpus]),
        num_nics=len(nics) - len(far),
        far_nics=far,
    )


def _nearest(
    rows: Mapping[str, Sequence[str]], nic: str, gpus: Sequence[str], columns: Sequence[str], where: str
) -> int:
    """Return the distance of a NIC from its nearest GPU: 0 through switches, 1 within a socket, 2 across sockets."""
    ways = [_row(rows, gpu, columns, where)[columns.index(nic)] for gpu in gpus]
    return min(WAYS.get(way, len(WAYS)) for way in ways)


def _nvlinks(
    rows: Mapping[str, Sequence[str]], gpu: str, gpus: Sequence[str], columns: Sequence[str], where: str
) -> list[int]:
    """Return the number of NVLinks from a GPU to each of ``gpus``."""
    cells = _row(rows, gpu, columns, where)
    ways = [cells[columns.index(other)] for other in gpus]
    return [int(match[1]) if (match := _NVLINKS.match(way)) else 0 for way in ways]


def _row(rows: Mapping[str, Sequence[str]], gpu: str, columns: Sequence[str], where: str) -> Sequence[str]:
    cells = rows.get(gpu, ())
    if len(cells) < len(columns):
        raise InputError(where, f"row {gpu} must have {len(columns)} entries; the table breaks off or is damaged.")
    return cells


def _whole(element: ET.Element, attribute: str, where: str) -> int:
    text = element.get(attribute, "")
    number = whole_number(text)
    if number is None:
        raise InputError(where, f"<{element.tag}> must have {attribute}, a whole number, got {shown(text)}.")
    return number
