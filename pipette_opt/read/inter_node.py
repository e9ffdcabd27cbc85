"""Links between hosts in a cluster file: measured matrices, one bandwidth for all, or the nominal bandwidth of NICs."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import US, counted
from pipette_opt.read.fields import Fields
from pipette_opt.read.gpu_matrices import single_links
from pipette_opt.read.gpus import UsualHost, read_gpu_catalogue
from pipette_opt.read.matrices import bandwidth_of, gb_text, read_latencies, read_matrix
from pipette_opt.read.nics import INTER_NODE_LATENCY_US, NIC_EFFICIENCY, Nics, parse_nics
from pipette_opt.specs import LinkMatrix, NodeSpec
from pipette_opt.specs.gpu_links import best_pairs

INTER = (
    "latency_us",
    "latencies",
    "nics",
    "nics_per_node",
    "nic_of_gpu",
    "matrices",
    "bandwidth_gb_per_s",
    "node_bandwidth_gb_per_s",
)
"""Fields of ``inter_node`` in a cluster file."""

MAX_HOSTS = 4096
"""Largest number of hosts of a cluster; a matrix of all pairs then takes 128 MiB, the search several. Chosen."""

MEASURE = "`pipette-opt profile links` measures them, `pipette-opt import links` reads nccl-tests and mpiGraph."
"""Advice on measuring links, for notes."""

_MATRIX = ("file", "concurrent_flows")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InterNode:
    """
    Links between the hosts of a cluster file; missing values are assumed.

    Parameters
    ----------
    measured
        Whether the link matrices are measurements.
    assumed
        Sentence for each value that was neither measured nor written in the file.
    singles
        Bandwidths between GPUs at ``[host, gpu, host, gpu]``, bytes/s, if a matrix has them.
    known_latency_s
        Latency between hosts in seconds, NaN for pairs without a value; ``None`` without a file of latencies.
    """

    measured: bool
    latency_s: float
    nics_per_node: int
    link_matrices: tuple[LinkMatrix, ...]
    node_bytes_per_s: float | None
    assumed: tuple[str, ...]
    singles: FloatArray | None = None
    known_latency_s: FloatArray | None = None


def read_inter_node(inter: Fields, nodes: Sequence[NodeSpec], folder: Path) -> InterNode:
    """Return the links between hosts from the mapping ``inter_node``; matrix files lie in ``folder``."""
    if len(nodes) > MAX_HOSTS:
        raise InputError(inter.where, f"a cluster may have {MAX_HOSTS:,} hosts, got {len(nodes):,}.")
    if inter.has("matrices") and inter.has("bandwidth_gb_per_s"):
        raise InputError(inter.where, "give matrices (measured) or bandwidth_gb_per_s (all links equal), not both.")
    if inter.has("nics") and inter.has("nics_per_node"):
        raise InputError(inter.where, "give nics, such as 8x400, or nics_per_node, not both.")
    assumed: list[str] = []
    hosts = [node.host for node in nodes]
    matrices, singles = _matrices(inter, nodes, folder, assumed) if inter.has("matrices") else ((), None)
    nics = parse_nics(inter.text("nics"), f"{inter.where}, nics") if inter.has("nics") else None
    cap = bandwidth_of(inter, "node_bandwidth_gb_per_s") if inter.has("node_bandwidth_gb_per_s") else None
    if len(nodes) == 1:
        flows = nics.flows(nodes[0].num_gpus) if nics else inter.whole("nics_per_node", 1)
        latency_s = inter.not_negative("latency_us", 0.0) * US
        return InterNode(
            measured=True,
            latency_s=latency_s,
            nics_per_node=flows,
            link_matrices=matrices,
            node_bytes_per_s=cap,
            assumed=(),
            singles=singles,
        )
    measured = bool(matrices)
    if not measured and not inter.has("bandwidth_gb_per_s"):
        nics = nics or _usual_nics(inter, nodes, assumed)
        flow = nics.flow_bytes_per_s(nodes[0].num_gpus)
        cap = min(cap or np.inf, nics.host_bytes_per_s)
        assumed.insert(
            0,
            f"No link was measured: each is taken to attain {NIC_EFFICIENCY:g} of the nominal rate of {nics} Gbit/s, "
            f"{gb_text(flow)} GB/s a flow and {gb_text(cap)} GB/s a host. {MEASURE}",
        )
    elif not measured:
        flow = bandwidth_of(inter, "bandwidth_gb_per_s")
        assumed.append(f"No link was measured by itself: each flow is taken to attain {gb_text(flow)} GB/s, as given.")
    if not measured:
        matrices = (LinkMatrix(concurrent_flows=1, bytes_per_s=np.full((len(hosts), len(hosts)), flow)),)
    flows = _flows(inter, nodes, matrices, nics, assumed)
    if cap is None and nics is not None:
        cap = nics.nominal_bytes_per_s
    latency_s, known_latency_s = _latencies(inter, hosts, folder, assumed)
    return InterNode(
        measured=measured,
        latency_s=latency_s,
        known_latency_s=known_latency_s,
        nics_per_node=flows,
        link_matrices=matrices,
        node_bytes_per_s=cap,
        assumed=tuple(assumed),
        singles=singles,
    )


def usual_host(nodes: Sequence[NodeSpec]) -> UsualHost | None:
    """Return the GPU types' usual host with the slowest NICs; ``None`` if a type has none with as many GPUs."""
    catalogue = read_gpu_catalogue()
    names = dict.fromkeys(node.gpu.kind for node in nodes)
    hosts = [catalogue[name].usual_host if name in catalogue else None for name in names]
    known = [host for host in hosts if host is not None and host.gpus_per_node == nodes[0].num_gpus]
    if len(known) < len(hosts):
        return None
    return min(known, key=lambda host: host.nics.nominal_bytes_per_s)


