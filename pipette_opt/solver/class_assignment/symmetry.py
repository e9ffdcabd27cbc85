"""Classes that may change places: racks that are equal, with whatever belongs to each."""

import itertools
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.solver.class_assignment.problem import Merged

MAX_CLASSES = 14
"""Above, nothing is looked for: finer classes are hardly ever equal."""


def interchangeable(merged: Merged) -> tuple[int, ...]:
    """
    Classes of which any two can be swapped, the others of them staying, without any pattern costing more or less.

    To swap two, further classes may have to be swapped. The smallest such classes, and the most of these: few slow
    hosts decide more than many fast ones. Empty if there are none.
    """
    number = merged.classes.number
    if number > MAX_CLASSES:
        return ()
    sizes, tables = merged.classes.sizes, _tables(merged)
    best: tuple[int, ...] = ()
    for size in np.unique(sizes).tolist():
        members = np.flatnonzero(sizes == size).tolist()
        for first in members:
            found = [first]
            for other in members:
                if other > first and all(_swaps(tables, one, other, found) for one in found):
                    found.append(other)
            if len(found) > max(1, len(best)):
                best = tuple(found)
        if best:
            break
    return best


def _tables(merged: Merged) -> IntArray:
    """All that is known of pairs of classes, and of each on the diagonals, shape ``(tables, classes, classes)``."""
    one, data = merged.candidate, merged.data
    pairs = [one.p2p_ticks, *one.ring_ticks, one.tensor_forward_ticks, one.tensor_backward_ticks, one.embedding_ticks]
    single = [merged.classes.sizes, data.kind_of_node, data.capacity_mib]
    return np.stack([*(table for table in pairs if table.size), *(np.diag(values) for values in single)])


def _swaps(tables: IntArray, a: int, b: int, fixed: list[int]) -> bool:
    """Whether some swaps, of two classes and of others that are not fixed, leave all tables as they are."""
    number = tables.shape[1]
    image = np.full(number, -1, dtype=np.int64)
    image[a], image[b] = b, a
    for one in fixed:
        if one not in (a, b):
            image[one] = one
    return _agrees(tables, image) and any(True for _ in _completed(tables, image))


def _completed(tables: IntArray, image: IntArray) -> Iterator[IntArray]:
    """Images of all classes, by trial."""
    open_ones = np.flatnonzero(image < 0)
    if not len(open_ones):
        yield image
        return
    one = int(open_ones[0])
    for other in open_ones.tolist():
        trial = image.copy()
        trial[one], trial[other] = other, one
        if _agrees(tables, trial):
            yield from itertools.islice(_completed(tables, trial), 1)


def _agrees(tables: IntArray, image: IntArray) -> bool:
    """Whether the classes with an image have the same costs there."""
    known = np.flatnonzero(image >= 0)
    here, there = tables[:, known[:, None], known[None, :]], image[known]
    return bool((here == tables[:, there[:, None], there[None, :]]).all())
