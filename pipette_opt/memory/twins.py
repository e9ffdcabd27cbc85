"""
Equal-work runs: memory errors that ranks with equal work share, whatever their number of replicas.

The constants leave an error in a rank's memory. It is the sum of two parts. The first depends on the rank's work, which
determines the order of allocations and frees; the second does not. Errors are in units of the standard deviation
(:meth:`MemoryConstants.widths`). *alike* is the first part's fraction of the variance, which is the correlation of
equal-work runs. Given ``n`` errors of equal-work runs with mean ``m``, the expected first part is
``alike n / (1 + (n - 1) alike) m``: 0 without such a run, and closer to the mean with more runs (the posterior mean of
a random effect; Searle, Casella and McCulloch, Variance Components, 1992, section 3.4). Errors have heavy tails. So
each error is weighted by Student's law, and no run moves a prediction by more than ``MAX_OF_TWIN`` standard
deviations.

Jobs without replicas reduce no gradients, and are only comparable with each other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from hashlib import blake2b
from math import log
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipette_opt.base.risk import SMALLEST_RISK
from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.memory.regressors import StageFacts
from pipette_opt.memory.stage_rows import StageTable
from pipette_opt.specs.memory_constants import MemoryConstants

REPLICA_FIELDS = ("replicas", "expert_replicas", "state_shards")
"""Fields of :class:`StageTable` in which equal-work runs may differ."""

TAILS = 4.0
"""Degrees of freedom of Student's law of the errors, as in :mod:`~pipette_opt.calibrate.memory_spread`."""

MIN_WITH_TWIN = 10
"""Minimum number of runs with an equal-work run to estimate their correlation; with fewer, the correlation is 0."""

ALIKES = np.linspace(0.0, 0.95, 96)
"""Correlations of equal-work runs among which :func:`likeliest_alike` chooses."""

LEAST_SPREAD = 1e-4
"""Least standard deviation of a prediction that a measured peak has raised. Chosen."""

REMAINING_RISK = SMALLEST_RISK / 2
"""Probability that a rank which fitted in a run needs more than the memory of its GPU. Chosen."""

KEY_BYTES = 6


def work_keys(table: StageTable, facts: StageFacts) -> tuple[str, ...]:
    """
    Return the work key of each row; equal-work runs have equal keys.

    The key depends on all fields of the table. An additional or renamed field changes the keys, and stacks calibrated
    before lose their equal-work runs.
    """
    names = sorted(field.name for field in fields(StageTable) if field.name not in REPLICA_FIELDS)
    columns = [getattr(table, name) for name in names]
    columns += [facts.unfused_norm, facts.unfused_softmax, facts.pipeline]
    columns += [table.tensor <= facts.gpus_per_node, facts.replicas > 1]
    return _digests(columns)


def rank_keys(table: StageTable, facts: StageFacts, sending: FloatArray) -> tuple[str, ...]:
    """
    Return the key of each row by everything that its memory depends on; ranks with equal keys need equal memory.

    Parameters
    ----------
    sending
        Bytes of each row's buffers for arriving tokens and tensor overlap, shape ``(num_rows,)``.
    """
    columns = [getattr(table, field.name) for field in fields(StageTable)]
    columns += [getattr(facts, field.name) for field in fields(StageFacts)]
    return _digests([*columns, sending])


def config_key(ranks: Sequence[str]) -> str:
    """Return the key of a configuration by the rank keys of its stages."""
    return blake2b(" ".join(ranks).encode(), digest_size=KEY_BYTES).hexdigest()


def _digests(columns: Sequence[NDArray[Any]]) -> tuple[str, ...]:
    """Return a digest of each row of a table of numbers."""
    numbers = np.stack(columns, axis=1).astype("<f4") + np.float32(0)  # makes -0.0 equal to 0.0
    return tuple(blake2b(row.tobytes(), digest_size=KEY_BYTES).hexdigest() for row in numbers)


def as_twins_take(
    memory_constants: MemoryConstants, regressors: FloatArray, constants: FloatArray, work: Sequence[str]
) -> FloatArray:
    """
    Scale each row's regressors by the expected error that equal-work runs show.

    Parameters
    ----------
    regressors
        Regressors, shape ``(num_rows, len(REGRESSORS))``.
    constants
        Constants of the regressors, 0 for the excluded ones; shape ``(len(REGRESSORS),)``.
    work
        Work key of each row; empty if unknown.
    """
    if not memory_constants.twins or not work:
        return regressors
    offsets = np.array([memory_constants.twins.get(key, 0.0) for key in work]) * memory_constants.widths(
        regressors, constants
    )
    scaled: FloatArray = regressors * np.exp(offsets)[:, None]
    return scaled


