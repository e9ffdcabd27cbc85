"""
Equal-work runs: errors of a rank's memory that jobs with other numbers of replicas share.

Beyond all constants, a rank's memory has an error with two parts. One depends on its work, the order in which that
allocates and frees; the other does not. In units of the standard deviation (:meth:`Framework.widths`), an error is the
sum of both, the first common to equal-work runs. *alike* is its share of the variance, which is the correlation of such
runs. Given ``n`` errors of equal-work runs with mean ``m``, the expected first part is ``alike n / (1 + (n - 1) alike)
m``: 0 without such a run, ever more of the mean with many (the posterior mean of a random effect; Searle, Casella and
McCulloch, Variance Components, 1992, section 3.4). Errors have tails: each is weighted by Student's law, so that no run
moves a prediction by more than ``MAX_OF_TWIN`` standard deviations.

Jobs without replicas reduce no gradients, and are only comparable with each other.
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
"""Fields of :class:`StageTable` in which equal-work runs may differ."""

TAILS = 4.0
"""Degrees of freedom of the errors, as in :mod:`spread`."""

MIN_WITH_TWIN = 10
"""Least number of runs with an equal-work run to estimate their correlation; with fewer it counts as 0."""

ALIKES = np.linspace(0.0, 0.95, 96)
"""Correlations that are tried."""

KEY_BYTES = 6


def work_keys(table: StageTable, facts: StageFacts) -> tuple[str, ...]:
    """
    Key of the work of each row, equal for equal-work runs.

    The key depends on all fields of the table: an additional or renamed field changes the keys, and stacks calibrated
    before lose their equal-work runs.
    """
    names = sorted(field.name for field in fields(StageTable) if field.name not in REPLICA_FIELDS)
    columns = [getattr(table, name) for name in names]
    columns += [facts.unfused_norm, facts.unfused_softmax, facts.pipeline]
    columns += [table.tensor <= facts.gpus_per_node, facts.replicas > 1]
    numbers = np.stack(columns, axis=1).astype("<f4") + np.float32(0)  # makes -0.0 equal to 0.0
    return tuple(blake2b(row.tobytes(), digest_size=KEY_BYTES).hexdigest() for row in numbers)


def as_twins_take(framework: Framework, columns: FloatArray, constants: FloatArray, work: Sequence[str]) -> FloatArray:
    """
    Scale regressors by the measured over predicted memory of equal-work runs.

    Parameters
    ----------
    columns
        Regressors, shape ``(num_rows, len(COLUMNS))``.
    constants
        Constants of the regressors that count.
    work
        Work key of each row; empty if unknown.
    """
    if not framework.twins or not work:
        return columns
    known = dict(framework.twins)
    offsets = np.array([known.get(key, 0.0) for key in work]) * framework.widths(columns, constants)
    scaled: FloatArray = columns * np.exp(offsets)[:, None]
    return scaled


def as_anchored(framework: Framework, counted_bytes: FloatArray, work: Sequence[str]) -> FloatArray:
    """Scale the counted tensors of each row by the measured memory of a rank of equal work that was run alone."""
    known = dict(framework.anchors)
    anchored: FloatArray = counted_bytes * np.exp([known.get(key, 0.0) for key in work])
    return anchored


def without_twins(framework: Framework) -> Framework:
    """Return the constants without corrections by equal-work runs."""
    return replace(framework, alike=0.0, twins=())


def believed(errors: FloatArray) -> FloatArray:
    """Errors, in units of their standard deviation, each times its weight by Student's law."""
    weighted: FloatArray = errors * (TAILS + 1) / (TAILS + errors**2)
    return weighted


def twin_share(alike: float, count: int) -> float:
    """Share of the mean error of ``count`` equal-work runs that is expected of another one."""
    return alike * count / (1 + (count - 1) * alike)


def twin_offsets(work: Sequence[str], errors: FloatArray, alike: float) -> tuple[tuple[str, float], ...]:
    """Expected error of another run of each work, in units of its standard deviation; none without correlation."""
    if not alike:
        return ()
    return tuple(
        (key, twin_share(alike, len(members)) * float(believed(errors[members]).mean()))
        for key, members in sorted(_members(work).items())
    )


def likeliest_alike(work: Sequence[str], errors: FloatArray) -> float:
    """
    Most likely correlation of equal-work runs, each given the others; 0 with too few such runs.

    Besag's pseudo-likelihood (The Statistician 24, 1975) with Student's errors, and a prior that falls linearly from
    correlation 0 to 1.

    Parameters
    ----------
    errors
        Errors of runs that a fit left out, together with their equal-work runs, in units of their standard deviation.
    """
    groups = [errors[members] for members in _members(work).values() if len(members) > 1]
    if sum(map(len, groups)) < MIN_WITH_TWIN:
        return 0.0
    return float(ALIKES[int(np.argmin([_surprise(groups, alike) for alike in ALIKES]))])


def _surprise(groups: Sequence[FloatArray], alike: float) -> float:
    """Negative logarithm of pseudo-likelihood times prior."""
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
    """Indices of runs by work key; runs of unknown work have none."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(work):
        if key:
            members[key].append(index)
    return members
