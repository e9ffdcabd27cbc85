"""
A cluster from what measured its links: nccl-tests logs, mpiGraph output, Pipette's JSON.

Every file gives measurements "k flows from host a to host b attain so much in sum"; the matrix of k flows takes the
slowest measurement of each pair. Whatever was assumed, dropped or filled is said in ``ImportedLinks.notes``.
"""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from pipette_opt.errors import InputError
from pipette_opt.read.gpus import CatalogueEntry, read_gpu_entry, recognise_gpu
from pipette_opt.read.matrices import HostMatrix, gb_text, read_pipette_json
from pipette_opt.read.mpigraph import is_mpigraph, parse_mpigraph
from pipette_opt.read.nccl_tests import (
    NcclRow,
    NcclTest,
    is_nccl_json,
    is_nccl_text,
    pair_bytes_per_s,
    pair_flows,
    parse_nccl_json,
    parse_nccl_text,
)
from pipette_opt.specs import ClusterSpec, LinkMatrix, NodeSpec
from pipette_opt.types import FloatArray
from pipette_opt.units import GB, KIB, MIB, US

Fill = Literal["exclude", "worst", "median"]
Pair = tuple[str, str]

LARGE_BYTES = 16 * MIB
"""Sizes from here on tell the bandwidth: what is fixed about a message takes less than about 5 % of its time."""

SMALL_BYTES = 64 * KIB
"""Sizes up to here tell the latency."""

ASSUMED_LATENCY_S = 12 * US

SLOW = 0.5
"""Pairs below this share of the median are named."""

_NAMED = 12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ImportedLinks:
    """
    A cluster, and how it came about.

    Parameters
    ----------
    notes
        What was read, assumed, left out and filled; one sentence each.
    missing
        Pairs of hosts that have no measurement, by number of concurrent flows; before filling.
    """

    cluster: ClusterSpec
    notes: tuple[str, ...]
    missing: Mapping[int, tuple[Pair, ...]]


@dataclass(slots=True, kw_only=True)
class _Evidence:
    """Everything the files say."""

    hosts: dict[str, None] = field(default_factory=dict)
    gpus_of_host: dict[str, int] = field(default_factory=dict)
    device_names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    rates: dict[int, dict[Pair, list[float]]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(list)))
    failures: dict[int, dict[Pair, str]] = field(default_factory=lambda: defaultdict(dict))
    inside: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    used: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    skipped: list[str] = field(default_factory=list)
    symmetric: bool = False
    all_at_once: bool = False


def import_links(
    paths: str | Path | Sequence[str | Path],
    *,
    fill: Fill = "exclude",
    gpu: str | None = None,
    gpus_per_node: int | None = None,
    nics_per_node: int | None = None,
    only_gpus: int | None = None,
    name: str | None = None,
) -> ImportedLinks:
    """
    Make a cluster of measurements.

    Parameters
    ----------
    paths
        Files, or folders whose files are all looked at.
    fill
        What becomes of a pair without a measurement: ``exclude`` leaves it empty for every number of flows, so no
        plan uses it; ``worst`` and ``median`` give it the worst or median measured pair of the same flows.
    gpu, gpus_per_node
        Override what the logs say; needed where they say nothing (mpiGraph, Pipette).
    nics_per_node
        Only used where a single number of flows was measured; default: one for each GPU.
    only_gpus
        Use only nccl-tests that ran with so many GPUs a host.
    """
    if fill not in ("exclude", "worst", "median"):
        raise InputError("fill", f"must be exclude, worst or median, got {fill!r}.")
    for option, value in (("gpus_per_node", gpus_per_node), ("nics_per_node", nics_per_node), ("only_gpus", only_gpus)):
        if value is not None and value < 1:
            raise InputError(option, f"must be >= 1, got {value}.")
    sources = [paths] if isinstance(paths, str | Path) else list(paths)
    evidence = _gather(sources, only_gpus)
    hosts = tuple(evidence.hosts)
    where = ", ".join(str(source) for source in sources)
    if not hosts or (len(hosts) > 1 and not evidence.rates):
        reasons = " ".join(evidence.skipped[:3]) or "No output of nccl-tests, mpiGraph or Pipette's JSON was found."
        raise InputError(where, f"there is no usable measurement between two hosts. {reasons}")

    notes: list[str] = _notes_on_reading(evidence, only_gpus)
    kinds = _kinds(evidence, hosts, gpu, notes, where)
    count = _gpus_per_node(evidence, gpus_per_node, notes, where)
    matrices, missing = _matrices(evidence, hosts, fill, notes)
    cluster = ClusterSpec(
        name=name or _default_name(sources[0]),
        nodes=tuple(NodeSpec(host=host, gpu=kinds[host].gpu, num_gpus=count) for host in hosts),
        intra_node_bytes_per_s=_inside(evidence, kinds.values(), notes),
        intra_node_latency_s=_inside_latency(kinds.values(), notes),
        inter_node_latency_s=_latency(evidence, notes),
        nics_per_node=_nics(evidence, matrices, count, nics_per_node, notes),
        link_matrices=matrices,
    )
    return ImportedLinks(cluster=cluster, notes=tuple(notes), missing=missing)


