"""Total bandwidth of several concurrent flows between hosts: measured, and interpolated for other numbers of flows."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkMatrix:
    """
    Total bandwidth of ``concurrent_flows`` GPU-to-GPU flows from host i to host j.

    Parameters
    ----------
    bytes_per_s
        Bandwidth from i to j, shape ``(num_nodes, num_nodes)``; NaN on the diagonal and for unmeasured pairs.
    """

    concurrent_flows: int
    bytes_per_s: FloatArray

    def __post_init__(self) -> None:
        if self.concurrent_flows < 1:
            raise ValueError(f"concurrent_flows must be >= 1, got {self.concurrent_flows}.")
        array = np.array(self.bytes_per_s, dtype=np.float64)
        if array.ndim != 2 or array.shape[0] != array.shape[1]:
            raise ValueError(f"a link matrix must be square, got shape {array.shape}.")
        np.fill_diagonal(array, np.nan)
        bad = np.argwhere(~np.isnan(array) & ~((array > 0) & np.isfinite(array)))
        if len(bad):
            i, j = bad[0]
            raise ValueError(f"bandwidth from host {i} to host {j} must be > 0 and finite, got {array[i, j]}.")
        object.__setattr__(self, "bytes_per_s", read_only(array))


def summed(matrices: Sequence[LinkMatrix], num_flows: int, num_nodes: int, nics: int) -> FloatArray:
    """
    Return the total bandwidth of ``num_flows`` flows, shape ``(num_nodes, num_nodes)``; see
    ``ClusterSpec.pair_bytes_per_s``.

    Parameters
    ----------
    matrices
        Measured matrices, sorted by ``concurrent_flows``.
    nics
        Flows of a host that do not share a NIC.
    """
    if num_flows < 1:
        raise ValueError(f"num_flows must be >= 1, got {num_flows}.")
    total = np.full((num_nodes, num_nodes), np.nan)
    lower, lower_flows = total, np.zeros_like(total)  # the largest measured count <= num_flows, per pair
    upper, upper_flows = total.copy(), np.zeros_like(total)  # the smallest measured count >= num_flows, per pair
    lower = lower.copy()
    for matrix in matrices:
        known = ~np.isnan(matrix.bytes_per_s)
        if matrix.concurrent_flows <= num_flows:
            lower[known] = matrix.bytes_per_s[known]
            lower_flows[known] = matrix.concurrent_flows
        if matrix.concurrent_flows >= num_flows:
            first = known & np.isnan(upper)
            upper[first] = matrix.bytes_per_s[first]
            upper_flows[first] = matrix.concurrent_flows
    both = ~np.isnan(lower) & ~np.isnan(upper)
    span = np.maximum(upper_flows - lower_flows, 1)
    total[both] = (lower + (upper - lower) * (num_flows - lower_flows) / span)[both]
    only_upper = np.isnan(lower) & ~np.isnan(upper)
    total[only_upper] = (upper * num_flows / np.maximum(upper_flows, 1))[only_upper]
    only_lower = ~np.isnan(lower) & np.isnan(upper)
    if len(matrices) == 1:
        measured = matrices[0].concurrent_flows
        total[only_lower] = lower[only_lower] * min(num_flows, max(measured, nics)) / measured
    else:
        total[only_lower] = lower[only_lower]
    return total