def as_run(
    ran: Mapping[str, float],
    keys: Sequence[str],
    sizes_bytes: FloatArray,
    spread: FloatArray,
    unusable_gib: float,
) -> tuple[FloatArray, FloatArray]:
    """
    Return size and deviation of each row, given that equal ranks fitted in a run.

    The error of a prediction is log-normal. A run that fitted cuts it off at the usable memory of its GPU: the size
    becomes the median of what is left, with a deviation that leaves the probability ``REMAINING_RISK`` of more than
    that memory.

    Parameters
    ----------
    ran
        Memory of a GPU that held a rank, by rank key, GiB.
    keys
        Rank key of each row.
    sizes_bytes, spread
        Predicted size of each row, and standard deviation of ``log(real / predicted)``.
    unusable_gib
        Memory of a GPU that no tensor can use, GiB.
    """
    from scipy.special import log_ndtr, ndtri_exp

    sizes_bytes, spread = sizes_bytes.copy(), spread.copy()
    rows = [row for row, key in enumerate(keys) if key in ran]
    usable_bytes = GIB * np.array([max(ran[keys[row]] - unusable_gib, 1e-3) for row in rows])
    room = np.log(usable_bytes / sizes_bytes[rows]) / spread[rows]
    moved = spread[rows] * ndtri_exp(log_ndtr(room) - np.log(2.0))
    sizes_bytes[rows] *= np.exp(moved)
    left = room * spread[rows] - moved
    spread[rows] = np.minimum(spread[rows], left / NormalDist().inv_cdf(1 - REMAINING_RISK))
    return sizes_bytes, spread


def as_measured(
    memory_constants: MemoryConstants, keys: Sequence[str], sizes_bytes: FloatArray, spread: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """
    Return size and deviation of the stages of a configuration, whose fullest takes at least its measured peak.

    Parameters
    ----------
    keys
        Rank key of each stage.
    sizes_bytes, spread
        Predicted size of each stage, and standard deviation of ``log(real / predicted)``.
    """
    fullest = int(sizes_bytes.argmax())
    least_bytes = memory_constants.peaks.get(config_key(keys), 0.0) * GIB
    if least_bytes <= sizes_bytes[fullest]:
        return sizes_bytes, spread
    sizes_bytes, spread = sizes_bytes.copy(), spread.copy()
    sizes_bytes[fullest] = least_bytes
    if keys[fullest] in memory_constants.ran:
        usable_bytes = (memory_constants.ran[keys[fullest]] - memory_constants.unusable_gib) * GIB
        room = log(max(usable_bytes / least_bytes, 1.0))
        spread[fullest] = min(spread[fullest], max(room / NormalDist().inv_cdf(1 - REMAINING_RISK), LEAST_SPREAD))
    return sizes_bytes, spread


def without_twins(memory_constants: MemoryConstants) -> MemoryConstants:
    """Return the constants without corrections by equal-work runs."""
    return replace(memory_constants, alike=0.0, twins={})


def believed(errors: FloatArray) -> FloatArray:
    """Return errors times their weights by Student's law; all in units of their standard deviation."""
    weighted: FloatArray = errors * (TAILS + 1) / (TAILS + errors**2)
    return weighted


def twin_share(alike: float, count: int) -> float:
    """Return the fraction of the mean error of ``count`` equal-work runs that is expected in another such run."""
    return alike * count / (1 + (count - 1) * alike)


def twin_offsets(work: Sequence[str], errors: FloatArray, alike: float) -> dict[str, float]:
    """Return the expected error of another run of each work key, in standard deviations; empty if ``alike`` is 0."""
    if not alike:
        return {}
    return {
        key: twin_share(alike, len(members)) * float(believed(errors[members]).mean())
        for key, members in sorted(_members(work).items())
    }


def likeliest_alike(work: Sequence[str], errors: FloatArray) -> float:
    """
    Return the most likely correlation of equal-work runs; 0 with fewer than ``MIN_WITH_TWIN`` such runs.

    The likelihood is Besag's pseudo-likelihood (The Statistician 24, 1975), each run given the others, with Student's
    errors. The prior falls linearly from correlation 0 to 1.

    Parameters
    ----------
    work
        Work key of each run.
    errors
        Errors, in standard deviations, of runs that a fit left out together with their equal-work runs.
    """
    groups = [errors[members] for members in _members(work).values() if len(members) > 1]
    if sum(map(len, groups)) < MIN_WITH_TWIN:
        return 0.0
    return float(ALIKES[int(np.argmin([_surprise(groups, alike) for alike in ALIKES]))])


def _surprise(groups: Sequence[FloatArray], alike: float) -> float:
    """Return the negative log of pseudo-likelihood times prior; ``groups`` are the errors of equal-work runs."""
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
    """Return the indices of the runs of each work key, without runs of unknown work."""
    members: dict[str, list[int]] = defaultdict(list)
    for index, key in enumerate(work):
        if key:
            members[key].append(index)
    return members
