"""Errors of a fit on held-out runs: each run is predicted by a fit that did not use it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.descent import Descent
from pipette_opt.calibrate.metrics import Errors, measure
from pipette_opt.calibrate.problem import Problem
from pipette_opt.worlds.factor import log_factors_left
from pipette_opt.worlds.prior import Prior

FOLDS = 4
"""Number of folds of the cross-validation over groups. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """
    Refits of a problem with some runs held out.

    They begin at the solution of the fit to all runs and share its derivatives, which take most of the time. Refits
    were compared with refits that begin half way to the prior and compute their own derivatives, on five folds of 60
    runs on H100. Their loss is no higher (in one fold 116 instead of 148), after a tenth of the evaluations.

    Parameters
    ----------
    found
        Result of the fit to all runs.
    references
        Terms of the reference layouts of the runs' jobs, shape ``(num_runs, num_terms)``.
    prior
        Prior of the worlds.
    """

    problem: Problem
    found: Descent
    references: FloatArray
    prior: Prior

    def groups(self) -> Errors | None:
        """Return the errors of a cross-validation over groups, in at most ``FOLDS`` folds; ``None`` for one group."""
        runs = self.problem.runs
        groups = list(dict.fromkeys(run.group for run in runs))
        folds = min(FOLDS, len(groups))
        if folds < 2:
            return None
        portion = {group: index % folds for index, group in enumerate(groups)}
        predicted, measured = [], []
        for fold in range(folds):
            out = [index for index, run in enumerate(runs) if portion[run.group] == fold]
            predicted.append(self._refit(out))
            measured.append(self.problem.measured_s[out])
        return measure(np.concatenate(predicted), np.concatenate(measured))

    def larger(self, fewest: int) -> Errors | None:
        """Return the errors on the jobs with the most GPUs, by a fit to the others; ``None`` below ``fewest``."""
        runs = self.problem.runs
        most = max(run.num_gpus for run in runs)
        out = [index for index, run in enumerate(runs) if run.num_gpus == most]
        if len(runs) - len(out) < fewest:
            return None
        return measure(self._refit(out), self.problem.measured_s[out])

    def _refit(self, out: Sequence[int]) -> FloatArray:
        """Return expected times of the runs at these indices, by a fit to all others, seconds."""
        left_out = set(out)
        kept = [index for index in range(len(self.problem.cases)) if index not in left_out]
        seen, judged = self.problem.subset(kept), self.problem.subset(out)
        slopes = self.found.slopes[kept]
        _, stack = seen.fit(self.found._replace(slopes=slopes), slopes)
        left = np.log(seen.measured_s / seen.with_stack_s(stack))
        logs = log_factors_left(left, self.references[kept], self.references[list(out)], self.prior)
        found: FloatArray = judged.with_stack_s(stack) * np.exp(logs)
        return found
