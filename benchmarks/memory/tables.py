"""Tables of the memory evaluation as text."""

import numpy as np

from benchmarks.memory.evaluation import Evaluation
from benchmarks.memory.verdicts import wilson


def method_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return one row of text for each memory predictor, with its errors on the evaluated runs."""
    rows = []
    for row in evaluation.methods:
        verdict = row.verdicts
        rows.append(
            {
                "runs": row.split,
                "method": row.method,
                "peaks": str(row.num_peaks),
                "mean error": _percent(row.mean_error),
                "median": _percent(row.median_error),
                "missed OOM": _share(verdict.missed, verdict.ran_out),
                "false alarms": _share(verdict.false, verdict.fitted),
                "accuracy": _percent(verdict.accuracy),
                "at even odds: accuracy": _percent(row.even.accuracy),
                "missed": _counts(row.even.missed, row.even.ran_out),
                "false": _counts(row.even.false, row.even.fitted),
                "best kept": f"{row.kept} of {row.groups}" if row.groups else "",
            }
        )
    return rows


def coverage_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """Return the table of coverage as rows of text."""
    return [
        {
            "runs": row.split,
            "stated": _percent(1 - row.risk),
            "attained": _percent(row.covered),
            "95 % interval": f"{row.low:.1%} - {row.high:.1%}",
            "peaks": str(row.num_runs),
            "holds": "yes" if row.holds else "no",
        }
        for row in evaluation.coverage
    ]


def _percent(value: float) -> str:
    return "" if not np.isfinite(value) else f"{value:.1%}"


def _counts(hits: int, total: int) -> str:
    return f"{hits} of {total}" if total else ""


def _share(hits: int, total: int) -> str:
    if not total:
        return ""
    low, high = wilson(hits, total)
    return f"{hits} of {total}: {hits / total:.1%} ({low:.1%} - {high:.1%})"
