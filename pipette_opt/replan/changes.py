"""Changed jobs for ``whatif``: other hosts, links, GPUs, batches or precisions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.typed import Size, typed
from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.candidates import check_num_gpus
from pipette_opt.read.cluster import subset_cluster
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix
from pipette_opt.specs.gpu_links import GpuLinks

Group = Literal["without", "repaired", "more hosts", "number of GPUs", "links", "GPU", "training"]

ADDED = "added"
"""Prefix of the names of added hosts: added1, added2, ..."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """
    A changed job to plan for.

    Parameters
    ----------
    name
        Description of the change, for tables.
    num_gpus
        Number of GPUs to use. ``None``: the plan's number, or, if the number of hosts changes, the number that keeps
        most GPUs busy.
    barred
        Hosts of the instance that must not be used.
    is_searched
        Whether another plan is searched; otherwise the old plan is only simulated on the changed job.
    """

    name: str
    group: Group
    instance: Instance
    num_gpus: int | None = None
    barred: frozenset[str] = frozenset()
    is_searched: bool = True


def without_hosts(instance: Instance, hosts: Collection[str]) -> Change:
    """
    Return the change in which hosts are lost.

    They are barred from the job as it is, so that questions share a search. With several GPU types the job is one
    without them: the layers of each stage follow the types of all hosts, and some costs those of the slowest type.
    """
    known = instance.cluster.hosts
    for host in hosts:
        if host not in known:
            raise InputError(
                "--without", f"host {host!r} is not among the hosts of the plan.{did_you_mean(host, known)}"
            )
    if len(set(hosts)) == len(known):
        raise InputError("--without", "names every host, so that none is left; name fewer hosts.")
    name, left = (
        f"without {', '.join(hosts)}",
        subset_cluster(instance.cluster, [host for host in known if host not in hosts]),
    )
    if len(instance.cluster.gpu_kinds) > 1:
        return Change(name=name, group="without", instance=replace(instance, cluster=left))
    return Change(name=name, group="without", instance=instance, barred=frozenset(hosts))


def repaired_host(instance: Instance, host: str) -> Change:
    """
    Return the change in which a host runs at full speed and its links are at least as fast as usual.

    The usual rate of a link is the median of the partner's links with all other hosts, per direction.
    """
    cluster = instance.cluster
    if host not in cluster.hosts:
        raise InputError(
            "--repair", f"host {host!r} is not among the hosts of the plan.{did_you_mean(host, cluster.hosts)}"
        )
    node = cluster.hosts.index(host)
    own = cluster.nodes[node]
    nodes = list(cluster.nodes)
    nodes[node] = replace(own, gpu=own.gpu.at_speed(max(own.gpu.speed, 1.0)))
    matrices = []
    for matrix in cluster.link_matrices:
        links = matrix.bytes_per_s.copy()
        others = np.array(links)
        others[node], others[:, node] = np.nan, np.nan
        links[node] = np.fmax(links[node], _medians(others, axis=0))
        links[:, node] = np.fmax(links[:, node], _medians(others, axis=1))
        links[_inside_domains(cluster) & np.isnan(matrix.bytes_per_s)] = np.nan
        matrices.append(replace(matrix, bytes_per_s=links))
    changed = _with_links(replace(cluster, nodes=tuple(nodes)), matrices)
    return Change(name=f"{host} repaired", group="repaired", instance=replace(instance, cluster=changed))


def repaired_link(instance: Instance, host_a: str, host_b: str) -> Change:
    """Return the change in which a link is at least as fast, in both directions, as the median of all host_b links."""
    cluster = instance.cluster
    for host in (host_a, host_b):
        if host not in cluster.hosts:
            raise InputError(
                "--repair", f"host {host!r} is not among the hosts of the plan.{did_you_mean(host, cluster.hosts)}"
            )
    i, j = cluster.hosts.index(host_a), cluster.hosts.index(host_b)
    if i == j:
        raise InputError("--repair", f"must name two hosts, got {host_a}:{host_b}.")
    matrices = []
    for matrix in cluster.link_matrices:
        links = matrix.bytes_per_s.copy()
        others = np.array(links)
        others[i, j] = others[j, i] = np.nan
        usual = np.nanmedian(others) if cluster.num_nodes > 2 else np.nanmax(links)
        links[i, j], links[j, i] = np.fmax(links[i, j], usual), np.fmax(links[j, i], usual)
        matrices.append(replace(matrix, bytes_per_s=links))
    changed = _with_links(cluster, matrices)
    return Change(
        name=f"link {host_a}:{host_b} repaired", group="repaired", instance=replace(instance, cluster=changed)
    )


def faster_links(instance: Instance, factor: float) -> Change:
    """Return the change in which all links between hosts, except NVLink, are ``factor`` times as fast."""
    if not 0 < factor < 1e3:
        raise InputError("--link-speed", f"must be > 0 and below 1000, got {factor:g}.")
    cluster = instance.cluster
    if cluster.num_nodes == 1:
        raise InputError("--link-speed", "has no effect: the cluster has a single host, so no link between hosts.")
    matrices = [replace(matrix, bytes_per_s=matrix.bytes_per_s * factor) for matrix in cluster.link_matrices]
    levels = tuple(
        level if level.scale_up else replace(level, bytes_per_s=level.bytes_per_s * factor) for level in cluster.levels
    )
    cap = cluster.node_bytes_per_s
    changed = replace(
        _with_links(cluster, matrices), levels=levels, node_bytes_per_s=None if cap is None else cap * factor
    )
    return Change(name=f"links {factor:g} x as fast", group="links", instance=replace(instance, cluster=changed))


def other_gpu(instance: Instance, gpu: str, price: float | None = None) -> Change:
    """
    Return the change to another GPU type in all hosts, with the catalogue's links inside hosts and the present NICs.

    Parameters
    ----------
    price
        Price per GPU-hour of the new type; ``None`` if unknown.
    """
    entry = read_gpu_entry(gpu, "--gpu")
    cluster = instance.cluster
    changed = replace(
        cluster,
        nodes=tuple(replace(node, gpu=entry.gpu, price_per_gpu_hour=price) for node in cluster.nodes),
        intra_node_bytes_per_s=entry.intra_node_bytes_per_s,
        intra_node_latency_s=entry.intra_node_latency_s,
        levels=tuple(level for level in cluster.levels if not level.scale_up),
        gpu_links=None,
    )
    name = f"{entry.gpu.name} in all hosts"
    return Change(name=name, group="GPU", instance=replace(instance, cluster=changed))


def more_hosts(instance: Instance, count: int) -> Change:
    """
    Return the change in which ``count`` hosts of the most frequent GPU type are added.

    The link of a new host with an old host is the median of the old host's links; between new hosts it is the median of
    all links. Latencies and network levels are those of the last host.
    """
    typed(Size, count, "--add-hosts")
    cluster = instance.cluster
    if cluster.gpu_links is not None:
        raise InputError("--add-hosts", "does not support clusters with links measured between single GPUs.")
    if cluster.num_nodes == 1 and not cluster.link_matrices:
        raise InputError("--add-hosts", "needs a measured link between two hosts, but the cluster has a single host.")
    usual = np.bincount(cluster.kind_of_node).argmax()
    gpu, before = cluster.gpu_kinds[usual], cluster.num_nodes
    like = next(node for node in cluster.nodes if node.gpu.name == gpu.name)
    new = tuple(replace(like, host=f"{ADDED}{number}") for number in range(1, count + 1))
    matrices = []
    for matrix in cluster.link_matrices:
        links = np.full((before + count,) * 2, _medians(matrix.bytes_per_s.reshape(-1, 1), axis=0)[0])
        links[:before, :before] = matrix.bytes_per_s
        links[before:, :before] = _medians(matrix.bytes_per_s, axis=0)
        links[:before, before:] = _medians(matrix.bytes_per_s, axis=1)[:, None]
        matrices.append(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=links))
    like_last = [*range(before), *[before - 1] * count]
    known = cluster.known_latency_s
    changed = replace(
        cluster,
        nodes=(*cluster.nodes, *new),
        link_matrices=tuple(matrices),
        known_latency_s=None if known is None else known[np.ix_(like_last, like_last)],
        levels=tuple(level.of_hosts(like_last) for level in cluster.levels),
    )
    inside = _inside_domains(changed)
    inside[:before, :before] = False
    outside = [replace(matrix, bytes_per_s=np.where(inside, np.nan, matrix.bytes_per_s)) for matrix in matrices]
    changed = replace(changed, link_matrices=tuple(outside))
    name = "one more host" if count == 1 else f"{count} more hosts"
    return Change(name=name, group="more hosts", instance=replace(instance, cluster=changed))


def number_of_gpus(instance: Instance, num_gpus: int) -> Change:
    """
    Return the change to ``num_gpus`` GPUs of the same cluster; the search chooses the hosts.

    Raise ``InputError`` if the cluster cannot use this number.
    """
    check_num_gpus(num_gpus, instance.cluster.gpus_per_node, instance.cluster.num_nodes)
    return Change(name=f"{num_gpus} GPUs", group="number of GPUs", instance=instance, num_gpus=num_gpus)


def other_training(instance: Instance, name: str, changes: Mapping[str, Any]) -> Change:
    """Return the change of some fields of :class:`~pipette_opt.specs.TrainingSpec`."""
    try:
        training = instance.training.changed(**changes)
    except ValueError as error:
        option = "--" + next(iter(changes)).replace("_", "-")
        raise InputError(option, str(error)) from None
    return Change(name=name, group="training", instance=replace(instance, training=training))


def _with_links(cluster: ClusterSpec, matrices: Sequence[LinkMatrix]) -> ClusterSpec:
    """Return the cluster with other links between hosts; links between single GPUs change in proportion."""
    known = cluster.gpu_links
    if known is not None and known.between is not None:
        ratio = np.nan_to_num(matrices[0].bytes_per_s / cluster.link_matrices[0].bytes_per_s, nan=1.0)
        between = known.between * ratio[:, None, :, None]
        known = GpuLinks(inside=known.inside, between=between, nic_of_slot=known.nic_of_slot)
    return replace(cluster, link_matrices=tuple(matrices), gpu_links=known)


def _inside_domains(cluster: ClusterSpec) -> BoolArray:
    """Return which pairs share an NVLink domain, whose rate they have without an entry, ``(num_nodes, num_nodes)``."""
    domain = cluster.domain_of_node
    inside: BoolArray = domain[:, None] == domain
    return inside


def _medians(array: FloatArray, axis: int) -> FloatArray:
    """Return the medians of the known values along an axis; NaN where no value is known."""
    known = np.asarray(~np.isnan(array).all(axis=axis))
    found = np.full(known.shape, np.nan)
    if known.any():
        found[known] = np.nanmedian(np.compress(known, array, axis=1 - axis), axis=axis)
    return found
