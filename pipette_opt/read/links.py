"""
Import of a cluster from measurements of its links, in any format of :mod:`.link_formats`.

Every file gives rows such as the aggregate bandwidth of k concurrent flows from host a to host b
(:mod:`.measurements`). :mod:`.evidence` combines the rows of all files, :mod:`.link_matrices` makes a matrix of each k.
``ImportedLinks.notes`` lists everything assumed, dropped or filled.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import KIB, US, counted
from pipette_opt.options.links import LinkOptions
from pipette_opt.options.values import check_declared
from pipette_opt.read.evidence import LinkEvidence, Pair
from pipette_opt.read.gpu_matrices import even_nics
from pipette_opt.read.gpus import CatalogueEntry, read_gpu_entry, recognise_gpu
from pipette_opt.read.hosts import natural_key
from pipette_opt.read.inside_links import inside_links, topologies
from pipette_opt.read.inside_node import InsideNode
from pipette_opt.read.link_format import facts_of
from pipette_opt.read.link_formats.nccl_tests import SMALL_BYTES, kind_asked
from pipette_opt.read.link_formats.switches import SwitchTree
from pipette_opt.read.link_health import Health, health
from pipette_opt.read.link_matrices import filled, measured_matrices, without_pairs
from pipette_opt.read.link_notes import (
    note_on_excluded,
    note_on_filled,
    notes_on_latency,
    notes_on_matrix,
    notes_on_reading,
    notes_on_skipped,
    notes_on_snapshots,
    notes_on_units,
)
from pipette_opt.read.matrices import gb_text
from pipette_opt.read.measurements import Fact, Host, Note, Topology
from pipette_opt.read.nvlink_domains import nvlink_domains
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec
from pipette_opt.specs.gpu_links import GpuLinks
from pipette_opt.specs.levels import Level

ASSUMED_LATENCY_S = 12 * US

SINGLE_FILES = -1
"""Campaign number of all files given one by one; in a campaign, a failed test may be repeated."""

MAX_REASONS = 3
"""Largest number of reasons why files were not used that an error has. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedLinks:
    """
    Imported cluster, with notes on the import.

    Parameters
    ----------
    notes
        Sentences on everything that was read, assumed, dropped and filled.
    missing
        Host pairs without a measurement, by number of concurrent flows, before they were filled.
    health
        Hosts, GPUs and pairs with slow links.
    """

    cluster: ClusterSpec
    notes: tuple[str, ...]
    missing: Mapping[int, tuple[Pair, ...]]
    health: Health


def import_links(paths: str | Path | Sequence[str | Path], **given: Any) -> ImportedLinks:
    """
    Return the cluster that measurements of its links describe.

    Parameters
    ----------
    paths
        Files, or folders of which every file is read. Each path is one moment in time.
    given
        Fields of :class:`~pipette_opt.options.links.LinkOptions`; GPU type and GPUs per host override the logs.
    """
    asked = LinkOptions(**given)
    check_declared(asked)
    sources = [paths] if isinstance(paths, str | Path) else list(paths)
    evidence = _gather(sources, replace(asked, test=kind_asked(asked.test))).without_repeated_crashes()
    if asked.short_names:
        evidence = evidence.renamed(lambda host: host.split(".")[0])
    evidence = evidence.with_both_directions()
    where = ", ".join(str(source) for source in sources)
    hosts = evidence.hosts
    every_host = tuple(hosts)
    _check_names(every_host, where)
    if not every_host or (len(every_host) > 1 and not evidence.flows):
        raise InputError(where, f"there is no usable measurement between two hosts. {_why_nothing(evidence)}")
    distance = None if evidence.switches is None else evidence.switches.distances(every_host)
    if asked.fill == "switch" and distance is None:
        raise InputError("--fill", "switch needs the output of scontrol show topology among the files.")

    notes: list[str] = [*notes_on_reading(evidence, asked.only_gpus), *notes_on_snapshots(evidence, asked.repeated)]
    kinds = _kinds(hosts.values(), asked.gpu, notes, where)
    topology = topologies(evidence.of(Topology), every_host, notes)
    node = next(iter(topology.values()), None)
    count = _gpus_per_node(evidence, node, asked.gpus_per_node, notes, where)
    domains = nvlink_domains(evidence, every_host, kinds, notes)
    matrices, missing = _matrices(evidence, every_host, domains, distance, asked, notes)
    notes += [note for matrix in matrices for note in notes_on_units(matrix, every_host, kinds)]
    inside = inside_links(topology, kinds, evidence.inside_bytes_per_s, count, notes)
    nics = _nics(node, matrices, count, asked.nics_per_node, notes)
    path = Path(sources[0]).resolve()
    cluster = ClusterSpec(
        name=asked.name or (path.name if path.is_dir() else path.stem) or "cluster",
        nodes=tuple(NodeSpec(host=host, gpu=kinds[host].gpu, num_gpus=count) for host in every_host),
        intra_node_bytes_per_s=inside.bytes_per_s,
        intra_node_latency_s=_inside_latency(kinds.values(), notes),
        inter_node_latency_s=_latency(evidence, notes),
        nics_per_node=nics,
        link_matrices=matrices,
        node_bytes_per_s=_cap(node, notes),
        gpu_links=None
        if inside.of_hosts is None
        else GpuLinks(inside=inside.of_hosts, nic_of_slot=even_nics(count, nics)),
        levels=() if domains is None else (domains,),
    )
    found = health(cluster, distance, inside.faults)
    return ImportedLinks(cluster=cluster, notes=tuple(notes), missing=missing, health=found)


