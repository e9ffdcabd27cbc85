"""
Clusters over several regions, or zones of a region, from a table of links measured between them.

Two kinds of tables are recognised by their columns. For regions of AWS, the table has delay and bandwidth (``region_a,
region_b, delay_ms, bandwidth_Gbps``, as in DT-FM). For zones of GCP, it has bandwidth by number of GPUs at each end
(``zone_a, gpus_a, zone_b, gpus_b, max_bw_GBps``, as in Sailor); placeholder rows do not count. Hosts of different
regions have the measured bandwidth, hosts of a region that of their NICs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import write_with_parts
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GB, US, counted, number_of, whole_number
from pipette_opt.read.fields import did_you_mean, unused_keys
from pipette_opt.read.files import read_csv
from pipette_opt.read.gpus import read_gpu_entry
from pipette_opt.read.kinds_of_files import reads
from pipette_opt.read.matrices import latencies_csv, matrix_csv
from pipette_opt.read.nics import INTER_NODE_LATENCY_US, Nics

GBIT_PER_S = 1e9 / 8
"""Bytes per second in a Gbit/s."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionLinks:
    """
    Links measured between regions.

    Parameters
    ----------
    bytes_per_s
        Aggregate bandwidth between hosts of two regions, either direction, bytes/s; by number of flows and pair.
    latency_s
        Latency of a message by pair, seconds; empty if the table has none.
    notes
        Sentences on unused columns and rows.
    """

    regions: tuple[str, ...]
    bytes_per_s: Mapping[int, Mapping[frozenset[str], float]]
    latency_s: Mapping[frozenset[str], float]
    notes: tuple[str, ...] = ()


REGION_COLUMNS = ("region_a", "region_b", "delay_ms", "bandwidth_Gbps")
ZONE_COLUMNS = ("zone_a", "gpu_a", "gpus_a", "zone_b", "gpu_b", "gpus_b", "max_bw_GBps")


@reads()
def read_region_links(path: str | Path, gpu: str | None = None) -> RegionLinks:
    """
    Return the links in a table of pairs of regions or zones.

    Parameters
    ----------
    gpu
        GPU type of the rows to use if the table has several, such as ``A100-40``; both ends must have it.
    """
    header, numbered = read_csv(path)
    rows = [row for _, row in numbered]
    known: tuple[str, ...]
    if set(REGION_COLUMNS) <= set(header):
        links, known = _regions(path, rows), REGION_COLUMNS
    elif set(ZONE_COLUMNS) <= set(header):
        links, known = _zones(path, rows, gpu), (*ZONE_COLUMNS, "likely_placeholder")
    else:
        columns = f"{', '.join(REGION_COLUMNS)}; or {', '.join(ZONE_COLUMNS)}"
        raise InputError(str(path), f"must be a table with the columns {columns}.")
    unused = unused_keys(header, known)
    return replace(links, notes=(f"{Path(path).name}: {unused}", *links.notes)) if unused else links


def _regions(path: str | Path, rows: Sequence[Mapping[str, str]]) -> RegionLinks:
    """Return the links in a table of regions; a pair listed twice gets the smaller bandwidth and the longer delay."""
    between = [row for row in rows if row["region_a"] != row["region_b"]]
    rates: dict[frozenset[str], float] = {}
    delays: dict[frozenset[str], float] = {}
    for row in between:
        pair = _pair(row, "region")
        rate, delay = _number(path, row, "bandwidth_Gbps") * GBIT_PER_S, _number(path, row, "delay_ms") * 1e-3
        rates[pair] = min(rate, rates.get(pair, rate))
        delays[pair] = max(delay, delays.get(pair, delay))
    return RegionLinks(
        regions=tuple(sorted({name for pair in rates for name in pair})),
        bytes_per_s={1: rates},
        latency_s=delays,
        notes=_unused_rows(path, len(rows) - len(between), "inside one region"),
    )


def _unused_rows(path: str | Path, number: int, because: str) -> tuple[str, ...]:
    return (f"{Path(path).name}: {counted(number, 'row')} not used, {because}.",) if number else ()


def _zones(path: str | Path, rows: Sequence[Mapping[str, str]], gpu: str | None) -> RegionLinks:
    kinds = sorted({row["gpu_a"] for row in rows} & {row["gpu_b"] for row in rows})
    if gpu not in kinds:
        raise InputError("--measured-gpu", f"must be one of the table's GPUs, {', '.join(kinds)}, got {gpu}.")
    found: dict[int, dict[frozenset[str], float]] = {}
    num_used = 0
    for row in rows:
        alike = (
            row["gpu_a"] == row["gpu_b"] == gpu and row["gpus_a"] == row["gpus_b"] and row["zone_a"] != row["zone_b"]
        )
        if alike and row.get("likely_placeholder") != "True":
            num_used += 1
            num_gpus = whole_number(row["gpus_a"])
            if num_gpus is None or num_gpus < 1:
                raise InputError(str(path), f"gpus_a must be a whole number of GPUs >= 1, got {shown(row['gpus_a'])}.")
            flows = found.setdefault(num_gpus, {})
            rate = _number(path, row, "max_bw_GBps") * GB
            flows[_pair(row, "zone")] = min(rate, flows.get(_pair(row, "zone"), rate))
    names = {name for flows in found.values() for pair in flows for name in pair}
    because = f"of other GPUs than {gpu}, of different numbers of them, inside one zone, or placeholders"
    return RegionLinks(
        regions=tuple(sorted(names)),
        bytes_per_s=found,
        latency_s={},
        notes=_unused_rows(path, len(rows) - num_used, because),
    )


