"""Bandwidth matrices of single GPUs in cluster files: inside hosts (``intra_node.matrices``) and between hosts."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.types import FloatArray, IntArray
from pipette_opt.read.fields import Fields
from pipette_opt.read.hosts import check_known, expand_hosts
from pipette_opt.read.matrices import GPU_NAME, HostMatrix, matrix_csv, read_matrix
from pipette_opt.specs import NodeSpec
from pipette_opt.specs.gpu_links import MAX_SLOTS, GpuLinks
from pipette_opt.specs.host_names import compress_hosts

MAX_GPUS = 4096
"""Largest number of GPUs of a cluster whose single links are kept; their matrix then takes 128 MiB. Chosen."""

_INSIDE = ("file", "hosts")
_SLOT = re.compile(r"^(?:gpu)?([0-9]+)$", re.IGNORECASE)


def single_links(where: str, matrix: HostMatrix, nodes: Sequence[NodeSpec], assumed: list[str]) -> FloatArray | None:
    """
    Return bandwidths between all GPUs of a cluster, bytes/s, at ``[host, gpu, host, gpu]``; NaN where not measured.

    ``gpu`` counts from 0 in each host. ``None``, with a note, if a host or the cluster has too many GPUs.
    ``InputError`` unless the matrix has every GPU of every host.
    """
    num_gpus = nodes[0].num_gpus
    if num_gpus > MAX_SLOTS or num_gpus * len(nodes) > MAX_GPUS:
        assumed.append(
            f"{where} is a matrix of GPUs: of two hosts the slowest pair counts, as links of single GPUs are kept only "
            f"for up to {MAX_SLOTS} GPUs a host and {MAX_GPUS:,} in all."
        )
        return None
    row_of = {name: row for row, name in enumerate(matrix.names)}
    slots_of: dict[str, list[int]] = {}
    for name in matrix.names:
        parts = GPU_NAME.match(name)
        if parts is None:
            raise InputError(where, f"row {name!r} names no GPU, as {name}:0 does; other rows do.")
        slots_of.setdefault(parts["host"], []).append(int(parts["gpu"]))
    for host, slots in slots_of.items():
        if sorted(slots) != list(range(num_gpus)):
            raise InputError(
                where,
                f"has GPUs {', '.join(map(str, sorted(slots)))} of host {host!r}, the cluster file says gpus_per_node: "
                f"{num_gpus}. A "
                f"matrix of GPUs needs {host}:0 to {host}:{num_gpus - 1}, and so for every host; a matrix of hosts "
                "names hosts alone.",
            )
    missing = [node.host for node in nodes if node.host not in slots_of]
    if missing:
        raise InputError(
            where,
            f"has no GPUs of {compress_hosts(tuple(missing))}; add rows and columns, empty where nothing was measured, "
            "or take these hosts out of nodes.",
        )
    rows = np.array([row_of[f"{node.host}:{slot}"] for node in nodes for slot in range(num_gpus)])
    size = len(nodes), num_gpus
    found: FloatArray = matrix.gpu_bytes_per_s[np.ix_(rows, rows)].reshape(*size, *size)
    return found


def read_inside(intra: Fields, nodes: Sequence[NodeSpec], folder: Path) -> FloatArray | None:
    """
    Return the bandwidths inside hosts in ``intra_node.matrices``, bytes/s, shape ``(num_nodes, gpus, gpus)``.

    ``None`` without the field.
    """
    if not intra.has("matrices"):
        return None
    entries, hosts = intra.any("matrices"), [node.host for node in nodes]
    where = f"{intra.where}, matrices"
    if not isinstance(entries, list) or not entries:
        raise InputError(intra.where, f"matrices must be a list of {{file, hosts}}, got {shown(entries)}.")
    num_gpus = nodes[0].num_gpus
    if num_gpus > MAX_SLOTS:
        problem = f"work for hosts of up to {MAX_SLOTS} GPUs; these have {num_gpus}. Give bandwidth_gb_per_s instead."
        raise InputError(where, problem)
    found: dict[str, FloatArray] = {}
    for index, entry in enumerate(entries):
        fields = Fields(f"{where}[{index}]", entry, _INSIDE)
        values = _inside_matrix(folder / fields.text("file"), num_gpus)
        chosen = expand_hosts(fields.any("hosts"), fields.where) if fields.has("hosts") else hosts
        check_known(chosen, hosts, fields.where, "among the hosts of nodes")
        for host in chosen:
            if host in found:
                raise InputError(fields.where, f"host {host!r} has two matrices; give each host a single matrix.")
            found[host] = values
    missing = [host for host in hosts if host not in found]
    if missing:
        names = compress_hosts(tuple(missing))
        raise InputError(where, f"have no file for {names}; every host needs one. An entry without hosts is for all.")
    return np.stack([found[host] for host in hosts])


def _inside_matrix(file: Path, num_gpus: int) -> FloatArray:
    """Return the bandwidths between the GPUs of a host, bytes/s, from a CSV file."""
    matrix = read_matrix(file)
    slots = [_SLOT.match(name) for name in matrix.names]
    numbers = [int(slot[1]) for slot in slots if slot]
    if sorted(numbers) != list(range(num_gpus)) or len(numbers) < len(slots):
        raise InputError(
            str(file),
            f"must have a row for each GPU of a host, 0 to {num_gpus - 1} (gpus_per_node: {num_gpus}), "
            f"got {', '.join(matrix.names)}.",
        )
    order = np.argsort(numbers)
    values: FloatArray = matrix.bytes_per_s[np.ix_(order, order)]
    unknown = np.argwhere(np.isnan(values) & ~np.eye(num_gpus, dtype=np.bool_))
    if len(unknown):
        a, b = unknown[0].tolist()
        raise InputError(str(file), f"has no bandwidth from GPU {a} to GPU {b}; inside a host every pair is needed.")
    return values


def gpu_links_of(
    intra: Fields,
    inter: Fields,
    nodes: Sequence[NodeSpec],
    folder: Path,
    singles: FloatArray | None,
    rate: float,
    nics_per_node: int,
) -> GpuLinks | None:
    """
    Return the links of single GPUs; ``None`` if no matrix describes them.

    Parameters
    ----------
    singles
        Result of :func:`single_links`.
    rate
        Bandwidth inside a host without a matrix, bytes/s.
    """
    inside, num_gpus = read_inside(intra, nodes, folder), nodes[0].num_gpus
    if singles is not None:
        own = _own_blocks(f"{inter.where}, matrices", singles, nodes)
        if own is not None and inside is not None:
            problem = "give links inside hosts, as the matrix of GPUs of inter_node does; leave one of the two out."
            raise InputError(f"{intra.where}, matrices", problem)
        everywhere = np.full((len(nodes), num_gpus, num_gpus), rate)
        inside = next((rates for rates in (own, inside) if rates is not None), everywhere)
    nics = _nic_of_slot(inter, num_gpus, nics_per_node, known=inside is not None)
    if inside is None:
        return None
    return GpuLinks(inside=inside, between=None if singles is None else _between(singles), nic_of_slot=nics)


def _own_blocks(where: str, singles: FloatArray, nodes: Sequence[NodeSpec]) -> FloatArray | None:
    """
    Return the bandwidths inside hosts of a matrix of GPUs; ``None`` if the matrix has none.

    ``InputError`` if the matrix has only some of them.
    """
    every, off = np.arange(len(nodes)), ~np.eye(singles.shape[1], dtype=np.bool_)
    own: FloatArray = singles[every, :, every]
    unknown = np.isnan(own) & off
    if unknown[:, off].all():
        return None
    if unknown.any():
        host, a, b = np.argwhere(unknown)[0].tolist()
        raise InputError(
            where,
            f"the matrix of GPUs has no bandwidth from {nodes[host].host}:{a} to {nodes[host].host}:{b}; inside hosts "
            "it must have every pair, or none.",
        )
    return own


def _between(singles: FloatArray) -> FloatArray:
    """Return the bandwidths between GPUs of two hosts; an unmeasured pair gets the slowest rate between its hosts."""
    hosts = np.arange(len(singles))
    between = singles.copy()
    between[hosts, :, hosts] = np.nan
    slowest = np.fmin.reduce(np.fmin.reduce(between, axis=3), axis=1)[:, None, :, None]
    return np.where(np.isnan(between), slowest, between)


def _nic_of_slot(inter: Fields, num_gpus: int, nics_per_node: int, *, known: bool) -> IntArray:
    """Return the NIC number of each GPU of a host: from ``nic_of_gpu``, else neighbouring GPUs share NICs evenly."""
    if not inter.has("nic_of_gpu"):
        return even_nics(num_gpus, nics_per_node)
    nics = inter.any("nic_of_gpu")
    if not known:
        raise InputError(inter.where, "nic_of_gpu has no effect without a matrix of GPUs.")
    good = isinstance(nics, list) and all(isinstance(nic, int) and not isinstance(nic, bool) for nic in nics)
    if not good or len(nics) != num_gpus or not 0 <= min(nics) <= max(nics) < nics_per_node:
        raise InputError(
            inter.where,
            f"nic_of_gpu must be {num_gpus} numbers of NICs, each from 0 to {nics_per_node - 1} (nics_per_node), "
            f"got {shown(nics)}.",
        )
    return np.array(nics, dtype=np.int64)


def even_nics(num_gpus: int, nics_per_node: int) -> IntArray:
    """Return the NIC number of each GPU of a host if neighbouring GPUs share NICs evenly."""
    return np.arange(num_gpus) * min(nics_per_node, num_gpus) // num_gpus


def gpu_csv(hosts: Sequence[str], links: GpuLinks) -> str:
    """Return the matrix of all GPUs, inside hosts and between hosts, as CSV text."""
    assert links.between is not None
    every, slots = np.arange(len(hosts)), links.num_slots
    whole = links.between.copy()
    whole[every, :, every] = np.where(np.eye(slots, dtype=np.bool_), np.nan, links.inside)
    size = len(hosts) * slots
    return matrix_csv([f"{host}:{slot}" for host in hosts for slot in range(slots)], whole.reshape(size, size))


def inside_csvs(hosts: Sequence[str], links: GpuLinks) -> list[tuple[str, str]]:
    """Return, for each group of hosts with equal links inside, names as ranges and the matrix of GPUs as CSV."""
    names = [str(slot) for slot in range(links.num_slots)]
    off = np.eye(links.num_slots, dtype=np.bool_)
    return [
        (
            compress_hosts(tuple(host for host, own in zip(hosts, links.kind_of_node, strict=True) if own == kind)),
            matrix_csv(names, np.where(off, np.nan, values)),
        )
        for kind, values in enumerate(links.kinds)
    ]
