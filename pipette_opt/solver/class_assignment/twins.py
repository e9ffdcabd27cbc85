"""Partition of hosts into classes of nearly identical hosts."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.problem.data import CandidateData, ProblemData

TOLERANCES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3)
"""Relative differences of link costs that a class may contain, tried from the smallest. Chosen."""

MAX_COMPARED = 160
"""Largest number of third hosts to which links are compared, evenly spaced. Chosen; bounds hold for any partition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostClasses:
    """
    Partition of the hosts; hosts of a class have one GPU type and memory for the same grid rows.

    Parameters
    ----------
    of_host
        Class of each host, shape ``(num_nodes,)``.
    tolerance
        Largest relative difference, within a class, of link costs to any compared third host.
    """

    of_host: IntArray
    tolerance: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_host", read_only(self.of_host, np.int64))

    @property
    def sizes(self) -> IntArray:
        """Number of hosts in each class of nearly identical hosts, shape ``(classes,)``."""
        return np.bincount(self.of_host).astype(np.int64)

    @property
    def number(self) -> int:
        """Number of classes."""
        return int(self.of_host.max(initial=-1)) + 1


def host_classes(data: ProblemData, candidate: CandidateData, most: int) -> HostClasses | None:
    """Return the partition of the smallest of :data:`TOLERANCES` with at most ``most`` classes; or ``None``."""
    links = _links(candidate)
    alike = _alike(data, candidate)
    for tolerance in TOLERANCES:
        of_host = _partition(links, alike, tolerance, most)
        if of_host is not None:
            return HostClasses(of_host=of_host, tolerance=tolerance)
    return None


def _links(candidate: CandidateData) -> FloatArray:
    """
    Return the different link cost matrices, in both directions, relative to their least entry.

    Shape ``(matrices, num_nodes, num_nodes)``.
    """
    matrices = [candidate.p2p_ticks, *(candidate.ring_ticks if candidate.ring_length > 1 else ())]
    both = [side for ticks in matrices for side in (ticks, ticks.T)]
    distinct: list[FloatArray] = []
    for ticks in both:
        scaled = ticks / max(1, int(ticks.min(initial=1 << 50)))
        if not any(np.allclose(scaled, other, rtol=1e-6) for other in distinct):
            distinct.append(scaled)
    return np.stack(distinct)


def _alike(data: ProblemData, candidate: CandidateData) -> BoolArray:
    """Return a mask of host pairs with one GPU type and room for equal rows, shape ``(num_nodes, num_nodes)``."""
    allowed = data.allowed(candidate)
    rooms = np.unique(allowed, axis=1, return_inverse=True)[1].ravel()
    same_rooms: BoolArray = rooms[:, None] == rooms[None, :]
    alike: BoolArray = same_rooms & (data.kind_of_node[:, None] == data.kind_of_node[None, :])
    return alike


def _partition(links: FloatArray, alike: BoolArray, tolerance: float, most: int) -> IntArray | None:
    """Return the class of each host, the first whose first member it resembles; ``None`` for more than ``most``."""
    number = links.shape[1]
    of_host = np.full(number, -1, dtype=np.int64)
    third = np.unique(np.linspace(0, number - 1, min(number, MAX_COMPARED)).astype(np.int64))
    seen = links[:, :, third]
    count = 0
    for host in range(number):
        if of_host[host] >= 0:
            continue
        if count == most:
            return None
        own = seen[:, host : host + 1]
        near = np.abs(seen - own) <= tolerance * np.minimum(seen, own)
        near |= third == np.arange(number)[:, None]  # a host has no link to itself to compare
        near[:, :, third == host] = True
        identical = near.all(axis=(0, 2)) & alike[host] & (of_host < 0)
        of_host[identical] = count
        count += 1
    return of_host
