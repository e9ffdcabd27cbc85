"""Links inside hosts: from the topology of hosts, a measured rate, or the catalogue."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import counted
from pipette_opt.read.gpus import CatalogueEntry
from pipette_opt.read.inside_node import NVLINK_BYTES_PER_S, PCIE_BYTES_PER_S, InsideNode, of_capability
from pipette_opt.read.matrices import gb_text
from pipette_opt.read.measurements import Topology
from pipette_opt.specs.gpu_links import MAX_SLOTS
from pipette_opt.specs.host_names import compress_hosts

ABOVE_PCIE = 2.0
"""Factor by which a measured rate must exceed PCIe's assumed rate to count as NVLink's. Chosen: above the nominal."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InsideLinks:
    """
    Links inside the hosts of a cluster.

    Parameters
    ----------
    bytes_per_s
        Bandwidth between two GPUs of a host, bytes/s; the slowest if they differ.
    of_hosts
        Bandwidth between each two GPUs of each host, bytes/s, shape ``(num_hosts, gpus, gpus)``; ``None`` if all have
        ``bytes_per_s``.
    faults
        Sentences on GPUs that NVLink does not reach, if ``of_hosts`` does not show them.
    """

    bytes_per_s: float
    of_hosts: FloatArray | None
    faults: tuple[str, ...] = ()


def topologies(files: Sequence[Topology], hosts: Sequence[str], notes: list[str]) -> dict[str, InsideNode]:
    """
    Return the topology of each host, from the names and contents of topology files; empty without files.

    Equal topologies count for every host. Topologies that differ only in NVLinks belong to the hosts that the files are
    named after; the other hosts have the topology with most NVLinks.
    """
    distinct = list(dict.fromkeys(topology.node for topology in files))
    if len(distinct) < 2:
        return dict.fromkeys(hosts, distinct[0]) if distinct else {}
    found: dict[str, InsideNode] = {}
    for topology in files:
        node, name = topology.node, topology.file
        named = [host for host in hosts if re.search(rf"(?<![A-Za-z0-9]){re.escape(host)}(?![A-Za-z0-9])", name)]
        alike = replace(node, pair_nvlinks=()) == replace(distinct[0], pair_nvlinks=())
        if len(named) != 1 or found.setdefault(named[0], node) != node or not alike:
            differ = "; ".join(f"{each.file}: {each.node.text}" for each in files[:2])
            raise InputError(
                "links",
                f"the topologies of hosts differ ({differ}). Give files of equal hosts only; if only their NVLinks "
                "differ, name each file after its host, as in topo-gpu01.txt.",
            )
    usual = max(distinct, key=lambda node: sum(map(sum, node.pair_nvlinks)))
    if others := [host for host in hosts if host not in found]:
        notes.append(
            f"No topology file is named after {compress_hosts(tuple(others))}: the one with most NVLinks counts."
        )
    return {host: found.get(host, usual) for host in hosts}


def inside_links(
    topology: Mapping[str, InsideNode],
    kinds: Mapping[str, CatalogueEntry],
    measured: float | None,
    count: int,
    notes: list[str],
) -> InsideLinks:
    """
    Return the links inside hosts, with notes on them.

    Parameters
    ----------
    topology
        Topology of each host; empty if unknown.
    kinds
        GPU type of each host.
    measured
        Bandwidth of a ring inside a host, bytes/s; ``None`` if not measured.
    count
        Number of GPUs per host.
    """
    slowest = min(kinds.values(), key=lambda entry: entry.intra_node_bytes_per_s)
    rates, matrices, faults = {}, {}, []
    for node in dict.fromkeys(topology.values()) or (None,):
        own = tuple(host for host in topology if topology[host] == node)
        place = "a host" if len(own) == len(topology) else compress_hosts(own)
        if node is not None and count == node.num_gpus - len(node.off_nvlink) < node.num_gpus:
            notes.append(f"{_off_text(node, place)}: taken as the GPUs that are left out.")
            node = node.without(node.off_nvlink)
        rate, matrix = _inside_host(node, place, slowest, measured, count, notes)
        if node is not None and node.off_nvlink and matrix is None:
            faults.append(f"{_off_text(node, place)}.")
        for host in own:
            rates[host], matrices[host] = rate, matrix
        if not own:
            return InsideLinks(bytes_per_s=rate, of_hosts=None)
    least = min(rates.values())
    if count > MAX_SLOTS or all(matrix is None and rates[host] == least for host, matrix in matrices.items()):
        return InsideLinks(bytes_per_s=least, of_hosts=None, faults=tuple(faults))
    even = {host: np.full((count, count), rate) for host, rate in rates.items()}
    of_hosts = [even[host] if (matrix := matrices[host]) is None else matrix for host in kinds]
    return InsideLinks(bytes_per_s=least, of_hosts=np.stack(of_hosts), faults=tuple(faults))


