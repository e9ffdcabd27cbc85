"""Predictions of measured runs with bands, before and after runs of the table are known."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.described import describe_cases, references_of
from pipette_opt.calibrate.left_out import named
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.specs.stack import Anchor as StackAnchor
from pipette_opt.worlds.factor import anchored_stack, job_factors, job_means
from pipette_opt.worlds.prior import shipped_priors
from pipette_opt.worlds.terms import TERMS

Anchor = int | Literal["each"] | None
"""Row that is known; ``each``: every row of a job in turn; ``None``: no row."""

JOB = ("source", "gpu_name", "model", "seq_len", "gbs", "num_gpus", "attention_kernel", "precision")
"""Fields that configurations of one job share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """
    Errors of the other runs once a run is known.

    Parameters
    ----------
    pairs
        Number of pairs of a known run and another run.
    error
        Median of predicted over measured time minus 1, absolute.
    inside
        Share of the other runs inside their bands.
    width
        Median of the width of these bands, over the time predicted.
    """

    pairs: int
    error: float
    inside: float
    width: float

    def line(self) -> str:
        """Return a sentence with the errors."""
        return (
            f"With one run known, the other runs are {100 * self.error:.1f} % off in the median, and "
            f"{100 * self.inside:.0f} % lie inside their bands ({self.pairs:,} pairs; median width of a band "
            f"{100 * self.width:.0f} %)."
        )


