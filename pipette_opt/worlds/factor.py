"""
One factor of a job: expected over simulated time of all its plans, and what measured runs change.

Without measured runs the factor is the prior's mean at the job's reference layout. A measured run of the job replaces
it. From two unlike runs on, the stack's constants move to their posterior mean: the simulator works with them, and one
factor remains. So order, bounds and percentages of plans are the same in simulated and in expected seconds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.specs import Instance
from pipette_opt.specs.stack import MAX_COST, MIN_SPEED, Anchor, StackSpec
from pipette_opt.worlds.prior import Prior, shipped_priors
from pipette_opt.worlds.reference import reference_terms
from pipette_opt.worlds.terms import CHANGED, ITERATION, TERMS, WAIT, WAITS
from pipette_opt.worlds.worlds import Observation, Worlds

SAME = 1e-4
"""Largest difference between terms of two reference layouts of one job; files keep five decimals."""

SCALED: Mapping[str, Mapping[str, float]] = {**CHANGED, ITERATION: {"iteration_s": 2.0}}
"""Factors on constants by term; a slope of 1 is this change."""

CAPPED = ("flash1", "intra_node", "inter_node")
"""Constants of the terms that are shares of a rate, so that they are at most 1."""


@lru_cache(maxsize=32)
def unmoved(instance: Instance) -> Instance:
    """Return the job on its stack as it was before measured runs moved the constants; the worlds are about that."""
    return replace(instance, stack=instance.stack.unmoved) if instance.stack.moved_from else instance


@lru_cache(maxsize=32)
def anchored(instance: Instance) -> Worlds:
    """
    Return the worlds of a job after the measured runs of its stack.

    Their factors are on times by the unmoved stack (:func:`unmoved`). ``InputError`` for runs of another version.
    """
    worlds = anchored_stack(instance.stack)
    mean = job_means(instance.stack, reference_terms(unmoved(instance)), worlds.prior)
    return replace(worlds, job_mean=float(mean))


def anchored_stack(stack: StackSpec, prior: Prior | None = None) -> Worlds:
    """Return the worlds of a stack after its measured runs, about no job; ``None`` for the shipped prior."""
    _check_version(stack.anchors)
    return _after(stack.anchors, prior or shipped_priors().all_sources, is_fitted=stack.is_fitted)


@lru_cache(maxsize=8)
def _after(anchors: tuple[Anchor, ...], prior: Prior, *, is_fitted: bool) -> Worlds:
    return Worlds(prior=prior).given(observations_of(anchors, prior, is_fitted=is_fitted))


def observations_of(anchors: Sequence[Anchor], prior: Prior, *, is_fitted: bool) -> list[Observation]:
    """Return measured runs for the worlds; ``is_fitted``: whether the constants of their stack are fitted."""
    return [
        Observation(
            factors=np.array(anchor.terms),
            log_ratio=anchor.log_ratio,
            job_mean=0.0 if is_fitted else float(prior.job_mean(np.array(anchor.reference))),
        )
        for anchor in anchors
    ]


def job_means(stack: StackSpec, references: FloatArray, prior: Prior) -> FloatArray:
    """
    Return the prior's mean log factors of jobs on a stack; 0 if its constants are fitted.

    Parameters
    ----------
    references
        Terms of the jobs' reference layouts, shape ``(..., num_terms)``.
    """
    return prior.job_mean(references) * (0.0 if stack.is_fitted else 1.0)


def job_factor(instance: Instance) -> float:
    """Return expected over simulated time of every plan of a job; see :func:`job_factors`."""
    return float(job_factors(instance.stack, reference_terms(unmoved(instance))[None])[0])


def job_factors(stack: StackSpec, references: FloatArray, prior: Prior | None = None) -> FloatArray:
    """
    Return expected over simulated time of all plans of each job, shape ``(num_jobs,)``.

    With measured runs of the job: the mean of measured over simulated times, of the logarithm. With runs of other jobs
    only: what the worlds make of these at the reference layouts. Without runs: the prior's mean.

    Parameters
    ----------
    references
        Terms of the reference layout of each job on the unmoved stack, shape ``(num_jobs, num_terms)``.
    prior
        By default the shipped one.
    """
    prior = prior or shipped_priors().all_sources
    logs = job_means(stack, references, prior)
    if stack.anchors:
        _check_version(stack.anchors)
        terms, of_runs = (np.array([getattr(run, name) for run in stack.anchors]) for name in ("terms", "reference"))
        left = np.array([run.log_ratio for run in stack.anchors]) - terms @ moves_of(stack)
        logs = logs + log_factors_left(left - job_means(stack, of_runs, prior), of_runs, references, prior)
    found: FloatArray = np.exp(logs)
    return found


def misses(stack: StackSpec) -> list[float]:
    """Return expected over measured time of each measured run, minus 1; 0 for the only run of its job."""
    if not stack.anchors:
        return []
    references, terms = (np.array([getattr(run, name) for run in stack.anchors]) for name in ("reference", "terms"))
    logs = np.log(job_factors(stack, references)) + terms @ moves_of(stack)
    return np.expm1(logs - [run.log_ratio for run in stack.anchors]).tolist()  # type: ignore[no-any-return]


def log_factors_left(left: FloatArray, of_runs: FloatArray, references: FloatArray, prior: Prior) -> FloatArray:
    """
    Return the logarithm of each job's factor over its usual one, shape ``(num_jobs,)``, by measured runs.

    Parameters
    ----------
    left
        Logarithm of measured over expected time of each run, with the usual factor of its job, shape ``(num_runs,)``.
    of_runs, references
        Terms of the reference layouts of the runs' jobs, and of the jobs, each of shape ``(..., num_terms)``.
    """
    runs = [Observation(factors=terms, log_ratio=ratio) for terms, ratio in zip(of_runs, left.tolist(), strict=True)]
    logs, _ = Worlds(prior=prior).given(runs).mean_and_sd(references)
    for job, reference in enumerate(references):
        ours = np.isclose(of_runs, reference, atol=SAME).all(axis=1)
        logs[job] = left[ours].mean() if ours.any() else logs[job]
    return logs


def moved(instance: Instance) -> StackSpec:
    """Return the job's stack with constants at their posterior mean, by its anchors, for this job."""
    stack = instance.stack.unmoved
    return moved_stack(stack, reference_terms(replace(instance, stack=stack)))


