"""Field ``levels`` of a cluster file: NVLink domains, leaves, spines and pods, innermost first."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import GB, US, counted
from pipette_opt.read.fields import Fields
from pipette_opt.read.gpus import UsualDomain, read_gpu_catalogue
from pipette_opt.read.hosts import check_known, expand_hosts
from pipette_opt.read.inter_node import InterNode
from pipette_opt.read.matrices import bandwidth_of, gb_text
from pipette_opt.specs import ClusterSpec, NodeSpec
from pipette_opt.specs.host_names import compress_hosts
from pipette_opt.specs.levels import Level

_LEVEL = ("name", "hosts", "bandwidth_gb_per_s", "oversubscription", "latency_us", "scale_up")

DOMAIN = "nvlink-domain"
"""Name of the level that comes from the catalogue's usual NVLink domains."""

MAX_LEVELS = 8
"""Largest number of levels of a cluster. Chosen: no network has more."""


def levels_of(
    top: Fields, nodes: Sequence[NodeSpec], inter: InterNode, inside: tuple[float, float], assumed: list[str]
) -> tuple[Level, ...]:
    """
    Return the levels of a cluster file; without the field and without measured links, the usual NVLink domains.

    ``inside`` is bandwidth (bytes/s) and latency (s) inside a host.
    """
    where = f"{top.where}, levels"
    if not top.has("levels"):
        return () if inter.measured else usual_levels(nodes, *inside, assumed)
    known = [matrix for matrix in inter.link_matrices if not np.isnan(matrix.bytes_per_s).all()]
    flow = max((float(np.nanmax(matrix.bytes_per_s)) / matrix.concurrent_flows for matrix in known), default=GB)
    levels = read_levels(
        top.data["levels"],
        where,
        [node.host for node in nodes],
        inside_latency_s=inside[1],
        flow_bytes_per_s=flow,
        latency_s=inter.latency_s,
    )
    if levels and not inter.measured and len(set(levels[-1].group_of_node.tolist())) > 1:
        outer = levels[-1]
        if flow > outer.bytes_per_s or inter.latency_s < outer.latency_s:
            base = f"{gb_text(flow)} GB/s a flow, {inter.latency_s / US:g} us"
            problem = f"is slower than inter_node, the link of hosts that no level holds ({base})"
            raise InputError(f"{where}, {outer.name}", f"{problem}; add a level without hosts, which holds all.")
    return levels


def read_levels(
    data: object,
    where: str,
    hosts: Sequence[str],
    *,
    inside_latency_s: float,
    flow_bytes_per_s: float,
    latency_s: float,
) -> tuple[Level, ...]:
    """
    Return the levels that the field ``levels`` describes, innermost first.

    Parameters
    ----------
    inside_latency_s
        Latency of a message inside a host, seconds; default of a level with ``scale_up``.
    flow_bytes_per_s, latency_s
        Bandwidth (bytes/s) and latency (s) of a single flow over the fastest link between hosts. ``oversubscription``
        divides the bandwidth; the latency is the default of other levels.
    """
    if not isinstance(data, list):
        raise InputError(where, f"must be a list of {{name, hosts, bandwidth_gb_per_s}}, got {shown(data)}.")
    if len(data) > MAX_LEVELS:
        raise InputError(where, f"must be at most {MAX_LEVELS} levels, got {len(data)}.")
    found: list[Level] = []
    for index, entry in enumerate(data):
        fields = Fields(f"{where}[{index}]", entry, _LEVEL)
        name, scale_up = fields.text("name"), fields.flag("scale_up", False)
        place = f"{where}[{index}], {name}"
        groups = _groups(fields.data.get("hosts"), place, hosts)
        both = fields.has("bandwidth_gb_per_s") and fields.has("oversubscription")
        neither = not fields.has("bandwidth_gb_per_s") and (scale_up or not fields.has("oversubscription"))
        if both or neither or (scale_up and fields.has("oversubscription")):
            share = "" if scale_up else ", or oversubscription, a share of the NICs' rate"
            raise InputError(place, f"must have one of: bandwidth_gb_per_s, the rate of a single flow{share}.")
        if fields.has("oversubscription"):
            times = fields.positive("oversubscription")
            if times < 1:
                raise InputError(place, f"oversubscription must be >= 1 (2: half of the rate), got {times:g}.")
            rate = flow_bytes_per_s / times
        else:
            rate = bandwidth_of(fields, "bandwidth_gb_per_s")
        usual = inside_latency_s if scale_up else latency_s
        latency = fields.not_negative("latency_us") * US if fields.has("latency_us") else usual
        found.append(Level(name=name, group_of_node=groups, bytes_per_s=rate, latency_s=latency, scale_up=scale_up))
    return tuple(found)


