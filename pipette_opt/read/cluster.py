"""Cluster files: YAML, with CSV files of link matrices beside it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import write_with_parts
from pipette_opt.base.units import GB, MIB, TFLOP, US, counted
from pipette_opt.read.blocks_of_gpus import split_hosts, usual_block
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_yaml
from pipette_opt.read.gpu_matrices import gpu_csv, gpu_links_of, inside_csvs
from pipette_opt.read.gpus import GPU_FIELDS, note_on_gpu, parse_gpu, read_gpu_catalogue, read_gpu_entry
from pipette_opt.read.hosts import check_known
from pipette_opt.read.hosts import expand_hosts as expand_hosts
from pipette_opt.read.inter_node import INTER, InterNode, read_inter_node
from pipette_opt.read.kinds_of_files import CLUSTER_FILE, reads
from pipette_opt.read.levels import level_entries, levels_of, says_levels
from pipette_opt.read.link_notes import notes_on_latency, notes_on_units
from pipette_opt.read.matrices import MAX_LATENCY_S, bandwidth_of, gb_text, matrix_csv
from pipette_opt.read.prices import check_price
from pipette_opt.read.speeds import check_speed
from pipette_opt.specs import ClusterSpec, GpuSpec, LinkMatrix, NodeSpec
from pipette_opt.specs.host_names import compress_hosts, with_blocks
from pipette_opt.specs.levels import Level

MAX_GPUS_PER_NODE = 1024
"""Largest number of GPUs of a host. Chosen, above any NVLink domain (576 in the fifth generation)."""

_TOP = ("name", "nodes", "gpus_per_block", "intra_node", "inter_node", "levels")
_NODE = ("hosts", "gpu", "gpus_per_node", "speed", "price_per_gpu_hour")
_INTRA = ("bandwidth_gb_per_s", "latency_us", "matrices")


@reads(CLUSTER_FILE)
def read_cluster(path: str | Path) -> ClusterSpec:
    """
    Read a cluster file; ``data/README.md`` describes the format.

    Matrix files lie beside the cluster file. ``InputError`` names file, field and value of the first problem.
    """
    path = Path(path)
    return parse_cluster(read_yaml(path), str(path), path.parent, path.stem)


def parse_cluster(document: object, where: str, folder: Path, name: str = "cluster") -> ClusterSpec:
    """
    Return the cluster that the parsed YAML content of a cluster file describes.

    Parameters
    ----------
    where
        Start of every error message.
    folder
        Folder of the matrix files.
    name
        Name of the cluster if the document has none.
    """
    top = Fields(where, document, _TOP)
    assumed: list[str] = []
    nodes = _read_nodes(f"{where}, nodes", top.any("nodes"), assumed)
    counts = [node.num_gpus for node in nodes]
    in_blocks = top.has("gpus_per_block") or len(set(counts)) > 1
    if in_blocks:
        nodes = tuple(replace(node, num_gpus=max(counts)) for node in nodes)
    intra = Fields(f"{where}, intra_node", top.data.get("intra_node") or {}, _INTRA)
    rate, latency_s = _read_intra_node(intra, nodes, assumed)
    inter_fields = Fields(f"{where}, inter_node", top.data.get("inter_node") or {}, INTER)
    inter = read_inter_node(inter_fields, nodes, folder)
    levels = () if in_blocks else levels_of(top, nodes, inter, (rate, latency_s), assumed)
    if in_blocks and top.data.get("levels"):
        raise InputError(f"{where}, levels", "need hosts with equally many GPUs, and no gpus_per_block.")
    _check_units(where, nodes, rate, latency_s, inter, levels)
    catalogue = read_gpu_catalogue()
    kinds = {node.host: catalogue[node.gpu.kind] for node in nodes if node.gpu.kind in catalogue}
    hosts = [node.host for node in nodes]
    assumed += notes_on_latency(inter.latency_s)
    assumed += [note for matrix in inter.link_matrices for note in notes_on_units(matrix, hosts, kinds)]
    try:
        cluster = ClusterSpec(
            name=top.text("name", name),
            nodes=nodes,
            intra_node_bytes_per_s=rate,
            intra_node_latency_s=latency_s,
            inter_node_latency_s=inter.latency_s,
            known_latency_s=inter.known_latency_s,
            nics_per_node=inter.nics_per_node,
            link_matrices=inter.link_matrices,
            node_bytes_per_s=inter.node_bytes_per_s,
            links_measured=inter.measured,
            assumed=(*inter.assumed, *assumed),
            gpu_links=gpu_links_of(intra, inter_fields, nodes, folder, inter.singles, rate, inter.nics_per_node),
            levels=levels,
        )
        block = top.whole("gpus_per_block") if top.has("gpus_per_block") else usual_block(counts)
        return split_hosts(cluster, counts, block, where) if in_blocks else cluster
    except InputError:
        raise
    except ValueError as error:
        raise InputError(where, str(error)) from None


def _check_units(
    where: str,
    nodes: Sequence[NodeSpec],
    intra_bytes_per_s: float,
    intra_latency_s: float,
    inter: InterNode,
    levels: Sequence[Level],
) -> None:
    """
    Raise ``InputError`` for a link faster than the GPU memory it reads from, or for a latency above a second.

    The usual cause is a wrong unit: MB/s or Gbit/s in place of GB/s.
    """
    fastest = max(node.gpu.memory_bytes_per_s / node.gpu.speed for node in nodes)
    singles = [("intra_node", intra_bytes_per_s), *((f"levels, {level.name}", level.bytes_per_s) for level in levels)]
    for place, bytes_per_s in singles:
        if bytes_per_s > fastest:
            problem = f"bandwidth_gb_per_s is {bytes_per_s / GB:g}, more than {_memory_rate_text(1, fastest)}"
            raise InputError(f"{where}, {place}", problem)
    for matrix in inter.link_matrices:
        flows = matrix.concurrent_flows
        for i, j in np.argwhere(np.nan_to_num(matrix.bytes_per_s) > flows * fastest)[:1].tolist():
            link = f"{matrix.bytes_per_s[i, j] / GB:g} GB/s from {nodes[i].host} to {nodes[j].host}"
            problem = f"{link} with {counted(flows, 'flow')} is more than {_memory_rate_text(flows, fastest)}"
            raise InputError(f"{where}, inter_node", problem)
    latencies = [("intra_node", intra_latency_s), ("inter_node", inter.latency_s)]
    for place, latency_s in (*latencies, *((f"levels, {level.name}", level.latency_s) for level in levels)):
        if latency_s > MAX_LATENCY_S:
            problem = f"latency_us is {latency_s / US:g}, more than a second; check that it is in microseconds."
            raise InputError(f"{where}, {place}", problem)


def _memory_rate_text(num_gpus: int, bytes_per_s: float) -> str:
    return f"the {num_gpus * bytes_per_s / GB:,.0f} GB/s of the memory of {counted(num_gpus, 'GPU')}; is it in GB/s?"


def matrix_files(path: str | Path, part: Literal["inter_node", "intra_node"] = "inter_node") -> list[str]:
    """Return the names of a cluster file's matrix files, relative to it, for links between or inside hosts."""
    links = read_yaml(path).get(part) or {}
    latencies = [str(links["latencies"])] if links.get("latencies") else []
    return [str(entry["file"]) for entry in links.get("matrices") or ()] + latencies


