"""
Fit of the prior: empirical Bayes over public stacks.

Every stack (runs of one table, GPU, precision and kind of model) is a draw of the prior's Gaussian process; the fit
maximises the sum of the logarithms of their marginal likelihoods. A stack may be stranger or quieter than others: its
smooth functions and its noise have a factor of their own, so that a noisy table does not make all others noisy. A weak
prior on each number keeps terms that no table tells at their start.
"""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from benchmarks.worlds.rows import Row
from pipette_opt.base.types import FloatArray
from pipette_opt.worlds.prior import SHAPE, Prior
from pipette_opt.worlds.terms import JOB, LAYOUT, SENSITIVITIES, TERMS

MAX_RUNS = 100
"""Maximum number of runs of a stack in the fit; of larger tables a random part is taken. Chosen."""

START = {
    **dict.fromkeys(SENSITIVITIES, 0.5),
    "constant": 0.15,
    "tensor ranks over hosts": 0.2,
    "interleaving": 0.05,
    "allgather dispatcher": 0.2,
    **dict.fromkeys(LAYOUT, 0.06),
    "selective recomputation": 0.03,
    "sharded parameters": 0.1,
    "flex dispatcher": 0.3,
    "overlapped experts": 0.15,
    **dict.fromkeys(("experts", "fp8", "Hopper", "Blackwell"), 0.08),
    "GPUs": 0.06,
}
"""Standard deviations of slopes at which the fit starts; a term without one has no slope. Chosen."""

SHAPE_START = {"job": 0.08, "job_length": 2.0, "layout": 0.06, "layout_length": 2.0, "both": 0.08, "noise": 0.03}
"""Other numbers of the prior at which the fit starts. Chosen."""

SPREAD, SHAPE_SPREAD = 0.7, {"job_length": 0.3, "layout_length": 0.3}
"""Standard deviation of the logarithm of a number about its start; of lengths. Chosen."""

STRANGENESS = 0.7
"""Standard deviation of the logarithm of a stack's own factor on smooth functions and noise. Chosen."""

SHRINKAGE = 0.5
"""Standard deviation of a slope's mean about zero, over the standard deviation of the slope at the start. Chosen."""

MAX_ITERATIONS = 80

_SLOPES = [TERMS.index(name) for name in START]
_LAYOUT = [TERMS.index(name) for name in LAYOUT]
_JOB = [TERMS.index(name) for name in JOB]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Runs of one stack as arrays: terms with a slope, squared distances of layouts and jobs, log ratios."""

    slopes: FloatArray
    layouts: FloatArray
    jobs: FloatArray
    log_ratio: FloatArray


def fit_prior(rows: Sequence[Row]) -> Prior:
    """Return the prior that the runs of these rows make."""
    groups = groups_of(rows)
    start = np.log([*START.values(), *(SHAPE_START[name] for name in SHAPE)])
    spread = np.array([*[SPREAD] * len(START), *(SHAPE_SPREAD.get(name, SPREAD) for name in SHAPE)])
    widths = SHRINKAGE * np.array(list(START.values()))
    first = np.concatenate([start, np.zeros(len(START) + len(groups))])
    solved = minimize(
        _loss,
        first,
        args=(groups, start, spread, widths),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": MAX_ITERATIONS},
    )
    found = np.exp(solved.x[: len(start)])
    mean, sd = np.zeros(len(TERMS)), np.zeros(len(TERMS))
    sd[_SLOPES] = found[: len(START)]
    mean[_SLOPES] = solved.x[len(start) : len(start) + len(START)]
    return Prior(mean=mean, sd=sd, **dict(zip(SHAPE, found[len(START) :].tolist(), strict=True)))


def groups_of(rows: Sequence[Row]) -> list[Group]:
    """Return the runs of each stack, at most ``MAX_RUNS`` of each."""
    stacks: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        stacks[row.stack].append(row)
    groups = []
    for own in stacks.values():
        order = np.random.default_rng(0).permutation(len(own))[:MAX_RUNS]
        terms = np.array([own[index].terms for index in order])
        ratios = np.array([own[index].log_ratio for index in order])
        groups.append(
            Group(
                slopes=terms[:, _SLOPES],
                layouts=_squared_distances(terms[:, _LAYOUT]),
                jobs=_squared_distances(terms[:, _JOB]),
                log_ratio=ratios,
            )
        )
    return groups


def _squared_distances(places: FloatArray) -> FloatArray:
    found: FloatArray = ((places[:, None] - places) ** 2).sum(axis=2)
    return found


def _loss(
    values: FloatArray, groups: Sequence[Group], start: FloatArray, spread: FloatArray, widths: FloatArray
) -> tuple[float, FloatArray]:
    """
    Return the negative logarithm of the posterior density, and its gradient.

    Parameters
    ----------
    values
        Logarithms of the prior's standard deviations and of its ``SHAPE``, means of slopes, logarithms of the stacks'
        own factors.
    start, spread
        Centre and standard deviation of the weak prior of the logarithms.
    widths
        Standard deviations of the means about zero.
    """
    num_slopes, num_logs = len(widths), len(start)
    logs, means, own = np.split(values, [num_logs, num_logs + num_slopes])
    variances = np.exp(2 * logs[:num_slopes])
    away = (logs - start) / spread
    loss = 0.5 * float((away**2).sum() + ((means / widths) ** 2).sum() + ((own / STRANGENESS) ** 2).sum())
    gradient = np.concatenate([away / spread, means / widths**2, own / STRANGENESS**2])
    for number, group in enumerate(groups):
        job, job_length, layout, layout_length, both, noise = np.exp(logs[num_slopes:])
        factor = np.exp(2 * own[number])
        jobs, layouts = group.jobs / job_length**2, group.layouts / layout_length**2
        of_job = factor * job**2 * np.exp(-jobs / 2)
        of_layout = factor * layout**2 * np.exp(-layouts / 2)
        of_both = factor * both**2 * np.exp(-(jobs + layouts) / 2)
        smooth = of_job + of_layout + of_both
        smooth[np.diag_indices_from(smooth)] += factor * noise**2
        cholesky = cho_factor((group.slopes * variances) @ group.slopes.T + smooth, lower=True)
        inverse = cho_solve(cholesky, np.eye(len(smooth)))
        left = group.log_ratio - group.slopes @ means
        weights = inverse @ left
        loss += 0.5 * float(left @ weights) + float(np.log(np.diag(cholesky[0])).sum())
        change = inverse - np.outer(weights, weights)
        gradient[:num_slopes] += variances * np.einsum("ij,ij->j", group.slopes, change @ group.slopes)
        gradient[num_slopes:num_logs] += (
            (change * of_job).sum(),
            0.5 * (change * (of_job + of_both) * jobs).sum(),
            (change * of_layout).sum(),
            0.5 * (change * (of_layout + of_both) * layouts).sum(),
            (change * of_both).sum(),
            factor * noise**2 * np.trace(change),
        )
        gradient[num_logs : num_logs + num_slopes] -= group.slopes.T @ weights
        gradient[num_logs + num_slopes + number] += (change * smooth).sum()
    return loss, gradient
