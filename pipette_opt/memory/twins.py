"""
Twins: ranks that do the same work in jobs of other numbers of replicas, and what one tells of the other.

Beyond all constants a rank's memory is off by something that goes with its work, the order in which that allocates and
frees, and by something that does not. In units of its width (:meth:`Framework.widths`) an error is the sum of both, the
first common to twins: *alike* is its share of the variance, which is the correlation of twins. Of ``n`` errors of twins
with the mean ``m``, the first is expected to be ``alike n / (1 + (n - 1) alike) m``: nothing without a twin, ever more
of the mean with many (the posterior mean of a random effect; Searle, Casella and McCulloch, Variance Components, 1992,
section 3.4). Errors have tails: each counts for as much as Student's law believes it, so that no twin moves a
prediction by more than ``MAX_OF_TWIN`` of its widths.

Jobs without replicas reduce no gradients, and are twins of each other only.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields, replace
from hashlib import blake2b

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.memory.columns import StageFacts
from pipette_opt.memory.framework import Framework
from pipette_opt.memory.stage_rows import StageTable

REPLICA_FIELDS = ("replicas", "expert_replicas", "state_shards")
"""Of :class:`StageTable`: what twins may differ in."""

TAILS = 4.0
"""Degrees of freedom of the errors, as in :mod:`spread`."""

MIN_WITH_TWIN = 10
"""Runs; with fewer nobody knows how alike twins are, and they count as not."""

ALIKES = np.linspace(0.0, 0.95, 96)
"""Correlations that are tried."""

KEY_BYTES = 6


def work_keys(table: StageTable, facts: StageFacts) -> tuple[str, ...]:
    """
    A name for the work of each row, equal for twins.

    It goes with all that a table says: a field more gives other names, and stacks calibrated before know no twins.
    """
    names = sorted(field.name for field in fields(StageTable) if field.name not in REPLICA_FIELDS)
    columns = [getattr(table, name) for name in names]
    columns += [facts.unfused_norm, facts.unfused_softmax, facts.pipeline]
    columns += [table.tensor <= facts.gpus_per_node, facts.replicas > 1]
    numbers = np.stack(columns, axis=1).astype("<f4") + np.float32(0)  # there is a zero with a sign
    return tuple(blake2b(row.tobytes(), digest_size=KEY_BYTES).hexdigest() for row in numbers)


def as_twins_take(framework: Framework, columns: FloatArray, constants: FloatArray, work: Sequence[str]) -> FloatArray:
    """
    Rows of columns, scaled by what measured twins of each took over what was said of them.

    Parameters
    ----------
    columns
        Shape ``(num_rows, len(COLUMNS))``.
    constants
        Those that count, of each column.
    work
        Of each row; empty if nobody knows.
    """
    if not framework.twins or not work:
        return columns
    known = dict(framework.twins)
    offsets = np.array([known.get(key, 0.0) for key in work]) * framework.widths(columns, constants)
    scaled: FloatArray = columns * np.exp(offsets)[:, None]
    return scaled


def as_anchored(framework: Framework, counted_bytes: FloatArray, work: Sequence[str]) -> FloatArray:
    """Counted tensors of each row, scaled by what a rank of the same work took when it was run alone."""
    known = dict(framework.anchors)
    anchored: FloatArray = counted_bytes * np.exp([known.get(key, 0.0) for key in work])
    return anchored


def without_twins(framework: Framework) -> Framework:
    """The constants alone."""
    return replace(framework, alike=0.0, twins=())


def believed(errors: FloatArray) -> FloatArray:
    """Errors, in units of their width, each times the weight that Student's law gives it."""
    weighted: FloatArray = errors * (TAILS + 1) / (TAILS + errors**2)
    return weighted


def twin_share(alike: float, count: int) -> float:
    """How much of the mean error of so many twins is expected of another one."""
    return alike * count / (1 + (count - 1) * alike)


def twin_offsets(work: Sequence[str], errors: FloatArray, alike: float) -> tuple[tuple[str, float], ...]:
    """What is expected of another run of each work, in units of its width; none if twins are not alike."""
    if not alike:
        return ()
    return tuple(
        (key, twin_share(alike, len(members)) * float(believed(errors[members]).mean()))
        for key, members in sorted(_members(work).items())
    )


def likeliest_alike(work: Sequence[str], errors: FloatArray) -> float:
    """
    The correlation of twins under which each is likeliest, given the others; 0 where too few runs have one.

    The pseudo-likelihood of Besag (The Statistician 24, 1975) with Student's errors, and a prior that falls in a line
    from 0, where twins tell nothing, to 1.

    Parameters
    ----------
    errors
        Of runs that a fit left out, together with their twins, in units of their width.
    """
    groups = [errors[members] for members in _members(work).values() if len(members) > 1]
    if sum(map(len, groups)) < MIN_WITH_TWIN:
        return 0.0
    return float(ALIKES[int(np.argmin([_surprise(groups, alike) for alike in ALIKES]))])


def _surprise(groups: Sequence[FloatArray], alike: float) -> float:
    """Minus the logarithm of the pseudo-likelihood and the prior."""
    total = -float(np.log(1 - alike))
    for errors in groups:
        others = len(errors) - 1
        share = twin_share(alike, others)
        sizes = believed(errors)
        expected = share * (sizes.sum() - sizes) / others
        scale = np.sqrt(1 - alike * share)
        total += float(((TAILS + 1) / 2 * np.log1p(((errors - expected) / scale) ** 2 / TAILS) + np.log(scale)).sum())
    return total


def _members(work: Sequence[str]) -> dict[str, list[int]]:
    """Which runs have the same work; those of whose work nobody knows have no twins."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(work):
        if key:
            members[key].append(index)
    return members
