"""Parts of the back-test page: head, tables, and results of picks."""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.backtest.fitting import RISK
from benchmarks.backtest.rivals import form_rows
from benchmarks.page import made_by
from pipette_opt.calibrate.metrics import measure, measure_predictions
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.calibrate.tables import group_rows

GOOD_PICK = 0.02
"""Maximum excess over the best measured run with which a pick counts as good. Chosen."""


def head() -> str:
    """Return the head: versions, and definitions of the tables' terms."""
    return (
        f"# Back-test\n\n{made_by()}\n\n"
        "Error: `|predicted / measured - 1|`. Rank: Spearman's correlation. "
        "Regret: measured time of the configuration predicted fastest over the fastest measured time of the same job, "
        "minus one; the table has the worst job of the worst group. Rows of one model name and number of GPUs may be "
        "several jobs: another batch, vocabulary or number of key-value heads. Pick: the configuration predicted "
        "fastest among those predicted to fit with a risk of at most 1 %, also of runs that ran out of memory. The "
        "table has the number of groups whose pick ran and was within 2 % of the fastest, and the worst pick. Memory "
        "is calibrated on the same rows as the times. All formulas have the same costs, ours. No constant belongs to a "
        "row, a model or a group.\n"
    )


def summary(rows: Sequence[str]) -> str:
    """Return the first table, with a row for each experiment."""
    return "\n".join(
        [
            "| experiment | fitted to | tested on | mean | p90 | rank | worst regret | pick within 2 % | wanted |",
            "|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
        ]
    )


def result_row(name: str, num_seen: int, predictions: Sequence[Prediction], target: str) -> str:
    """Return the row of an experiment in the first table."""
    errors = measure_predictions(predictions)
    if errors is None:
        return f"| {name} | {num_seen} | 0 | | | | | | {target} |"
    groups = group_rows(predictions, RISK)
    regret = max((float(str(row["regret"])) for row in groups), default=0.0)
    rank = "" if math.isnan(errors.spearman) else f"{errors.spearman:.3f}"
    return (
        f"| {name} | {num_seen} | {errors.num_runs} | {errors.mean:.1%} | {errors.p90:.1%} | {rank} | "
        f"{regret:.1%} | {picks(groups)} | {target} |"
    )


def group_lines(predictions: Sequence[Prediction]) -> list[str]:
    """Return a table of our errors by model, sequence length, GPUs and kernel."""
    lines = [
        "| model | seq | GPUs | kernel | runs | mean | p90 | rank | regret | pick |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in group_rows(predictions, RISK):
        rank = row["spearman"]
        lines.append(
            f"| {row['model']} | {row['seq_len']} | {row['num_gpus']} | {row['kernel']} | {row['num_runs']} | "
            f"{row['mean_error']:.1%} | {row['p90_error']:.1%} | {'' if rank is None else f'{rank:.3f}'} | "
            f"{row['regret']:.1%} | {row['pick']} |"
        )
    return lines


def left_out(predictions: Sequence[Prediction]) -> list[str]:
    """Return the number of measured runs without a prediction, by reason."""
    reasons = Counter(
        prediction.reason for prediction in predictions if prediction.reason and prediction.measured_s is not None
    )
    return [f"Not predicted: {count} ({reason}).\n" for reason, count in reasons.most_common()]


def picks(groups: Sequence[Mapping[str, object]]) -> str:
    """Return the number of groups whose pick ran and was within 2 % of the best, and the worst pick, as text."""
    picked = [row for row in groups if "pick_ran" in row]
    if not picked:
        return ""
    regrets = [float(str(row["pick_regret"])) for row in picked if row["pick_regret"] is not None]
    good = sum(regret <= GOOD_PICK for regret in regrets)
    died = sum(row["pick_ran"] is False for row in picked)
    worst = f"worst {max(regrets):.1%}" if regrets else ""
    return f"{good} of {len(picked)}, {died} died, {worst}"


def forms(of_forms: Mapping[str, Sequence[Prediction]]) -> list[str]:
    """Return a table of our errors beside those of other papers' formulas, of predictions by form."""
    lines = ["| form | mean | p90 | rank in groups | worst regret |", "|---|---|---|---|---|"]
    for row in form_rows(of_forms):
        rank = row["mean_group_spearman"]
        lines.append(
            f"| {row['form']} | {row['mean_error']:.1%} | {row['p90_error']:.1%} | "
            f"{'' if rank is None else f'{rank:.3f}'} | "
            f"{'' if row['worst_regret'] is None else format(row['worst_regret'], '.1%')} |"
        )
    return [*lines, ""]


def own_predictor(predictions: Sequence[Prediction]) -> str:
    """Return the errors of AMP's own predictions, which the notes of its results contain; empty without any."""
    pairs = [
        (float(found.group(1)), prediction.measured_s)
        for prediction in predictions
        if prediction.measured_s is not None
        and prediction.iter_time_s is not None
        and (found := re.search(r"AMP predicted cost \(not measured\) ([\d.]+)", prediction.run.notes))
    ]
    if not pairs:
        return ""
    theirs, measured = np.array(pairs, dtype=np.float64).T
    errors = measure(theirs, measured)
    return f"AMP's own predictor on the same runs: mean {errors.mean:.1%}, rank {errors.spearman:.3f}.\n"
