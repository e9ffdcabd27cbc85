"""
Fit of a stack's constants to measured runs.

Robust least squares: the residual of a run is the logarithm of predicted over measured time. A Huber loss keeps a few
bad runs from deciding. Each constant has a prior around the starting stack, scaled by the common slowdown of the runs
(``common.py``). The width of the prior is the spread of the constant among stacks. All runs share all constants: no
row, model or number of GPUs has its own. The remaining residuals determine correction factors by layer shape
(``layers.py``). Cross-validation holds out whole groups of runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from pipette_opt.base import units
from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, why_untimed
from pipette_opt.calibrate.common import common_factor, slowed
from pipette_opt.calibrate.fit_notes import (
    INTERRUPTED,
    layer_notes,
    mixed_notes,
    repeat_notes,
    version_notes,
    weak_notes,
)
from pipette_opt.calibrate.free import informed_constants
from pipette_opt.calibrate.held_out import HeldOut
from pipette_opt.calibrate.left_out import LeftOut, counted, left_out_lines, named, without_copies
from pipette_opt.calibrate.metrics import UNBELIEVABLE, Errors, measure
from pipette_opt.calibrate.predict import predicted_times_s, why_not_finite
from pipette_opt.calibrate.problem import Problem
from pipette_opt.calibrate.run_times import RunTimes
from pipette_opt.calibrate.versions import run_version, version_factors
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.worlds.bands import COLUMN_DISTANCES, MORE_OF, RESIDUALS, job_kind

MIN_RUNS = 1
"""Fewest runs for a fit. Chosen."""

MIN_OTHERS = 3
"""Fewest runs that must remain when a fit holds out the largest jobs, or the largest values of a column. Chosen."""

OFF = 2.0
"""Ratio of predicted and measured time, either way, beyond which a fitted run counts as badly off. Chosen."""

MAX_OFF = 0.5
"""Largest share of badly predicted runs; a fit with more is refused. Chosen."""

VERSION_ROUNDS = 2
"""Most rounds of fitting version factors and constants in turn. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """
    Calibrated stack and its errors.

    Parameters
    ----------
    kinds
        Kinds of job among the runs, see :func:`~pipette_opt.worlds.bands.job_kind`.
    errors
        Errors on the fitted runs.
    middle
        Geometric mean of measured over predicted time, over the runs and one additional run with the ratio 1.
    held_out
        Errors of runs that are predicted by fits without their group; ``None`` with a single group.
    larger
        Errors of the jobs with the most GPUs, predicted by a fit to the others; ``None`` if all have equally many GPUs.
    more
        Errors of the runs with the largest value of a column, predicted by a fit to the others; by column.
    left_out
        Runs with a measured time that the fit did not use, each with its reason.
    notes
        Notes for people about the limits of the fit.
    interrupted
        Whether Ctrl-C ended the cross-validation; the stack is complete.
    """

    stack: StackSpec
    runs: tuple[MeasuredRun, ...]
    kinds: tuple[str, ...]
    errors: Errors
    middle: float
    held_out: Errors | None
    larger: Errors | None
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    interrupted: bool = False
    more: Mapping[str, Errors] = field(default_factory=dict)

    @property
    def ranges(self) -> dict[str, list[int]]:
        """Smallest and largest value of each size among the runs; outside of these the stack extrapolates."""
        found = {}
        for name in ("num_gpus", "num_layers", "hidden", "seq_len", "mbs", "tp", "pp", "dp"):
            values = [value for run in self.runs if (value := getattr(run, name)) is not None]
            if values:
                found[name] = [min(values), max(values)]
        return found

    def record(self) -> dict[str, object]:
        """Return the record of the fit for the stack file."""
        errors = {"fit": self.errors, "held_out_groups": self.held_out, "larger_jobs": self.larger}
        errors |= {f"{MORE_OF}{column}": errors_of for column, errors_of in self.more.items()}
        known = {name: errors_of for name, errors_of in errors.items() if errors_of is not None}
        return {
            "num_runs": len(self.runs),
            "ranges": self.ranges,
            "mean_error": {name: round(errors_of.mean, 4) for name, errors_of in known.items()},
            "p90_error": {name: round(errors_of.p90, 4) for name, errors_of in known.items()},
            "apart": {
                name: round(errors_of.apart, 3) for name, errors_of in known.items() if errors_of.apart is not None
            },
            RESIDUALS: {
                "middle": round(self.middle, 4),
                "spread": round((self.held_out or self.errors).rms, 4),
                "kinds": list(self.kinds),
            },
            "notes": list(self.notes),
        }