def _gather(sources: Sequence[str | Path], only_gpus: int | None) -> _Evidence:
    """Read all files, in natural order of their names."""
    evidence = _Evidence()
    for source in sources:
        path = Path(source)
        if path.is_dir():
            files = sorted(
                (file for file in path.rglob("*") if _is_visible(file, path)), key=lambda f: _natural(str(f))
            )
            if not files:
                raise InputError(str(path), "the folder has no files.")
            for file in files:
                _read_file(evidence, file, only_gpus, in_folder=True)
        else:
            _read_file(evidence, path, only_gpus, in_folder=False)
    if evidence.gpus_of_host:  # nccl-tests: pairs come in any order
        evidence.hosts = dict.fromkeys(sorted(evidence.hosts, key=_natural))
    return evidence


def _read_file(evidence: _Evidence, path: Path, only_gpus: int | None, *, in_folder: bool) -> None:
    """Add one file; inside a folder, a file that cannot be used is noted, else it is an error."""
    try:
        _read_known(evidence, path, only_gpus)
    except InputError as error:
        if not in_folder:
            raise
        evidence.skipped.append(f"{path.name} was not used: {error.problem}")


def _read_known(evidence: _Evidence, path: Path, only_gpus: int | None) -> None:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file or folder.") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    if not text.strip():
        raise InputError(str(path), "the file is empty.")
    if text.lstrip().startswith("{"):
        if is_nccl_json(_loads(text)) or '"nccl_version"' in text:
            _add_test(evidence, parse_nccl_json(text, str(path)), only_gpus)
        else:
            _add_matrix(evidence, read_pipette_json(path), "Pipette's JSON")
            evidence.all_at_once = True
    elif is_mpigraph(text):
        _add_matrix(evidence, parse_mpigraph(text, str(path)), "mpiGraph")
        evidence.all_at_once = True
    elif is_nccl_text(text):
        tests = parse_nccl_text(text, str(path))
        for test in tests:
            _add_test(evidence, test, only_gpus)
    else:
        problem = "is neither output of nccl-tests (text or -J) nor of mpiGraph nor Pipette's JSON."
        raise InputError(str(path), problem)


def _add_test(evidence: _Evidence, test: NcclTest, only_gpus: int | None) -> None:
    file = Path(test.source).name
    if test.problem and not test.failed:
        evidence.skipped.append(f"{test.kind or 'A test'} in {file} was not used: {test.problem}.")
        return
    if len(test.hosts) <= 2:
        _add_hosts(evidence, test)
    if only_gpus is not None and set(test.gpus_of_host.values()) != {only_gpus}:
        return
    flows = pair_flows(test)
    if flows is None:
        _add_inside_or_skip(evidence, test)
        return
    first, second = test.hosts
    large = _large(test.rows)
    if test.problem or not large:
        evidence.failures[flows].setdefault(
            _sorted_pair(first, second), f"{test.kind} in {file} {test.problem}".strip()
        )
        return
    rate = pair_bytes_per_s(test, large)
    evidence.rates[flows][first, second].append(rate)
    evidence.rates[flows][second, first].append(rate)
    evidence.used[f"{test.kind}_perf with {_count(test.gpus_of_host[first], 'GPU')} a host"] += 1
    evidence.symmetric = True
    if test.kind == "sendrecv":
        evidence.latencies += [row.time_s - row.size_bytes / rate for row in test.rows if row.size_bytes <= SMALL_BYTES]


