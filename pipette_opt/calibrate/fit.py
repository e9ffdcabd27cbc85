"""
Fit the constants of a stack to measured runs.

Robust least squares: the residual of a run is the logarithm of predicted over measured time, under a Huber loss, so
that a few spoiled runs do not decide. Every constant has a prior around the starting stack, as wide as such constants
differ between stacks, so that what the runs do not tell stays as it was. All runs share every constant; there is none
for a row, a model or a number of GPUs. What remains teaches the factors of layers (``layers.py``). Cross-validation
leaves out whole groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, untimed, with_stack
from pipette_opt.calibrate.descent import NOISE, LeastSquares, badness, descend
from pipette_opt.calibrate.edge import edge_risks
from pipette_opt.calibrate.fit_notes import INTERRUPTED, layer_notes, repeat_notes, version_notes
from pipette_opt.calibrate.free import Free, told_constants
from pipette_opt.calibrate.layers import learn_layers
from pipette_opt.calibrate.left_out import LeftOut, counted, left_out_lines, named
from pipette_opt.calibrate.losing import group_chances
from pipette_opt.calibrate.metrics import UNBELIEVABLE, Errors, measure
from pipette_opt.calibrate.predict import NOT_FINITE, predicted_times_s
from pipette_opt.calibrate.versions import run_version, version_factors
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec

MOST_RARE = 16.0
"""Fewer runs of a number of GPUs than this share of the usual have no more say."""

MIN_RUNS = 3

OFF = 2.0
"""Predicted over measured time, or its inverse, from which on a fitted run is called badly off; chosen."""

MOST_OFF = 0.5
"""Share of the runs that may be badly off; with more the fit is refused."""

FIRST_ITERATIONS, MAX_ITERATIONS = 3, 60
"""From each start, to choose one; and from that."""

FOLDS = 4
VERSION_ROUNDS, GROUP_ROUNDS = 2, 12
SETTLED = 0.02
"""Change of what groups are likely to lose that is small enough to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """
    A calibrated stack and how far to trust it.

    Parameters
    ----------
    errors
        Over the runs it was fitted to.
    held_out
        Each run predicted by a fit that saw no run of its group; ``None`` with a single group.
    larger
        The largest jobs, predicted by a fit to the others; ``None`` if all have equally many GPUs.
    left_out
        Runs with a time that was not used, and why.
    notes
        What to know before using it, for people.
    interrupted
        Whether cross-validation was, by Ctrl-C; the stack is whole.
    """

    stack: StackSpec
    runs: tuple[MeasuredRun, ...]
    errors: Errors
    held_out: Errors | None
    larger: Errors | None
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    interrupted: bool = False

    @property
    def ranges(self) -> dict[str, list[int]]:
        """Smallest and largest of what the runs had; beyond it the stack extrapolates."""
        found = {}
        for name in ("num_gpus", "num_layers", "hidden", "seq_len", "mbs", "tp", "pp", "dp"):
            values = [value for run in self.runs if (value := getattr(run, name)) is not None]
            if values:
                found[name] = [min(values), max(values)]
        return found

    def record(self) -> dict[str, object]:
        """What the stack's file says about its making."""
        errors = {"fit": self.errors, "held_out_groups": self.held_out, "larger_jobs": self.larger}
        known = {name: one for name, one in errors.items() if one is not None}
        return {
            "num_runs": len(self.runs),
            "ranges": self.ranges,
            "mean_error": {name: round(one.mean, 4) for name, one in known.items()},
            "p90_error": {name: round(one.p90, 4) for name, one in known.items()},
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
    Fit the free constants to all runs with a time; ``base`` is where the priors are centred.

    Parameters
    ----------
    cluster
        The hosts of the runs, if their links were measured; then the assumed links are not fitted.
    max_runs
        Of more runs a random sample of this size is used for constants, equally many of each group as far as possible;
        factors of layers are learned from all.
    validate
        Whether to cross-validate, which takes as long as a few fits; Ctrl-C then ends it, and the fit is kept.
    """
    base = replace(base, layers=None, versions=None)
    usable, left_out = usable_cases(runs, base, cluster)
    if len(usable) < MIN_RUNS:
        without = len(runs) - len(usable) - len(left_out)
        lines = left_out_lines(left_out, len(runs))
        lines += [f"{without} of {counted(len(runs))} without a time, or out of memory"] if without else []
        said = f"needs at least {MIN_RUNS} runs with a time that can be predicted, got {len(usable)}."
        raise InputError("calibrate", "\n- ".join([said, *lines]))
    last = run_version(runs[-1])
    indices = _sample([case.run for case in usable], max_runs, np.random.default_rng(seed), last)
    risks = edge_risks(usable, base)
    free = told_constants([usable[index] for index in indices], base, cluster, risks[indices])
    loses = np.ones(len(usable))
    every = _Problem(cases=usable, edge_risk=risks, loses=loses, base=base, cluster=cluster, free=free)
    if every.may_lose:
        every = replace(every, base=replace(base, refill_half_gpus=0.0))
    problem = every.some(indices)
    values, stack = problem.fit()
    for _ in range(VERSION_ROUNDS):
        factors = version_factors(problem.runs, problem.residuals(stack), last, stack.versions)
        if not factors:
            break
        every = replace(every, base=replace(every.base, versions=factors))
        problem = every.some(indices)
        values, stack = problem.fit(values)
    for _ in range(GROUP_ROUNDS if every.may_lose else 0):
        before, every = every.loses, every.with_groups(stack)
        problem = every.some(indices)
        values, stack = problem.fit(values)
        if np.abs(every.loses - before).max() < SETTLED:
            break
    if len(indices) < len(usable):
        stack = every.taught(stack)
    predicted, measured = problem.with_stack_s(stack), problem.measured_s
    off = [run.row for run, ratio in zip(problem.runs, predicted / measured, strict=True) if not 1 / OFF < ratio < OFF]
    if len(off) > MOST_OFF * len(problem.runs):
        raise InputError(
            "calibrate",
            f"no constants fit: {len(off)} of {len(problem.runs)} runs ({named(off)}) stay off by more than a factor "
            f"of {OFF:g}. Check their units and whether their columns say all that was done.",
        )
    held_out = larger = None
    interrupted = False
    try:
        if validate:
            held_out = _cross_validate(problem, values)
            larger = _predict_larger(problem, values)
    except KeyboardInterrupt:  # the fit, which took its time, is there
        interrupted = True
    return Fit(
        stack=every.with_chance(stack),
        runs=tuple(problem.runs),
        errors=measure(predicted, measured),
        held_out=held_out,
        larger=larger,
        left_out=tuple(left_out),
        notes=(
            *repeat_notes(problem.runs),
            *([f"{named(off)} still off by more than a factor of {OFF:g} after the fit"] if off else []),
            *_notes(problem, values),
            *layer_notes(stack),
            *version_notes(stack, problem.runs, last),
            *((INTERRUPTED,) if interrupted else ()),
        ),
        interrupted=interrupted,
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Problem:
    """
    Runs, the starting stack, and the constants that are free.

    Parameters
    ----------
    loses
        How likely each run is of a group that loses time near full memory; stacks in here lose it in every group.
    half_gpus
        What these chances say of jobs that nobody ran, see ``StackSpec.refill_half_gpus``.
    """

    cases: Sequence[Case]
    edge_risk: FloatArray
    loses: FloatArray
    base: StackSpec
    cluster: ClusterSpec | None
    free: tuple[Free, ...]
    half_gpus: float = 0.0

    @property
    def runs(self) -> list[MeasuredRun]:
        return [case.run for case in self.cases]

    @property
    def measured_s(self) -> FloatArray:
        return _measured(self.runs)

    @property
    def say(self) -> FloatArray:
        """
        Weight of each run: a number of GPUs with few runs has more say in each, by the root of how few they are.

        A hundred runs on one host must not drown ten that alone tell of the network; nor must ten decide everything.
        (With ten runs on many hosts among ninety on one, those left out are 8.3 % off, 8.8 % with equal weights and
        8.6 % with the same say for every number of GPUs.)
        """
        gpus = np.array([run.num_gpus for run in self.runs])
        _, which, counts = np.unique(gpus, return_inverse=True, return_counts=True)
        say: FloatArray = np.sqrt(np.minimum(counts.mean() / counts[which], MOST_RARE))
        say /= say.mean()
        return say

    @property
    def centre(self) -> FloatArray:
        return np.log([getattr(self.base, one.name) or one.start for one in self.free])

    @property
    def largest(self) -> FloatArray:
        return np.log([one.largest for one in self.free])

    def stack_of(self, values: FloatArray) -> StackSpec:
        constants = np.exp(np.minimum(values, self.largest)).tolist()
        return self.base.with_constants({one.name: value for one, value in zip(self.free, constants, strict=True)})

    def predict_s(self, values: FloatArray) -> FloatArray:
        return self.with_stack_s(self.stack_of(values))

    def fit(self, start: FloatArray | None = None) -> tuple[FloatArray, StackSpec]:
        """Constants (their logarithms), and the stack that has them and what the runs teach of layers."""
        values, _ = self.solve(start)
        return values, self.taught(self.stack_of(values))

    def taught(self, stack: StackSpec) -> StackSpec:
        """The stack with what these runs teach of layers in place of what it has."""
        plain = replace(stack, layers=None)
        predicted = self.with_stack_s(plain)
        layers = learn_layers(self.cases, predicted, self.measured_s, plain, self.cluster, self.risk)
        return replace(stack, layers=layers)

    def residuals(self, stack: StackSpec) -> FloatArray:
        """Logarithms of measured over predicted times."""
        left: FloatArray = np.log(self.measured_s / self.with_stack_s(stack))
        return left

    def with_stack_s(self, stack: StackSpec) -> FloatArray:
        """Predicted seconds."""
        return predicted_times_s(with_stack(self.cases, stack, self.cluster), self.risk)

    @property
    def risk(self) -> FloatArray:
        """At the edge of memory, and near it in a group that loses there."""
        ones = np.ones(len(self.loses))
        found: FloatArray = self.edge_risk * np.column_stack([ones, ones, self.loses])
        return found

    @property
    def may_lose(self) -> bool:
        """Whether there are runs near full memory that tell what groups lose."""
        return any(one.name == "refill_s_per_billion" for one in self.free)

    def with_chance(self, stack: StackSpec) -> StackSpec:
        """The stack for jobs of which nobody knows whether they lose."""
        return replace(stack, refill_half_gpus=self.half_gpus) if self.may_lose else stack

    def with_groups(self, stack: StackSpec) -> "_Problem":
        """The same with what the runs say of their groups, if the constants of the stack hold."""
        bad = [badness(replace(self, loses=np.full(len(self.cases), one)).residuals(stack)) for one in (0.0, 1.0)]
        evidence = self.say * (bad[0] - bad[1]) / NOISE**2
        loses, half = group_chances([run.group for run in self.runs], [run.num_gpus for run in self.runs], evidence)
        return replace(self, loses=loses, half_gpus=half)

    def some(self, indices: Sequence[int]) -> "_Problem":
        """The same with some of the runs."""
        rows = list(indices)
        cases = [self.cases[index] for index in rows]
        return replace(self, cases=cases, edge_risk=self.edge_risk[rows], loses=self.loses[rows])

    def solve(self, start: FloatArray | None = None) -> tuple[FloatArray, FloatArray]:
        """Constants (their logarithms) and predicted seconds; from ``start``, or the best from several starts."""
        squares = self._squares
        starts = [start] if start is not None else [self._start(slow_host) for slow_host in (False, True)]
        if len(starts) > 1:
            starts = [min((descend(squares, one, FIRST_ITERATIONS) for one in starts), key=lambda one: one[2])[0]]
        values, residuals, _ = descend(squares, starts[0], MAX_ITERATIONS)
        return values, np.exp(residuals) * self.measured_s

    def _start(self, slow_host: bool) -> FloatArray:
        """A fast host never shows, so that its constants have no slope: start from a slow one, too."""
        values = self.centre.copy()
        for index, one in enumerate(self.free):
            if slow_host and one.slow is not None:
                values[index] = np.log(one.slow)
        return values

    @property
    def _squares(self) -> LeastSquares:
        target = np.log(self.measured_s)
        return LeastSquares(
            residuals_of=lambda values: np.log(self.predict_s(values)) - target,
            say=self.say,
            centre=self.centre,
            spread=np.array([one.spread for one in self.free]),
            largest=self.largest,
        )


def usable_cases(
    runs: Sequence[MeasuredRun], base: StackSpec, cluster: ClusterSpec | None = None
) -> tuple[list[Case], list[LeftOut]]:
    """
    The runs that can teach of time, and why the others with a time cannot.

    What the starting stack cannot time has no slope, and what takes ``UNBELIEVABLE`` times as long as it says is in
    other units.
    """
    cases = make_cases(_timed(runs), base, cluster)
    reasons = [case.reason if isinstance(case, Skipped) else untimed(case) for case in cases]
    left_out = [LeftOut(case.run.row, reason) for case, reason in zip(cases, reasons, strict=True) if reason]
    known = [case for case, reason in zip(cases, reasons, strict=True) if isinstance(case, Case) and not reason]
    usable = []
    for case, time_s in zip(known, predicted_times_s(known, edge_risks(known, base)).tolist(), strict=True):
        measured_s = case.run.iter_time_s or 0.0
        if not 0 < time_s < np.inf:
            left_out.append(LeftOut(case.run.row, NOT_FINITE))
        elif measured_s > UNBELIEVABLE * time_s:
            said = f"takes {measured_s / time_s:,.0f} times what {base.name} predicts: iter_time_s must be in seconds"
            left_out.append(LeftOut(case.run.row, said))
        else:
            usable.append(case)
    return usable, left_out


def _measured(runs: Sequence[MeasuredRun]) -> FloatArray:
    return np.array([run.iter_time_s for run in runs], dtype=np.float64)


def _timed(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    return [run for run in runs if run.iter_time_s is not None and not run.oom]


def _sample(runs: Sequence[MeasuredRun], size: int, rng: np.random.Generator, last: str) -> list[int]:
    """
    In turn one of each group, at random, until there are enough; their places, in order.

    Runs of the last version are groups of their own, so that there are enough of these, too.
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


def _cross_validate(problem: _Problem, start: FloatArray) -> Errors | None:
    """Whole groups are left out, in at most ``FOLDS`` portions."""
    groups = list(dict.fromkeys(run.group for run in problem.runs))
    folds = min(FOLDS, len(groups))
    if folds < 2:
        return None
    portion = {group: index % folds for index, group in enumerate(groups)}
    predicted, measured = [], []
    for fold in range(folds):
        out = [index for index, run in enumerate(problem.runs) if portion[run.group] == fold]
        predicted.append(_refit(problem, out, start))
        measured.append(problem.measured_s[out])
    return measure(np.concatenate(predicted), np.concatenate(measured))


def _predict_larger(problem: _Problem, start: FloatArray) -> Errors | None:
    """Fit to all but the jobs with the most GPUs, judge those."""
    most = max(run.num_gpus for run in problem.runs)
    out = [index for index, run in enumerate(problem.runs) if run.num_gpus == most]
    if len(problem.runs) - len(out) < MIN_RUNS:
        return None
    return measure(_refit(problem, out, start), problem.measured_s[out])


def _refit(problem: _Problem, out: Sequence[int], start: FloatArray) -> FloatArray:
    """Seconds of some runs, by a fit to the others."""
    left_out = set(out)
    kept = [index for index in range(len(problem.cases)) if index not in left_out]
    seen, judged = problem.some(kept), problem.some(out)
    _, stack = seen.fit(0.5 * (start + problem.centre))
    if seen.may_lose:
        stack = seen.with_groups(stack).with_chance(stack)
    return replace(judged, loses=np.ones(len(out))).with_stack_s(stack)


def _notes(problem: _Problem, values: FloatArray) -> tuple[str, ...]:
    """Constants at a limit or far from what is usual."""
    notes = []
    for one, value, centre in zip(problem.free, values.tolist(), problem.centre.tolist(), strict=True):
        if abs(value - centre) > 2.0 * one.spread:
            notes.append(f"{one.name} is {np.exp(value):.3g}, unusually far from {np.exp(centre):.3g}")
    if len(problem.runs) < 20:
        notes.append(f"only {len(problem.runs)} runs: most constants stay near those of {problem.base.name}")
    return tuple(notes)
