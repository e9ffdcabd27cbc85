"""Predictions of measured runs as a CSV file, and as a scatter plot in SVG."""

import csv
import io
import math
from collections.abc import Sequence

from pipette_opt.calibrate.left_out import LeftOut
from pipette_opt.calibrate.predict import MEMORY_COLUMNS, Prediction
from pipette_opt.calibrate.rivals import RIVALS

RIVAL_COLUMNS = tuple(f"{name}_iter_time_s" for name in RIVALS)
"""Columns of the predictions with times by other systems' formulas."""

SIZE, MARGIN = 520.0, 60.0
"""Width and height of the plot, and the margin around its axes, pixels. Chosen."""

COLOURS = ("#1b6ca8", "#c8553d", "#3a7d44", "#8e5aa8", "#b8860b", "#4f5d75", "#00798c", "#d1495b")
"""Colours of the models in the plot, in order; repeated for more models."""


def predictions_csv(predictions: Sequence[Prediction], left_out: Sequence[LeftOut] = ()) -> str:
    """
    Return the predictions as CSV text, one line per run in order of ``row`` (0 for the first).

    Times are in seconds, memory in GiB. An empty cell means no value, and ``reason`` explains it. ``left_out`` are rows
    that could not be read.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["row", "predicted_iter_time_s", "low_s", "high_s", *MEMORY_COLUMNS, *RIVAL_COLUMNS, "reason"])
    lines = [
        (
            prediction.run.row,
            _cell(prediction.iter_time_s),
            _cell(prediction.low_s),
            _cell(prediction.high_s),
            *(_cell(prediction.memory.get(name)) for name in MEMORY_COLUMNS),
            *(_cell(prediction.rivals_s.get(name)) for name in RIVALS),
            prediction.reason,
        )
        for prediction in predictions
    ]
    nothing = [""] * (3 + len(MEMORY_COLUMNS) + len(RIVALS))
    lines += [(row.row, *nothing, row.reason) for row in left_out]
    writer.writerows(sorted(lines))
    return text.getvalue()


def scatter_svg(predictions: Sequence[Prediction], title: str = "") -> str:
    """
    Return an SVG plot of predicted over measured time on logarithmic axes, with one colour per model.

    Points on the diagonal are predicted exactly; the lines beside it are 10 % off.
    """
    points = [
        (prediction.measured_s, prediction.iter_time_s, prediction.run.model)
        for prediction in predictions
        if prediction.measured_s is not None and prediction.iter_time_s is not None
    ]
    values = [value for measured, predicted, _ in points for value in (measured, predicted)] or [1.0]
    low, high = math.log10(min(values)) - 0.05, math.log10(max(values)) + 0.05

    def place(value: float) -> float:
        return MARGIN + (math.log10(value) - low) / (high - low) * (SIZE - 2 * MARGIN)

    def line(factor: float, colour: str) -> str:
        ends = [(value, factor * value) for value in (10**low, 10**high)]
        (x1, y1), (x2, y2) = [(place(x), SIZE - place(y)) for x, y in ends]
        return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'

    models = list(dict.fromkeys(model for _, _, model in points))
    colour_of = {model: COLOURS[index % len(COLOURS)] for index, model in enumerate(models)}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{SIZE:.0f}" height="{SIZE:.0f}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{SIZE:.0f}" height="{SIZE:.0f}" fill="white"/>',
        f'<text x="{MARGIN}" y="24" font-size="13">{_escaped(title)}</text>',
        line(1.0, "#555"),
        line(1.1, "#ccc"),
        line(0.9, "#ccc"),
    ]
    for value in _ticks(low, high):
        at = place(value)
        parts.append(f'<text x="{at:.1f}" y="{SIZE - MARGIN + 16:.1f}" text-anchor="middle">{value:g}</text>')
        parts.append(f'<text x="{MARGIN - 6:.1f}" y="{SIZE - at + 4:.1f}" text-anchor="end">{value:g}</text>')
    parts += [
        f'<circle cx="{place(measured):.1f}" cy="{SIZE - place(predicted):.1f}" r="2.5" fill="{colour_of[model]}" '
        'fill-opacity="0.6"/>'
        for measured, predicted, model in points
    ]
    for index, model in enumerate(models[:20]):
        parts.append(
            f'<text x="{MARGIN + 8}" y="{MARGIN + 14 * index}" fill="{colour_of[model]}">{_escaped(model)}</text>'
        )
    parts += [
        f'<text x="{SIZE / 2}" y="{SIZE - 16}" text-anchor="middle">measured iteration time, s</text>',
        f'<text x="16" y="{SIZE / 2}" text-anchor="middle" transform="rotate(-90 16 {SIZE / 2})">predicted, s</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _ticks(low: float, high: float) -> list[float]:
    decades = range(math.floor(low), math.ceil(high) + 1)
    values = [step * 10.0**decade for decade in decades for step in (1, 2, 5)]
    return [value for value in values if low <= math.log10(value) <= high]


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