def _add_hosts(evidence: _Evidence, test: NcclTest) -> None:
    for host, gpus in test.gpus_of_host.items():
        evidence.hosts.setdefault(host)
        evidence.gpus_of_host[host] = max(evidence.gpus_of_host.get(host, 0), gpus)
        evidence.device_names[host] |= test.device_names[host]


def _add_inside_or_skip(evidence: _Evidence, test: NcclTest) -> None:
    """A ring inside one host measures its fabric; other tests say nothing about a pair."""
    file, counts = Path(test.source).name, list(test.gpus_of_host.values())
    if len(counts) == 1 and counts[0] > 1 and test.kind == "sendrecv" and not test.problem:
        evidence.inside += [row.algorithm_bytes_per_s for row in _large(test.rows)]
        evidence.used["sendrecv_perf inside a host"] += 1
        return
    if test.kind not in ("sendrecv", "alltoall"):
        reason = (
            f"{test.kind or 'its unknown test'} does not measure pairs of hosts; sendrecv_perf and alltoall_perf do"
        )
    elif len(counts) != 2:
        reason = f"{test.kind} over {len(counts)} hosts does not tell the pairs apart"
    else:
        reason = f"{test.kind} with {counts[0]} and {counts[1]} GPUs does not load a pair evenly"
    evidence.skipped.append(f"{file} was not used: {reason}.")


def _add_matrix(evidence: _Evidence, matrix: HostMatrix, kind: str) -> None:
    for host in matrix.hosts:
        evidence.hosts.setdefault(host)
    for i, sender in enumerate(matrix.hosts):
        for j, receiver in enumerate(matrix.hosts):
            if not np.isnan(matrix.bytes_per_s[i, j]):
                evidence.rates[1][sender, receiver].append(float(matrix.bytes_per_s[i, j]))
    evidence.used[kind] += 1


def _large(rows: Sequence[NcclRow]) -> list[NcclRow]:
    """Rows that tell the bandwidth; the largest one if all are small."""
    return [row for row in rows if row.size_bytes >= LARGE_BYTES] or list(rows[-1:])


def _matrices(
    evidence: _Evidence, hosts: tuple[str, ...], fill: Fill, notes: list[str]
) -> tuple[tuple[LinkMatrix, ...], dict[int, tuple[Pair, ...]]]:
    """One matrix for each number of flows that was measured."""
    index = {host: row for row, host in enumerate(hosts)}
    arrays: dict[int, FloatArray] = {}
    missing: dict[int, tuple[Pair, ...]] = {}
    for flows in sorted(evidence.rates):
        array = np.full((len(hosts), len(hosts)), np.nan)
        for (sender, receiver), rates in evidence.rates[flows].items():
            if _sorted_pair(sender, receiver) not in evidence.failures[flows]:
                array[index[sender], index[receiver]] = min(rates)
        if np.isnan(array).all():
            continue
        arrays[flows] = array
        missing[flows] = tuple(
            (hosts[i], hosts[j])
            for i in range(len(hosts))
            for j in range(i + 1, len(hosts))
            if np.isnan(array[i, j]) or np.isnan(array[j, i])
        )
        notes += _notes_on_matrix(flows, array, hosts, evidence.failures[flows], missing[flows])
    if not arrays and len(hosts) > 1:
        raise InputError("links", "every test between two hosts failed; there is no usable measurement.")
    _fill(arrays, missing, hosts, fill, notes)
    return tuple(LinkMatrix(concurrent_flows=flows, bytes_per_s=array) for flows, array in arrays.items()), missing


def _fill(
    arrays: dict[int, FloatArray],
    missing: Mapping[int, tuple[Pair, ...]],
    hosts: tuple[str, ...],
    fill: Fill,
    notes: list[str],
) -> None:
    """Do with the missing pairs what the user chose."""
    index = {host: row for row, host in enumerate(hosts)}
    if fill == "exclude":
        pairs = sorted({pair for some in missing.values() for pair in some}, key=lambda pair: _natural(" ".join(pair)))
        for array in arrays.values():
            for a, b in pairs:
                array[index[a], index[b]] = array[index[b], index[a]] = np.nan
        if pairs:
            text = _pairs_text(pairs, every=True)
            notes.append(f"Excluded: no plan will use these {len(pairs)} links, whatever the flows: {text}.")
        return
    for flows, array in arrays.items():
        value = float(np.nanmin(array) if fill == "worst" else np.nanmedian(array))
        for a, b in missing[flows]:
            for cell in ((index[a], index[b]), (index[b], index[a])):
                array[cell] = value if np.isnan(array[cell]) else array[cell]
        if missing[flows]:
            pairs_text = _pairs_text(missing[flows], every=True)
            kind = "worst" if fill == "worst" else "median"
            notes.append(
                f"Filled: {_count(flows, 'flow')} of {pairs_text} got the {kind} measured pair, {gb_text(value)} GB/s."
            )


