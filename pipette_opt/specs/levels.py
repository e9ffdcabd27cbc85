"""
Network levels above the host, from inside out: NVLink domain, leaf, spine, pod, region.

Two hosts have the link of the innermost level that holds both. In a level that scales up (an NVLink domain) every GPU
has its own port, and NCCL treats all its hosts as one (``MNNVL`` in NCCL's ``src/init.cc``). Other levels are reached
through the NICs, which the GPUs of a host share.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from pipette_opt.base.types import FloatArray, IntArray, read_only


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """
    One network level: groups of hosts that have the same link inside each group.

    Parameters
    ----------
    name
        Name such as ``nvlink-domain``, ``leaf``, ``pod``.
    group_of_node
        Group of each host, shape ``(num_nodes,)``. Groups are renumbered from 0 without gaps, as some hosts of a level
        may be left out; kernels count by these numbers.
    bytes_per_s
        Bandwidth of a single flow from a GPU of one host to a GPU of another host of its group, one direction.
    latency_s
        Fixed cost of one message.
    scale_up
        Whether each GPU has its own port at this level.
    """

    name: str
    group_of_node: IntArray
    bytes_per_s: float
    latency_s: float
    scale_up: bool = False

    def __post_init__(self) -> None:
        _, numbers = np.unique(self.group_of_node, return_inverse=True)
        object.__setattr__(self, "group_of_node", read_only(numbers, np.int64))
        if not self.bytes_per_s > 0:
            raise ValueError(f"bandwidth of level {self.name} must be > 0, got {self.bytes_per_s}.")
        if not self.latency_s >= 0:
            raise ValueError(f"latency of level {self.name} must be >= 0, got {self.latency_s}.")

    def of_hosts(self, keep: Sequence[int]) -> "Level":
        """Return the level for the hosts with these indices only."""
        return Level(
            name=self.name,
            group_of_node=self.group_of_node[list(keep)],
            bytes_per_s=self.bytes_per_s,
            latency_s=self.latency_s,
            scale_up=self.scale_up,
        )


def check_levels(levels: Sequence[Level], num_nodes: int) -> None:
    """Raise ``ValueError`` unless each level contains the one before, with no more bandwidth and no less latency."""
    for place, level in enumerate(levels):
        if level.group_of_node.shape != (num_nodes,):
            raise ValueError(f"level {level.name} has {len(level.group_of_node)} hosts, the cluster has {num_nodes}.")
        if level.scale_up and place:
            raise ValueError(f"level {level.name} has scale_up; only the innermost level may have it.")
    for inner, outer in pairwise(levels):
        pairs = set(zip(inner.group_of_node.tolist(), outer.group_of_node.tolist(), strict=True))
        if len(pairs) > len({group for group, _ in pairs}):
            raise ValueError(
                f"a group of level {inner.name} is in several of {outer.name}; give levels from inside out."
            )
        if outer.bytes_per_s > inner.bytes_per_s or outer.latency_s < inner.latency_s:
            raise ValueError(
                f"level {outer.name} is faster than {inner.name}, which it holds; give levels from inside out."
            )


def overlaid(
    total: FloatArray,
    levels: Sequence[Level],
    num_flows: int,
    ports: tuple[int, int],
    cap: float | None,
    measured: bool,
) -> FloatArray:
    """
    Return the total bandwidth of ``num_flows`` flows between hosts, with levels filled in for pairs without a
    measurement.

    Parameters
    ----------
    total
        Bandwidth without levels, bytes/s, shape ``(num_nodes, num_nodes)``; the diagonal is NaN.
    ports
        (NICs, GPUs) of a host: how many flows have a port of their own outside and inside an NVLink domain.
    cap
        Limit on all traffic that leaves a host through its NICs, bytes/s; ``None`` for no limit.
    measured
        Whether ``total`` was measured, so that its entries override the levels.
    """
    nics, gpus = ports
    free = np.isnan(total) if measured else np.ones(total.shape, dtype=np.bool_)
    np.fill_diagonal(free, False)
    found = total.copy()
    for level in reversed(levels):
        rate = level.bytes_per_s * min(num_flows, gpus if level.scale_up else nics)
        if cap is not None and not level.scale_up:
            rate = min(rate, cap)
        found[free & (level.group_of_node[:, None] == level.group_of_node[None, :])] = rate
    return found
