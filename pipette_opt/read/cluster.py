"""Cluster files: YAML with link matrices beside it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipette_opt.errors import InputError, shown
from pipette_opt.files import write_atomically
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.gpus import GPU_FIELDS, parse_gpu, read_gpu, read_gpu_catalogue, read_gpu_entry
from pipette_opt.read.hosts import compress_hosts
from pipette_opt.read.hosts import expand_hosts as expand_hosts
from pipette_opt.read.matrices import gb_text, matrix_csv, read_matrix
from pipette_opt.specs import ClusterSpec, GpuSpec, LinkMatrix, NodeSpec
from pipette_opt.types import FloatArray
from pipette_opt.units import GB, MIB, TFLOP, US

MAX_GPUS_PER_NODE = 1024
"""More than an NVLink domain may ever have (576 in the fifth generation)."""

_TOP = ("name", "nodes", "intra_node", "inter_node")
_NODE = ("hosts", "gpu", "gpus_per_node")
_INTRA = ("bandwidth_gb_per_s", "latency_us")
_INTER = ("latency_us", "nics_per_node", "matrices", "bandwidth_gb_per_s", "node_bandwidth_gb_per_s")
_MATRIX = ("file", "concurrent_flows")


def read_cluster(path: str | Path) -> ClusterSpec:
    """
    Read a cluster file; the format is described in ``data/README.md``.

    Matrix files are looked for beside the cluster file. Anything wrong raises one
    :class:`~pipette_opt.errors.InputError` that names file, field and value.
    """
    path = Path(path)
    top = Fields(str(path), read_yaml(path), _TOP)
    nodes = _read_nodes(f"{path}, nodes", top.any("nodes"))
    hosts = [node.host for node in nodes]
    intra = Fields(f"{path}, intra_node", top.data.get("intra_node") or {}, _INTRA)
    inter = Fields(f"{path}, inter_node", top.data.get("inter_node") or {}, _INTER)
    cap = inter.positive("node_bandwidth_gb_per_s") * GB if inter.has("node_bandwidth_gb_per_s") else None
    try:
        return ClusterSpec(
            name=top.text("name", path.stem),
            nodes=nodes,
            intra_node_bytes_per_s=_intra_node_bytes_per_s(intra, nodes),
            intra_node_latency_s=intra.not_negative("latency_us", 0.0) * US,
            inter_node_latency_s=inter.not_negative("latency_us", 0.0) * US,
            nics_per_node=inter.whole("nics_per_node", 1),
            link_matrices=_read_links(path, inter, hosts),
            node_bytes_per_s=cap,
        )
    except InputError:
        raise
    except ValueError as error:
        raise InputError(str(path), str(error)) from None


def matrix_files(path: str | Path) -> list[str]:
    """Names of the matrix files of a good cluster file, relative to it."""
    inter = read_yaml(path).get("inter_node") or {}
    return [str(entry["file"]) for entry in inter.get("matrices") or ()]


def write_cluster(cluster: ClusterSpec, path: str | Path, comment: str = "") -> None:
    """
    Write a cluster file and, beside it, a CSV for each matrix, ``<stem>_links_<flows>.csv``.

    Bandwidths keep 1 kB/s, latencies 1 ps. The matrices are written before the file that names them. ``comment``
    goes to the top of the YAML file.
    """
    path = Path(path)
    matrices = []
    for matrix in cluster.link_matrices:
        file = f"{path.stem}_links_{matrix.concurrent_flows}.csv"
        write_atomically(path.with_name(file), matrix_csv(cluster.hosts, matrix.bytes_per_s))
        matrices.append({"file": file, "concurrent_flows": matrix.concurrent_flows})
    lines = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    text = yaml.safe_dump(_as_data(cluster, matrices), sort_keys=False, default_flow_style=None, width=110)
    write_atomically(path, lines + text)


def subset_cluster(cluster: ClusterSpec, hosts: Collection[str]) -> ClusterSpec:
    """Keep only ``hosts``, in the cluster's order; an unknown host is an error."""
    for host in hosts:
        if host not in cluster.hosts:
            hint = did_you_mean(host, cluster.hosts)
            raise InputError("hosts", f"host {host!r} is not in cluster {cluster.name}.{hint}")
    if not hosts:
        raise InputError("hosts", f"no host of cluster {cluster.name} is left.")
    keep = [index for index, host in enumerate(cluster.hosts) if host in hosts]
    matrices = tuple(
        LinkMatrix(
            concurrent_flows=matrix.concurrent_flows,
            bytes_per_s=matrix.bytes_per_s[np.ix_(keep, keep)],
        )
        for matrix in cluster.link_matrices
    )
    return replace(cluster, nodes=tuple(cluster.nodes[index] for index in keep), link_matrices=matrices)


