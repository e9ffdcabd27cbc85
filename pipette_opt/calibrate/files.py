"""Predictions of measured runs as a CSV file."""

import csv
import io
from collections.abc import Sequence

from pipette_opt.calibrate.left_out import LeftOut
from pipette_opt.calibrate.predict import MEMORY_COLUMNS, Prediction


def predictions_csv(predictions: Sequence[Prediction], left_out: Sequence[LeftOut] = ()) -> str:
    """
    Return the predictions as CSV text, one line per run in order of ``row`` (0 for the first).

    Times are in seconds, memory in GiB. An empty cell means no value, and ``reason`` explains it. ``left_out`` are rows
    that could not be read.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "predicted_iter_time_s", "low_s", "high_s", *MEMORY_COLUMNS, "reason"])
    lines = [
        (
            prediction.run.row,
            _cell(prediction.iter_time_s),
            _cell(prediction.low_s),
            _cell(prediction.high_s),
            *(_cell(prediction.memory.get(name)) for name in MEMORY_COLUMNS),
            prediction.reason,
        )
        for prediction in predictions
    ]
    nothing = [""] * (3 + len(MEMORY_COLUMNS))
    lines += [(row.row, *nothing, row.reason) for row in left_out]
    writer.writerows(sorted(lines))
    return text.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
