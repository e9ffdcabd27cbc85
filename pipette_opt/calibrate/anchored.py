"""Predictions of measured runs with bands, before and after runs of the table are known."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.described import describe_cases
from pipette_opt.calibrate.left_out import named
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.worlds.bands import observations_of
from pipette_opt.worlds.worlds import Observation, Worlds

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
        Stack of the predictions. With anchors of its own, times are those of the worlds after them.
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
    made = make_cases([predictions[index].run for index in timed], stack, cluster)
    cases = [case for case in made if isinstance(case, Case)]
    assert len(cases) == len(timed)
    rows = _Rows(
        runs=[predictions[index].run for index in timed],
        terms=describe_cases(cases, cluster)[1] if cases else np.zeros((0, 0)),
        predicted_s=np.array([predictions[index].iter_time_s for index in timed], dtype=np.float64),
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
    terms
        Terms of the predictions, shape ``(num_runs, num_terms)``.
    stack
        Stack of the predictions; the worlds know the runs that it was calibrated with.
    """

    runs: Sequence[MeasuredRun]
    terms: FloatArray
    predicted_s: FloatArray
    stack: StackSpec
    leave_out_source: bool

    def worlds(self, run: MeasuredRun) -> Worlds:
        """Return the worlds before any run of the table is known."""
        worlds = Worlds.load(run.source if self.leave_out_source else None, is_fitted=self.stack.is_fitted)
        return worlds.given(observations_of(self.stack.anchors))

    def unknown(self) -> FloatArray:
        """Return the bands before any run is known, over the predicted time, shape ``(num_runs, 3)``."""
        bands = np.zeros((len(self.runs), 3))
        for rows in self._alike(("source",)):
            bands[rows] = self.worlds(self.runs[rows[0]]).bands(self.terms[rows])
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
        moved[rows] = self._known(index).bands(self.terms[rows])
        return moved, self._errors([(row, moved[row]) for row in others])

    def each(self, bands: FloatArray) -> tuple[FloatArray, Known | None]:
        """Return the bands averaged over the known runs of a row's job, and the errors of all pairs."""
        moved, pairs = bands.copy(), []
        for rows in self._alike(JOB):
            found = defaultdict(list)
            for index in [row for row in rows if not np.isnan(self._log_ratio(row))]:
                others = [row for row in rows if row != index]
                if others:
                    for row, band in zip(others, self._known(index).bands(self.terms[others]), strict=True):
                        found[row].append(band)
                        pairs.append((row, band))
            for row, own in found.items():
                moved[row] = np.exp(np.log(own).mean(axis=0))
        return moved, self._errors(pairs)

    def _known(self, index: int) -> Worlds:
        run = Observation(factors=self.terms[index], log_ratio=self._log_ratio(index))
        return self.worlds(self.runs[index]).given([run])

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
