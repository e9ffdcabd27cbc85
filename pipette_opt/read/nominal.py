"""Clusters without a cluster file: equal hosts with the nominal bandwidth of their NICs."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import typed
from pipette_opt.base.units import whole_number
from pipette_opt.read.cluster import MAX_GPUS_PER_NODE, cluster_document, parse_cluster
from pipette_opt.read.fields import Fields
from pipette_opt.read.gpus import note_on_gpu, read_gpu_entry
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.inter_node import MAX_HOSTS
from pipette_opt.read.nics import NIC_EFFICIENCY, parse_nics
from pipette_opt.specs import ClusterSpec
from pipette_opt.specs.host_names import compress_hosts

NAME_PREFIX = "node"
"""Prefix of default host names: node1, node2, ..."""


def nominal_cluster(*, nodes: str, gpu: str, nics: str | None, gpus_per_node: int | None) -> ClusterSpec:
    """
    Return a cluster of equal hosts whose links were not measured; its ``assumed`` lists the assumptions.

    Parameters
    ----------
    nodes
        Number of hosts, or their names and ranges such as ``gpu[01-16]``.
    gpu
        GPU type by any of its names.
    nics
        NICs of a host, such as ``8x400``; ``None`` for the GPU's usual NICs.
    gpus_per_node
        GPUs of a host; ``None`` for the usual number.
    """
    document = nominal_document(nodes=nodes, gpu=gpu, nics=nics, gpus_per_node=gpus_per_node)
    found = parse_cluster(document, "the cluster", Path())
    # A recorded cluster is read back exactly as it was solved.
    recorded = parse_cluster(cluster_document(found), "the cluster", Path())
    note = note_on_gpu(gpu, read_gpu_entry(gpu, "--gpu"))
    return replace(recorded, assumed=(*found.assumed, *([note] if note else [])))


def nominal_document(*, nodes: str, gpu: str, nics: str | None, gpus_per_node: int | None) -> dict[str, Any]:
    """Return the content of a cluster file for these options; errors name command-line options."""
    hosts = host_names(nodes)
    entry = read_gpu_entry(gpu, "--gpu")
    usual = entry.usual_host
    count = gpus_per_node if gpus_per_node is not None else usual.gpus_per_node if usual else None
    if count is None:
        raise InputError(
            "--gpus-per-node",
            f"is required, because the catalogue has no usual number of GPUs for hosts of {entry.gpu.name}.",
        )
    if not 1 <= count <= MAX_GPUS_PER_NODE:
        raise InputError("--gpus-per-node", f"must be from 1 to {MAX_GPUS_PER_NODE}, got {count}.")
    inter = {} if nics is None else {"nics": str(parse_nics(nics, "--nics"))}
    is_usual = usual is not None and usual.gpus_per_node == count
    if nics is None and len(hosts) > 1 and not is_usual:
        problem = (
            f"is required, e.g. 8x400, because the catalogue has no usual NICs for hosts of {count} x {entry.gpu.name}."
        )
        raise InputError("--nics", problem)
    node: dict[str, Any] = {"hosts": compress_hosts(hosts), "gpu": entry.gpu.name}
    if gpus_per_node is not None:
        node["gpus_per_node"] = gpus_per_node
    return {"name": f"{len(hosts)}x{count}-{entry.gpu.name}", "nodes": [node], "inter_node": inter}


def cluster_template(*, nodes: str, gpu: str, nics: str | None, gpus_per_node: int | None) -> str:
    """Return a commented cluster file as text, with every value written out and no measured links."""
    spec = nominal_cluster(nodes=nodes, gpu=gpu, nics=nics, gpus_per_node=gpus_per_node)
    document, entry = cluster_document(spec), read_gpu_entry(gpu)
    inside, inter = document["intra_node"], document["inter_node"]
    given = parse_nics(nics, "--nics") if nics is not None else entry.usual_host.nics if entry.usual_host else None
    lines = [
        "# A cluster for pipette-opt: edit what is wrong. A line left out takes the usual value, with a note.",
        f"name: {spec.name}",
        "nodes:  # several kinds of hosts are several lines; more hosts may be listed than a job uses",
        f'  - {{hosts: "{compress_hosts(spec.hosts)}", gpu: {entry.gpu.name}, gpus_per_node: {spec.gpus_per_node}}}',
        "intra_node:  # from one GPU to another of its host, one direction; here the catalogue's, nothing measured",
        f"  bandwidth_gb_per_s: {inside['bandwidth_gb_per_s']:g}",
        f"  latency_us: {inside['latency_us']:g}",
        "inter_node:",
        f"  latency_us: {inter['latency_us']:g}  # of a small message between hosts; assumed",
    ]
    if given is not None:
        lines += [
            f"  nics: {given}  # NICs of a host x Gbit/s of each",
            f"  # No link was measured: each is taken to attain {NIC_EFFICIENCY:g} of that. Links differ: measure them",
            "  # with `pipette-opt profile links`, or read nccl-tests and mpiGraph with `pipette-opt import links`;",
            "  # both write this file. A matrix has GB/s from host (row) to host (column), the sum of all flows:",
            "  # matrices:",
            "  #   - {file: links_1.csv, concurrent_flows: 1}",
            f"  #   - {{file: links_{spec.gpus_per_node}.csv, concurrent_flows: {spec.gpus_per_node}}}",
            "  # node_bandwidth_gb_per_s: 300  # cap on all that enters, and on all that leaves, a host",
            "# Two hosts have the link of the first of these levels that holds both; measured pairs count before them.",
            f"{'' if spec.levels else '# '}levels:  # from inside out",
            *_level_lines(document.get("levels", ())),
            "#   - {name: spine, oversubscription: 2}  # half of the NICs' rate; hosts: a group size, or lists",
        ]
    return "\n".join(lines) + "\n"


def _level_lines(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the levels of a cluster file as lines of YAML with comments."""
    lines = []
    for entry in entries:
        hosts = ", ".join(f'"{group}"' for group in entry["hosts"])
        lines += [
            f"  - name: {entry['name']}  # every GPU has a port of its own, and NCCL takes all hosts for one",
            f"    hosts: [{hosts}]",
            f"    bandwidth_gb_per_s: {entry['bandwidth_gb_per_s']:g}  # of a single flow, one direction",
            f"    latency_us: {entry['latency_us']:g}",
            "    scale_up: true",
        ]
    return lines


