"""Tables of back-test errors for people."""

import math
from collections.abc import Iterable, Mapping, Sequence

from pipette_opt.base.table import Table
from pipette_opt.base.units import counted, percent
from pipette_opt.calibrate.fit import Fit
from pipette_opt.calibrate.metrics import Errors, Pick, by_group, measure_predictions, pick
from pipette_opt.calibrate.predict import Prediction

ERRORS = {"num_runs": "runs", "mean_error": "mean", "p90_error": "p90", "median_ratio": "ratio", "spearman": "rank"}
"""Headings of the columns of errors, by entry of :func:`errors_entry`."""


def group_rows(predictions: Sequence[Prediction], max_oom_risk: float) -> list[dict[str, object]]:
    """Return an entry per group with a measured time: name, errors of our times, pick if memory is predicted."""
    rows: list[dict[str, object]] = []
    for (model, seq_len, num_gpus, kernel), members in by_group(predictions).items():
        errors = measure_predictions(members)
        if errors is None:
            continue
        row: dict[str, object] = {"model": model, "seq_len": seq_len, "num_gpus": num_gpus, "kernel": kernel}
        row |= errors_entry(errors)
        found = pick(members, max_oom_risk)
        if found is not None:
            row |= {"pick_ran": found.ran, "pick_regret": None if math.isnan(found.regret) else found.regret}
        row["pick"] = pick_text(found)
        rows.append(row)
    return rows


def errors_entry(errors: Errors) -> dict[str, object]:
    """Return errors as plain data; undefined values are ``None``."""
    values = {
        "num_runs": errors.num_runs,
        "mean_error": errors.mean,
        "p90_error": errors.p90,
        "median_ratio": errors.bias,
        "spearman": errors.spearman,
        "regret": errors.regret,
    }
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in values.items()}


def pick_text(found: Pick | None) -> str:
    """Return the outcome of a pick as text for people."""
    if found is None:
        return ""
    if found.ran is None:
        return "not run"
    return f"ran, {percent(found.regret, '+')}" if found.ran else "out of memory"


def group_table(predictions: Sequence[Prediction], max_oom_risk: float) -> Table:
    """Return a table of the errors of our times by group."""
    title = "By model, sequence length, GPUs and attention kernel"
    names = {"model": "model", "seq_len": "seq", "num_gpus": "GPUs", "kernel": "kernel"}
    return _table(title, names, ERRORS | {"regret": "regret", "pick": "pick"}, group_rows(predictions, max_oom_risk))


def fit_table(fit: Fit) -> Table:
    """Return a table of the errors of the starting stack, and of a calibration on its own runs and on held-out runs."""
    rows = [
        {"over": name} | errors_entry(errors)
        for name, errors in (
            ("all runs, starting stack", fit.base_errors),
            ("all runs, calibrated", fit.errors),
            ("groups left out in turn", fit.held_out),
            ("the largest jobs, starting stack", fit.base_larger),
            ("the largest jobs, by the others", fit.larger),
        )
        if errors is not None
    ]
    numbers = {name: heading for name, heading in ERRORS.items() if name != "median_ratio"}
    return _table(f"Calibrated by {counted(len(fit.cases), 'run')}", {"over": "over"}, numbers, rows)


def _table(
    title: str, names: Mapping[str, str], numbers: Mapping[str, str], rows: Iterable[Mapping[str, object]]
) -> Table:
    """Return a table of entries of rows; ``names`` and ``numbers`` hold the headings of its columns by entry."""
    return Table(
        title=title,
        headers=(*names.values(), *(f"{heading} >" for heading in numbers.values())),
        rows=[[_text(entry, row[entry]) for entry in (*names, *numbers)] for row in rows],
    )


def _text(entry: str, value: object) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if not isinstance(value, float):
        return str(value)
    return percent(value) if entry.endswith(("error", "regret")) else f"{value:.3f}"
