"""``calibrate``: make a software stack of measured runs."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_stdout
from pipette_opt.base.units import counted
from pipette_opt.calibrate.fit import Fit, calibrate_runs
from pipette_opt.calibrate.left_out import LeftOut, left_out_lines, unread
from pipette_opt.calibrate.memory import fit_memory, memory_notes
from pipette_opt.job.inputs import described_cluster
from pipette_opt.library.arguments import Named, argument_errors, cluster_or_file, options_of
from pipette_opt.options.questions import CalibrateOptions
from pipette_opt.plans.summary import lines_at_most
from pipette_opt.read.runs import read_rows, unused_columns
from pipette_opt.read.stack import read_stack, write_stack
from pipette_opt.specs import ClusterSpec, StackSpec


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Calibrated:
    """
    A stack calibrated by measured runs, with its errors.

    Parameters
    ----------
    stack
        The stack with its anchors; written to a file, the argument ``software`` of other functions.
    fit
        Errors and ranges of the fit; ``None`` if no run has a usable time, so that only memory is fitted.
    left_out
        Rows that are not used, each with the reason.
    notes
        Sentences to read before the stack is used.
    """

    stack: StackSpec
    fit: Fit | None
    left_out: tuple[LeftOut, ...]
    num_rows: int
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        found = [f"source: {self.stack.source}"]
        if self.fit is not None:
            known = {"fit": self.fit.errors, "held out": self.fit.held_out, "larger jobs": self.fit.larger}
            found += [
                f"mean error, {name}: {100 * error.mean:.1f} %" for name, error in known.items() if error is not None
            ]
        return lines_at_most(f"stack {self.stack.name}", [*found, *self.left_out_lines(), *self.notes])

    def left_out_lines(self) -> list[str]:
        """Return a line for each reason why rows are left out, with the number of rows."""
        return left_out_lines(self.left_out, self.num_rows)


@argument_errors()
def calibrate(
    runs: Named,
    *,
    out: Named | None = None,
    cluster: Named | ClusterSpec | None = None,
    **options: Any,
) -> Calibrated:
    """
    Make a software stack of your own measured runs, with the remaining error.

    Parameters
    ----------
    runs
        Path of the measured runs, ``runs.csv``.
    out
        Path of the stack file to write; without it nothing is written.
    cluster
        Cluster of the runs, if its links were measured.
    options
        Fields of :class:`~pipette_opt.options.questions.CalibrateOptions`: ``base``, ``name``, ``max_runs``,
        ``validate`` and ``seed``.

    Raises
    ------
    InputError
        If an argument or a file is wrong, or no row can be used. ``where`` names the argument or the file.
    """
    (how,) = options_of(options, CalibrateOptions)
    file, measured_in = None if out is None else Path(out), Path(runs)
    measured, bad = read_rows(measured_in)
    start, total, left_out = read_stack(how.base), len(measured) + len(bad), unread(bad)
    today = cluster_or_file(cluster)
    hosts = None if today is None else described_cluster(today)[0]
    name = how.name or (measured_in.stem if file is None or is_stdout(file) else file.stem)
    aside = [note] if (note := unused_columns(measured)) else []
    if not measured:
        raise InputError(
            str(runs), "\n- ".join(["has no row that can be used; the reasons are:", *left_out_lines(left_out, total)])
        )
    memory, untold = fit_memory(measured, start)
    with_memory = start if untold else replace(start, memory=memory)
    fit = None
    try:
        fit = calibrate_runs(
            measured,
            with_memory,
            hosts,
            max_runs=how.max_runs,
            seed=how.seed,
            validate=how.validate,
            file=measured_in.name,
        )
    except InputError as error:
        if error.where != "calibrate" or untold:
            raise InputError(error.where, "\n- ".join([error.problem, *left_out_lines(left_out, total)])) from None
        stack, source = with_memory, f"memory fitted to {measured_in.name}, times as {start.name}"
        notes = [f"times: {error.problem}", f"times stay those of {start.name}", *memory_notes(memory)]
    else:
        stack = replace(fit.stack, memory=with_memory.memory)
        source = f"fitted to {counted(len(fit.cases), 'run')} of {measured_in.name}"
        left_out = [*left_out, *fit.left_out]
        notes = [*fit.notes, *memory_notes(memory, untold)]
    stack = replace(stack, name=name, source=source)
    if file is not None:
        write_stack(stack, file)
    return Calibrated(stack=stack, fit=fit, left_out=tuple(left_out), num_rows=total, notes=(*aside, *notes))
