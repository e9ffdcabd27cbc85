"""
Changes of links between two descriptions of a cluster, and drifts over several.

Two measurements of a link are compared by the ratio of their bandwidths. Several are compared by the median of all
slopes (Theil and Sen), so a single bad day is no drift. Changes are attributed to hosts and pairs as in
:mod:`.link_health`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB, counted, listed
from pipette_opt.read.link_health import MAX_NAMED, Faults, find_faults
from pipette_opt.specs import ClusterSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkChange:
    """
    Changes of links from the first measurement to the last, for one number of flows.

    Parameters
    ----------
    flows
        Number of concurrent flows between two hosts.
    slower, faster
        Hosts and pairs whose bandwidth fell, or rose, more than others'. Shares in ``faster`` are old over new
        bandwidth.
    lost, new
        Pairs measured only the first time, or only the last time.
    """

    flows: int
    slower: Faults
    faster: Faults
    lost: tuple[tuple[str, str], ...]
    new: tuple[tuple[str, str], ...]


def link_changes(snapshots: Sequence[ClusterSpec]) -> list[LinkChange]:
    """
    Return the changes of links between common hosts, for each number of flows that all snapshots have.

    Two snapshots are compared by the ratio of bandwidths, several by the slope over time. ``InputError`` if the
    snapshots have fewer than two hosts, or no number of flows, in common.
    """
    first, last = snapshots[0], snapshots[-1]
    hosts = [host for host in first.hosts if all(host in snapshot.hosts for snapshot in snapshots)]
    if len(hosts) < 2:
        raise InputError("links", f"{first.name} and {last.name} have fewer than two hosts in common.")
    tables = [_tables(snapshot, hosts) for snapshot in snapshots]
    common = sorted(set.intersection(*(set(table) for table in tables)))
    if not common:
        raise InputError("links", f"{first.name} and {last.name} have no number of flows in common.")
    found = []
    for flows in common:
        logs = np.log(np.stack([table[flows] for table in tables]))
        ratio = np.exp(_slope(logs) * (len(snapshots) - 1))
        had, has = ~np.isnan(logs[0]), ~np.isnan(logs[-1])
        lost, new = (
            tuple((hosts[i], hosts[j]) for i, j in np.argwhere(pairs).tolist()) for pairs in (had & ~has, has & ~had)
        )
        slower, faster = find_faults(ratio, hosts), find_faults(1 / ratio, hosts)
        found.append(LinkChange(flows=flows, slower=slower, faster=faster, lost=lost, new=new))
    return found


def _tables(cluster: ClusterSpec, hosts: Sequence[str]) -> dict[int, FloatArray]:
    """Return the bandwidths between ``hosts``, bytes/s, by number of flows."""
    keep = [cluster.hosts.index(host) for host in hosts]
    return {matrix.concurrent_flows: matrix.bytes_per_s[np.ix_(keep, keep)] for matrix in cluster.link_matrices}


def _slope(logs: FloatArray) -> FloatArray:
    """Return the median slope per step of each pair, over all pairs of snapshots; NaN below two known rates."""
    slopes = np.stack([(logs[b] - logs[a]) / (b - a) for a, b in combinations(range(len(logs)), 2)])
    known = ~np.isnan(slopes).all(axis=0)
    found = np.full(known.shape, np.nan)
    found[known] = np.nanmedian(slopes[:, known], axis=0)
    return found


def changes_in_words(snapshots: Sequence[ClusterSpec]) -> list[str]:
    """Return sentences on changed hosts, GPUs, constants and links, from the first snapshot to the last."""
    old, new = snapshots[0], snapshots[-1]
    sentences = []
    for word, hosts in (
        ("Only in the first", [host for host in old.hosts if host not in new.hosts]),
        ("Only in the last", [host for host in new.hosts if host not in old.hosts]),
    ):
        if hosts:
            sentences.append(f"{word}: {listed(hosts, MAX_NAMED)}.")
    kinds = {node.host: node.gpu.name for node in old.nodes}
    other = [f"{node.host} ({kinds[node.host]} to {node.gpu.name})" for node in new.nodes
             if kinds.get(node.host, node.gpu.name) != node.gpu.name]  # fmt: skip
    if other:
        sentences.append(f"GPUs: {listed(other, MAX_NAMED)}.")
    for name, unit, factor in (
        ("gpus_per_node", "GPUs a host", 1.0),
        ("nics_per_node", "NICs a host", 1.0),
        ("intra_node_bytes_per_s", "GB/s inside a host", 1 / GB),
        ("node_bytes_per_s", "GB/s into and out of a host at most", 1 / GB),
        ("intra_node_latency_s", "us latency inside a host", 1e6),
        ("inter_node_latency_s", "us latency between hosts", 1e6),
    ):
        before, now = getattr(old, name), getattr(new, name)
        if before != now:
            texts = ["none" if value is None else f"{value * factor:g}" for value in (before, now)]
            sentences.append(f"{unit}: {texts[0]} to {texts[1]}.")
    if len(old.hosts) > 1 and len(new.hosts) > 1 and old.link_matrices and new.link_matrices:
        for change in link_changes(snapshots):
            sentences += _change_sentences(change)
    return sentences or ["Nothing changed."]


def _change_sentences(change: LinkChange) -> list[str]:
    """Return sentences on the changes of links with one number of flows."""
    sentences, flows = [], counted(change.flows, "flow")
    if abs(change.slower.usual - 1) > 1e-3:
        sentences.append(f"{flows}: a usual link attains {100 * (change.slower.usual - 1):+.1f} %.")
    for faults, word, sign in ((change.slower, "slower", 1), (change.faster, "faster", -1)):
        if faults.hosts:
            named = [f"{fault.name} ({100 * (fault.share**sign - 1):+.0f} %)" for fault in faults.hosts]
            sentences.append(f"{flows}: hosts that became {word} than others: {listed(named, MAX_NAMED)}.")
        if faults.pairs:
            named = [
                f"{pair.sender} to {pair.receiver} ({100 * (pair.share**sign - 1):+.0f} %)" for pair in faults.pairs
            ]
            sentences.append(f"{flows}: links that became {word} by themselves: {listed(named, MAX_NAMED)}.")
    for pairs, word in ((change.lost, "no longer measured"), (change.new, "measured now")):
        if pairs:
            named = [f"{sender} to {receiver}" for sender, receiver in pairs]
            sentences.append(f"{flows}: {word}: {listed(named, MAX_NAMED)}.")
    return sentences