def _pair(row: Mapping[str, str], kind: str) -> frozenset[str]:
    return frozenset((row[f"{kind}_a"], row[f"{kind}_b"]))


def _number(path: str | Path, row: Mapping[str, str], name: str) -> float:
    try:
        value = number_of(row[name])
    except ValueError:
        value = float("nan")
    if not 0 < value < 1e9:
        raise InputError(str(path), f"{name} must be a number > 0, got {row[name]!r}.")
    return value


def parse_regions(entries: Sequence[str], links: RegionLinks) -> dict[str, int]:
    """
    Return the number of hosts by region, from entries such as ``Oregon=4``.

    ``InputError`` for fewer than two regions, or for two regions without a measurement between them.
    """
    hosts: dict[str, int] = {}
    for entry in entries:
        name, _, count = entry.rpartition("=")
        if name not in links.regions:
            raise InputError(
                "--region",
                f"{name or entry!r} is not among the regions of the table.{did_you_mean(name, links.regions)}",
            )
        number = whole_number(count)
        if number is None or not 1 <= number <= 1024:
            raise InputError("--region", f"must be a region and its hosts, 1 to 1024, e.g. Oregon=4, got {entry!r}.")
        hosts[name] = number
    if len(hosts) < 2:
        raise InputError(
            "--region", f"must be given for two regions at least; the table has {', '.join(links.regions)}."
        )
    for first in hosts:
        for second in hosts:
            if first < second and not any(frozenset((first, second)) in flows for flows in links.bytes_per_s.values()):
                raise InputError("--region", f"the table has no measurement between {first} and {second}.")
    return hosts


def write_region_cluster(
    path: Path,
    links: RegionLinks,
    hosts: Mapping[str, int],
    *,
    gpu: str,
    gpus_per_node: int,
    nics: Nics,
    latency_s: float | None,
    source: str,
) -> list[str]:
    """
    Write a cluster file and its matrices, one for each number of flows. Return notes on assumptions.

    If latencies differ between pairs of regions, a further matrix holds the latency of each two hosts.

    Parameters
    ----------
    latency_s
        Latency of a message between regions, seconds; for tables without latencies.
    """
    names = {
        region: [f"{region.lower()}{number:02d}" for number in range(1, count + 1)] for region, count in hosts.items()
    }
    every = [(region, host) for region, its in names.items() for host in its]
    pairs = {frozenset((first, second)) for first in hosts for second in hosts if first != second}
    if latency_s is None and not pairs <= links.latency_s.keys():
        raise InputError("--latency-ms", "is required, because the table has no latencies.")
    of_pair_s = {pair: links.latency_s[pair] if latency_s is None else latency_s for pair in pairs}
    between_s = max(of_pair_s.values())
    latencies: dict[str, str] = {}
    parts: dict[str, str] = {}
    if min(of_pair_s.values()) < between_s:
        latencies["latencies"] = f"{path.stem}_latencies.csv"
        parts[latencies["latencies"]] = latencies_csv([host for _, host in every], _matrix(every, of_pair_s))
    matrices = []
    measured = dict(links.bytes_per_s)
    if len(measured) == 1 and gpus_per_node > 1:  # more flows of two hosts share what was measured
        measured[gpus_per_node] = next(iter(measured.values()))
    for flows, of_pair in sorted(measured.items()):
        file = f"{path.stem}_links_{flows}.csv"
        parts[file] = matrix_csv([host for _, host in every], _matrix(every, of_pair))
        matrices.append({"file": file, "concurrent_flows": flows})
    flow = nics.flow_bytes_per_s(gpus_per_node)
    document: dict[str, Any] = {
        "name": path.stem,
        "nodes": [
            {"hosts": its, "gpu": read_gpu_entry(gpu, "--gpu").gpu.name, "gpus_per_node": gpus_per_node}
            for its in names.values()
        ],
        "inter_node": {
            "latency_us": round(between_s / US, 3),
            **latencies,
            "nics_per_node": nics.flows(gpus_per_node),
            "matrices": matrices,
        },
        "levels": [
            {
                "name": "region",
                "hosts": [list(its) for its in names.values()],
                "bandwidth_gb_per_s": round(flow / GB, 6),
                "latency_us": INTER_NODE_LATENCY_US,
            }
        ],
    }
    notes = [
        *links.notes,
        f"Inside a region: {flow / GB:.3g} GB/s a flow and {INTER_NODE_LATENCY_US:g} us, of NICs of {nics} Gbit/s; "
        "not measured.",
    ]
    lines = [f"Links between regions: {source}.", *notes]
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)
    write_with_parts(path, "".join(f"# {line}\n" for line in lines) + text, parts)
    return notes


def _matrix(every: Sequence[tuple[str, str]], of_pair: Mapping[frozenset[str], float]) -> FloatArray:
    """Return a matrix of hosts with the value of each pair's regions; NaN for two hosts of the same region."""
    rates = [[of_pair.get(frozenset((sender, receiver)), np.nan) for receiver, _ in every] for sender, _ in every]
    return np.array(rates, dtype=np.float64)
