"""Evidence on the links of a cluster: questions on the facts of all files."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from msgspec.structs import replace

from pipette_opt.base.units import listed
from pipette_opt.options.links import Repeated
from pipette_opt.read.hosts import natural_key
from pipette_opt.read.link_formats.switches import SwitchTree
from pipette_opt.read.measurements import Fact, Failure, Host, InsideRate, Latency, Measurement, Note, NoteKind, Rate

Pair = tuple[str, str]

BothHosts = frozenset[str]
"""Hosts of a pair without a direction."""

F = TypeVar("F", bound=Fact)

_NAMED_PAIRS = 6


@dataclass(frozen=True, slots=True)
class LinkEvidence:
    """Facts of all files, in the order in which they were read; those without a file were concluded from others."""

    facts: tuple[Fact, ...]

    def of(self, kind: type[F]) -> list[F]:
        """Return the facts of a kind."""
        return [fact for fact in self.facts if isinstance(fact, kind)]

    def notes(self, kind: NoteKind) -> list[Note]:
        """Return the notes of a kind."""
        return [note for note in self.of(Note) if note.kind == kind]

    @property
    def hosts(self) -> Mapping[str, Host]:
        """
        Return all hosts, with the most GPUs that a file shows and all names of their GPUs.

        Hosts have the order of a table if a file is one; else they are sorted as people count.
        """
        found = {name: Host(name=name) for name in dict.fromkeys(name for fact in self.facts for name in fact.hosts)}
        hosts = self.of(Host)
        for host in hosts:
            known = found[host.name]
            names = known.device_names | host.device_names
            found[host.name] = replace(known, gpus=max(known.gpus, host.gpus), device_names=names)
        has_order = any(host.is_in_table for host in hosts)
        return {name: found[name] for name in (found if has_order else sorted(found, key=natural_key))}

    @property
    def hosts_of_snapshots(self) -> Mapping[int, set[str]]:
        """Names of the hosts in each source, by its number."""
        found: dict[int, set[str]] = defaultdict(set)
        for fact in self.facts:
            if fact.hosts:
                found[fact.snapshot].update(fact.hosts)
        return found

    @property
    def inside_bytes_per_s(self) -> float | None:
        """Median bandwidth between the GPUs of a host, bytes/s; ``None`` if not measured."""
        rows = self.of(InsideRate)
        return statistics.median(row.bytes_per_s for row in rows) if rows else None

    @property
    def flows(self) -> list[int]:
        """Numbers of concurrent flows for which a bandwidth between two hosts was measured, in increasing order."""
        return sorted({row.flows for row in self.of(Rate)})

    @property
    def latency_s(self) -> float | None:
        """Median latency of small messages, seconds; ``None`` without such messages."""
        rows = self.of(Latency)
        return statistics.median(row.latency_s for row in rows) if rows else None

    @property
    def switches(self) -> SwitchTree | None:
        """Switches above the hosts; ``None`` if no file lists them."""
        return next(iter(self.of(SwitchTree)), None)

    def failures(self, flows: int) -> Mapping[BothHosts, Mapping[int, str]]:
        """Return the problem of the first failed test with this number of flows, by pair and source."""
        found: dict[BothHosts, dict[int, str]] = {}
        for row in self.of(Failure):
            if row.flows == flows:
                found.setdefault(frozenset(row.hosts), {}).setdefault(row.snapshot, row.problem)
        return found

    def settled(self, flows: int, repeated: Repeated) -> dict[Pair, float]:
        """
        Return the bandwidth of each host pair with this number of flows, bytes/s.

        Within a source (file or folder), the slowest measurement of a pair counts. Over several sources, ``repeated``
        takes the slowest or the mean. A pair whose test failed has no bandwidth; the mean leaves out sources with a
        failure.
        """
        failures, found = self.failures(flows), {}
        for pair, of_source in self._slowest(flows).items():
            failed = failures.get(frozenset(pair), {})
            rates = [rate for snapshot, rate in of_source.items() if snapshot not in failed]
            if rates and not (failed and repeated == "worst"):
                found[pair] = min(rates) if repeated == "worst" else statistics.fmean(rates)
        return found

    def changes(self, flows: int) -> Mapping[Pair, tuple[float, float]]:
        """Return mean and slowest bandwidth, bytes/s, of each host pair that several sources measured."""
        return {
            pair: (statistics.fmean(rates.values()), min(rates.values()))
            for pair, rates in self._slowest(flows).items()
            if len(rates) > 1
        }

    def without_repeated_crashes(self) -> "LinkEvidence":
        """Drop a failed test of a host pair if another run of the test in the same folder or set of files succeeded."""
        measured = {(_place(row), row.program) for row in self.of(Rate)}
        failures = self.of(Failure)
        kept = {_place(row) for row in failures if row.is_wrong or (_place(row), row.program) not in measured}
        first: dict[tuple[int, BothHosts, int, int], Failure] = {}
        for row in failures:
            if _place(row) not in kept:
                first.setdefault((*_place(row), row.snapshot), row)
        remarks = [
            f"{row.problem}; another run of it measured {' - '.join(sorted(row.hosts, key=natural_key))}, which counts"
            for row in first.values()
        ]
        left = [fact for fact in self.facts if not isinstance(fact, Failure) or _place(fact) in kept]
        return LinkEvidence((*left, *_conclusions(remarks)))

    def with_both_directions(self) -> "LinkEvidence":
        """Add the bandwidth of host pairs that a test loaded in one direction only to the opposite direction."""
        measured = {(row.flows, *row.hosts, row.snapshot) for row in self.of(Rate)}
        tested = {(row.flows, *row.hosts) for row in self.of(Rate) if row.is_one_way}
        turned = [
            replace(row, sender=row.receiver, receiver=row.sender)
            for row in self.of(Rate)
            if (row.flows, *row.hosts) in tested and (row.flows, *reversed(row.hosts), row.snapshot) not in measured
        ]
        pairs = sorted({(row.receiver, row.sender) for row in turned}, key=lambda pair: natural_key(" ".join(pair)))
        named = listed([f"{sender} to {receiver}" for sender, receiver in pairs], _NAMED_PAIRS)
        remarks = [f"Measured one way only, and taken for both: {named}"] if pairs else []
        return LinkEvidence((*self.facts, *turned, *_conclusions(remarks)))

    def renamed(self, new_name: Callable[[str], str]) -> "LinkEvidence":
        """Rename hosts; hosts that get the same name are merged."""

        def with_new_name(fact: Fact) -> Fact:
            if isinstance(fact, Host):
                return replace(fact, name=new_name(fact.name))
            if isinstance(fact, Measurement):
                return replace(fact, sender=new_name(fact.sender), receiver=new_name(fact.receiver))
            return fact

        return LinkEvidence(tuple(map(with_new_name, self.facts)))

    def _slowest(self, flows: int) -> Mapping[Pair, Mapping[int, float]]:
        """Return the slowest bandwidth of each host pair in each source, bytes/s."""
        found: dict[Pair, dict[int, float]] = {}
        for row in self.of(Rate):
            if row.flows == flows:
                of_source = found.setdefault(row.hosts, {})
                of_source[row.snapshot] = min(row.bytes_per_s, of_source.get(row.snapshot, row.bytes_per_s))
        return found


def _place(row: Rate | Failure) -> tuple[int, BothHosts, int]:
    """Return the flows, the hosts and the campaign of a test."""
    return row.flows, frozenset(row.hosts), row.campaign


def _conclusions(remarks: Iterable[str]) -> list[Note]:
    """Return remarks about no single file."""
    return [Note(kind="remark", text=text) for text in remarks]