def _why_nothing(evidence: LinkEvidence) -> str:
    """Return the reason why the files have no measurement between hosts."""
    if evidence.notes("not used"):
        return " ".join(notes_on_skipped(evidence, MAX_REASONS))
    used = ", ".join(dict.fromkeys(note.text for note in evidence.notes("used")))
    beside = used or ("a list of switches" if evidence.switches is not None else "")
    if beside:
        return f"Only this was read, which needs measurements beside it: {beside}."
    return "No output of a known program was found."


def _gather(sources: Sequence[str | Path], asked: LinkOptions) -> LinkEvidence:
    """
    Return the evidence of all files, read in natural order of their names.

    An unusable file raises ``InputError``, except in a folder, where a note names it.
    """
    facts: list[Fact] = []
    for snapshot, source in enumerate(sources):
        path = Path(source)
        in_folder = path.is_dir()
        for file in _files_in(path) if in_folder else [path]:
            try:
                found = facts_of(file, asked)
                if any(isinstance(fact, SwitchTree) for fact in found) and LinkEvidence(tuple(facts)).switches:
                    raise InputError(str(file), "is a second list of switches; give only one such file.")
            except InputError as error:
                if not in_folder:
                    raise
                found = [Note(kind="not used", text=error.problem)]
            campaign = snapshot if in_folder else SINGLE_FILES
            facts += [fact.read_from(file.name, snapshot, campaign) for fact in found]
    return LinkEvidence(tuple(facts))


def _files_in(folder: Path) -> list[Path]:
    """Return all visible files of a folder, in natural order; ``InputError`` if there is none."""
    files = [
        file
        for file in folder.rglob("*")
        if file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)
    ]
    if not files:
        raise InputError(str(folder), "the folder contains no files; give a folder with logs.")
    return sorted(files, key=lambda file: natural_key(str(file)))


def _check_names(hosts: Collection[str], where: str) -> None:
    """Raise ``InputError`` if a host appears under a short and a long name, which would count as two hosts."""
    for host in hosts:
        short = host.split(".")[0]
        if short != host and short in hosts:
            problem = f"hosts {short!r} and {host!r} both appear; if they are the same machine, use --short-names."
            raise InputError(where, problem)


def _matrices(
    evidence: LinkEvidence,
    hosts: tuple[str, ...],
    domains: Level | None,
    distance: IntArray | None,
    asked: LinkOptions,
    notes: list[str],
) -> tuple[tuple[LinkMatrix, ...], dict[int, tuple[Pair, ...]]]:
    """Return a matrix for each measured number of flows, and the pairs missing in each."""
    measured = measured_matrices(evidence, hosts, asked.repeated, asked.direction, domains)
    for matrix in measured:
        notes += notes_on_matrix(matrix, evidence.failures(matrix.concurrent_flows), distance)
    missing = {matrix.concurrent_flows: matrix.missing for matrix in measured}
    if asked.fill == "exclude":
        pairs = sorted(
            {pair for pairs in missing.values() for pair in pairs}, key=lambda pair: natural_key(" ".join(pair))
        )
        notes += [note_on_excluded(pairs)] if pairs else []
        found = without_pairs(measured)
        if domains is None and len(hosts) > 1 and all(np.isnan(matrix.bytes_per_s).all() for matrix in found):
            flows = ", ".join(str(matrix.concurrent_flows) for matrix in measured)
            raise InputError(
                "links",
                f"no pair of hosts was measured with every number of flows ({flows}), so all are excluded; use --fill "
                "worst, or --only-gpus for the tests of one kind.",
            )
        return found, missing
    result = filled(measured, asked.fill, distance)
    for matrix, whole in zip(measured, result, strict=True):
        notes += [note_on_filled(matrix, whole.bytes_per_s, asked.fill)] if matrix.missing else []
    return result, missing


