"""Bandwidth matrices: CSV files in GB/s, and Pipette's JSON in mpiGraph's MB/s."""

import csv
import io
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import FloatArray, is_number, read_only
from pipette_opt.base.units import GB, US, number_in
from pipette_opt.read.fields import Fields
from pipette_opt.read.files import read_json, read_text
from pipette_opt.read.kinds_of_files import reads

MPIGRAPH_MB = 2**20
"""Bytes in a megabyte of mpiGraph, which prints bytes per us times 10^6 / 2^20 (``MBsec`` in ``mpiGraph.c``)."""

MIN_GB_PER_S, MAX_GB_PER_S = 1e-6, 1e6
"""Smallest and largest valid bandwidth, GB/s. Chosen: 1 kB/s is the last written digit, 1e6 far above NVLink."""


def bandwidth_of(fields: Fields, name: str) -> float:
    """Return a field in GB/s as bytes/s. ``InputError`` outside the valid bandwidths."""
    value = fields.positive(name)
    if not MIN_GB_PER_S <= value <= MAX_GB_PER_S:
        problem = f"{name} must be in GB/s, from {MIN_GB_PER_S:g} to {MAX_GB_PER_S:g}, got {value:g}."
        raise InputError(fields.where, problem)
    return value * GB


GPU_NAME = re.compile(r"^(?P<host>.+):(?P<gpu>[0-9]+)$")
"""Pattern of the name ``host:gpu`` of a row in a matrix of GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostMatrix:
    """
    Bandwidth matrix of a file, reduced from GPUs to hosts.

    Parameters
    ----------
    bytes_per_s
        Bandwidth from row host to column host, bytes/s, shape ``(num_hosts, num_hosts)``; NaN if not measured and on
        the diagonal.
    from_gpus
        Whether the file has a row for each GPU.
    names, gpu_bytes_per_s
        Names of the rows in the file, and their bandwidths in bytes/s.
    """

    hosts: tuple[str, ...]
    bytes_per_s: FloatArray
    from_gpus: bool = False
    names: tuple[str, ...]
    gpu_bytes_per_s: FloatArray

    def __post_init__(self) -> None:
        object.__setattr__(self, "bytes_per_s", read_only(self.bytes_per_s, np.float64))
        object.__setattr__(self, "gpu_bytes_per_s", read_only(self.gpu_bytes_per_s, np.float64))

    def ordered(self, where: str, hosts: Sequence[str]) -> FloatArray:
        """Return the matrix in the order of ``hosts``; NaN for hosts that the matrix lacks."""
        return in_order(where, self.hosts, self.bytes_per_s, hosts)


def in_order(where: str, names: Sequence[str], values: FloatArray, hosts: Sequence[str]) -> FloatArray:
    """Return a square matrix in the order of ``hosts``; NaN for missing hosts. ``InputError`` for an unknown host."""
    unknown = [host for host in names if host not in hosts]
    if unknown:
        raise InputError(where, f"host {unknown[0]!r} is not among the nodes of the cluster file.")
    index = {host: row for row, host in enumerate(names)}
    result = np.full((len(hosts), len(hosts)), np.nan)
    known = [row for row, host in enumerate(hosts) if host in index]
    rows = [index[hosts[row]] for row in known]
    result[np.ix_(known, known)] = values[np.ix_(rows, rows)]
    return result


def read_latencies(path: str | Path, hosts: Sequence[str]) -> FloatArray:
    """
    Return the latencies between hosts in seconds, shape ``(num_hosts, num_hosts)``; NaN if unknown.

    The CSV file has microseconds, and the format of :func:`read_matrix_csv`.
    """
    most = MAX_LATENCY_S / US
    names, values = read_square(path, f"must be a latency in us, from 0 to {most:g}", 0, most)
    return in_order(str(path), names, values * US, hosts)


MAX_LATENCY_S = 1.0
"""Largest valid latency of a message, seconds. Chosen to find nanoseconds or seconds given for microseconds."""


def read_matrix(path: str | Path) -> HostMatrix:
    """Read a bandwidth matrix: Pipette's format for the suffix ``.json``, CSV for any other."""
    return read_pipette_json(path) if Path(path).suffix.lower() == ".json" else read_matrix_csv(path)


