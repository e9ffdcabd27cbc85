"""Format of NCCL's file with the topology inside a host (``NCCL_TOPO_DUMP_FILE``)."""

import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.units import whole_number
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.inside_node import InsideNode, both_ways
from pipette_opt.read.link_format import LinkFile, link_format
from pipette_opt.read.measurements import Fact, Note, Topology

_NVSWITCH, _GPU = "0x068000", "0x03"
"""PCI classes of NVSwitch and GPU, the possible ends of an NVLink, in NCCL's file."""

_MBIT_PER_S = 10**6 / 8


@link_format("NCCL_TOPO_DUMP_FILE", lambda file: file.log.text.lstrip().startswith("<system"), order=60)
def read_nccl_topology(file: LinkFile, asked: LinkOptions) -> Iterator[Fact]:
    """Yield the topology of a host."""
    yield Topology(node=parse_nccl_topology(file.log.text, file.where))
    yield Note(kind="used", text="NCCL topology")
    file.log.use(*file.log.lines)  # an XML file has no lines of other programs


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
    return both_ways(
        [[min(switched[a], switched[b]) or direct[a].get(b, 0) if a != b else 0 for b in bus_of] for a in bus_of]
    )


def _whole(element: ET.Element, attribute: str, where: str) -> int:
    text = element.get(attribute, "")
    number = whole_number(text)
    if number is None:
        raise InputError(where, f"<{element.tag}> must have {attribute}, a whole number, got {shown(text)}.")
    return number
