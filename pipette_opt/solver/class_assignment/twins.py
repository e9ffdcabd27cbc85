"""Hosts that are near twins."""

from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.problem.data import CandidateData, ProblemData

TOLERANCES = (0.0, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12, 0.2, 0.3)
"""How much links of twins may differ, relative; tried in turn."""

MAX_COMPARED = 160
"""Third hosts whose links are compared, evenly chosen where there are more; bounds hold for any partition."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostClasses:
    """
    A partition of the hosts; hosts of a class have the same kind of GPU and room for the same rows.

    Parameters
    ----------
    of_host
        Class of each host, shape ``(num_nodes,)``.
    tolerance
        By how much links of a class to any third host compared differ at most, relative to the first member's.
    """

    of_host: IntArray
    tolerance: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_host", read_only(self.of_host, np.int64))

    @property
    def sizes(self) -> IntArray:
        """Hosts of each class."""
        return np.bincount(self.of_host).astype(np.int64)

    @property
    def number(self) -> int:
        """Classes."""
        return int(self.of_host.max(initial=-1)) + 1


def host_classes(data: ProblemData, candidate: CandidateData, most: int) -> HostClasses | None:
    """The finest partition by one of :data:`TOLERANCES` that has at most so many classes; ``None`` if none has."""
    links = _links(candidate)
    alike = _alike(data, candidate)
    for tolerance in TOLERANCES:
        of_host = _partition(links, alike, tolerance, most)
        if of_host is not None:
            return HostClasses(of_host=of_host, tolerance=tolerance)
    return None


def _links(candidate: CandidateData) -> FloatArray:
    """Costs between hosts, both directions, in rows of one kind each, shape ``(kinds, num_nodes, num_nodes)``."""
    matrices = [candidate.p2p_ticks, *(candidate.ring_ticks if candidate.ring_length > 1 else ())]
    both = [side for one in matrices for side in (one, one.T)]
    distinct: list[FloatArray] = []
    for one in both:
        scaled = one / max(1, int(one.min(initial=1 << 50)))
        if not any(np.allclose(scaled, other, rtol=1e-6) for other in distinct):
            distinct.append(scaled)
    return np.stack(distinct)


def _alike(data: ProblemData, candidate: CandidateData) -> BoolArray:
    """Pairs of hosts with the same kind of GPU and room for the same rows."""
    allowed = data.allowed(candidate)
    rooms = np.unique(allowed, axis=1, return_inverse=True)[1].ravel()
    same_rooms: BoolArray = rooms[:, None] == rooms[None, :]
    alike: BoolArray = same_rooms & (data.kind_of_node[:, None] == data.kind_of_node[None, :])
    return alike


def _partition(links: FloatArray, alike: BoolArray, tolerance: float, most: int) -> IntArray | None:
    """Each host joins the first class whose first member it resembles; ``None`` if there are more than ``most``."""
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
        near |= third == np.arange(number)[:, None]  # a host's own column says nothing
        near[:, :, third == host] = True
        twins = near.all(axis=(0, 2)) & alike[host] & (of_host < 0)
        of_host[twins] = count
        count += 1
    return of_host