def moved_stack(stack: StackSpec, job: FloatArray, prior: Prior | None = None) -> StackSpec:
    """
    Return an unmoved stack with constants at their posterior mean, by its anchors.

    The stack itself while all runs are of one layout: they tell the factor, and no constant. Fitted constants stay.

    Parameters
    ----------
    job
        Terms of the reference layout of the job that the constants are for, shape ``(num_terms,)``.
    prior
        By default the shipped one.
    """
    if stack.is_fitted or len({anchor.terms for anchor in stack.anchors}) < 2:
        return stack
    slopes = anchored_stack(stack, prior).slopes(job)
    found = dict(_moved_constants(stack, dict(zip(TERMS, slopes.tolist(), strict=True))))
    changed = {name: value for name, value in found.items() if value != getattr(stack, name)}
    before = {name: float(getattr(stack, name)) for name in changed}
    return replace(stack.with_constants(changed), moved_from=before)


def moves_of(stack: StackSpec) -> FloatArray:
    """Return how far the constants of each term have moved, in units of its change, shape ``(num_terms,)``."""
    moves = np.zeros(len(TERMS))
    for term, changes in SCALED.items():
        logs = [
            log(getattr(stack, name) / stack.moved_from[name]) / log(factor)
            for name, factor in changes.items()
            if name in stack.moved_from
        ]
        moves[TERMS.index(term)] = np.mean(logs) if logs else 0.0
    waits = [
        (getattr(stack, name) - stack.moved_from[name]) / added
        for name, added in WAITS.items()
        if name in stack.moved_from
    ]
    moves[TERMS.index(WAIT)] = np.mean(waits) if waits else 0.0
    return moves


def _moved_constants(stack: StackSpec, slopes: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Yield each constant of the terms with its moved value."""
    for term, changes in SCALED.items():
        for name, factor in changes.items():
            value = getattr(stack, name) * factor ** slopes[term]
            if value > 0:
                yield name, float(np.clip(value, MIN_SPEED, 1.0 if name in CAPPED else MAX_COST))
    for name, added in WAITS.items():
        yield name, max(0.0, getattr(stack, name) + added * slopes[WAIT])


def _check_version(anchors: Iterable[Anchor]) -> None:
    """Raise ``InputError`` for measured runs that another version described."""
    for anchor in anchors:
        if not len(anchor.terms) == len(anchor.reference) == len(TERMS):
            raise InputError(
                f"measured run {anchor.run}",
                f"has {len(anchor.terms)} and {len(anchor.reference)} terms, but this version of pipette-opt "
                f"has {len(TERMS)}; solve again with --measured.",
            )