def anchored(
    predictions: Sequence[Prediction],
    stack: StackSpec,
    cluster: ClusterSpec | None,
    *,
    anchor: Anchor = None,
    leave_out_source: bool = False,
) -> tuple[list[Prediction], Known | None]:
    """
    Return the predictions with bands, and the errors with a known run.

    Parameters
    ----------
    stack
        Stack of the predictions. With anchors of its own, times are multiplied by the factors of their jobs.
    anchor
        Row that is known: it moves the other rows of its source and GPU. ``each``: each run of a job in turn moves the
        others of the job; a prediction is then the mean over the known runs, of the logarithm.
    leave_out_source
        Whether the prior must not know public runs of the rows' sources.

    Raises
    ------
    InputError
        If the row of ``anchor`` has no measured or no predicted time.
    """
    timed = [index for index, prediction in enumerate(predictions) if prediction.iter_time_s is not None]
    made = make_cases([predictions[index].run for index in timed], stack.unmoved, cluster)
    cases = [case for case in made if isinstance(case, Case)]
    assert len(cases) == len(timed)
    none = np.zeros((0, len(TERMS)))
    unmoved_s, terms = describe_cases(cases, cluster) if cases else (np.zeros(0), none)
    rows = _Rows(
        runs=[predictions[index].run for index in timed],
        terms=terms,
        references=references_of(cases) if cases else none,
        predicted_s=np.array([predictions[index].iter_time_s for index in timed], dtype=np.float64),
        unmoved_s=unmoved_s,
        stack=stack,
        leave_out_source=leave_out_source,
    )
    bands = rows.unknown()
    found = None
    if anchor == "each":
        bands, found = rows.each(bands)
    elif anchor is not None:
        bands, found = rows.by(bands, anchor)
    result = list(predictions)
    for index, (low, middle, high) in zip(timed, bands.tolist(), strict=True):
        time_s = predictions[index].iter_time_s
        assert time_s is not None
        moved = {"iter_time_s": middle * time_s} if anchor is not None or stack.anchors else {}
        result[index] = replace(predictions[index], low_s=low * time_s, high_s=high * time_s, **moved)
    return result, found


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Rows:
    """
    Runs with a predicted time.

    Parameters
    ----------
    terms, references
        Terms of the predictions, and of the reference layouts of their jobs, each of shape ``(num_runs, num_terms)``.
    predicted_s, unmoved_s
        Times by the stack, and by the stack before measured runs moved its constants, seconds.
    stack
        Stack of the predictions, with the runs that it was calibrated with.
    """

    runs: Sequence[MeasuredRun]
    terms: FloatArray
    references: FloatArray
    predicted_s: FloatArray
    unmoved_s: FloatArray
    stack: StackSpec
    leave_out_source: bool

    def bands(self, rows: Sequence[int], stack: StackSpec) -> FloatArray:
        """
        Return the bands of runs of one source over the predicted time, shape ``(len(rows), 3)``.

        Parameters
        ----------
        stack
            Stack of the predictions, perhaps with a further anchor.
        """
        prior = shipped_priors().leaving_out(self.runs[rows[0]].source if self.leave_out_source else None)
        terms, references = self.terms[rows], self.references[rows]
        usual = np.exp(job_means(stack, references, prior)) * self.unmoved_s[rows] / self.predicted_s[rows]
        low, _, high = (anchored_stack(stack, prior).bands(terms) * usual[:, None]).T
        middle = job_factors(stack, references, prior)
        return np.column_stack([np.minimum(low, middle), middle, np.maximum(high, middle)])

    def unknown(self) -> FloatArray:
        """Return the bands before any run is known, over the predicted time, shape ``(num_runs, 3)``."""
        bands = np.zeros((len(self.runs), 3))
        for rows in self._alike(("source",)):
            bands[rows] = self.bands(rows, self.stack)
        return bands

    def by(self, bands: FloatArray, anchor: int) -> tuple[FloatArray, Known | None]:
        """Return the bands once the run of a row is known, and the errors of the other rows that it moves."""
        index = next((index for index, run in enumerate(self.runs) if run.row == anchor), None)
        if index is None or np.isnan(self._log_ratio(index)):
            known = [run.row for place, run in enumerate(self.runs) if not np.isnan(self._log_ratio(place))]
            have = f"the table has them in {named(known)}" if known else "the table has none"
            raise InputError("--anchor", f"must be a row with a measured and a predicted time ({have}), got {anchor}.")
        rows = next(rows for rows in self._alike(("source", "gpu_name")) if index in rows)
        moved, others = bands.copy(), [row for row in rows if row != index]
        moved[rows] = self.bands(rows, self._known(index))
        return moved, self._errors([(row, moved[row]) for row in others])

    def each(self, bands: FloatArray) -> tuple[FloatArray, Known | None]:
        """Return the bands averaged over the known runs of a row's job, and the errors of all pairs."""
        moved, pairs = bands.copy(), []
        for rows in self._alike(JOB):
            found = defaultdict(list)
            for index in [row for row in rows if not np.isnan(self._log_ratio(row))]:
                others = [row for row in rows if row != index]
                if others:
                    for row, band in zip(others, self.bands(others, self._known(index)), strict=True):
                        found[row].append(band)
                        pairs.append((row, band))
            for row, own in found.items():
                moved[row] = np.exp(np.log(own).mean(axis=0))
        return moved, self._errors(pairs)

    def _known(self, index: int) -> StackSpec:
        """Return the stack with the run at this index as a further anchor, which moves no constant."""
        moved = float(np.log(self.predicted_s[index] / self.unmoved_s[index]))
        run = StackAnchor(
            run=f"row {self.runs[index].row}",
            terms=tuple(self.terms[index].tolist()),
            log_ratio=self._log_ratio(index) + moved,
            reference=tuple(self.references[index].tolist()),
        )
        return replace(self.stack, anchors=(*self.stack.anchors, run))

    def _log_ratio(self, index: int) -> float:
        """Return the logarithm of measured over predicted time; not a number without a measured time."""
        run = self.runs[index]
        if run.oom or run.iter_time_s is None:
            return float("nan")
        return float(np.log(run.iter_time_s / self.predicted_s[index]))

    def _errors(self, pairs: Sequence[tuple[int, FloatArray]]) -> Known | None:
        """Return the errors of rows with these bands; ``None`` if none of them was measured."""
        ratios = np.exp([self._log_ratio(row) for row, _ in pairs])
        measured = ~np.isnan(ratios)
        if not measured.any():
            return None
        ratios, bands = ratios[measured], np.array([band for _, band in pairs])[measured]
        low, middle, high = bands.T
        return Known(
            pairs=len(ratios),
            error=float(np.median(np.abs(middle / ratios - 1))),
            inside=float(((low <= ratios) & (ratios <= high)).mean()),
            width=float(np.median((high - low) / middle)),
        )

    def _alike(self, fields: Sequence[str]) -> list[list[int]]:
        """Return the indices of rows with equal values of these fields."""
        found: dict[tuple[object, ...], list[int]] = defaultdict(list)
        for index, run in enumerate(self.runs):
            found[tuple(getattr(run, name) for name in fields)].append(index)
        return list(found.values())