def _kinds(
    evidence: _Evidence, hosts: tuple[str, ...], gpu: str | None, notes: list[str], where: str
) -> dict[str, CatalogueEntry]:
    """Kind of GPU of each host."""
    if gpu is not None:
        entry = read_gpu_entry(gpu, "gpu")
        notes.append(f"GPU: {entry.gpu.name} on every host, as given.")
        return dict.fromkeys(hosts, entry)
    kinds: dict[str, CatalogueEntry] = {}
    for host in hosts:
        names = sorted(evidence.device_names[host])
        if not names:
            raise InputError(where, f"the files do not say which GPU host {host} has; give it, e.g. gpu a100-80gb.")
        found = {device: recognise_gpu(device) for device in names}
        unknown = [device for device, entry in found.items() if entry is None]
        if unknown:
            problem = (
                f"the GPU {unknown[0]!r} of host {host} is not in the catalogue; give the nearest, e.g. a100-80gb."
            )
            raise InputError(where, problem)
        distinct = {entry.gpu.name: entry for entry in found.values() if entry is not None}
        if len(distinct) > 1:
            raise InputError(where, f"host {host} appears with different GPUs: {', '.join(names)}.")
        kinds[host] = next(iter(distinct.values()))
    for entry_name in dict.fromkeys(entry.gpu.name for entry in kinds.values()):
        of = [host for host in hosts if kinds[host].gpu.name == entry_name]
        device = sorted(evidence.device_names[of[0]])[0]
        notes.append(f"GPU: {entry_name} on {_count(len(of), 'host')}, from the device name {device!r}.")
    return kinds


def _gpus_per_node(evidence: _Evidence, given: int | None, notes: list[str], where: str) -> int:
    if given is not None:
        largest = max(evidence.gpus_of_host.values(), default=0)
        if largest > given:
            raise InputError("gpus_per_node", f"is {given}, but the logs used {largest} GPUs of a host.")
        notes.append(f"GPUs per host: {given}, as given.")
        return given
    if not evidence.gpus_of_host:
        raise InputError(where, "the files do not say how many GPUs a host has; give gpus_per_node.")
    count = max(evidence.gpus_of_host.values())
    hint = "; if the hosts have more, say so" if count == 1 else ""
    notes.append(f"GPUs per host: {count}, the most that a test used{hint}.")
    return count


def _nics(evidence: _Evidence, matrices: Sequence[LinkMatrix], count: int, given: int | None, notes: list[str]) -> int:
    if given is not None:
        return given
    if len(matrices) == 1:
        flows = matrices[0].concurrent_flows
        notes.append(
            f"Assumed: {count} NICs per host, one for each GPU, so that more than {_count(flows, 'flow')} gain in "
            f"proportion up to {max(count, flows)}; more were not measured. Correct nics_per_node if it is wrong."
        )
    return count


def _inside(evidence: _Evidence, kinds: Iterable[CatalogueEntry], notes: list[str]) -> float:
    if evidence.inside:
        rate = statistics.median(evidence.inside)
        notes.append(f"Inside a host: {gb_text(rate)} GB/s, measured by sendrecv_perf inside a host.")
        return rate
    slowest = min(kinds, key=lambda entry: entry.intra_node_bytes_per_s)
    rate = slowest.intra_node_bytes_per_s
    notes.append(f"Assumed: {gb_text(rate)} GB/s inside a host, the catalogue's figure for {slowest.gpu.name}.")
    return rate


def _inside_latency(kinds: Iterable[CatalogueEntry], notes: list[str]) -> float:
    latency = max(entry.intra_node_latency_s for entry in kinds)
    notes.append(f"Assumed: {latency / US:g} us latency inside a host, the catalogue's figure.")
    return latency


