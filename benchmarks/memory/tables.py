"""The evaluation of memory as tables of text."""

import numpy as np

from benchmarks.memory.evaluation import Evaluation
from benchmarks.memory.rivals import wilson


def slice_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """The table of errors by slice, as text."""
    return [
        {
            "runs": one.split,
            "slice": one.name,
            "peaks": str(one.num_peaks),
            "mean error": _percent(one.mean_error),
            "median": _percent(one.median_error),
            "measured over predicted": f"{one.bias:+.1%}",
        }
        for one in evaluation.slices
    ]


def method_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """The table of methods, as text."""
    rows = []
    for one in evaluation.methods:
        verdict = one.verdicts
        rows.append(
            {
                "runs": one.split,
                "method": one.method,
                "peaks": str(one.num_peaks),
                "mean error": _percent(one.mean_error),
                "median": _percent(one.median_error),
                "missed OOM": _share(verdict.missed, verdict.ran_out),
                "false alarms": _share(verdict.false, verdict.fitted),
                "accuracy": _percent(verdict.accuracy),
                "at even odds: accuracy": _percent(one.even.accuracy),
                "missed": _counts(one.even.missed, one.even.ran_out),
                "false": _counts(one.even.false, one.even.fitted),
                "best kept": f"{one.kept} of {one.groups}" if one.groups else "",
            }
        )
    return rows


def coverage_rows(evaluation: Evaluation) -> list[dict[str, str]]:
    """The table of coverage, as text."""
    return [
        {
            "runs": one.split,
            "stated": _percent(1 - one.risk),
            "attained": _percent(one.covered),
            "95 % interval": f"{one.low:.1%} - {one.high:.1%}",
            "peaks": str(one.num_runs),
            "holds": "yes" if one.holds else "no",
        }
        for one in evaluation.coverage
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
