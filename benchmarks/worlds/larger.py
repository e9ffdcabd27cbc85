"""Larger jobs of a table once its smaller jobs calibrated the stack, with the publisher left out of the prior."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.worlds.rows import Row
from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.fit import calibrate_runs
from pipette_opt.calibrate.known_runs import KnownRuns
from pipette_opt.read.stack import read_stack
from pipette_opt.worlds.bands import observations_of
from pipette_opt.worlds.worlds import Worlds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Larger:
    """
    Errors of a table's largest jobs, medians.

    Parameters
    ----------
    runs, known
        Number of runs of these jobs, and of smaller runs that were used.
    shipped, calibrated
        Errors by the shipped stack, and by the stack that the smaller runs calibrated.
    inside
        Share of the runs inside their bands.
    is_fitted
        Whether constants were fitted.
    """

    runs: int
    known: int
    shipped: float
    calibrated: float
    inside: float
    is_fitted: bool


def larger_jobs(rows: Sequence[Row], prior: Worlds) -> Larger | None:
    """Return the errors of the runs with the most GPUs once all smaller runs are known; ``None`` without smaller."""
    most = max(row.run.num_gpus for row in rows)
    seen, tested = (
        [row.run for row in rows if row.run.num_gpus < most],
        [row for row in rows if row.run.num_gpus == most],
    )
    if not seen:
        return None
    try:
        fit = calibrate_runs(seen, read_stack(), validate=False, prior=prior)
    except InputError:  # the smaller runs contradict each other
        return None
    cases = [case for case in make_cases([row.run for row in tested], fit.stack) if isinstance(case, Case)]
    before = Worlds(prior=prior.prior.centred()) if fit.is_fitted else prior
    known = KnownRuns.of(cases, fit.stack, None, before.given(observations_of(fit.stack.anchors)))
    low, middle, high = known.prior.bands(known.terms).T
    ratios = np.exp(known.log_ratio)
    return Larger(
        runs=len(cases),
        known=len(fit.runs),
        shipped=float(np.median(np.abs(np.exp([-row.log_ratio for row in tested]) - 1))),
        calibrated=float(np.median(np.abs(middle / ratios - 1))),
        inside=float(((low <= ratios) & (ratios <= high)).mean()),
        is_fitted=fit.is_fitted,
    )