def _groups(data: object, where: str, hosts: Sequence[str]) -> IntArray:
    """
    Return the group number of each host from ``hosts`` of a level.

    ``data`` is a group size, a list of groups, or ``None`` for a single group. A host in no group is a group of its
    own.
    """
    if data is None:
        return np.zeros(len(hosts), dtype=np.int64)
    if isinstance(data, int) and not isinstance(data, bool):
        if data < 1 or len(hosts) % data:
            problem = f"hosts is {data}, which does not divide the {len(hosts)} hosts; list those of each group."
            raise InputError(where, problem)
        return np.arange(len(hosts)) // data
    if not isinstance(data, list):
        raise InputError(where, f"hosts must be a number of hosts, or a list of groups of hosts, got {shown(data)}.")
    number = {host: index for index, host in enumerate(hosts)}
    groups = np.full(len(hosts), -1, dtype=np.int64)
    for group, entry in enumerate(data):
        names = expand_hosts(entry, where)
        check_known(names, hosts, where, "among the nodes")
        for host in names:
            before = groups[number[host]]
            if before >= 0:
                fault = "twice in a group" if before == group else "in two groups"
                raise InputError(where, f"host {host!r} is {fault}.")
            groups[number[host]] = group
    alone = np.flatnonzero(groups < 0)
    groups[alone] = len(data) + np.arange(len(alone))
    return groups


def usual_levels(
    nodes: Sequence[NodeSpec], inside_bytes_per_s: float, inside_latency_s: float, assumed: list[str]
) -> tuple[Level, ...]:
    """Return the usual NVLink domains of rack GPUs as a level; empty for other GPUs or numbers of GPUs per host."""
    groups: list[int] = []
    sizes: list[int] = []
    sources: dict[str, None] = {}
    start = 0
    while start < len(nodes):
        domain = _usual_domain(nodes[start])
        run = next((i for i in range(start, len(nodes)) if nodes[i].gpu.kind != nodes[start].gpu.kind), len(nodes))
        size = domain.size(run - start) if domain is not None else 1
        if domain is not None:
            sources[domain.source] = None
        for index in range(run - start):
            if index % size == 0:
                sizes.append(0)
            sizes[-1] += 1
            groups.append(len(sizes) - 1)
        start = run
    if len(nodes) == 1 or max(sizes) == 1:
        return ()
    assumed.append(
        f"NVLink domains: {counted(len(sizes), 'group')} of up to {max(sizes)} hosts in the order listed, as usual "
        f"({'; '.join(sources)}). Write levels if they are others."
    )
    level = Level(
        name=DOMAIN,
        group_of_node=np.array(groups),
        bytes_per_s=inside_bytes_per_s,
        latency_s=inside_latency_s,
        scale_up=True,
    )
    return (level,)


def _usual_domain(node: NodeSpec) -> UsualDomain | None:
    entry = read_gpu_catalogue().get(node.gpu.kind)
    if entry is None or entry.usual_host is None or entry.usual_host.gpus_per_node != node.num_gpus:
        return None
    return entry.usual_domain


def says_levels(cluster: ClusterSpec) -> bool:
    """Return whether a cluster file must have ``levels``, if only to say that its GPUs are in no usual domain."""
    return bool(cluster.levels) or (
        cluster.num_nodes > 1
        and not cluster.links_measured
        and any(_usual_domain(node) is not None for node in cluster.nodes)
    )


def level_entries(cluster: ClusterSpec) -> list[Mapping[str, Any]]:
    """Return the entries of the field ``levels`` of a cluster file, with the hosts of each group."""
    return [
        {
            "name": level.name,
            "hosts": [
                compress_hosts(tuple(cluster.hosts[node] for node in np.flatnonzero(level.group_of_node == group)))
                for group in dict.fromkeys(level.group_of_node.tolist())
            ],
            "bandwidth_gb_per_s": round(level.bytes_per_s / GB, 6),
            "latency_us": round(level.latency_s / US, 6),
            **({"scale_up": True} if level.scale_up else {}),
        }
        for level in cluster.levels
    ]


def domain_record(cluster: ClusterSpec) -> dict[str, list[str]]:
    """
    Return the hosts of each NVLink domain under the key ``domains``, as plans record them.

    Empty if every host is its own domain.
    """
    if cluster.most_in_domain == 1:
        return {}
    return {"domains": [str(group) for group in level_entries(cluster)[0]["hosts"]]}