def _matrices(
    inter: Fields, nodes: Sequence[NodeSpec], folder: Path, assumed: list[str]
) -> tuple[tuple[LinkMatrix, ...], FloatArray | None]:
    """Return the link matrices between hosts, and the links of single GPUs if a matrix has them."""
    entries = inter.any("matrices")
    if not isinstance(entries, list) or not entries:
        raise InputError(inter.where, f"matrices must be a list of {{file, concurrent_flows}}, got {shown(entries)}.")
    read = [
        _matrix(folder, f"{inter.where}, matrices[{index}]", entry, nodes, assumed)
        for index, entry in enumerate(entries)
    ]
    matrices = [matrix for matrix, _ in read]
    flows = [matrix.concurrent_flows for matrix in matrices]
    for count in flows:
        if flows.count(count) > 1:
            raise InputError(inter.where, f"matrices has {flows.count(count)} entries with concurrent_flows: {count}.")
    return tuple(matrices), next((singles for _, singles in read if singles is not None), None)


def _matrix(
    folder: Path, where: str, data: object, nodes: Sequence[NodeSpec], assumed: list[str]
) -> tuple[LinkMatrix, FloatArray | None]:
    fields = Fields(where, data, _MATRIX)
    file = folder / fields.text("file")
    flows = fields.whole("concurrent_flows")
    matrix = read_matrix(file)
    if matrix.from_gpus and flows != 1:
        raise InputError(where, f"{file} is a matrix of GPUs, hence of single flows: concurrent_flows must be 1.")
    values: FloatArray = matrix.ordered(str(file), [node.host for node in nodes])
    singles = single_links(str(file), matrix, nodes, assumed) if matrix.from_gpus else None
    if singles is not None:
        values = best_pairs(singles)
    return LinkMatrix(concurrent_flows=flows, bytes_per_s=values), singles


def _usual_nics(inter: Fields, nodes: Sequence[NodeSpec], assumed: list[str]) -> Nics:
    usual = usual_host(nodes)
    if usual is None:
        kinds = ", ".join(dict.fromkeys(node.gpu.kind for node in nodes))
        problem = (
            f"a cluster of {len(nodes)} hosts needs nics, such as 8x400 (NICs x Gbit/s of a host), or "
            f"bandwidth_gb_per_s if all links are equal, or measured matrices; the catalogue has no usual NICs for "
            f"hosts of {counted(nodes[0].num_gpus, 'GPU')} of {kinds}."
        )
        raise InputError(inter.where, problem)
    assumed.append(f"NICs of a host: {usual.nics} Gbit/s, as usual ({usual.source}).")
    return usual.nics


def _flows(
    inter: Fields,
    nodes: Sequence[NodeSpec],
    matrices: Sequence[LinkMatrix],
    nics: Nics | None,
    assumed: list[str],
) -> int:
    """
    Return the number of NICs per host, from the file or the catalogue.

    The number matters only if bandwidths are known for a single number of flows, smaller than the GPUs of a host.
    """
    num_gpus, measured = nodes[0].num_gpus, matrices[0].concurrent_flows
    if inter.has("nics_per_node"):
        return inter.whole("nics_per_node")
    if nics is not None:
        return nics.flows(num_gpus)
    if len(matrices) > 1 or measured >= num_gpus:
        return num_gpus
    usual = usual_host(nodes)
    if usual is None:
        assumed.append(
            f"NICs of a host: not given, and no number is usual. More than {counted(measured, 'flow')} of a pair of "
            f"hosts are taken to attain no more than {measured}; write nics_per_node if they do."
        )
        return 1
    flows = usual.nics.flows(num_gpus)
    assumed.append(
        f"NICs of a host: {flows}, as usual ({usual.source}): more than {counted(measured, 'flow')} of a pair of hosts "
        f"gain in proportion up to {max(flows, measured)}. Write nics_per_node if it is wrong."
    )
    return flows


def _latencies(
    inter: Fields, hosts: Sequence[str], folder: Path, assumed: list[str]
) -> tuple[float, FloatArray | None]:
    """Return the latency between hosts in seconds, and the latencies of single pairs, NaN if unknown."""
    known = read_latencies(folder / inter.text("latencies"), hosts) if inter.has("latencies") else None
    if not inter.has("latency_us"):
        of = "" if known is None else ", of pairs that the file of latencies lacks"
        assumed.append(f"Latency between hosts{of}: {INTER_NODE_LATENCY_US:g} us, assumed.")
    return inter.not_negative("latency_us", INTER_NODE_LATENCY_US) * US, known
