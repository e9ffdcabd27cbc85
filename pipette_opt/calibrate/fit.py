"""
Calibration of a stack by measured runs: constants, and one factor of each job.

The runs become anchors of the stack (:class:`~pipette_opt.specs.stack.Anchor`). They move the constants to their
posterior mean, whose prior is of public runs; a constant that the runs do not tell stays as it was. With enough runs
the constants are also fitted (``problem.py``). Fitted constants are kept if they predict the largest jobs clearly
better, each side without the runs of these jobs. Either way the simulator works with the constants, and one factor of a
job remains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base import units
from pipette_opt.base.errors import InputError
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, why_untimed
from pipette_opt.calibrate.common import common_factor, slowed
from pipette_opt.calibrate.fit_notes import INTERRUPTED, mixed_notes, repeat_notes, version_notes
from pipette_opt.calibrate.free import informed_constants
from pipette_opt.calibrate.held_out import HeldOut
from pipette_opt.calibrate.known_runs import KnownRuns
from pipette_opt.calibrate.left_out import LeftOut, counted, left_out_lines, named, without_copies
from pipette_opt.calibrate.metrics import UNBELIEVABLE, Errors, measure
from pipette_opt.calibrate.predict import predicted_times_s, why_not_finite
from pipette_opt.calibrate.problem import Problem
from pipette_opt.calibrate.run_times import RunTimes
from pipette_opt.calibrate.versions import run_version, version_factors
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec
from pipette_opt.specs.stack import FITTED, KEPT
from pipette_opt.worlds.prior import Prior, shipped_priors

MIN_RUNS = 1
"""Fewest runs for a calibration. Chosen."""

MAX_RUNS = 100
"""Most runs that a calibration uses by default; a stack file of 400 takes seconds to read. Chosen."""

MIN_FITTED = 60
"""Fewest runs of unlike layouts or jobs for which constants are fitted. Chosen: some for each of a dozen constants."""

CLEARLY = 0.8
"""
Error of fitted constants on the largest jobs, over that of constants at their posterior mean, up to which they are
kept. Chosen: with less to gain, what the fit makes of a few largest jobs is chance.
"""

MIN_OTHERS = 3
"""Fewest runs that must remain when the largest jobs are left out. Chosen."""

FEW_RUNS = 20
"""Number of runs below which a note says that they are few. Chosen."""

OFF = 2.0
"""Ratio of predicted and measured time, either way, beyond which a run counts as badly off. Chosen."""

MAX_OFF = 0.5
"""Largest share of runs that the others predict badly; a calibration with more is refused. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """
    Calibrated stack and its errors.

    Parameters
    ----------
    base_errors, errors
        Errors on the runs, of the starting and of the calibrated stack.
    held_out
        Errors of runs that are predicted without their group; ``None`` with a single group, or if not asked for.
    larger
        Errors of the jobs with the most GPUs, predicted by the others; ``None`` if all have equally many GPUs.
    base_larger
        Errors of the starting stack on the same jobs.
    is_fitted
        Whether constants were fitted.
    left_out
        Runs with a measured time that the calibration did not use, each with its reason.
    notes
        Notes for people about the limits of the calibration.
    interrupted
        Whether Ctrl-C ended the cross-validation; the stack is complete.
    """

    stack: StackSpec
    cases: tuple[Case, ...]
    base_errors: Errors
    errors: Errors
    held_out: Errors | None
    larger: Errors | None
    base_larger: Errors | None
    is_fitted: bool
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    interrupted: bool = False

    @property
    def ranges(self) -> dict[str, list[int]]:
        """Smallest and largest value of each size among the runs; outside of these the stack extrapolates."""
        sizes = [_sizes(case) for case in self.cases]
        return {name: [min(case[name] for case in sizes), max(case[name] for case in sizes)] for name in sizes[0]}

    def record(self) -> dict[str, object]:
        """Return the record of the calibration for the stack file."""
        errors = {"fit": self.errors, "held_out_groups": self.held_out, "larger_jobs": self.larger}
        known = {name: errors_of for name, errors_of in errors.items() if errors_of is not None}
        return {
            "num_runs": len(self.cases),
            "constants": FITTED if self.is_fitted else KEPT,
            "ranges": self.ranges,
            "mean_error": {name: round(errors_of.mean, 4) for name, errors_of in known.items()},
            "p90_error": {name: round(errors_of.p90, 4) for name, errors_of in known.items()},
            "notes": list(self.notes),
        }


