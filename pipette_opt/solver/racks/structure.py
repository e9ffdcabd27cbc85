"""Which classes of hosts share a rack, which are of a kind, and what links then cost at least."""

import itertools
from dataclasses import dataclass

import numpy as np

from pipette_opt.problem import CandidateData, ProblemData
from pipette_opt.solver.rows.classes import HostClasses, host_classes
from pipette_opt.solver.rows.costs import NEVER, RowCosts, row_costs
from pipette_opt.types import IntArray, read_only

MOST_CLASSES = 8
"""Classes of hosts that racks and kinds are looked for in."""

OF_A_KIND, IN_A_RACK = 0.04, 0.01
"""Relative difference of best links between classes of a kind; of a link to the best one of its kinds, in a rack."""

MOST_LOST = 0.05
"""Relative difference between a link of two classes and the least of its sort, above which racks tell too little."""


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
    """Racks and kinds of the hosts; ``None`` if that tells too little of the links."""
    classes = host_classes(data, candidate, MOST_CLASSES)
    if classes is None:
        return None
    costs = row_costs(data, candidate, classes)
    link = costs.period_arc[0]
    kind = _kinds(link, data, classes, costs)
    rack = _racks(link, kind)
    sizes = np.zeros((rack.max() + 1, kind.max() + 1), dtype=np.int64)
    np.add.at(sizes, (rack, kind), classes.sizes)
    racks = Racks(rack=rack, kind=kind, classes=classes, costs=costs, sizes=sizes)
    told = racks.of_links(link)[kind[:, None], kind[None, :], (rack[:, None] != rack[None, :]).astype(np.int64)]
    usable = link < NEVER
    return racks if (link[usable] <= (1 + most_lost) * told[usable]).all() else None


def _kinds(link: IntArray, data: ProblemData, classes: HostClasses, costs: RowCosts) -> IntArray:
    """Classes with the same GPUs, room for the same rows, and best links that are about as fast."""
    best = link.min(axis=1)
    gpu = [int(data.kind_of_node[classes.of_host == one][0]) for one in range(classes.number)]
    kind = np.full(classes.number, -1, dtype=np.int64)
    count, last = 0, -1
    for one in sorted(range(classes.number), key=lambda one: (gpu[one], costs.room[:, one].tolist(), int(best[one]))):
        same = last >= 0 and gpu[one] == gpu[last] and (costs.room[:, one] == costs.room[:, last]).all()
        if not same or best[one] > (1 + OF_A_KIND) * best[last]:
            last, count = one, count + 1
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
