"""Changed jobs: other hosts, links, GPUs, batches or formats, each made of the job that a plan is for."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.candidates import check_num_gpus
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.specs import ClusterSpec, Instance, LinkMatrix
from pipette_opt.specs.gpu_links import GpuLinks

Group = Literal["without", "repaired", "more hosts", "number of GPUs", "links", "GPU", "training"]

ADDED = "added"
"""Hosts that are not there yet are called added1, added2, ..."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """
    One question: what becomes of the plan if this were so.

    Parameters
    ----------
    name
        In words.
    num_gpus
        GPUs that are used; ``None`` for as many as the plan uses, or as keep most busy if hosts are fewer or more.
    barred
        Hosts of the instance that may not be used.
    is_searched
        Whether another plan is looked for; else only the plan as it is is simulated.
    """

    name: str
    group: Group
    instance: Instance
    num_gpus: int | None = None
    barred: frozenset[str] = frozenset()
    is_searched: bool = True


def without_hosts(instance: Instance, hosts: Collection[str]) -> Change:
    """The job when hosts are lost."""
    known = instance.cluster.hosts
    for host in hosts:
        if host not in known:
            raise InputError(
                "--without", f"host {host!r} is not among the hosts of the plan.{did_you_mean(host, known)}"
            )
    if len(set(hosts)) == len(known):
        raise InputError("--without", "leaves no host.")
    return Change(name=f"without {', '.join(hosts)}", group="without", instance=instance, barred=frozenset(hosts))


def repaired_host(instance: Instance, host: str) -> Change:
    """
    The job when a host is as good as others: at full speed, each link at least as fast as its partner's usually are.

    Usual is the median of the partner's links with all other hosts, each direction apart.
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
        matrices.append(replace(matrix, bytes_per_s=links))
    changed = _with_links(replace(cluster, nodes=tuple(nodes)), matrices)
    return Change(name=f"{host} repaired", group="repaired", instance=replace(instance, cluster=changed))


def repaired_link(instance: Instance, one: str, other: str) -> Change:
    """The job when a link is at least as fast, in both directions, as the median of all others."""
    cluster = instance.cluster
    for host in (one, other):
        if host not in cluster.hosts:
            raise InputError(
                "--repair", f"host {host!r} is not among the hosts of the plan.{did_you_mean(host, cluster.hosts)}"
            )
    i, j = cluster.hosts.index(one), cluster.hosts.index(other)
    if i == j:
        raise InputError("--repair", f"must name two hosts, got {one}:{other}.")
    matrices = []
    for matrix in cluster.link_matrices:
        links = matrix.bytes_per_s.copy()
        others = np.array(links)
        others[i, j] = others[j, i] = np.nan
        usual = np.nanmedian(others) if cluster.num_nodes > 2 else np.nanmax(links)
        links[i, j], links[j, i] = np.fmax(links[i, j], usual), np.fmax(links[j, i], usual)
        matrices.append(replace(matrix, bytes_per_s=links))
    changed = _with_links(cluster, matrices)
    return Change(name=f"link {one}:{other} repaired", group="repaired", instance=replace(instance, cluster=changed))


def faster_links(instance: Instance, factor: float) -> Change:
    """The job when all links between hosts, NVLink domains apart, are so many times as fast."""
    if not 0 < factor < 1e3:
        raise InputError("--link-speed", f"must be > 0 and below 1000, got {factor:g}.")
    cluster = instance.cluster
    if cluster.num_nodes == 1:
        raise InputError("--link-speed", "has no effect: there is a single host.")
    matrices = [replace(one, bytes_per_s=one.bytes_per_s * factor) for one in cluster.link_matrices]
    levels = tuple(
        one if one.scale_up else replace(one, bytes_per_s=one.bytes_per_s * factor) for one in cluster.levels
    )
    cap = cluster.node_bytes_per_s
    changed = replace(
        _with_links(cluster, matrices), levels=levels, node_bytes_per_s=None if cap is None else cap * factor
    )
    return Change(name=f"links {factor:g} x as fast", group="links", instance=replace(instance, cluster=changed))


def other_gpu(instance: Instance, gpu: str, price: float | None = None) -> Change:
    """
    The job with another kind of GPU in all hosts, inside which links are the catalogue's; the same NICs.

    Parameters
    ----------
    price
        Of one for an hour; ``None`` where nobody knows.
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
    The job with more hosts, each of the most frequent kind.

    A new host's link with another is the median of that one's links, and the median of all between two new ones; it has
    the latencies of the last host and is in its groups.
    """
    if count < 1:
        raise InputError("--add-hosts", f"must be >= 1, got {count}.")
    cluster = instance.cluster
    if cluster.gpu_links is not None:
        raise InputError("--add-hosts", "is not for clusters whose links of single GPUs are known.")
    if cluster.num_nodes == 1 and not cluster.link_matrices:
        raise InputError("--add-hosts", "needs links between hosts, and there is a single host.")
    usual = np.bincount(cluster.kind_of_node).argmax()
    gpu, before = cluster.gpu_kinds[usual], cluster.num_nodes
    like = next(node for node in cluster.nodes if node.gpu.name == gpu.name)
    new = tuple(replace(like, host=f"{ADDED}{number}") for number in range(1, count + 1))
    matrices = []
    for matrix in cluster.link_matrices:
        links = np.full((before + count,) * 2, np.nanmedian(matrix.bytes_per_s))
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
    name = "one host more" if count == 1 else f"{count} hosts more"
    return Change(name=name, group="more hosts", instance=replace(instance, cluster=changed))


def number_of_gpus(instance: Instance, num_gpus: int) -> Change:
    """The job on so many GPUs of the same cluster; which, is chosen. ``InputError`` for numbers that it cannot have."""
    check_num_gpus(num_gpus, instance.cluster.gpus_per_node, instance.cluster.num_nodes)
    return Change(name=f"{num_gpus} GPUs", group="number of GPUs", instance=instance, num_gpus=num_gpus)


def other_training(instance: Instance, name: str, changes: Mapping[str, Any]) -> Change:
    """The job with other fields of :class:`~pipette_opt.specs.TrainingSpec`."""
    try:
        training = replace(instance.training, **changes)
    except ValueError as error:
        option = "--" + next(iter(changes)).replace("_", "-")
        raise InputError(option, str(error)) from None
    return Change(name=name, group="training", instance=replace(instance, training=training))


def _with_links(cluster: ClusterSpec, matrices: Sequence[LinkMatrix]) -> ClusterSpec:
    """The cluster with other links between hosts; those of single GPUs change in proportion."""
    known = cluster.gpu_links
    if known is not None and known.between is not None:
        ratio = np.nan_to_num(matrices[0].bytes_per_s / cluster.link_matrices[0].bytes_per_s, nan=1.0)
        between = known.between * ratio[:, None, :, None]
        known = GpuLinks(inside=known.inside, between=between, nic_of_slot=known.nic_of_slot)
    return replace(cluster, link_matrices=tuple(matrices), gpu_links=known)


def _medians(array: FloatArray, axis: int) -> FloatArray:
    """Medians of what is known along an axis; NaN where nothing is."""
    known = np.asarray(~np.isnan(array).all(axis=axis))
    found = np.full(known.shape, np.nan)
    if known.any():
        found[known] = np.nanmedian(np.compress(known, array, axis=1 - axis), axis=axis)
    return found
