"""``backtest``: predictions beside measured runs."""

from dataclasses import dataclass
from functools import partial
from os import fspath
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import write_atomically
from pipette_opt.base.risk import USUAL_RISK
from pipette_opt.calibrate.bands import with_bands
from pipette_opt.calibrate.files import predictions_csv
from pipette_opt.calibrate.left_out import LeftOut, left_out_lines, unread
from pipette_opt.calibrate.memory import memory_columns
from pipette_opt.calibrate.predict import Prediction, predict_runs
from pipette_opt.library.arguments import Named, argument_errors
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.runs import read_rows, unused_columns
from pipette_opt.read.stack import read_stack


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Backtested:
    """
    Predictions of measured runs.

    Parameters
    ----------
    left_out, untimed
        Rows that are not used, and rows without a predicted time, each with the reason.
    lines
        A line for each of these reasons, with the number of rows, and notes on the file.
    """

    predictions: tuple[Prediction, ...]
    num_rows: int
    left_out: tuple[LeftOut, ...]
    untimed: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    lines: tuple[str, ...]


@argument_errors()
def backtest(
    runs: Named,
    *,
    software: Named | None = None,
    out: Named | None = None,
    cluster: Named | None = None,
    max_oom_risk: float = USUAL_RISK,
) -> Backtested:
    """
    Compare predictions with measured runs.

    Parameters
    ----------
    runs
        Path of the measured runs, ``runs.csv``.
    software
        A stack: a shipped name or a file.
    out
        CSV file to write the predictions to; without it nothing is written.
    cluster
        Cluster file of the hosts that the runs used, if their links were measured.
    max_oom_risk
        Probability with which a run exceeds the upper peak of memory, in (0, 1).

    Raises
    ------
    InputError
        If an argument or a file is wrong, or no row can be predicted. ``where`` names the argument or the file.
    """
    if not 0 < max_oom_risk < 1:
        raise InputError("--max-oom-risk", f"must be in (0, 1), got {max_oom_risk}.")
    stack = read_stack(fspath(software)) if software else read_stack()
    measured, bad = read_rows(Path(runs))
    hosts = read_cluster(cluster) if cluster else None
    memory = partial(memory_columns, memory_constants=stack.memory, max_oom_risk=max_oom_risk)
    predictions = with_bands(predict_runs(measured, stack, hosts, memory=memory), stack, hosts)
    left_out, total = unread(bad), len(measured) + len(bad)
    untimed = [LeftOut(prediction.run.row, prediction.reason) for prediction in predictions if prediction.reason]
    timeless = [LeftOut(run.row, run.dropped_time.rstrip(".")) for run in measured if run.dropped_time]
    lines = [*left_out_lines(left_out, total), *left_out_lines(untimed, total, "without a predicted time")]
    lines += left_out_lines(timeless, total, "without their measured time")
    if all(prediction.reason and not prediction.memory for prediction in predictions):
        raise InputError(str(runs), "\n- ".join(["has no row that can be predicted; the reasons are:", *lines]))
    if out is not None:
        write_atomically(Path(out), predictions_csv(predictions, left_out))
    notes = [note] if (note := unused_columns(measured)) else []
    return Backtested(
        predictions=tuple(predictions),
        num_rows=total,
        left_out=tuple(left_out),
        untimed=tuple(untimed),
        notes=tuple(notes),
        lines=(*lines, *notes),
    )