def write_cluster(cluster: ClusterSpec, path: str | Path, comment: str = "") -> None:
    """
    Write a cluster file and, beside it, a CSV file for each measured matrix.

    Matrices of host pairs are ``<stem>_links_<flows>.csv``, known latencies ``<stem>_latencies.csv``. Links of single
    GPUs replace the matrix of one flow. If only links inside hosts are known, each kind of host has a file
    ``<stem>_inside_<number>.csv``. Bandwidths are rounded to 1 kB/s, latencies to 1 ps. ``comment`` becomes the head of
    the YAML file. Either all files are written or none. ``InputError`` for an existing matrix file that no older
    cluster file at ``path`` names.
    """
    path = Path(path)
    parts: dict[str, str] = {}
    matrices, inside, links = [], [], cluster.gpu_links
    for matrix in cluster.link_matrices if cluster.links_measured else ():
        file = f"{path.stem}_links_{matrix.concurrent_flows}.csv"
        single = matrix.concurrent_flows == 1 and links is not None and links.between is not None
        parts[file] = (
            gpu_csv(cluster.hosts, links) if single and links else matrix_csv(cluster.hosts, matrix.bytes_per_s)
        )
        matrices.append({"file": file, "concurrent_flows": matrix.concurrent_flows})
    for number, (hosts, text) in enumerate(
        inside_csvs(cluster.hosts, links) if links is not None and links.between is None else ()
    ):
        file = f"{path.stem}_inside_{number}.csv"
        parts[file] = text
        inside.append({"file": file, "hosts": hosts})
    lines = "".join(f"# {line}".rstrip() + "\n" for line in comment.splitlines())
    document = cluster_document(cluster, matrices, inside)
    if cluster.known_latency_s is not None:
        file = f"{path.stem}_latencies.csv"
        parts[file] = matrix_csv(cluster.hosts, cluster.known_latency_s, US)
        document["inter_node"]["latencies"] = file
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)
    write_with_parts(path, lines + text, parts)