def recorded_cluster(entry: Mapping[str, Any], where: str) -> ClusterSpec:
    """Return the cluster that a plan records as a document (made with ``--nodes``)."""
    fields = Fields(where, entry, ("document", "assumed", "options"))
    assumed = typed(tuple[str, ...], fields.any("assumed"), where, "assumed")
    return replace(parse_cluster(fields.any("document"), f"{where}.document", Path()), assumed=assumed)


@dataclass(frozen=True, slots=True, kw_only=True)
class NominalOptions:
    """Arguments of :func:`nominal_cluster`, as a plan records them."""

    nodes: str
    gpu: str
    nics: str | None
    gpus_per_node: int | None


def nominal_record(cluster: ClusterSpec, **options: Any) -> dict[str, Any]:
    """
    Return the record of a cluster without a file for ``plan.json``: content, assumptions, and the options it is from.

    Parameters
    ----------
    options
        Arguments of :func:`nominal_cluster`.
    """
    return {"document": cluster_document(cluster), "assumed": list(cluster.assumed), "options": options}


def record_of_options(options: object, where: str) -> dict[str, Any]:
    """Return the record that recorded options give; raise ``InputError`` for options that ``--nodes`` refuses."""
    given = asdict(typed(NominalOptions, options, where, closed=True))
    return nominal_record(nominal_cluster(**given), **given)


def is_number_of_hosts(nodes: str) -> bool:
    """Return whether ``--nodes`` is a number of hosts, not their names."""
    text = nodes.strip().lstrip("-")
    return text.isascii() and text.isdecimal()


def host_names(nodes: str) -> tuple[str, ...]:
    """Return the host names in ``--nodes``, or ``node01``, ``node02``, ... for a number."""
    text = nodes.strip()
    if not is_number_of_hosts(text):
        return expand_hosts(text, "--nodes")
    count = whole_number(text)
    if count is None or not 1 <= count <= MAX_HOSTS:
        raise InputError(
            "--nodes", f"must be from 1 to {MAX_HOSTS:,} hosts, or names such as gpu[01-16], got {shown(text)}."
        )
    return tuple(f"{NAME_PREFIX}{index:0{len(str(count))}}" for index in range(1, count + 1))
