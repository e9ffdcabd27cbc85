"""Interchangeable classes of hosts, such as equal racks together with all that belongs to each."""

import itertools
from collections.abc import Iterator

import numpy as np

from pipette_opt.base.types import IntArray
from pipette_opt.solver.class_assignment.problem import Merged

MAX_CLASSES = 14
"""Number of classes above which no symmetry is looked for: finer classes are hardly ever equal."""


def interchangeable(merged: Merged) -> tuple[int, ...]:
    """
    Return classes of which any two can be swapped while the others stay, without changing any pattern's cost.

    Swapping two may require swapping further classes. Of all such sets, the one with the smallest classes and the most
    members is returned: few slow hosts decide more than many fast ones. Empty if there is none.
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
    Stack all costs of pairs of classes, and properties of classes on diagonals, shape ``(tables, classes,
    classes)``.
    """
    relaxed, data = merged.candidate, merged.data
    pairs = [
        relaxed.p2p_ticks,
        *relaxed.ring_ticks,
        relaxed.tensor_forward_ticks,
        relaxed.tensor_backward_ticks,
        relaxed.embedding_ticks,
    ]
    single = [merged.classes.sizes, data.kind_of_node, data.capacity_mib]
    return np.stack([*(table for table in pairs if table.size), *(np.diag(values) for values in single)])


def _swaps(tables: IntArray, a: int, b: int, fixed: list[int]) -> bool:
    """Return whether swapping ``a`` and ``b``, and perhaps classes that are not fixed, leaves all tables unchanged."""
    number = tables.shape[1]
    image = np.full(number, -1, dtype=np.int64)
    image[a], image[b] = b, a
    for host_class in fixed:
        if host_class not in (a, b):
            image[host_class] = host_class
    return _agrees(tables, image) and any(True for _ in _completed(tables, image))


def _completed(tables: IntArray, image: IntArray) -> Iterator[IntArray]:
    """Yield complete permutations that extend ``image``, by backtracking."""
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
    """Return whether the classes that have an image have the same costs there."""
    known = np.flatnonzero(image >= 0)
    here, images = tables[:, known[:, None], known[None, :]], image[known]
    return bool((here == tables[:, images[:, None], images[None, :]]).all())