def _inside_host(
    node: InsideNode | None,
    place: str,
    slowest: CatalogueEntry,
    measured: float | None,
    count: int,
    notes: list[str],
) -> tuple[float, FloatArray | None]:
    """Return the bandwidth inside a host, bytes/s; if its links differ, the slowest, and that of each two GPUs."""
    capability = (node and node.compute_capability) or slowest.compute_capability
    a_link = of_capability(NVLINK_BYTES_PER_S, capability)
    if node is not None and count > 1 and not node.is_even and not node.is_direct_mesh:
        of_pcie = of_capability(PCIE_BYTES_PER_S, capability) or slowest.intra_node_bytes_per_s
        return _uneven(node, place, min(of_pcie, slowest.intra_node_bytes_per_s), measured, count, a_link, notes)
    if measured is not None:
        notes.append(f"Inside {place}: {gb_text(measured)} GB/s, measured by sendrecv_perf inside a host.")
        return measured, None
    if node is not None and node.nvlinks and a_link is not None:
        links, rate = counted(node.nvlinks, "NVLink"), node.nvlinks * a_link
        notes.append(f"Inside {place}: {gb_text(rate)} GB/s, {links} from GPU to GPU at the rate NCCL gives them.")
        return rate, None
    if node is not None and node.is_direct_mesh:
        notes.append(f"NVLink joins the GPUs of {place} over their neighbours.")
    rate = slowest.intra_node_bytes_per_s
    notes.append(f"Assumed: {gb_text(rate)} GB/s inside {place}, the catalogue's figure for {slowest.gpu.name}.")
    return rate, None


def _off_text(node: InsideNode, place: str) -> str:
    """Return the start of a note that names the GPUs without NVLink in a host whose other GPUs have it."""
    gpus = ", ".join(map(str, node.off_nvlink))
    return f"NVLink does not reach GPU {gpus} of {'the host whose topology was read' if place == 'a host' else place}"


def _uneven(
    node: InsideNode,
    place: str,
    of_pcie: float,
    measured: float | None,
    count: int,
    a_link: float | None,
    notes: list[str],
) -> tuple[float, FloatArray | None]:
    """
    Return the bandwidths as :func:`_inside_host` does for a host in which NVLink does not join all GPUs, or unevenly.

    A pair without NVLink gets ``of_pcie``, or the measured bandwidth if PCIe attains it; a faster one is NVLink's.

    Parameters
    ----------
    a_link
        Bandwidth of an NVLink one way, bytes/s; ``None`` if unknown.
    """
    links, most = np.array(node.pair_nvlinks), node.most_nvlinks
    is_slow = measured is not None and measured <= ABOVE_PCIE * of_pcie
    if node.off_nvlink:
        every = ", and that topology counts for every host" if place == "a host" else ""
        notes.append(f"{_off_text(node, place)}{every}. Look at its NVLinks.")
    elif node.nvlinks:
        notes.append(f"Two GPUs of {place} have {node.nvlinks} to {most} NVLinks between them.")
    else:
        notes.append(f"NVLink {'does not join all' if most else 'joins no'} GPUs of {place}.")
    fastest = most * a_link if a_link is not None else None
    if measured is not None and not is_slow:
        fastest = measured
    told_apart = most > 0 and fastest is not None and count == node.num_gpus <= MAX_SLOTS
    by_pcie = measured if measured is not None and is_slow else of_pcie
    if not node.nvlinks:
        between = f"GPUs of {place} that NVLink does not join" if told_apart else f"all GPUs of {place}"
        notes.append(
            f"Inside hosts: {gb_text(by_pcie)} GB/s between {between}, measured by sendrecv_perf inside a host."
            if is_slow
            else f"Assumed: {gb_text(by_pcie)} GB/s between {between}, a usual rate of PCIe; measure it."
        )
    if not told_apart or fastest is None:
        return by_pcie if not node.nvlinks or a_link is None else node.nvlinks * a_link, None
    source = "measured by sendrecv_perf inside a host" if fastest == measured else "at the rate NCCL gives them"
    notes.append(f"Inside {place}: {gb_text(fastest)} GB/s between GPUs with {counted(most, 'NVLink')}, {source}.")
    rates = np.where(links > 0, links * (fastest / most), by_pcie)
    return float(rates[~np.eye(count, dtype=np.bool_)].min()), rates