def cluster_document(
    cluster: ClusterSpec, matrices: Sequence[Mapping[str, Any]] = (), inside: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """
    Return the content of a cluster file, with every value written out.

    Parameters
    ----------
    matrices
        Entries for the matrix files between hosts; a cluster without measured links has a single bandwidth.
    inside
        Entries for the matrix files inside hosts.
    """
    inter: dict[str, Any] = {"latency_us": _round(cluster.inter_node_latency_s / US)}
    inter["nics_per_node"] = cluster.nics_per_node
    if cluster.gpu_links is not None:
        inter["nic_of_gpu"] = cluster.gpu_links.nic_of_slot.tolist()
    if matrices:
        inter["matrices"] = list(matrices)
    elif not cluster.links_measured:
        inter["bandwidth_gb_per_s"] = _round(np.nanmax(cluster.link_matrices[0].bytes_per_s) / GB)
    if cluster.node_bytes_per_s is not None:
        inter["node_bandwidth_gb_per_s"] = _round(cluster.node_bytes_per_s / GB)
    return {
        "name": cluster.name,
        "nodes": _node_entries(cluster.nodes),
        "intra_node": {
            "bandwidth_gb_per_s": _round(cluster.intra_node_bytes_per_s / GB),
            "latency_us": _round(cluster.intra_node_latency_s / US),
            **({"matrices": list(inside)} if inside else {}),
        },
        "inter_node": inter,
        **({"levels": level_entries(cluster)} if says_levels(cluster) else {}),
    }


def subset_cluster(cluster: ClusterSpec, hosts: Collection[str], where: str = "hosts") -> ClusterSpec:
    """Return the cluster with only ``hosts``, in its order. ``InputError`` at ``where`` for an unknown host."""
    check_known(hosts, cluster.hosts, where, f"in cluster {cluster.name}")
    if not hosts:
        raise InputError(
            where, f"names every host of cluster {cluster.name}, so that none is left; exclude fewer hosts."
        )
    keep = [index for index, host in enumerate(cluster.hosts) if host in hosts]
    matrices = tuple(
        LinkMatrix(
            concurrent_flows=matrix.concurrent_flows,
            bytes_per_s=matrix.bytes_per_s[np.ix_(keep, keep)],
        )
        for matrix in cluster.link_matrices
    )
    return replace(
        cluster,
        nodes=tuple(cluster.nodes[index] for index in keep),
        link_matrices=matrices,
        known_latency_s=None if cluster.known_latency_s is None else cluster.known_latency_s[np.ix_(keep, keep)],
        gpu_links=cluster.gpu_links and cluster.gpu_links.of_hosts(keep),
        levels=tuple(level.of_hosts(keep) for level in cluster.levels),
    )


def exclude_hosts(cluster: ClusterSpec, hosts: Collection[str]) -> ClusterSpec:
    """Return the cluster without ``hosts``, which are names or ranges such as ``gpu[01-02]``."""
    excluded = set(expand_hosts(list(hosts), "--exclude-hosts")) if hosts else set()
    excluded = set(with_blocks(sorted(excluded), cluster.hosts))
    subset_cluster(cluster, excluded or cluster.hosts, "--exclude-hosts")
    return subset_cluster(cluster, [host for host in cluster.hosts if host not in excluded], "--exclude-hosts")


def _read_nodes(where: str, data: object, assumed: list[str]) -> tuple[NodeSpec, ...]:
    if not isinstance(data, list) or not data:
        raise InputError(where, f"must be a list of entries with hosts, gpu and gpus_per_node, got {shown(data)}.")
    nodes: list[NodeSpec] = []
    for index, entry in enumerate(data):
        place = f"{where}[{index}]"
        fields = Fields(place, entry, _NODE)
        gpu = _read_node_gpu(place, fields.any("gpu"), assumed)
        count = _gpus_per_node(fields, gpu, assumed)
        if fields.has("speed"):
            gpu = gpu.at_speed(check_speed(fields.any("speed"), f"{place}, speed"))
        price = None
        if fields.has("price_per_gpu_hour"):
            price = check_price(fields.any("price_per_gpu_hour"), f"{place}, price_per_gpu_hour")
        nodes += [
            NodeSpec(host=host, gpu=gpu, num_gpus=count, price_per_gpu_hour=price)
            for host in expand_hosts(fields.any("hosts"), place)
        ]
    blocks = [node.host for node in nodes if ":" in node.host]
    if blocks:
        raise InputError(
            where,
            f"host {blocks[0]!r} must not contain a colon, which is reserved for blocks of GPUs; rename the host.",
        )
    listed = Counter(node.host for node in nodes)
    for host, times in listed.items():
        if times > 1:
            raise InputError(where, f"host {host!r} is listed {times} times; list each host once.")
    return tuple(nodes)


def _read_node_gpu(where: str, data: object, assumed: list[str]) -> GpuSpec:
    """Return a GPU from a name of the catalogue or from a mapping of all its fields; notes are added to ``assumed``."""
    if isinstance(data, str):
        entry = read_gpu_entry(data, f"{where}, gpu")
        gpu, note = entry.gpu, note_on_gpu(data, entry)
    else:
        fields = Fields(f"{where}, gpu", data, ("name", *GPU_FIELDS))
        gpu = parse_gpu(f"{where}, gpu", fields.text("name"), fields)
        unused = f"GPU {gpu.name} counts as one that no public run used; `generation` in its entry can say another."
        note = None if gpu.generation else unused
    if note is not None and note not in assumed:
        assumed.append(note)
    return gpu


def _gpus_per_node(fields: Fields, gpu: GpuSpec, assumed: list[str]) -> int:
    """Return the number of GPUs of a host, from the file or else from the catalogue, with a note in ``assumed``."""
    if fields.has("gpus_per_node"):
        return fields.whole("gpus_per_node", most=MAX_GPUS_PER_NODE)
    entry = read_gpu_catalogue().get(gpu.name)
    if entry is None or entry.usual_host is None:
        raise InputError(
            fields.where,
            f"the field gpus_per_node is missing, and the catalogue has no usual number for {gpu.name}; add the field.",
        )
    usual = entry.usual_host
    note = f"GPUs of a host: {usual.gpus_per_node}, as usual for {gpu.name} ({usual.source})."
    if note not in assumed:
        assumed.append(note)
    return usual.gpus_per_node


def _read_intra_node(intra: Fields, nodes: Sequence[NodeSpec], assumed: list[str]) -> tuple[float, float]:
    """Return bandwidth (bytes/s) and latency (s) inside a host, from the file or of the slowest GPU type in use."""
    catalogue = read_gpu_catalogue()
    kinds = dict.fromkeys(node.gpu.kind for node in nodes)
    known = [catalogue[name] for name in kinds if name in catalogue]
    alone = nodes[0].num_gpus == 1  # a host with one GPU has no link inside
    if len(known) < len(kinds) and not alone and not intra.has("bandwidth_gb_per_s"):
        strangers = ", ".join(name for name in kinds if name not in catalogue)
        problem = (
            f"the field bandwidth_gb_per_s is missing, and the catalogue has no value for {strangers}; add the field."
        )
        raise InputError(intra.where, problem)
    rate = min((entry.intra_node_bytes_per_s for entry in known), default=float(GB))
    latency_s = max((entry.intra_node_latency_s for entry in known), default=0.0)
    silent = [
        text
        for field, text in (("bandwidth_gb_per_s", f"{gb_text(rate)} GB/s"), ("latency_us", f"{latency_s / US:g} us"))
        if not intra.has(field)
    ]
    if silent and not alone:
        assumed.append(f"Inside a host: {' and '.join(silent)}, the catalogue's for {' and '.join(kinds)}.")
    return (
        bandwidth_of(intra, "bandwidth_gb_per_s") if intra.has("bandwidth_gb_per_s") else rate,
        intra.not_negative("latency_us") * US if intra.has("latency_us") else latency_s,
    )


def _node_entries(nodes: Sequence[NodeSpec]) -> list[dict[str, Any]]:
    """Return an entry of ``nodes`` for each run of consecutive hosts that differ only in name."""
    runs: list[list[NodeSpec]] = []
    for node in nodes:
        if runs and replace(runs[-1][0], host=node.host) == node:
            runs[-1].append(node)
        else:
            runs.append([node])
    return [
        {
            "hosts": compress_hosts(tuple(node.host for node in run)),
            "gpu": _gpu_entry(run[0].gpu),
            "gpus_per_node": run[0].num_gpus,
            **({} if run[0].gpu.speed == 1.0 else {"speed": run[0].gpu.speed}),
            **({} if run[0].price_per_gpu_hour is None else {"price_per_gpu_hour": run[0].price_per_gpu_hour}),
        }
        for run in runs
    ]


def _gpu_entry(gpu: GpuSpec) -> str | Mapping[str, Any]:
    """Return the catalogue name of the GPU if all its fields are the catalogue's, else a mapping of all fields."""
    known = read_gpu_catalogue().get(gpu.kind)
    if known is not None and known.gpu.at_speed(gpu.speed) == gpu:
        return gpu.kind
    gpu = gpu.at_speed(1.0)
    return {
        "name": gpu.name,
        "memory_mib": gpu.memory_bytes // MIB,
        "memory_bandwidth_gb_per_s": _round(gpu.memory_bytes_per_s / GB),
        "peak_tflops": {precision: _round(flops / TFLOP) for precision, flops in gpu.peak_flops.items()},
        **({"source": gpu.source} if gpu.source else {}),
        **({"like": gpu.efficiency.like} if gpu.efficiency.like else {}),
        **({"generation": gpu.generation} if gpu.generation else {}),
    }


def _round(value: float) -> float | int:
    """Return the value rounded to six decimals, as an ``int`` if whole."""
    rounded = round(float(value), 6)
    return int(rounded) if rounded == int(rounded) else rounded
