"""Link matrices from measurements, one per number of flows; missing pairs are excluded or filled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.options.links import Direction, Fill, Repeated
from pipette_opt.read.evidence import LinkEvidence, Pair
from pipette_opt.read.switches import SwitchTree
from pipette_opt.specs import LinkMatrix
from pipette_opt.specs.levels import Level


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MeasuredMatrix:
    """
    Measured bandwidths between hosts with a number of concurrent flows.

    Parameters
    ----------
    concurrent_flows
        Number of flows between two hosts at once.
    bytes_per_s
        Aggregate bandwidth from row host to column host, bytes/s, NaN if not measured.
    missing
        Unordered pairs without a measurement in one or both directions.
    """

    concurrent_flows: int
    bytes_per_s: FloatArray
    missing: tuple[Pair, ...]


def measured_matrices(
    evidence: LinkEvidence,
    hosts: Sequence[str],
    repeated: Repeated,
    direction: Direction,
    domains: Level | None = None,
) -> tuple[MeasuredMatrix, ...]:
    """
    Return a matrix for each measured number of flows, shape ``(num_hosts, num_hosts)``.

    Parameters
    ----------
    repeated
        Bandwidth that counts if several sources measured a pair: ``worst`` or ``mean``.
    direction
        ``measured`` keeps both directions; ``average`` and ``slower`` give both directions the mean or the smaller
        value.
    domains
        Level whose links count as known, so that pairs within a group are not missing.
    """
    index = {host: row for row, host in enumerate(hosts)}
    group = np.arange(len(hosts)) if domains is None else domains.group_of_node
    found = []
    for flows in sorted(evidence.rates):
        array = np.full((len(hosts), len(hosts)), np.nan)
        for (sender, receiver), rate in evidence.settled(flows, repeated).items():
            array[index[sender], index[receiver]] = rate
        if np.isnan(array).all():
            continue
        if direction == "average":
            array = np.where(np.isnan(array) | np.isnan(array.T), np.fmin(array, array.T), (array + array.T) / 2)
        elif direction == "slower":
            array = np.fmin(array, array.T)
        missing = tuple(
            (hosts[i], hosts[j])
            for i in range(len(hosts))
            for j in range(i + 1, len(hosts))
            if group[i] != group[j] and (np.isnan(array[i, j]) or np.isnan(array[j, i]))
        )
        found.append(MeasuredMatrix(concurrent_flows=flows, bytes_per_s=array, missing=missing))
    if not found and domains is not None:
        pairs = zip(*(axis.tolist() for axis in np.triu_indices(len(hosts), 1)), strict=True)
        apart = tuple((hosts[i], hosts[j]) for i, j in pairs if group[i] != group[j])
        nothing = np.full((len(hosts), len(hosts)), np.nan)
        return (MeasuredMatrix(concurrent_flows=1, bytes_per_s=nothing, missing=apart),)
    if not found and len(hosts) > 1:
        raise InputError("links", "every test between two hosts failed; there is no usable measurement.")
    return tuple(found)


def without_pairs(matrices: Sequence[MeasuredMatrix], hosts: Sequence[str]) -> tuple[LinkMatrix, ...]:
    """Return the matrices without the host pairs that any of the matrices lacks; no plan uses such a pair."""
    index = {host: row for row, host in enumerate(hosts)}
    cells = [(index[a], index[b]) for matrix in matrices for a, b in matrix.missing]
    result = []
    for matrix in matrices:
        array = matrix.bytes_per_s.copy()
        for i, j in cells:
            array[i, j] = array[j, i] = np.nan
        result.append(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=array))
    return tuple(result)


def filled(
    matrices: Sequence[MeasuredMatrix], hosts: Sequence[str], fill: Fill, switches: SwitchTree | None
) -> tuple[LinkMatrix, ...]:
    """
    Return the matrices with missing pairs filled.

    A missing pair gets the bandwidth of the worst or the median measured pair. With ``switch``, the worst pair at the
    same distance in the switch tree counts; without such a pair, the worst pair of all.
    """
    index = {host: row for row, host in enumerate(hosts)}
    result = []
    for matrix in matrices:
        array = matrix.bytes_per_s.copy()
        known = matrix.bytes_per_s
        everywhere = float(np.nanmedian(known) if fill == "median" else np.nanmin(known))
        worst_at = _worst_at_distance(known, hosts, switches) if fill == "switch" and switches is not None else {}
        for a, b in matrix.missing:
            distance = switches.distance(a, b) if switches is not None else None
            value = worst_at.get(distance, everywhere)
            for cell in ((index[a], index[b]), (index[b], index[a])):
                array[cell] = value if np.isnan(array[cell]) else array[cell]
        result.append(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=array))
    return tuple(result)


def rates_at_distance(
    bytes_per_s: FloatArray, hosts: Sequence[str], switches: SwitchTree
) -> Mapping[int | None, FloatArray]:
    """Return the measured bandwidths by distance in the switch tree, nearest first; ``None`` if unknown."""
    rates: dict[int | None, list[float]] = {}
    for i, sender in enumerate(hosts):
        for j, receiver in enumerate(hosts):
            if not np.isnan(bytes_per_s[i, j]):
                rates.setdefault(switches.distance(sender, receiver), []).append(float(bytes_per_s[i, j]))
    nearest_first = sorted(rates, key=lambda distance: (distance is None, distance or 0))
    return {distance: np.array(rates[distance]) for distance in nearest_first}


def _worst_at_distance(
    bytes_per_s: FloatArray, hosts: Sequence[str], switches: SwitchTree
) -> Mapping[int | None, float]:
    return {
        distance: float(rates.min())
        for distance, rates in rates_at_distance(bytes_per_s, hosts, switches).items()
        if distance is not None
    }
