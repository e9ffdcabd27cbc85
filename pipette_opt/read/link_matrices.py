"""Link matrices from measurements, one per number of flows; missing pairs are excluded or filled."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import BoolArray, FloatArray, IntArray
from pipette_opt.options.links import Direction, Fill, Repeated
from pipette_opt.read.evidence import LinkEvidence, Pair
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
    is_missing
        Whether a pair lacks a measurement in one or both directions; the same for both.
    """

    concurrent_flows: int
    hosts: tuple[str, ...]
    bytes_per_s: FloatArray
    is_missing: BoolArray

    @property
    def missing(self) -> tuple[Pair, ...]:
        """Unordered pairs without a measurement in one or both directions."""
        return tuple((self.hosts[i], self.hosts[j]) for i, j in np.argwhere(np.triu(self.is_missing)).tolist())


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
        Level whose links count as known, so that pairs within a group are neither in the matrices nor missing.
    """
    index = {host: row for row, host in enumerate(hosts)}
    group = np.arange(len(hosts)) if domains is None else domains.group_of_node
    apart = group[:, None] != group
    nothing = np.full(apart.shape, np.nan)
    found = []
    for flows in evidence.flows:
        array = nothing.copy()
        for (sender, receiver), rate in evidence.settled(flows, repeated).items():
            array[index[sender], index[receiver]] = rate
        array[~apart] = np.nan
        if np.isnan(array).all():
            continue
        if direction == "average":
            array = np.where(np.isnan(array) | np.isnan(array.T), np.fmin(array, array.T), (array + array.T) / 2)
        elif direction == "slower":
            array = np.fmin(array, array.T)
        missing = apart & (np.isnan(array) | np.isnan(array.T))
        found.append(MeasuredMatrix(concurrent_flows=flows, hosts=tuple(hosts), bytes_per_s=array, is_missing=missing))
    if found or len(hosts) == 1:
        return tuple(found)
    if domains is None:
        raise InputError("links", "every test between two hosts failed; there is no usable measurement.")
    return (MeasuredMatrix(concurrent_flows=1, hosts=tuple(hosts), bytes_per_s=nothing, is_missing=apart),)


def without_pairs(matrices: Sequence[MeasuredMatrix]) -> tuple[LinkMatrix, ...]:
    """Return the matrices without the host pairs that any of the matrices lacks; no plan uses such a pair."""
    missing = np.any([matrix.is_missing for matrix in matrices], axis=0)
    return tuple(
        LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=np.where(missing, np.nan, matrix.bytes_per_s))
        for matrix in matrices
    )


def filled(matrices: Sequence[MeasuredMatrix], fill: Fill, distance: IntArray | None) -> tuple[LinkMatrix, ...]:
    """
    Return the matrices with missing pairs filled.

    A missing pair gets the bandwidth of the worst or the median measured pair. With ``switch``, the worst pair at the
    same distance in the switch tree counts; without such a pair, the worst pair of all.
    """
    result = []
    for matrix in matrices:
        known = matrix.bytes_per_s
        value = np.full(known.shape, np.nanmedian(known) if fill == "median" else np.nanmin(known))
        if fill == "switch" and distance is not None:
            for levels, rates in rates_at_distance(known, distance).items():
                value[distance == levels] = np.nanmin(known) if levels < 0 else rates.min()
        whole = np.where(matrix.is_missing & np.isnan(known), value, known)
        result.append(LinkMatrix(concurrent_flows=matrix.concurrent_flows, bytes_per_s=whole))
    return tuple(result)


def rates_at_distance(bytes_per_s: FloatArray, distance: IntArray) -> Mapping[int, FloatArray]:
    """Return the measured bandwidths by distance in the switch tree, nearest first, unknown (-1) last."""
    known = ~np.isnan(bytes_per_s)
    nearest_first = sorted(np.unique(distance[known]).tolist(), key=lambda levels: (levels < 0, levels))
    return {levels: bytes_per_s[known & (distance == levels)] for levels in nearest_first}
