"""Detection of interchangeable host classes, such as equal racks together with everything that belongs to them."""

import itertools
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.solver.class_assignment.problem import Merged

MAX_CLASSES = 14
"""With more classes than this, no symmetry is looked for: finer classes are hardly ever equal. Chosen."""


def interchangeable(merged: Merged) -> tuple[int, ...]:
    """
    Return classes of which any two can be swapped, with the others fixed, without changing the cost of any pattern.

    Swapping two may require swapping further classes. Of all such sets, the result has the smallest classes and then
    the most members. Few slow hosts matter more than many fast ones. Empty if no two classes are interchangeable.
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
                if other > first and all(_swaps(tables, member, other, found) for member in found):
                    found.append(other)
            if len(found) > max(1, len(best)):
                best = tuple(found)
        if best:
            break
    return best


def _tables(merged: Merged) -> IntArray:
    """
    Return all costs between classes, and sizes, GPU types and memory of classes on diagonals.

    Shape ``(tables, classes, classes)``.
    """
    relaxed, data = merged.candidate, merged.data
    pairs = [
        relaxed.p2p_ticks,
        *relaxed.ring_ticks,
        relaxed.ring_level,
        relaxed.tensor_forward_ticks,
        relaxed.tensor_backward_ticks,
        relaxed.embedding_ticks,
    ]
    single = [merged.classes.sizes, data.kind_of_node, data.capacity_mib]
    return np.stack([*(table for table in pairs if table.size), *(np.diag(values) for values in single)])


def _swaps(tables: IntArray, a: int, b: int, fixed: list[int]) -> bool:
    """Return whether a permutation that swaps ``a`` and ``b`` and keeps ``fixed`` leaves all tables unchanged."""
    number = tables.shape[1]
    image = np.full(number, -1, dtype=np.int64)
    image[a], image[b] = b, a
    for host_class in fixed:
        if host_class not in (a, b):
            image[host_class] = host_class
    return _agrees(tables, image) and any(True for _ in _completed(tables, image))


def _completed(tables: IntArray, image: IntArray) -> Iterator[IntArray]:
    """Yield permutations that complete ``image`` (-1: undecided) and leave the tables unchanged, by backtracking."""
    unmapped = np.flatnonzero(image < 0)
    if not len(unmapped):
        yield image
        return
    first = int(unmapped[0])
    for other in unmapped.tolist():
        trial = image.copy()
        trial[first], trial[other] = other, first
        if _agrees(tables, trial):
            yield from itertools.islice(_completed(tables, trial), 1)


def _agrees(tables: IntArray, image: IntArray) -> bool:
    """Return whether the decided part of a permutation leaves the tables unchanged."""
    known = np.flatnonzero(image >= 0)
    here, images = tables[:, known[:, None], known[None, :]], image[known]
    return bool((here == tables[:, images[:, None], images[None, :]]).all())