def _sizes(case: Case) -> dict[str, int]:
    """Return the sizes of a run by column of ``runs.csv``."""
    model, config = case.instance.model, case.config
    return {
        "num_gpus": case.run.num_gpus,
        "num_layers": model.num_layers,
        "hidden": model.hidden_size,
        "seq_len": case.instance.training.seq_length,
        "mbs": config.micro_batch_size,
        "tp": config.tensor_model_parallel_size,
        "pp": config.pipeline_model_parallel_size,
        "dp": config.data_parallel_size,
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Result:
    """Runs on a stack with their errors; ``held_out`` and ``larger`` as in :class:`Fit`."""

    known: KnownRuns
    larger: Errors | None
    held_out: Errors | None = None
    is_fitted: bool = False
    strays: tuple[LeftOut, ...] = ()
    interrupted: bool = False

    def is_clearly_better_than(self, other: "_Result") -> bool:
        """Return whether the largest jobs, or else groups, are predicted far better without their own runs."""
        for ours, theirs in ((self.larger, other.larger), (self.held_out, other.held_out)):
            if ours is not None and theirs is not None:
                return ours.median < CLEARLY * theirs.median
        return False


def calibrate_runs(
    runs: Sequence[MeasuredRun],
    base: StackSpec,
    cluster: ClusterSpec | None = None,
    *,
    max_runs: int = MAX_RUNS,
    seed: int = 0,
    validate: bool = True,
    file: str = "runs.csv",
    prior: Prior | None = None,
) -> Fit:
    """
    Calibrate a stack by all runs with a time.

    Parameters
    ----------
    base
        Starting stack. Its own anchors are kept unless constants are fitted.
    cluster
        Hosts of the runs, if their links were measured; the assumed links are then not fitted.
    max_runs
        Most runs that are used. More runs are sampled at random, equally many from each group where possible.
    validate
        Whether to cross-validate over groups. Ctrl-C ends it and keeps the calibration.
    file
        Name of the table, for the names of the anchors.
    prior
        Prior of the worlds; by default the shipped one.

    Raises
    ------
    InputError
        If no run can be used, or if the runs contradict each other.
    """
    base = replace(base, versions=None)
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
    base = base.unmoved
    known = KnownRuns.of([usable[index] for index in indices], base, cluster, prior or shipped_priors().all_sources)
    known, strays = known.without_strays()
    _check_agreement(known, strays)
    base_errors = measure(known.expected_s(known.stack), known.measured_s)
    base_larger = known.base_larger(MIN_OTHERS)
    known = _of_versions(known, last)
    result = _validated(_Result(known=known, larger=known.larger(MIN_OTHERS)), known.groups, validate)
    if len(set(map(tuple, known.terms.tolist()))) >= MIN_FITTED:
        fitted = _fitted(known, validate)
        result = fitted if fitted.is_clearly_better_than(result) else result
    known = result.known
    stack = known.calibrated(file)
    fit = Fit(
        stack=stack,
        cases=tuple(known.cases),
        base_errors=base_errors,
        errors=measure(known.expected_s(stack), known.measured_s),
        held_out=result.held_out,
        larger=result.larger,
        base_larger=base_larger,
        is_fitted=result.is_fitted,
        left_out=(*left_out, *strays, *result.strays),
        notes=(
            *repeat_notes(known.runs),
            *_notes(known, base_larger, result),
            *mixed_notes(known.runs, known.log_ratio),
            *version_notes(stack, known.runs, last),
            *((INTERRUPTED,) if result.interrupted else ()),
        ),
        interrupted=result.interrupted,
    )
    return replace(fit, stack=replace(stack, fitted=fit.record()))


def _check_agreement(known: KnownRuns, strays: Sequence[LeftOut]) -> None:
    """Raise ``InputError`` if most runs are far from what the others say of them."""
    if len(known.cases) + len(strays) < MIN_OTHERS:
        return
    ratios = np.exp(known.by_others()[0])
    off = [run.row for run, ratio in zip(known.runs, ratios.tolist(), strict=True) if not 1 / OFF < ratio < OFF]
    off += [row for row, _ in strays]
    total = len(known.cases) + len(strays)
    if len(off) > MAX_OFF * total:
        raise InputError(
            "calibrate",
            f"no stack fits: {len(off)} of {total} runs ({named(off)}) are off by more than a factor of {OFF:g} from "
            "what the others say. Check their units, and that their columns describe the runs completely.",
        )


def _of_versions(known: KnownRuns, last: str) -> KnownRuns:
    """Return the runs on a stack with a time factor for each older version of the software."""
    ours = [index for index, run in enumerate(known.runs) if run_version(run) == last]
    if len(ours) in (0, len(known.cases)):
        return known
    mean, _ = known.worlds(ours).mean_and_sd(known.terms)
    factors = version_factors(known.runs, known.log_ratio - known.job_means() - mean, last)
    return known.on(replace(known.stack, versions=factors)) if factors else known


def _fitted(known: KnownRuns, validate: bool) -> _Result:
    """Return the runs on a stack whose constants are fitted to them, with the errors of refits without some runs."""
    base = slowed(known.stack, common_factor(known.measured_s, known.predicted_s))
    problem = Problem(
        times=RunTimes(known.cases, known.cluster, {}), base=base, free=informed_constants(known.cases, known.cluster)
    )
    found, stack = problem.fit()
    others = HeldOut(problem=problem, found=found, references=known.references, prior=known.prior)
    stack = replace(stack, anchors=(), fitted={"constants": FITTED})
    known, strays = known.on(stack).without_unfitted()
    result = _Result(known=known, larger=others.larger(MIN_OTHERS), is_fitted=True, strays=tuple(strays))
    return _validated(result, others.groups, validate)


def _validated(result: _Result, groups: Callable[[], Errors | None], validate: bool) -> _Result:
    """Return the result with the errors of a cross-validation over groups; an interrupt leaves them unknown."""
    try:
        return replace(result, held_out=groups()) if validate else result
    except KeyboardInterrupt:  # keep the calibration, which took its time
        return replace(result, interrupted=True)


def _notes(known: KnownRuns, base_larger: Errors | None, result: _Result) -> tuple[str, ...]:
    """Return notes on fitted constants, on larger jobs, and on a small number of runs."""
    notes = []
    if result.is_fitted:
        notes.append("constants are fitted; one factor of each job tells what they leave")
    if base_larger is not None and result.larger is not None and result.larger.median > base_larger.median:
        notes.append(
            f"the largest jobs are {100 * base_larger.median:.1f} % off in the median by the starting stack, and "
            f"{100 * result.larger.median:.1f} % by the smaller runs: do not trust this calibration for larger "
            "jobs than it has seen"
        )
    if len(known.runs) < FEW_RUNS:
        notes.append(f"only {units.counted(len(known.runs), 'run')}: bands are wide away from them")
    return tuple(notes)


def usable_cases(
    runs: Sequence[MeasuredRun], base: StackSpec, cluster: ClusterSpec | None = None
) -> tuple[list[Case], list[LeftOut]]:
    """
    Return the cases that a fit can use, and every other run with a time, with its reason.

    Unusable are runs that the starting stack cannot time, and runs off by more than the factor ``UNBELIEVABLE``, whose
    times must be in another unit.
    """
    cases = make_cases([run for run in runs if run.iter_time_s is not None and not run.oom], base, cluster)
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