def _kinds(hosts: Collection[Host], gpu: str | None, notes: list[str], where: str) -> dict[str, CatalogueEntry]:
    """Return the catalogue entry of the GPU of each host, from ``gpu`` or from the device names in the logs."""
    if gpu is not None:
        entry = read_gpu_entry(gpu, "gpu")
        notes.append(f"GPU: {entry.gpu.name} on every host, as given.")
        return {host.name: entry for host in hosts}
    kinds = {host.name: _kind_of(host, where) for host in hosts}
    for entry_name in dict.fromkeys(entry.gpu.name for entry in kinds.values()):
        of = [host for host in hosts if kinds[host.name].gpu.name == entry_name]
        device = min(of[0].device_names)
        notes.append(f"GPU: {entry_name} on {counted(len(of), 'host')}, from the device name {device!r}.")
    return kinds


def _kind_of(host: Host, where: str) -> CatalogueEntry:
    """Return the catalogue entry of a host's GPU, from its device names."""
    names = sorted(host.device_names)
    if not names:
        raise InputError(
            where, f"the files do not name the GPU of host {host.name}; give the GPU type, e.g. --gpu a100-80gb."
        )
    found = {}
    for device in names:
        entry = recognise_gpu(device)
        if entry is None:
            problem = (
                f"the GPU {device!r} of host {host.name} is not in the catalogue; give the most similar "
                "type, e.g. --gpu a100-80gb."
            )
            raise InputError(where, problem)
        found[entry.gpu.name] = entry
    if len(found) > 1:
        raise InputError(where, f"host {host.name} appears with different GPUs: {', '.join(names)}.")
    return next(iter(found.values()))


def _gpus_per_node(
    evidence: LinkEvidence, inside: InsideNode | None, given: int | None, notes: list[str], where: str
) -> int:
    count = max((host.gpus for host in evidence.hosts.values()), default=0)
    if given is not None:
        if count > given:
            raise InputError("gpus_per_node", f"is {given}, but the logs used {count} GPUs of a host.")
        notes.append(f"GPUs per host: {given}, as given.")
        return given
    if inside is not None and count > inside.num_gpus:
        problem = (
            f"the topology of a host has {counted(inside.num_gpus, 'GPU')}, but a test used {count} GPUs of a host."
        )
        raise InputError(where, problem)
    if inside is not None:
        notes.append(f"GPUs per host: {inside.num_gpus}, from the topology of a host.")
        return inside.num_gpus
    if not count:
        raise InputError(where, "the files do not have the number of GPUs of a host; give --gpus-per-node.")
    if count == 1:
        ask = "the logs used one GPU of a host and do not say how many it has; give --gpus-per-node, e.g. 8."
        raise InputError(where, " ".join([ask, *notes_on_skipped(evidence, MAX_REASONS)]))
    notes.append(f"GPUs per host: {count}, the most that a test used.")
    return count


def _nics(
    inside: InsideNode | None, matrices: Sequence[LinkMatrix], count: int, given: int | None, notes: list[str]
) -> int:
    if given is not None:
        return given
    if inside is not None and inside.num_nics:
        is_far = "is" if len(inside.far_nics) == 1 else "are"
        far = f"; {', '.join(inside.far_nics)} {is_far} far from every GPU and not counted" if inside.far_nics else ""
        notes.append(f"NICs per host: {inside.num_nics}, from the topology of a host{far}.")
        return inside.num_nics
    if len(matrices) == 1:
        flows = matrices[0].concurrent_flows
        notes.append(
            f"Assumed: {counted(count, 'NIC')} per host, one for each GPU, so that more than {counted(flows, 'flow')} "
            f"gain in proportion up to {max(count, flows)}; more were not measured. Correct nics_per_node if wrong."
        )
    return count


def _cap(inside: InsideNode | None, notes: list[str]) -> float | None:
    """Return the bandwidth of all NICs of a host together, bytes/s; ``None`` if no topology file gives it."""
    if inside is None or inside.nic_bytes_per_s is None:
        return None
    notes.append(f"Nothing enters or leaves a host faster than {gb_text(inside.nic_bytes_per_s)} GB/s, its NICs' rate.")
    return inside.nic_bytes_per_s


def _inside_latency(kinds: Iterable[CatalogueEntry], notes: list[str]) -> float:
    latency = max(entry.intra_node_latency_s for entry in kinds)
    notes.append(f"Assumed: {latency / US:g} us latency inside a host, the catalogue's figure.")
    return latency


def _latency(evidence: LinkEvidence, notes: list[str]) -> float:
    if evidence.latency_s is not None:
        latency = max(0.0, evidence.latency_s)
        notes.append(
            f"Latency between hosts: {latency / US:.1f} us, median of messages up to {SMALL_BYTES // KIB} KiB."
        )
        notes += notes_on_latency(latency)
        return latency
    notes.append(
        f"Assumed: {ASSUMED_LATENCY_S / US:g} us latency between hosts; no message was as small as "
        f"{SMALL_BYTES // KIB} KiB, so the files do not show it."
    )
    return ASSUMED_LATENCY_S
