"""
Import of a cluster from measurements of its links: nccl-tests, mpiGraph, OSU and perftest output, Pipette's JSON.

Every file gives the aggregate bandwidth of k concurrent flows from host a to host b (:mod:`.evidence`), an entry of the
matrix of k flows (:mod:`.link_matrices`). NCCL's topology file and ``nvidia-smi topo -m`` describe the inside of a
host, ``scontrol show topology`` the switches. ``ImportedLinks.notes`` lists everything assumed, dropped or filled.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.base.types import IntArray
from pipette_opt.base.units import KIB, US, counted
from pipette_opt.options.links import LinkOptions
from pipette_opt.options.values import check_declared
from pipette_opt.read.evidence import SMALL_BYTES, LinkEvidence, Pair
from pipette_opt.read.fields import unused_keys
from pipette_opt.read.gpu_matrices import even_nics
from pipette_opt.read.gpus import CatalogueEntry, read_gpu_entry, recognise_gpu
from pipette_opt.read.hosts import natural_key
from pipette_opt.read.inside_links import inside_links, topologies
from pipette_opt.read.inside_node import (
    InsideNode,
    is_nccl_topology,
    is_nvidia_smi_topology,
    parse_nccl_topology,
    parse_nvidia_smi_topology,
)
from pipette_opt.read.kinds_of_files import binary_kind, looks_like
from pipette_opt.read.link_health import Health, health
from pipette_opt.read.link_log import is_link_log, parse_link_log
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
from pipette_opt.read.log_lines import Log
from pipette_opt.read.matrices import PIPETTE_KEYS, gb_text, is_pipette_json, read_pipette_json
from pipette_opt.read.mpigraph import is_mpigraph, parse_mpigraph
from pipette_opt.read.nccl_tests import KINDS, KNOWN_KEYS, is_nccl_json, is_nccl_text, parse_nccl_json, parse_nccl_text
from pipette_opt.read.nvlink_domains import nvlink_domains
from pipette_opt.read.pair_tests import is_pair_test, parse_pair_tests
from pipette_opt.read.switches import SwitchTree, is_switch_list, parse_switches
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec
from pipette_opt.specs.gpu_links import GpuLinks
from pipette_opt.specs.levels import Level

ASSUMED_LATENCY_S = 12 * US

SINGLE_FILES = -1
"""Campaign number of all files given one by one; in a campaign, a failed test may be repeated."""

MAX_REASONS = 3
"""Largest number of reasons why files were not used that an error has. Chosen."""

HEAD_BYTES = 8192
"""Number of bytes at the start of a file; a zero byte among them marks a binary file. Chosen."""


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
    evidence = _gather(sources, replace(asked, test=_kind_asked(asked.test)))
    evidence.forget_crashes()
    if asked.short_names:
        evidence.rename(lambda host: host.split(".")[0])
    evidence.complete_directions()
    where = ", ".join(str(source) for source in sources)
    _check_names(evidence, where)
    every_host = tuple(evidence.hosts)
    if not every_host or (len(every_host) > 1 and not evidence.rates):
        raise InputError(where, f"there is no usable measurement between two hosts. {_why_nothing(evidence)}")
    if asked.fill == "switch" and evidence.switches is None:
        raise InputError("--fill", "switch needs the output of scontrol show topology among the files.")

    notes: list[str] = [*notes_on_reading(evidence, asked.only_gpus), *notes_on_snapshots(evidence, asked.repeated)]
    kinds = _kinds(evidence, every_host, asked.gpu, notes, where)
    topology = topologies(evidence.inside_nodes, every_host, notes)
    node = next(iter(topology.values()), None)
    count = _gpus_per_node(evidence, node, asked.gpus_per_node, notes, where)
    domains = nvlink_domains(evidence, every_host, kinds, notes)
    matrices, missing = _matrices(evidence, every_host, domains, asked, notes)
    notes += [note for matrix in matrices for note in notes_on_units(matrix, every_host, kinds)]
    measured = statistics.median(evidence.inside) if evidence.inside else None
    inside = inside_links(topology, kinds, measured, count, notes)
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
    distance = None if evidence.switches is None else _distances(evidence.switches, every_host)
    found = health(cluster, distance, inside.faults)
    return ImportedLinks(cluster=cluster, notes=tuple(notes), missing=missing, health=found)


def _distances(switches: SwitchTree, hosts: Sequence[str]) -> IntArray:
    """Return the number of switch levels between each two hosts, shape ``(num_hosts, num_hosts)``; -1 if unknown."""
    found = np.full((len(hosts), len(hosts)), -1)
    for i, sender in enumerate(hosts):
        for j, receiver in enumerate(hosts):
            distance = switches.distance(sender, receiver)
            found[i, j] = -1 if distance is None else distance
    return found


def _kind_asked(test: str) -> str:
    """Return the name of a test as nccl-tests has it, from a name with or without underscores and ``_perf``."""
    word = test.lower().removesuffix("_perf").replace("_", "").replace("-", "")
    if test and word not in KINDS:
        raise InputError("--test", f"must be one of {', '.join(KINDS.values())}, got {test!r}.")
    return KINDS.get(word, "")


def _why_nothing(evidence: LinkEvidence) -> str:
    """Return the reason why the files have no measurement between hosts."""
    if evidence.skipped:
        return " ".join(notes_on_skipped(evidence.skipped, MAX_REASONS))
    beside = ", ".join(evidence.used) or ("a list of switches" if evidence.switches is not None else "")
    if beside:
        return f"Only this was read, which needs measurements beside it: {beside}."
    return "No output of a known program was found."


def _gather(sources: Sequence[str | Path], asked: LinkOptions) -> LinkEvidence:
    """Return the evidence of all files, read in natural order of their names."""
    evidence = LinkEvidence()
    for snapshot, source in enumerate(sources):
        evidence.snapshot = snapshot
        path = Path(source)
        evidence.campaign_of[snapshot] = snapshot if path.is_dir() else SINGLE_FILES
        if path.is_dir():
            files = sorted(
                (file for file in path.rglob("*") if _is_visible(file, path)), key=lambda f: natural_key(str(f))
            )
            if not files:
                raise InputError(str(path), "the folder contains no files; give a folder with logs.")
            for file in files:
                _read_file(evidence, file, asked, in_folder=True)
        else:
            _read_file(evidence, path, asked, in_folder=False)
    if not evidence.all_at_once:  # pairs come in any order; a table has an order of its own
        evidence.hosts = dict.fromkeys(sorted(evidence.hosts, key=natural_key))
    return evidence


def _read_file(evidence: LinkEvidence, path: Path, asked: LinkOptions, *, in_folder: bool) -> None:
    """Add a file to the evidence. An unusable file raises ``InputError``, except in a folder, where a note names it."""
    try:
        _read_known(evidence, path, asked)
    except InputError as error:
        if not in_folder:
            raise
        evidence.skipped.append(f"{path.name} was not used: {error.problem}")


def _read_known(evidence: LinkEvidence, path: Path, asked: LinkOptions) -> None:
    text, where = _text(path), str(path)
    if is_link_log(text):
        evidence.add_link_log(parse_link_log(text, where))
    elif text.lstrip().startswith("{"):
        _read_json(evidence, path, text, asked)
    else:
        _read_printed(evidence, path, text, asked)


def _read_json(evidence: LinkEvidence, path: Path, text: str, asked: LinkOptions) -> None:
    where, content = str(path), _loads(text)
    if is_nccl_json(content) or (content is None and '"nccl_version"' in text):
        evidence.add_nccl_test(parse_nccl_json(text, where, asked.test), asked.only_gpus)
        evidence.add_unused(path.name, unused_keys(content, KNOWN_KEYS))
    elif content is None or is_pipette_json(content):
        evidence.add_matrix(read_pipette_json(path), "Pipette's JSON")
        evidence.add_unused(path.name, unused_keys(content, PIPETTE_KEYS))
    else:
        raise InputError(where, f"is JSON neither of nccl-tests nor of Pipette (gpus and bandwidth).{looks_like(text)}")


def _read_printed(evidence: LinkEvidence, path: Path, text: str, asked: LinkOptions) -> None:
    log = Log(text)
    found = next((known for known in PRINTED if known.recognises(log.text)), None)
    if found is None:
        names = ", ".join(known.name for known in PRINTED)
        problem = f"is no output of {names}, and no JSON of nccl-tests (-J) or Pipette."
        kind = looks_like(text)
        raise InputError(str(path), f"has no measurement of links.{kind}" if kind else problem)
    found.add(evidence, log, path, asked)
    evidence.add_unused(path.name, log.unused())


def _add_mpigraph(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    evidence.add_matrix(parse_mpigraph(log, str(path)), "mpiGraph")


def _add_nccl_tests(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    for test in parse_nccl_text(log, str(path), asked.test):
        evidence.add_nccl_test(test, asked.only_gpus)


def _add_pair_tests(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    for test in parse_pair_tests(log, str(path), asked.pair):
        evidence.add_pair_test(test, path.name)


def _add_nccl_topology(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    evidence.add_inside(parse_nccl_topology(log.text, str(path)), "NCCL topology", path.name)
    log.use(*log.lines)  # an XML file has no lines of other programs


def _add_nvidia_smi_topology(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    evidence.add_inside(parse_nvidia_smi_topology(log, str(path)), "nvidia-smi topo -m", path.name)


def _add_switches(evidence: LinkEvidence, log: Log, path: Path, asked: LinkOptions) -> None:
    if evidence.switches is not None:
        raise InputError(str(path), "is a second list of switches; give only one such file.")
    evidence.switches = parse_switches(log, str(path))


class _Printed(NamedTuple):
    """
    Text format of measurements of links.

    Parameters
    ----------
    name
        Programs that write it, for people.
    recognises
        Function that returns whether a log without tags is of the format.
    add
        Function that parses a log, marks the lines that it uses, and adds its content to the evidence.
    """

    name: str
    recognises: Callable[[str], bool]
    add: Callable[[LinkEvidence, Log, Path, LinkOptions], None]


PRINTED = (
    _Printed("nccl-tests", is_nccl_text, _add_nccl_tests),
    _Printed("mpiGraph", is_mpigraph, _add_mpigraph),
    _Printed("osu_bw, osu_latency, ib_write_bw", is_pair_test, _add_pair_tests),
    _Printed("NCCL_TOPO_DUMP_FILE", is_nccl_topology, _add_nccl_topology),
    _Printed("nvidia-smi topo -m", is_nvidia_smi_topology, _add_nvidia_smi_topology),
    _Printed("scontrol show topology", is_switch_list, _add_switches),
)
"""All text formats, in the order in which they are tried."""


def _text(path: Path) -> str:
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise InputError(str(path), "the file or folder does not exist.") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    if b"\0" in data[:HEAD_BYTES]:
        kind = binary_kind(data)
        raise InputError(str(path), "is no text file." + (f" It looks like {kind}." if kind else ""))
    text = data.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(str(path), "the file is empty.")
    return text


def _check_names(evidence: LinkEvidence, where: str) -> None:
    """Raise ``InputError`` if a host appears under a short and a long name, which would count as two hosts."""
    for host in evidence.hosts:
        short = host.split(".")[0]
        if short != host and short in evidence.hosts:
            problem = f"hosts {short!r} and {host!r} both appear; if they are the same machine, use --short-names."
            raise InputError(where, problem)


def _matrices(
    evidence: LinkEvidence,
    hosts: tuple[str, ...],
    domains: Level | None,
    asked: LinkOptions,
    notes: list[str],
) -> tuple[tuple[LinkMatrix, ...], dict[int, tuple[Pair, ...]]]:
    """Return a matrix for each measured number of flows, and the pairs missing in each."""
    measured = measured_matrices(evidence, hosts, asked.repeated, asked.direction, domains)
    for matrix in measured:
        notes += notes_on_matrix(matrix, hosts, evidence.failures[matrix.concurrent_flows], evidence.switches)
    missing = {matrix.concurrent_flows: matrix.missing for matrix in measured}
    if asked.fill == "exclude":
        pairs = sorted(
            {pair for pairs in missing.values() for pair in pairs}, key=lambda pair: natural_key(" ".join(pair))
        )
        notes += [note_on_excluded(pairs)] if pairs else []
        found = without_pairs(measured, hosts)
        if domains is None and len(hosts) > 1 and all(np.isnan(matrix.bytes_per_s).all() for matrix in found):
            flows = ", ".join(str(matrix.concurrent_flows) for matrix in measured)
            raise InputError(
                "links",
                f"no pair of hosts was measured with every number of flows ({flows}), so all are excluded; use --fill "
                "worst, or --only-gpus for the tests of one kind.",
            )
        return found, missing
    result = filled(measured, hosts, asked.fill, evidence.switches)
    for matrix, whole in zip(measured, result, strict=True):
        notes += [note_on_filled(matrix, whole.bytes_per_s, hosts, asked.fill)] if matrix.missing else []
    return result, missing


def _kinds(
    evidence: LinkEvidence, hosts: tuple[str, ...], gpu: str | None, notes: list[str], where: str
) -> dict[str, CatalogueEntry]:
    """Return the catalogue entry of the GPU of each host, from ``gpu`` or from the device names in the logs."""
    if gpu is not None:
        entry = read_gpu_entry(gpu, "gpu")
        notes.append(f"GPU: {entry.gpu.name} on every host, as given.")
        return dict.fromkeys(hosts, entry)
    kinds: dict[str, CatalogueEntry] = {}
    for host in hosts:
        names = sorted(evidence.device_names[host])
        if not names:
            raise InputError(
                where, f"the files do not name the GPU of host {host}; give the GPU type, e.g. --gpu a100-80gb."
            )
        found = {device: recognise_gpu(device) for device in names}
        unknown = [device for device, entry in found.items() if entry is None]
        if unknown:
            problem = (
                f"the GPU {unknown[0]!r} of host {host} is not in the catalogue; give the most similar "
                "type, e.g. --gpu a100-80gb."
            )
            raise InputError(where, problem)
        distinct = {entry.gpu.name: entry for entry in found.values() if entry is not None}
        if len(distinct) > 1:
            raise InputError(where, f"host {host} appears with different GPUs: {', '.join(names)}.")
        kinds[host] = next(iter(distinct.values()))
    for entry_name in dict.fromkeys(entry.gpu.name for entry in kinds.values()):
        of = [host for host in hosts if kinds[host].gpu.name == entry_name]
        device = sorted(evidence.device_names[of[0]])[0]
        notes.append(f"GPU: {entry_name} on {counted(len(of), 'host')}, from the device name {device!r}.")
    return kinds


def _gpus_per_node(
    evidence: LinkEvidence, inside: InsideNode | None, given: int | None, notes: list[str], where: str
) -> int:
    if given is not None:
        largest = max(evidence.gpus_of_host.values(), default=0)
        if largest > given:
            raise InputError("gpus_per_node", f"is {given}, but the logs used {largest} GPUs of a host.")
        notes.append(f"GPUs per host: {given}, as given.")
        return given
    count = max(evidence.gpus_of_host.values(), default=0)
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
        raise InputError(where, " ".join([ask, *notes_on_skipped(evidence.skipped, MAX_REASONS)]))
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
    if evidence.latencies:
        latency = max(0.0, statistics.median(evidence.latencies))
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


def _is_visible(file: Path, folder: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _loads(text: str) -> object:
    """Return the content of a JSON text; ``None`` if invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
