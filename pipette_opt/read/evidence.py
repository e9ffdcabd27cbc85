"""Evidence on the links of a cluster, collected from all measurement files, before conflicts are resolved."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import GB, KIB, MIB, counted, listed
from pipette_opt.options.links import Repeated
from pipette_opt.read.gpus import recognise_gpu
from pipette_opt.read.hosts import natural_key
from pipette_opt.read.inside_node import InsideNode
from pipette_opt.read.link_log import LinkLog
from pipette_opt.read.matrices import MAX_GB_PER_S, MIN_GB_PER_S, HostMatrix, gb_text
from pipette_opt.read.nccl_tests import (
    KINDS,
    WRONG_RESULTS,
    NcclRow,
    NcclTest,
    host_bytes_per_s,
    pair_bytes_per_s,
    pair_flows,
)
from pipette_opt.read.pair_tests import PairTest
from pipette_opt.read.switches import SwitchTree

Pair = tuple[str, str]

Run = tuple[int, Pair, int, str, int]
"""
Key of a test run: concurrent flows, unordered pair of hosts, campaign, kind of test, and GPUs per host.

A campaign is a folder of files, or all files that are given one by one.
"""

Outcome = Literal["measured", "crashed", "wrong"]

_NAMED_PAIRS = 6

LARGE_BYTES = 16 * MIB
"""Smallest message that counts for bandwidth, bytes: the fixed cost is below about 5 % of its time. Chosen."""

SMALL_BYTES = 64 * KIB
"""Largest message that counts for latency, bytes. Chosen."""


@dataclass(slots=True, kw_only=True)
class LinkEvidence:
    """
    Measurements of links, collected from all files.

    Parameters
    ----------
    rates
        Aggregate bandwidth in bytes/s, by number of concurrent flows, pair (sender, receiver) and snapshot.
    failures
        Text about a failed test, by number of flows, unordered pair and snapshot.
    outcomes
        Outcomes of the tests between two hosts.
    snapshot
        Number of the source being read: a file or folder that the user gives, measured at one moment in time.
    campaign_of
        Campaign of each snapshot: a folder, or all files that are given one by one. A failed test may be repeated
        within its campaign.
    snapshot_hosts
        Hosts that each snapshot names.
    tested_pairs
        Sender and receiver of bandwidth tests between two processes.
    inside_nodes
        Name and content of each file with the topology of a host.
    remarks
        Names of the files of each assumption, by its text; empty for an assumption about no single file.
    unused
        Sentence on the unused lines or keys of each file that has such lines or keys.
    """

    hosts: dict[str, None] = field(default_factory=dict)
    gpus_of_host: dict[str, int] = field(default_factory=dict)
    device_names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    rates: dict[int, dict[Pair, dict[int, list[float]]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    )
    failures: dict[int, dict[Pair, dict[int, str]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(dict))
    )
    outcomes: dict[Run, set[Outcome]] = field(default_factory=lambda: defaultdict(set))
    inside: list[float] = field(default_factory=list)
    inside_nodes: list[tuple[str, InsideNode]] = field(default_factory=list)
    switches: SwitchTree | None = None
    latencies: list[float] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    skipped: list[str] = field(default_factory=list)
    tested_pairs: set[Pair] = field(default_factory=set)
    remarks: dict[str, list[str]] = field(default_factory=dict)
    unused: list[str] = field(default_factory=list)
    snapshot: int = 0
    campaign_of: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    snapshot_hosts: dict[int, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    symmetric: bool = False
    all_at_once: bool = False

    def add_nccl_test(self, test: NcclTest, only_gpus: int | None = None) -> None:
        """Add a run of nccl-tests; one without ``only_gpus`` GPUs per host, if given, adds only its host names."""
        file = Path(test.source).name
        if test.problem and not test.failed:
            self.skipped.append(f"{test.kind or 'A test'} in {file} was not used: {test.problem}.")
            return
        if len(test.hosts) <= 2:
            self._add_hosts_of(test)
        if only_gpus is not None and set(test.gpus_of_host.values()) != {only_gpus}:
            return
        flows = pair_flows(test)
        if flows is None:
            self._add_inside_or_skip(test)
            return
        first, second = test.hosts
        large = _large(test.rows)
        if test.problem or not large:
            problem = f"{test.kind} in {file} {test.problem}".strip()
            self.failures[flows][unordered(first, second)].setdefault(self.snapshot, problem)
            self._add_outcome(flows, test, "wrong" if test.problem == WRONG_RESULTS else "crashed")
            return
        self._add_outcome(flows, test, "measured")
        if test.num_announced:
            announced = f"the {counted(test.num_announced, 'size')} that its header announces"
            self.remark(f"its log lacks its last lines, but has {announced}, and counts as complete", file)
        rate = pair_bytes_per_s(test, large)
        self._add_rate(flows, first, second, rate)
        self._add_rate(flows, second, first, rate)
        if test.kind_from:
            self.remark(f"its log does not name the test; {test.kind}, from {test.kind_from}", file)
        if len(test.groups) > 1:
            groups = f"{len(test.groups)} groups of ranks ran at once (NCCL_TESTS_SPLIT)"
            self.remark(f"{groups}; the log has the figures of one, and their sum counts, {flows} flows", file)
        if test.kind not in ("sendrecv", "alltoall"):
            bus = f"its bus bandwidth of {rate / len(test.groups) / GB:.2f} GB/s"
            self.remark(
                f"{test.kind} of two ranks on two hosts: {bus} is that of the link between them, each way", file
            )
        self.used[f"{test.kind}_perf with {counted(test.gpus_of_host[first], 'GPU')} a host"] += 1
        self.symmetric = True
        if test.kind == "sendrecv":
            self.latencies += [row.time_s - row.size_bytes / rate for row in test.rows if row.size_bytes <= SMALL_BYTES]

    def add_matrix(self, matrix: HostMatrix, kind: str) -> None:
        """Add a matrix of bandwidths with one flow per host, measured on all hosts at once."""
        for host in matrix.hosts:
            self._add_host(host)
        for i, sender in enumerate(matrix.hosts):
            for j, receiver in enumerate(matrix.hosts):
                if not np.isnan(matrix.bytes_per_s[i, j]):
                    self._add_rate(1, sender, receiver, float(matrix.bytes_per_s[i, j]))
        self.used[kind] += 1
        self.all_at_once = True

    def add_pair_test(self, test: PairTest, file: str) -> None:
        """Add a test of one flow between two processes."""
        for host in (test.sender, test.receiver):
            self._add_host(host)
        if test.hosts_from:
            named = f"{test.sender} and {test.receiver}, from {test.hosts_from}"
            self.remark(f"its log does not name its hosts; {named}", file)
        if test.bytes_per_s is not None:
            self._add_rate(1, test.sender, test.receiver, test.bytes_per_s)
            self.tested_pairs.add((test.sender, test.receiver))
            if test.both_ways:
                self._add_rate(1, test.receiver, test.sender, test.bytes_per_s)
        if test.latency_s is not None:
            self.latencies.append(test.latency_s)
        self.used[test.kind] += 1

    def add_link_log(self, log: LinkLog) -> None:
        """Add a log of ``profile links``; the largest message gives the bandwidth."""
        for host in log.hosts:
            self._add_host(host)
            self.gpus_of_host[host] = max(self.gpus_of_host.get(host, 0), log.gpus_per_node)
            if log.device_name:
                self.device_names[host].add(log.device_name)
        for (flows, sender, receiver), rates in log.rates.items():
            self._add_rate(flows, sender, receiver, rates[max(rates)])
        self.latencies += list(log.latencies.values())
        self.used["profile links, " + ("all pairs of a round at once" if log.together else "one pair at a time")] += 1

    def add_inside(self, node: InsideNode, kind: str, file: str) -> None:
        """Add the topology of a host, from a file."""
        self.inside_nodes.append((file, node))
        self.used[kind] += 1

    def remark(self, text: str, file: str = "") -> None:
        """Note an assumption, about ``file`` if given; ``text`` is a sentence without its stop."""
        files = self.remarks.setdefault(text, [])
        if file and file not in files:
            files.append(file)

    def add_unused(self, file: str, sentence: str) -> None:
        """Note the unused lines or keys of a file; an empty sentence adds nothing."""
        if sentence:
            self.unused.append(f"{file}: {sentence}")

    def complete_directions(self) -> None:
        """Copy the bandwidth of host pairs tested in one direction to the opposite direction."""
        one_way = []
        for sender, receiver in sorted(self.tested_pairs, key=lambda pair: natural_key(" ".join(pair))):
            forward, backward = self.rates[1][sender, receiver], self.rates[1].get((receiver, sender), {})
            lacking = {snapshot: rates for snapshot, rates in forward.items() if snapshot not in backward}
            for snapshot, rates in lacking.items():
                self.rates[1][receiver, sender][snapshot] += rates
            if lacking:
                one_way.append(f"{sender} to {receiver}")
        if one_way:
            self.remark(f"Measured one way only, and taken for both: {listed(one_way, _NAMED_PAIRS)}")

    def forget_crashes(self) -> None:
        """Drop a failed test of a host pair if another run of the test in the same folder or set of files succeeded."""
        ends: dict[tuple[int, Pair, int], list[set[Outcome]]] = defaultdict(list)
        for (flows, pair, campaign, *_), outcomes in self.outcomes.items():
            ends[flows, pair, campaign].append(outcomes)
        for (flows, pair, campaign), found in ends.items():
            if not all("measured" in outcomes and "wrong" not in outcomes for outcomes in found):
                continue
            failures = self.failures[flows].get(pair, {})
            for snapshot in [snapshot for snapshot in failures if self.campaign_of[snapshot] == campaign]:
                problem = failures.pop(snapshot)
                self.remark(f"{problem}; another run of it measured {pair[0]} - {pair[1]}, which counts")
            if not failures:
                self.failures[flows].pop(pair, None)

    def rename(self, new_name: Callable[[str], str]) -> None:
        """Rename hosts; hosts that get the same name are merged."""
        self.hosts = {new_name(host): None for host in self.hosts}
        for snapshot, hosts in self.snapshot_hosts.items():
            self.snapshot_hosts[snapshot] = {new_name(host): None for host in hosts}
        self.tested_pairs = {(new_name(sender), new_name(receiver)) for sender, receiver in self.tested_pairs}
        counts, names = self.gpus_of_host, self.device_names
        self.gpus_of_host, self.device_names = {}, defaultdict(set)
        for host, count in counts.items():
            self.gpus_of_host[new_name(host)] = max(count, self.gpus_of_host.get(new_name(host), 0))
            self.device_names[new_name(host)] |= names[host]
        for by_pair in self.rates.values():
            for (sender, receiver), snapshots in list(by_pair.items()):
                del by_pair[sender, receiver]
                for snapshot, rates in snapshots.items():
                    by_pair[new_name(sender), new_name(receiver)][snapshot] += rates
        for failed in self.failures.values():
            for (a, b), snapshots_failed in list(failed.items()):
                del failed[a, b]
                failed[unordered(new_name(a), new_name(b))].update(snapshots_failed)

    def settled(self, flows: int, repeated: Repeated) -> dict[Pair, float]:
        """
        Return the bandwidth of each host pair with this number of flows, bytes/s.

        Within a source (file or folder), the slowest measurement of a pair counts. Over several sources, ``repeated``
        takes the slowest or the mean. A pair whose test failed has no bandwidth; the mean leaves out sources with a
        failure.
        """
        found = {}
        for pair, snapshots in self.rates[flows].items():
            failed = self.failures[flows].get(unordered(*pair), {})
            slowest = [min(rates) for snapshot, rates in snapshots.items() if snapshot not in failed]
            if slowest and not (failed and repeated == "worst"):
                found[pair] = min(slowest) if repeated == "worst" else statistics.fmean(slowest)
        return found

    def changes(self, flows: int) -> Mapping[Pair, tuple[float, float]]:
        """Return mean and slowest bandwidth, bytes/s, of each host pair that several sources measured."""
        found = {}
        for pair, snapshots in self.rates[flows].items():
            if len(snapshots) > 1:
                slowest = [min(rates) for rates in snapshots.values()]
                found[pair] = (statistics.fmean(slowest), min(slowest))
        return found

    def _add_rate(self, flows: int, sender: str, receiver: str, rate: float) -> None:
        if not MIN_GB_PER_S <= rate / GB <= MAX_GB_PER_S:
            limits = f"from {MIN_GB_PER_S:g} to {MAX_GB_PER_S:g}"
            raise InputError(f"{sender} to {receiver}", f"a rate must be {limits} GB/s, got {rate / GB:g} GB/s.")
        self.rates[flows][sender, receiver][self.snapshot].append(rate)

    def _add_outcome(self, flows: int, test: NcclTest, outcome: Outcome) -> None:
        first, second = test.hosts
        run = flows, unordered(first, second), self.campaign_of[self.snapshot], test.kind, test.gpus_of_host[first]
        self.outcomes[run].add(outcome)

    def _add_host(self, host: str) -> None:
        self.hosts.setdefault(host)
        self.snapshot_hosts[self.snapshot].setdefault(host)

    def _add_hosts_of(self, test: NcclTest) -> None:
        for host, gpus in test.gpus_of_host.items():
            self._add_host(host)
            self.gpus_of_host[host] = max(self.gpus_of_host.get(host, 0), gpus)
            self.device_names[host] |= test.device_names[host]

    def _add_inside_or_skip(self, test: NcclTest) -> None:
        """Add a sendrecv ring inside each host as bandwidth inside hosts; list any other test as not used."""
        file, sizes = Path(test.source).name, {sum(group.values()) for group in test.groups}
        if test.is_inside_hosts and len(sizes) == 1 < max(sizes) and test.kind == "sendrecv" and not test.problem:
            self.inside += [row.algorithm_bytes_per_s for row in _large(test.rows)]
            self.used["sendrecv_perf inside a host"] += 1
            return
        self.skipped.append(f"{file} was not used: {_no_pair(test)}.")


def _no_pair(test: NcclTest) -> str:
    """Return the reason why a test measures no link between two hosts, and the other use of the test, if any."""
    if not test.kind:
        known = ", ".join(dict.fromkeys(KINDS.values()))
        return f"its log does not name the test; give it with --test, one of {known}, or in the file's name"
    if test.kind not in KINDS.values():
        return f"{test.kind} does not measure pairs of hosts; sendrecv_perf and alltoall_perf do"
    if test.is_inside_hosts:
        return f"{test.kind} inside one host does not measure links between hosts"
    if test.group is None:
        return f"its {len(test.groups)} groups of ranks (NCCL_TESTS_SPLIT) are not on the same hosts, with equal GPUs"
    counts = list(test.group.values())
    gpus = counted(counts[0], "GPU") if len(set(counts)) == 1 else " and ".join(map(str, counts)) + " GPUs"
    if len(counts) == 2 and test.kind in ("sendrecv", "alltoall"):
        return f"{test.kind} with {gpus} does not load a pair evenly"
    if len(counts) == 2:
        reason = f"{test.kind} over 2 hosts of {gpus} does not measure a pair; run it with one GPU a host"
    else:
        reason = f"{test.kind} over {len(counts)} hosts does not tell the pairs apart"
    return reason if test.problem else f"{reason}{_of_nics(test)}"


def _of_nics(test: NcclTest) -> str:
    """Return a clause on the speed of a host's NICs that a collective shows, empty for none."""
    rate = host_bytes_per_s(test, _large(test.rows))
    if rate is None:
        return (
            "; of the NICs it says nothing, as on two hosts only rings send what its bus bandwidth supposes "
            "(NCCL_ALGO=RING)"
            if len(test.hosts) == 2
            else ""
        )
    found = f"{rate / GB:.0f} GB/s each way together"
    nominal = _usual_nics_bytes_per_s(test)
    if nominal is not None and rate > nominal:
        return (
            f"; its figures would have the NICs of a host carry {found}, more than the {gb_text(nominal)} GB/s of the "
            "usual NICs of this GPU, so they are not taken"
        )
    at_least = "" if test.is_ring or test.kind != "all_reduce" else "at least "
    return (
        f"; it says that the NICs of a host carry {at_least}{found} (inter_node.node_bandwidth_gb_per_s of a cluster "
        "file)"
    )


def _usual_nics_bytes_per_s(test: NcclTest) -> float | None:
    """Return the nominal bandwidth of all usual NICs of a test's hosts, bytes/s; ``None`` for unknown GPUs."""
    entries = [recognise_gpu(device) for devices in test.device_names.values() for device in devices]
    hosts = [entry.usual_host for entry in entries if entry is not None and entry.usual_host is not None]
    return max(host.nics.nominal_bytes_per_s for host in hosts) if hosts else None


def unordered(a: str, b: str) -> Pair:
    """Return a pair of hosts in natural order of their names."""
    return (a, b) if natural_key(a) <= natural_key(b) else (b, a)


def _large(rows: Sequence[NcclRow]) -> list[NcclRow]:
    """Return the rows of messages of at least ``LARGE_BYTES``; if none, the row of the largest message."""
    return [row for row in rows if row.size_bytes >= LARGE_BYTES] or list(rows[-1:])