def read_matrix_csv(path: str | Path) -> HostMatrix:
    """
    Read a bandwidth matrix from a CSV file in GB/s (10^9 bytes/s).

    Host names are in the first row and the first column; a cell is empty if not measured. Names of the form
    ``host:gpu`` make a matrix of GPUs, see :func:`reduce_to_hosts`.
    """
    must = f"must be a bandwidth in GB/s, from {MIN_GB_PER_S:g} to {MAX_GB_PER_S:g}, or empty if not measured"
    names, values = read_square(path, must, MIN_GB_PER_S, MAX_GB_PER_S)
    return reduce_to_hosts(names, values * GB)


@reads()
def read_square(path: str | Path, must: str, low: float, high: float) -> tuple[list[str], FloatArray]:
    """
    Return the names and values of a square CSV file; NaN for empty cells and on the diagonal.

    Values are from ``low`` to ``high``; ``must`` says so in the error for any other.
    """
    try:
        rows = [row for row in csv.reader(io.StringIO(read_text(path))) if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InputError(str(path), f"is not valid CSV: {error}.") from None
    if not rows:
        raise InputError(str(path), "is empty; the first row must hold the host names.")
    names = [cell.strip() for cell in rows[0][1:]]
    while names and not names[-1]:
        names.pop()
    _check_names(str(path), "the first row", names)
    table = rows[1:]
    if [row[0].strip() for row in table] != names:
        _explain_row_names(str(path), names, [row[0].strip() for row in table])
    cells_of_rows = [[cell.strip() for cell in row[1:]] for row in table]
    for name, cells in zip(names, cells_of_rows, strict=True):
        if any(cells[len(names) :]) or len(cells) < len(names):
            raise InputError(str(path), f"row {name} has {len(cells)} values, the first row names {len(names)}.")
    values = np.full((len(names), len(names)), np.nan)  # no larger than the file
    for i, cells in enumerate(cells_of_rows):
        for j, cell in enumerate(cells[: len(names)]):
            place = f"{path}, row {names[i]}, column {names[j]}"
            if i == j and cell.strip("0."):
                raise InputError(place, f"the diagonal is no link between hosts and must be empty, got {cell!r}.")
            if i != j and cell:
                values[i, j] = number_in(cell, place, must, low, high)
    return names, values


PIPETTE_KEYS = ("gpus", "bandwidth", "send", "recv", "1", "0", "data", "unit", "what")
"""Top-level keys of Pipette's files. ``unit`` is always MB/s; ``what`` is a remark."""


def is_pipette_json(data: object) -> bool:
    """Return whether parsed JSON has the top-level keys of Pipette's files."""
    inner = data.get("data") if isinstance(data, dict) else None
    keys = {"gpus", "bandwidth", "send", "recv", "1", "0"}
    return any(isinstance(table, dict) and bool(keys & table.keys()) for table in (data, inner))


@reads()
def read_pipette_json(path: str | Path) -> HostMatrix:
    """
    Read ``{"gpus": [...], "bandwidth": [[...]]}`` in mpiGraph's MB/s (2^20 bytes); the row sends to the column.

    The diagonal is ignored. A file with two tables has both ends of a measurement: ``send`` (or ``1``) measured by the
    row as sender, ``recv`` (or ``0``) measured by the row as receiver. The smaller bandwidth counts.
    """
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("data"), dict):
        data = data["data"]
    if not isinstance(data, dict):
        raise InputError(str(path), f"must be an object with the fields gpus and bandwidth, got {shown(data)}.")
    if "gpus" in data or "bandwidth" in data:
        return reduce_to_hosts(*_pipette_table(str(path), data))
    send = next((data[key] for key in ("send", "1") if key in data), None)
    received = next((data[key] for key in ("recv", "0") if key in data), None)
    if send is None:
        raise InputError(str(path), "must hold gpus and bandwidth, or a table send (and recv) of these.")
    names, values = _pipette_table(f"{path}, send", send)
    if received is not None:
        other_names, other = _pipette_table(f"{path}, recv", received)
        if other_names != names:
            raise InputError(str(path), "the tables send and recv must list the same gpus in the same order.")
        values = np.fmin(values, other.T)
    return reduce_to_hosts(names, values)