def calibrate_runs(
    runs: Sequence[MeasuredRun],
    base: StackSpec,
    cluster: ClusterSpec | None = None,
    *,
    max_runs: int = 400,
    seed: int = 0,
    validate: bool = True,
) -> Fit:
    """
    Fit the free constants of a stack to all runs with a time.

    Parameters
    ----------
    base
        Starting stack, which centres the priors.
    cluster
        Hosts of the runs, if their links were measured; the assumed links are then not fitted.
    max_runs
        Most runs for fitting the constants. More runs are sampled at random, equally many from each group where
        possible; correction factors of layers use all runs.
    validate
        Whether to cross-validate, which takes less time than the fit. Ctrl-C ends it and keeps the fit.

    Raises
    ------
    InputError
        If no run can be used, or if no constants fit the runs.
    """
    base = replace(base, layers=None, versions=None)
    different, copies = without_copies(runs)
    usable, left_out = usable_cases(different, base, cluster)
    left_out += copies
    if len(usable) < MIN_RUNS:
        without = len(runs) - len(usable) - len(left_out)
        lines = left_out_lines(left_out, len(runs))
        lines += [f"{without} of {counted(len(runs))} without a time, or out of memory"] if without else []
        problem_text = "needs a run with a time that can be predicted."
        raise InputError("calibrate", "\n- ".join([problem_text, *lines]))
    last = run_version(different[-1])
    indices = _sample([case.run for case in usable], max_runs, np.random.default_rng(seed), last)
    timed_s = np.array([case.run.iter_time_s for case in usable], dtype=np.float64)
    base = slowed(base, common_factor(timed_s, predicted_times_s(usable)))
    free = informed_constants([usable[index] for index in indices], cluster)
    every = Problem(times=RunTimes(usable, cluster, {}), base=base, free=free)
    problem = every.subset(indices)
    found, stack = problem.fit()
    first = found
    for _ in range(VERSION_ROUNDS):
        factors = version_factors(problem.runs, problem.residuals(stack), last, stack.versions)
        if not factors:
            break
        every = replace(every, base=replace(every.base, versions=factors))
        problem = every.subset(indices)
        found, stack = problem.fit(found, first.slopes)
    if found is not first:
        found, stack = problem.fit(found)
    if len(indices) < len(usable):
        stack = every.with_learned_layers(stack)
    predicted, measured = problem.with_stack_s(stack), problem.measured_s
    off = [run.row for run, ratio in zip(problem.runs, predicted / measured, strict=True) if not 1 / OFF < ratio < OFF]
    if len(off) > MAX_OFF * len(problem.runs):
        raise InputError(
            "calibrate",
            f"no constants fit: {len(off)} of {len(problem.runs)} runs ({named(off)}) stay off by more than a factor "
            f"of {OFF:g}. Check their units, and that their columns describe the runs completely.",
        )
    held_out = larger = None
    more: dict[str, Errors] = {}
    interrupted = False
    try:
        if validate:
            others = HeldOut(problem=problem, found=found)
            held_out, larger = others.groups(), others.larger(MIN_OTHERS)
            for column in COLUMN_DISTANCES:
                if (errors := others.with_more(column, MIN_OTHERS)) is not None:
                    more[column] = errors
    except KeyboardInterrupt:  # keep the fit, which took its time
        interrupted = True
    return Fit(
        stack=stack,
        runs=tuple(problem.runs),
        kinds=tuple(sorted({job_kind(case.instance) for case in problem.cases})),
        errors=measure(predicted, measured),
        middle=float(np.exp(np.log(measured / predicted).sum() / (len(measured) + 1))),
        held_out=held_out,
        larger=larger,
        left_out=tuple(left_out),
        notes=(
            *repeat_notes(problem.runs),
            *([f"{named(off)} still off by more than a factor of {OFF:g} after the fit"] if off else []),
            *_notes(problem, found.values),
            *mixed_notes(problem.runs, np.log(measured / predicted)),
            *weak_notes(problem.free, problem.relative_uncertainty(found), base),
            *layer_notes(stack),
            *version_notes(stack, problem.runs, last),
            *((INTERRUPTED,) if interrupted else ()),
        ),
        interrupted=interrupted,
        more=more,
    )


