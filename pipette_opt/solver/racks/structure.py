"""Which hosts share a rack, which are of a kind, and what links then cost at least."""

import itertools
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray, IntArray, read_only
from pipette_opt.problem.data import CandidateData, ProblemData
from pipette_opt.problem.neighbours import find_neighbours
from pipette_opt.solver.rows.classes import HostClasses, host_classes
from pipette_opt.solver.rows.costs import NEVER, RowCosts, block_minima, row_costs

MOST_CLASSES = 8
"""Classes of hosts that are near twins, among which racks and kinds are looked for."""

OF_A_KIND, IN_A_RACK = 0.04, 0.01
"""Relative difference of best links between classes of a kind; of a link to the best one of its kinds, in a rack."""

MOST_LOST = 0.05
"""Relative difference between a link (of two classes any, of two hosts the median) and the least of its sort, above
which racks tell too little."""

AS_MUCH = 0.01
"""Difference of that up to which fewer racks and kinds are better, as they are sooner searched."""

MOST_PAIRS = 32
"""Racks and kinds of hosts that are no near twins: with more, models are large."""

HOSTS_OF_A_KIND = (0.3, 0.2, 0.12, 0.08, 0.05)
"""Relative differences of what links of hosts of a kind usually cost, tried in turn until there are two kinds: those
that are slower by far decide most, and few kinds are soon searched."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Racks:
    """
    Hosts by rack and kind; a sort of links is two kinds, and 0 inside a rack or 1 across.

    Parameters
    ----------
    rack, kind
        Of each class of hosts.
    classes
        The partition of the hosts.
    costs
        Of the classes.
    sizes
        Hosts of each rack and kind, shape ``(racks, kinds)``.
    """

    rack: IntArray
    kind: IntArray
    classes: HostClasses
    costs: RowCosts
    sizes: IntArray

    def __post_init__(self) -> None:
        for name in ("rack", "kind", "sizes"):
            object.__setattr__(self, name, read_only(getattr(self, name), np.int64))

    @property
    def num_racks(self) -> int:
        """Racks."""
        return len(self.sizes)

    @property
    def num_kinds(self) -> int:
        """Kinds of hosts."""
        return int(self.sizes.shape[1])

    def hosts(self, rack: int, kind: int) -> IntArray:
        """Hosts of a kind in a rack."""
        here = (self.rack == rack) & (self.kind == kind)
        return np.flatnonzero(here[self.classes.of_host])

    def of_links(self, ticks: IntArray) -> IntArray:
        """Least cost of each sort of links, from costs between classes ``(C, C)``, shape ``(kinds, kinds, 2)``."""
        least = np.full((self.num_kinds, self.num_kinds, 2), NEVER)
        across = (self.rack[:, None] != self.rack[None, :]).astype(np.int64)
        np.minimum.at(least, (self.kind[:, None], self.kind[None, :], across), np.minimum(ticks, NEVER))
        return least

    def of_hosts(self, ticks: IntArray) -> IntArray:
        """Least cost of a host of each kind, from costs of classes ``(P, C)``, shape ``(P, kinds)``."""
        least = np.full((len(ticks), self.num_kinds), NEVER)
        for one, kind in enumerate(self.kind.tolist()):
            least[:, kind] = np.minimum(least[:, kind], ticks[:, one])
        return least


def find_racks(data: ProblemData, candidate: CandidateData, most_lost: float = MOST_LOST) -> Racks | None:
    """
    Racks and kinds of the hosts; ``None`` if that tells too little of the links.

    Of near twins, or of neighbours, whichever tells more of what links between hosts cost, or as much with fewer kinds
    in racks. Bounds hold for any.
    """
    found = (_of_twins(data, candidate, most_lost), _of_neighbours(data, candidate))
    lost = [(_lost(one, candidate), one) for one in found if one is not None]
    most = min([most_lost, *(each + AS_MUCH for each, _ in lost)])
    return min((one for each, one in lost if each <= most), key=lambda one: np.count_nonzero(one.sizes), default=None)


def _lost(racks: Racks, candidate: CandidateData) -> float:
    """Relative difference between a transfer (its slower direction) and the least of its sort, the median."""
    slower, of_host = np.maximum(candidate.p2p_ticks, candidate.p2p_ticks.T), racks.classes.of_host
    least, kind, rack = racks.of_links(block_minima(slower, racks.classes)), racks.kind[of_host], racks.rack[of_host]
    told = least[kind[:, None], kind[None, :], (rack[:, None] != rack[None, :]).astype(np.int64)]
    usable = slower < NEVER
    return float(np.median((slower / np.maximum(1, told))[usable])) - 1 if usable.any() else np.inf


def _of_twins(data: ProblemData, candidate: CandidateData, most_lost: float) -> Racks | None:
    """Near twins are in the same rack, and of the same kind."""
    classes = host_classes(data, candidate, MOST_CLASSES)
    if classes is None:
        return None
    costs = row_costs(data, candidate, classes)
    link = costs.period_arc[0]
    first = np.unique(classes.of_host, return_index=True)[1]
    kind = _kinds(link.min(axis=1), data.kind_of_node[first], costs.room, OF_A_KIND)
    racks = _gathered(_racks(link, kind), kind, classes, costs)
    told = racks.of_links(link)[kind[:, None], kind[None, :], (racks.rack[:, None] != racks.rack[None, :]).astype(int)]
    usable = link < NEVER
    return racks if (link[usable] <= (1 + most_lost) * told[usable]).all() else None


def _of_neighbours(data: ProblemData, candidate: CandidateData) -> Racks | None:
    """Neighbours are in the same rack; hosts are of the same kind if their links usually cost about the same."""
    neighbours = find_neighbours(candidate.ring_ticks[0])
    if neighbours is None or neighbours.rack.max() == 0:
        return None
    room = data.allowed(candidate)
    kinds = (_kinds(neighbours.usual, data.kind_of_node, room, of_a_kind) for of_a_kind in HOSTS_OF_A_KIND)
    kind = next((one for one in kinds if one.max() > 0), np.zeros_like(neighbours.rack))
    pairs, of_host = np.unique(np.stack([neighbours.rack, kind], axis=1), axis=0, return_inverse=True)
    if len(pairs) > MOST_PAIRS:
        return None
    classes = HostClasses(of_host=of_host.ravel(), tolerance=np.inf)
    return _gathered(pairs[:, 0], pairs[:, 1], classes, row_costs(data, candidate, classes))


def _gathered(rack: IntArray, kind: IntArray, classes: HostClasses, costs: RowCosts) -> Racks:
    """With the hosts of each rack and kind counted."""
    sizes = np.zeros((rack.max() + 1, kind.max() + 1), dtype=np.int64)
    np.add.at(sizes, (rack, kind), classes.sizes)
    return Racks(rack=rack, kind=kind, classes=classes, costs=costs, sizes=sizes)


def _kinds(best: IntArray | FloatArray, gpu: IntArray, room: BoolArray, of_a_kind: float) -> IntArray:
    """
    Kind of each class, or host: those with the same GPUs, room for the same rows, and links about as fast.

    Parameters
    ----------
    best, gpu, room
        What tells of the links, the kind of GPU, and the rows there is room for, shape ``(P, classes)``.
    of_a_kind
        Relative difference of the first.
    """
    kind = np.full(len(best), -1, dtype=np.int64)
    count, first = 0, -1
    for one in sorted(range(len(best)), key=lambda one: (int(gpu[one]), room[:, one].tolist(), float(best[one]))):
        same = first >= 0 and gpu[one] == gpu[first] and (room[:, one] == room[:, first]).all()
        if not same or best[one] > (1 + of_a_kind) * best[first]:
            first, count = one, count + 1
        kind[one] = count - 1
    return kind


def _racks(link: IntArray, kind: IntArray) -> IntArray:
    """Classes whose links to each other are as good as any of their kinds, if not all of these are."""
    rack = np.arange(len(link))
    usable = link < NEVER
    for a, b in itertools.combinations(range(len(link)), 2):
        alike = (kind[:, None] == kind[a]) & (kind[None, :] == kind[b]) & usable
        if not usable[a, b]:
            continue
        least, most = int(link[alike].min()), int(link[alike].max())
        if link[a, b] <= (1 + IN_A_RACK) * least and most > (1 + 2 * IN_A_RACK) * least:
            rack[rack == rack[b]] = rack[a]
    return np.unique(rack, return_inverse=True)[1].ravel().astype(np.int64)