def reduce_to_hosts(names: Sequence[str], bytes_per_s: FloatArray) -> HostMatrix:
    """
    Reduce a matrix of GPUs, named ``host:gpu``, to a matrix of hosts; a matrix of hosts is unchanged.

    A pair of hosts gets the bandwidth of its **slowest** measured pair of GPUs, which any flow attains. The matrix of
    GPUs is kept in ``gpu_bytes_per_s``.
    """
    matches = [GPU_NAME.match(name) for name in names]
    if not any(matches):
        values = np.array(bytes_per_s, dtype=np.float64)
        np.fill_diagonal(values, np.nan)
        return HostMatrix(hosts=tuple(names), bytes_per_s=values, names=tuple(names), gpu_bytes_per_s=values)
    owners = [match.group("host") if match else name for match, name in zip(matches, names, strict=True)]
    hosts = tuple(dict.fromkeys(owners))
    reduced = np.full((len(hosts), len(hosts)), np.nan)
    index = {host: row for row, host in enumerate(hosts)}
    for i, sender in enumerate(owners):
        for j, receiver in enumerate(owners):
            if sender != receiver:
                cell = index[sender], index[receiver]
                reduced[cell] = np.fmin(reduced[cell], bytes_per_s[i, j])
    return HostMatrix(
        hosts=hosts,
        bytes_per_s=reduced,
        from_gpus=len(names) > len(hosts),
        names=tuple(names),
        gpu_bytes_per_s=bytes_per_s,
    )


def matrix_csv(hosts: Sequence[str], values: FloatArray, unit: float = GB) -> str:
    """Return a matrix of bandwidths in GB/s, or of latencies with ``US`` as unit, as CSV text with six decimals."""
    lines = [",".join(["from/to", *hosts])]
    for host, row in zip(hosts, values, strict=True):
        lines.append(",".join([host, *("" if np.isnan(value) else gb_text(float(value), unit) for value in row)]))
    return "\n".join(lines) + "\n"


def gb_text(bytes_per_s: float, unit: float = GB) -> str:
    """Return bytes/s as a text in GB/s, or in another unit, with at most six decimals."""
    return f"{bytes_per_s / unit:.6f}".rstrip("0").rstrip(".")


def _check_names(where: str, place: str, names: list[str]) -> None:
    if not names:
        raise InputError(where, f"{place} must hold the host names after a first cell of any content, commas between.")
    times = Counter(names)
    for name in names:
        if not name:
            raise InputError(where, f"{place} has an empty name between the hosts.")
        if times[name] > 1:
            raise InputError(where, f"{place} names host {shown(name)} {times[name]} times.")


def _explain_row_names(where: str, columns: list[str], rows: list[str]) -> None:
    """Raise ``InputError`` that says how the first column differs from the first row."""
    if len(rows) != len(columns):
        raise InputError(where, f"must be square: {len(columns)} hosts in the first row, {len(rows)} rows below it.")
    for row, column in zip(rows, columns, strict=True):
        if row != column:
            raise InputError(where, f"rows must have the order of the columns: row {row!r} where {column!r} is due.")


def _pipette_table(where: str, data: object) -> tuple[list[str], FloatArray]:
    """Return the names and bandwidths (bytes/s) of a table in Pipette's JSON; the diagonal becomes NaN."""
    if not isinstance(data, dict) or not isinstance(data.get("gpus"), list):
        raise InputError(where, "must be an object with the fields gpus (a list of names) and bandwidth.")
    names = [str(name) for name in data["gpus"]]
    _check_names(where, "gpus", names)
    rows = data.get("bandwidth")
    if not isinstance(rows, list) or len(rows) != len(names):
        raise InputError(where, f"bandwidth must be a list of {len(names)} rows, one for each of gpus.")
    values = np.full((len(names), len(names)), np.nan)
    for i, row in enumerate(rows):
        if not isinstance(row, list) or len(row) != len(names):
            raise InputError(where, f"row {names[i]} of bandwidth must be a list of {len(names)} numbers.")
        for j, value in enumerate(row):
            if i == j or value is None:
                continue
            place = f"bandwidth from {names[i]} to {names[j]}"
            if not is_number(value) or value <= 0:
                problem = f"{place} must be a number > 0 (MB/s), or null if not measured, got {shown(value)}."
                raise InputError(where, problem)
            if not MIN_GB_PER_S <= value * MPIGRAPH_MB / GB <= MAX_GB_PER_S:
                raise InputError(where, f"{place} must be in MB/s, got {shown(value)}.")
            values[i, j] = value * MPIGRAPH_MB
    return names, values
