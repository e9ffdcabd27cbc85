"""Format of ``nvidia-smi topo -m``, the topology inside a host."""

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from pipette_opt.base.errors import InputError
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.inside_node import InsideNode, both_ways
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Fact, Note, Topology

WAYS: Mapping[str, int] = MappingProxyType({"PIX": 0, "PXB": 0, "PHB": 1, "NODE": 1, "SYS": 2})
"""Distance classes of PCIe paths in ``nvidia-smi topo -m``: 0 through switches, 1 within a socket, 2 across sockets."""

_OWN_ROW = re.compile(r"^[ \t]*GPU0[ \t]+X[ \t]", re.MULTILINE)
_LEGEND = re.compile(r"\s*(?:(?:NIC )?Legend:|(?:X|SYS|NODE|PHB|PXB|PIX|NV#)\s+= |NIC[0-9]+: \S+\s*$)")
_NVLINKS = re.compile(r"^NV([0-9]{1,18})$")


@link_format("nvidia-smi topo -m", lambda file: _OWN_ROW.search(file.log.text) is not None, order=70)
def read_nvidia_smi_topology(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the topology of a host."""
    yield Topology(node=parse_nvidia_smi_topology(file.log, file.where))
    yield Note(kind="used", text="nvidia-smi topo -m")


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
        pair_nvlinks=both_ways([_nvlinks(rows, gpu, gpus, columns, where) for gpu in gpus]),
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