def _latency(evidence: _Evidence, notes: list[str]) -> float:
    if evidence.latencies:
        latency = max(0.0, statistics.median(evidence.latencies))
        notes.append(
            f"Latency between hosts: {latency / US:.1f} us, median of messages up to {SMALL_BYTES // KIB} KiB."
        )
        return latency
    notes.append(
        f"Assumed: {ASSUMED_LATENCY_S / US:g} us latency between hosts; no message was as small as "
        f"{SMALL_BYTES // KIB} KiB, so the files do not tell."
    )
    return ASSUMED_LATENCY_S


def _notes_on_reading(evidence: _Evidence, only_gpus: int | None) -> list[str]:
    notes = []
    if evidence.used:
        notes.append("Read: " + ", ".join(f"{count} x {kind}" for kind, count in sorted(evidence.used.items())) + ".")
    if only_gpus is not None:
        notes.append(f"Only tests with {_count(only_gpus, 'GPU')} a host were used, as asked.")
    if evidence.symmetric:
        notes.append(
            "nccl-tests load both directions of a pair at once and print one figure: both directions got it. "
            f"A rate is the mean over the sizes from {LARGE_BYTES // MIB} MiB on; of several measurements of the same "
            "pair and number of flows the slowest counts, since the GPU that will use the link is not known."
        )
    if evidence.all_at_once:
        notes.append("mpiGraph measures one flow of each host while all hosts send and receive; its MB is 2^20 bytes.")
    notes += evidence.skipped[:_NAMED]
    if len(evidence.skipped) > _NAMED:
        notes.append(f"{len(evidence.skipped) - _NAMED} more files or tests were not used.")
    return notes


def _notes_on_matrix(
    flows: int, array: FloatArray, hosts: tuple[str, ...], failures: Mapping[Pair, str], missing: Sequence[Pair]
) -> list[str]:
    known = array[~np.isnan(array)]
    middle = float(np.median(known))
    notes = [
        f"{_count(flows, 'flow')} at once: median {gb_text(round(middle, -7))} GB/s, "
        f"from {gb_text(round(known.min(), -7))} to {gb_text(round(known.max(), -7))}."
    ]
    worst = np.fmin(array, array.T)
    slow = [
        (hosts[i], hosts[j], float(worst[i, j]))
        for i in range(len(hosts))
        for j in range(i + 1, len(hosts))
        if worst[i, j] < SLOW * middle
    ]
    if slow:
        slow.sort(key=lambda entry: entry[2])
        named = ", ".join(f"{a} - {b} ({rate / GB:.1f})" for a, b, rate in slow[:_NAMED])
        more = f" and {len(slow) - _NAMED} more" if len(slow) > _NAMED else ""
        notes.append(f"{_count(flows, 'flow')}: {len(slow)} pairs attain less than half of the median: {named}{more}.")
    failed = [pair for pair in missing if pair in failures]
    untested = [pair for pair in missing if pair not in failures]
    if failed:
        reason = failures[failed[0]]
        text = _pairs_text(failed, every=True)
        notes.append(f"Missing, {_count(flows, 'flow')}: a test failed between {text} (e.g. {reason}).")
    if untested:
        notes.append(f"Missing, {_count(flows, 'flow')}: no test between {_pairs_text(untested)}.")
    return notes


def _pairs_text(pairs: Sequence[Pair], *, every: bool = False) -> str:
    shown = pairs if every else pairs[:_NAMED]
    more = f" and {len(pairs) - len(shown)} more pairs" if len(shown) < len(pairs) else ""
    return ", ".join(f"{a} - {b}" for a, b in shown) + more


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _sorted_pair(a: str, b: str) -> Pair:
    return (a, b) if _natural(a) <= _natural(b) else (b, a)


def _natural(text: str) -> list[tuple[int, int | str]]:
    """Sort key that counts numbers: host2 before host10."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", text) if part]


def _default_name(source: str | Path) -> str:
    path = Path(source).resolve()
    return (path.name if path.is_dir() else path.stem) or "cluster"


def _is_visible(file: Path, folder: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(folder).parts)


def _loads(text: str) -> object:
    """JSON, or nothing if it is broken."""
    try:
        return json.loads(text)
    except ValueError:
        return None