def exclude_hosts(cluster: ClusterSpec, hosts: Collection[str]) -> ClusterSpec:
    """Leave ``hosts`` out; names or ranges such as ``gpu[01-02]``."""
    excluded = set(expand_hosts(list(hosts), "--exclude-hosts")) if hosts else set()
    subset_cluster(cluster, excluded or cluster.hosts)
    return subset_cluster(cluster, [host for host in cluster.hosts if host not in excluded])


def _read_nodes(where: str, data: object) -> tuple[NodeSpec, ...]:
    if not isinstance(data, list) or not data:
        raise InputError(where, f"must be a list of entries with hosts, gpu and gpus_per_node, got {shown(data)}.")
    nodes: list[NodeSpec] = []
    for index, entry in enumerate(data):
        place = f"{where}[{index}]"
        fields = Fields(place, entry, _NODE)
        gpu = _read_node_gpu(place, fields.any("gpu"))
        count = fields.whole("gpus_per_node", most=MAX_GPUS_PER_NODE)
        nodes += [NodeSpec(host=host, gpu=gpu, num_gpus=count) for host in expand_hosts(fields.any("hosts"), place)]
    hosts = [node.host for node in nodes]
    for host in hosts:
        if hosts.count(host) > 1:
            raise InputError(where, f"host {host!r} is listed {hosts.count(host)} times.")
    return tuple(nodes)


def _read_node_gpu(where: str, data: object) -> GpuSpec:
    """A name of the catalogue, or a GPU written out."""
    if isinstance(data, str):
        return read_gpu(data, f"{where}, gpu")
    fields = Fields(f"{where}, gpu", data, ("name", *GPU_FIELDS))
    return parse_gpu(f"{where}, gpu", fields.text("name"), fields)


def _intra_node_bytes_per_s(intra: Fields, nodes: Sequence[NodeSpec]) -> float:
    if intra.has("bandwidth_gb_per_s"):
        return intra.positive("bandwidth_gb_per_s") * GB
    known = [read_gpu_entry(node.gpu.name) for node in nodes if node.gpu.name in read_gpu_catalogue()]
    slowest = min((entry.intra_node_bytes_per_s for entry in known), default=None)
    if nodes[0].num_gpus == 1:
        return slowest or float(GB)  # never used: a host with one GPU has no link inside
    hint = f" The catalogue has {gb_text(slowest)} for {nodes[0].gpu.name}." if slowest else ""
    raise InputError(intra.where, f"the field bandwidth_gb_per_s is missing.{hint}")


