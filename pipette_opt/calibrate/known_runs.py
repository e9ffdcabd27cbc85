"""Measured runs on a stack: terms of their predictions, and predictions of some runs by the others."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.base.units import three_digits
from pipette_opt.calibrate.cases import Case, with_stack
from pipette_opt.calibrate.described import describe_cases, references_of
from pipette_opt.calibrate.left_out import LeftOut
from pipette_opt.calibrate.metrics import Errors, measure
from pipette_opt.calibrate.predict import predicted_times_s
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.specs.stack import Anchor
from pipette_opt.worlds.factor import anchored_stack, job_factors, job_means, moved_stack
from pipette_opt.worlds.prior import Prior
from pipette_opt.worlds.worlds import Worlds

MAX_AWAY = 6.0
"""Standard deviations from which on a run contradicts the others. Chosen: runs of most public stacks stay below 4."""

LEAST_STRAY = 1.5
"""Ratio of measured time and that by the others, either way, up to which a run contradicts nothing. Chosen."""

FOLDS = 4
"""Number of folds of the cross-validation over groups. Chosen."""

DIGITS = 5
"""Decimals of terms and ratios in a stack file. Chosen: a hundredth of the noise of a run."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KnownRuns:
    """
    Measured runs with their predictions by a stack.

    Parameters
    ----------
    cluster
        Hosts of the runs; ``None`` for assumed hosts.
    prior
        Prior of the worlds; the stack's own anchors are known before these runs.
    predicted_s, measured_s
        Seconds of each run, shape ``(num_runs,)``.
    terms, references
        Terms of the predictions, and of the reference layouts of their jobs, each of shape ``(num_runs, num_terms)``.
    """

    cases: Sequence[Case]
    stack: StackSpec
    cluster: ClusterSpec | None
    prior: Prior
    predicted_s: FloatArray
    measured_s: FloatArray
    terms: FloatArray
    references: FloatArray

    @classmethod
    def of(cls, cases: Sequence[Case], stack: StackSpec, cluster: ClusterSpec | None, prior: Prior) -> "KnownRuns":
        """Return these runs, predicted by a stack."""
        cases = with_stack(cases, stack, cluster)
        predicted_s, terms = describe_cases(cases, cluster)
        return cls(
            cases=cases,
            stack=stack,
            cluster=cluster,
            prior=prior,
            predicted_s=predicted_s,
            measured_s=np.array([case.run.iter_time_s for case in cases], dtype=np.float64),
            terms=terms.round(DIGITS),
            references=references_of(cases).round(DIGITS),
        )

    def on(self, stack: StackSpec) -> "KnownRuns":
        """Return the runs, predicted by another stack."""
        return KnownRuns.of(self.cases, stack, self.cluster, self.prior)

    @property
    def runs(self) -> list[MeasuredRun]:
        """Rows of the runs."""
        return [case.run for case in self.cases]

    @property
    def log_ratio(self) -> FloatArray:
        """Logarithm of measured over predicted time of each run."""
        ratios: FloatArray = np.log(self.measured_s / self.predicted_s).round(DIGITS)
        return ratios

    def worlds(self, rows: Sequence[int] | None = None) -> Worlds:
        """Return the worlds once the runs at these indices are known; by default all runs."""
        return anchored_stack(replace(self.stack, anchors=(*self.stack.anchors, *self.anchors("", rows))), self.prior)

    def job_means(self) -> FloatArray:
        """Return the prior's mean log factor of each run's job, shape ``(num_runs,)``."""
        return job_means(self.stack, self.references, self.prior)

    def calibrated(self, file: str, rows: Sequence[int] | None = None) -> StackSpec:
        """
        Return the stack with the runs at these indices as anchors, and constants moved by them; by default all runs.

        Parameters
        ----------
        file
            Name of the table of the runs.
        """
        anchors = tuple(dict.fromkeys((*self.stack.anchors, *self.anchors(file, rows))))
        chosen = list(range(len(self.cases)) if rows is None else rows)
        return moved_stack(replace(self.stack, anchors=anchors), self.references[chosen].mean(axis=0), self.prior)

    def expected_s(self, stack: StackSpec, rows: Sequence[int] | None = None) -> FloatArray:
        """Return the expected times of the runs at these indices on a calibrated stack, seconds; by default of all."""
        chosen = list(range(len(self.cases)) if rows is None else rows)
        cases = with_stack([self.cases[row] for row in chosen], stack, self.cluster)
        found: FloatArray = predicted_times_s(cases) * job_factors(stack, self.references[chosen], self.prior)
        return found

    def by_others(self, rows: Sequence[int] | None = None) -> tuple[FloatArray, FloatArray]:
        """
        Return the logarithm of measured time over that by all other runs, and its standard deviation.

        Parameters
        ----------
        rows
            Indices of the runs that count; ``None`` for all.
        """
        chosen = list(range(len(self.cases)) if rows is None else rows)
        mean, sd = (values[-len(chosen) :] for values in self.worlds(chosen).left_out())
        return self.log_ratio[chosen] - mean, sd

    def anchors(self, file: str, rows: Sequence[int] | None = None) -> tuple[Anchor, ...]:
        """Return the runs at these indices, by default all, as anchors of the stack; ``file``: name of their table."""
        ratios = self.log_ratio.tolist()
        return tuple(
            Anchor(
                run=f"{file}, row {self.cases[row].run.row}: {three_digits(float(self.measured_s[row]))} s",
                terms=tuple(self.terms[row].tolist()),
                log_ratio=ratios[row],
                reference=tuple(self.references[row].tolist()),
            )
            for row in (range(len(self.cases)) if rows is None else rows)
        )

    def groups(self) -> Errors | None:
        """Return the errors of a cross-validation over groups, in at most ``FOLDS`` folds; ``None`` with one group."""
        groups = list(dict.fromkeys(run.group for run in self.runs))
        folds = min(FOLDS, len(groups))
        if folds < 2:
            return None
        fold_of = {group: index % folds for index, group in enumerate(groups)}
        predicted_s = np.zeros(len(self.cases))
        for fold in range(folds):
            out = [index for index, run in enumerate(self.runs) if fold_of[run.group] == fold]
            predicted_s[out] = self._without(out)
        return measure(predicted_s, self.measured_s)

    def larger(self, fewest: int) -> Errors | None:
        """Return the errors on the jobs with the most GPUs, by all others; ``None`` with fewer than ``fewest``."""
        out = self._largest(fewest)
        return measure(self._without(out), self.measured_s[out]) if out else None

    def base_larger(self, fewest: int) -> Errors | None:
        """Return the errors on the jobs of :meth:`larger` without any of the runs."""
        out = self._largest(fewest)
        return measure(self.expected_s(self.stack, out), self.measured_s[out]) if out else None

    def without_strays(self) -> tuple["KnownRuns", list[LeftOut]]:
        """Return the runs without those that all others contradict, the farthest first, and the runs left out."""
        rows, strays = list(range(len(self.cases))), []
        while len(rows) > 2:
            ratios, sd = self.by_others(rows)
            away = np.where(np.abs(ratios) > np.log(LEAST_STRAY), np.abs(ratios) / sd, 0.0)
            farthest = int(away.argmax())
            if away[farthest] <= MAX_AWAY:
                break
            strays.append(self._stray(rows.pop(farthest), float(ratios[farthest]), "all other runs say"))
        return self._some(rows), strays

    def without_unfitted(self) -> tuple["KnownRuns", list[LeftOut]]:
        """
        Return the runs that the stack fits, and the runs left out.

        A fit ignores runs far from all others, and worlds would give them to their neighbours. The spread of the others
        is that of their median error, as for normal errors.
        """
        ratios = self.log_ratio
        far = np.abs(ratios) > max(np.log(LEAST_STRAY), MAX_AWAY * 1.4826 * float(np.median(np.abs(ratios))))
        strays = [self._stray(row, ratios[row], "the fitted constants say") for row in np.flatnonzero(far).tolist()]
        return self._some(np.flatnonzero(~far).tolist()), strays

    def _stray(self, row: int, log_ratio: float, source: str) -> LeftOut:
        """Return the run at an index as left out, with the ratio of its time to that of the source."""
        return LeftOut(self.cases[row].run.row, f"takes {three_digits(float(np.exp(log_ratio)))} times what {source}")

    def _largest(self, fewest: int) -> list[int]:
        """Return the indices of the runs with the most GPUs; none with fewer than ``fewest`` others."""
        most = max(run.num_gpus for run in self.runs)
        out = [index for index, run in enumerate(self.runs) if run.num_gpus == most]
        return out if len(self.cases) - len(out) >= fewest else []

    def _without(self, out: Sequence[int]) -> FloatArray:
        """Return the expected times of the runs at these indices by all others, seconds."""
        left = set(out)
        stack = self.calibrated("", [row for row in range(len(self.cases)) if row not in left])
        return self.expected_s(stack, out)

    def _some(self, rows: Sequence[int]) -> "KnownRuns":
        chosen = list(rows)
        return KnownRuns(
            cases=[self.cases[row] for row in chosen],
            stack=self.stack,
            cluster=self.cluster,
            prior=self.prior,
            predicted_s=self.predicted_s[chosen],
            measured_s=self.measured_s[chosen],
            terms=self.terms[chosen],
            references=self.references[chosen],
        )
