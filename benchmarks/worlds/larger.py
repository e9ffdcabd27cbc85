"""Larger jobs of a table once its smaller jobs calibrated the stack, with the publisher left out of the prior."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.worlds.rows import Row
from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.fit import calibrate_runs
from pipette_opt.calibrate.known_runs import KnownRuns
from pipette_opt.read.stack import DEFAULT_NAME, read_stack
from pipette_opt.worlds.factor import anchored_stack
from pipette_opt.worlds.prior import Prior

STACKS = {"hf_ultrascale_h100": "nanotron"}
"""Shipped stacks of tables whose software is not Megatron-Core's."""


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


def larger_jobs(rows: Sequence[Row], prior: Prior) -> Larger | None:
    """Return the errors of the runs with the most GPUs once all smaller runs are known; ``None`` without smaller."""
    most = max(row.run.num_gpus for row in rows)
    seen, tested = (
        [row.run for row in rows if row.run.num_gpus < most],
        [row for row in rows if row.run.num_gpus == most],
    )
    if not seen:
        return None
    try:
        fit = calibrate_runs(seen, read_stack(STACKS.get(rows[0].table, DEFAULT_NAME)), validate=False, prior=prior)
    except InputError:  # the smaller runs contradict each other
        return None
    cases = [case for case in make_cases([row.run for row in tested], fit.stack) if isinstance(case, Case)]
    known = KnownRuns.of(cases, fit.stack.unmoved, None, prior)
    usual_s = known.predicted_s * np.exp(known.job_means())
    low, _, high = (anchored_stack(known.stack, prior).bands(known.terms) * usual_s[:, None]).T
    expected_s = known.expected_s(fit.stack)
    low, high = np.minimum(low, expected_s), np.maximum(high, expected_s)
    return Larger(
        runs=len(cases),
        known=len(fit.cases),
        shipped=float(np.median(np.abs(np.exp([-row.log_ratio for row in tested]) - 1))),
        calibrated=float(np.median(np.abs(expected_s / known.measured_s - 1))),
        inside=float(((low <= known.measured_s) & (known.measured_s <= high)).mean()),
        is_fitted=fit.is_fitted,
    )