def _read_links(path: Path, inter: Fields, hosts: list[str]) -> tuple[LinkMatrix, ...]:
    """Matrices from files, or one uniform matrix."""
    if inter.has("matrices") and inter.has("bandwidth_gb_per_s"):
        raise InputError(inter.where, "give matrices (measured) or bandwidth_gb_per_s (all links equal), not both.")
    if inter.has("bandwidth_gb_per_s"):
        uniform = np.full((len(hosts), len(hosts)), inter.positive("bandwidth_gb_per_s") * GB)
        return (LinkMatrix(concurrent_flows=1, bytes_per_s=uniform),)
    if not inter.has("matrices"):
        if len(hosts) > 1:
            problem = f"a cluster of {len(hosts)} hosts needs matrices, or bandwidth_gb_per_s if all links are equal."
            raise InputError(inter.where, problem)
        return ()
    entries = inter.any("matrices")
    if not isinstance(entries, list) or not entries:
        raise InputError(inter.where, f"matrices must be a list of {{file, concurrent_flows}}, got {shown(entries)}.")
    matrices = [
        _read_link_matrix(path, f"{inter.where}, matrices[{index}]", entry, hosts)
        for index, entry in enumerate(entries)
    ]
    flows = [matrix.concurrent_flows for matrix in matrices]
    for count in flows:
        if flows.count(count) > 1:
            raise InputError(inter.where, f"matrices has {flows.count(count)} entries with concurrent_flows: {count}.")
    return tuple(matrices)


def _read_link_matrix(path: Path, where: str, data: object, hosts: list[str]) -> LinkMatrix:
    fields = Fields(where, data, _MATRIX)
    file = path.parent / fields.text("file")
    flows = fields.whole("concurrent_flows")
    matrix = read_matrix(file)
    if matrix.from_gpus and flows != 1:
        raise InputError(where, f"{file} is a matrix of GPUs, hence of single flows: concurrent_flows must be 1.")
    values: FloatArray = matrix.ordered(str(file), hosts)
    return LinkMatrix(concurrent_flows=flows, bytes_per_s=values)


def _as_data(cluster: ClusterSpec, matrices: list[dict[str, Any]]) -> dict[str, Any]:
    """The YAML document."""
    inter: dict[str, Any] = {"latency_us": _round(cluster.inter_node_latency_s / US)}
    inter["nics_per_node"] = cluster.nics_per_node
    if matrices:
        inter["matrices"] = matrices
    if cluster.node_bytes_per_s is not None:
        inter["node_bandwidth_gb_per_s"] = _round(cluster.node_bytes_per_s / GB)
    return {
        "name": cluster.name,
        "nodes": _node_entries(cluster.nodes),
        "intra_node": {
            "bandwidth_gb_per_s": _round(cluster.intra_node_bytes_per_s / GB),
            "latency_us": _round(cluster.intra_node_latency_s / US),
        },
        "inter_node": inter,
    }


def _node_entries(nodes: Sequence[NodeSpec]) -> list[dict[str, Any]]:
    """Runs of nodes of one kind, hosts in order."""
    runs: list[list[NodeSpec]] = []
    for node in nodes:
        if runs and runs[-1][0].gpu == node.gpu and runs[-1][0].num_gpus == node.num_gpus:
            runs[-1].append(node)
        else:
            runs.append([node])
    return [
        {
            "hosts": compress_hosts(tuple(node.host for node in run)),
            "gpu": _gpu_entry(run[0].gpu),
            "gpus_per_node": run[0].num_gpus,
        }
        for run in runs
    ]


def _gpu_entry(gpu: GpuSpec) -> str | Mapping[str, Any]:
    """The name if the catalogue has exactly this GPU, else all of it."""
    known = read_gpu_catalogue().get(gpu.name)
    if known is not None and known.gpu == gpu:
        return gpu.name
    return {
        "name": gpu.name,
        "memory_mib": gpu.memory_bytes // MIB,
        "memory_bandwidth_gb_per_s": _round(gpu.memory_bytes_per_s / GB),
        "peak_tflops": {precision: _round(flops / TFLOP) for precision, flops in gpu.peak_flops.items()},
        "source": gpu.source,
    }


def _round(value: float) -> float | int:
    """Six decimals; whole numbers without a point."""
    rounded = round(value, 6)
    return int(rounded) if rounded == int(rounded) else rounded