def usable_cases(
    runs: Sequence[MeasuredRun], base: StackSpec, cluster: ClusterSpec | None = None
) -> tuple[list[Case], list[LeftOut]]:
    """
    Return the cases that a fit can use, and every other run with a time, with its reason.

    Unusable are runs that the starting stack cannot time, and runs off by more than the factor ``UNBELIEVABLE``, whose
    times must be in another unit.
    """
    cases = make_cases(_timed(runs), base, cluster)
    reasons = [case.reason if isinstance(case, Skipped) else why_untimed(case) for case in cases]
    left_out = [LeftOut(case.run.row, reason) for case, reason in zip(cases, reasons, strict=True) if reason]
    known = [case for case, reason in zip(cases, reasons, strict=True) if isinstance(case, Case) and not reason]
    usable = []
    for case, time_s in zip(known, predicted_times_s(known).tolist(), strict=True):
        measured_s = case.run.iter_time_s or 0.0
        if not 0 < time_s < np.inf:
            left_out.append(LeftOut(case.run.row, why_not_finite(case)))
        elif not time_s / UNBELIEVABLE < measured_s < UNBELIEVABLE * time_s:
            ratio = measured_s / time_s
            times = f"{ratio:,.0f}" if ratio > 1.0 else f"{ratio:.2g}"
            reason = f"takes {times} times what {base.name} predicts: iter_time_s must be in seconds"
            left_out.append(LeftOut(case.run.row, reason))
        else:
            usable.append(case)
    return usable, left_out


def _timed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if run.iter_time_s is not None and not run.oom]


def _sample(runs: Sequence[MeasuredRun], size: int, rng: np.random.Generator, last: str) -> list[int]:
    """
    Return sorted indices of a random sample of runs, drawn from each group in turn.

    Runs of the last software version form their own groups, so that the sample has enough of them.
    """
    if len(runs) <= size:
        return list(range(len(runs)))
    groups: dict[tuple[object, ...], list[int]] = {}
    for index, run in enumerate(runs):
        groups.setdefault((run.group, run_version(run) == last), []).append(index)
    queues = [[members[index] for index in rng.permutation(len(members))] for members in groups.values()]
    chosen: list[int] = []
    while len(chosen) < size:
        for queue in queues:
            if queue and len(chosen) < size:
                chosen.append(queue.pop())
    return sorted(chosen)


def _notes(problem: Problem, values: FloatArray) -> tuple[str, ...]:
    """Return notes on constants far from their prior centres, and on a small number of runs."""
    notes = []
    for constant, value, centre in zip(problem.free, values.tolist(), problem.centre.tolist(), strict=True):
        if abs(value - centre) > 2.0 * constant.spread:
            notes.append(f"{constant.name} is {np.exp(value):.3g}, unusually far from {np.exp(centre):.3g}")
    if len(problem.runs) < 20:
        notes.append(
            f"only {units.counted(len(problem.runs), 'run')}: most constants stay close to those of {problem.base.name}"
        )
    return tuple(notes)
