"""
How good anyone could be on judged runs: what like runs differ by, what hindsight attains, what a risk must refuse.

*Twins*: jobs whose ranks do the same work with fewer replicas, as they were measured. *Reversals*: jobs that fitted
although others with no more to hold did not, and jobs that fill their device with what could be taken back.
*Hindsight*: the constants of our physics fitted to the judged runs themselves. *Refusals*: a prediction with some error
must refuse, at a stated risk, jobs that fit with less room than that error.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, median

import numpy as np

from pipette_opt.base.types import BoolArray, FloatArray
from pipette_opt.base.units import GIB
from pipette_opt.calibrate.memory_calibration import SPREADS, fit_constants
from pipette_opt.calibrate.memory_runs import MemoryRun, predict_memory
from pipette_opt.memory.framework import COLUMNS, LOWEST, Framework
from pipette_opt.read.runs import FIRST_PARAMETERS_COLUMN, MeasuredRun

Pair = tuple[MeasuredRun, MemoryRun]
"""A row, and what it says about memory."""

STATIC_COLUMN = "static_alloc_gib"
"""
Column of ``runs.csv``: the most that is allocated after the passes of an iteration, measured.

Weights, gradients, optimizer state, and, where replicas share the state, what the step gathers: as if nanotron began
its peaks anew after the passes, which the figures say and we have not found in its sources.
"""

GATHERED_BYTES, SENT_BYTES = 4, 2
"""
Per parameter, in nanotron's step with ZeRO 1: received by ``all_gather_coalesced`` and by NCCL below it; and sent, by
as many as share it. 2 + 4 + 12 / dp stay: all of it, 10 + 14 / dp, is within 1.1 % of that column wherever no tensor
ranks have buffers besides.
"""

OUR_FIT, FREE_FIT, LEAST_ERROR = "our fit, to the judged runs", "the same, priors wide", "least mean error"
"""Names of the fits of hindsight."""

HINDSIGHT_STEPS = (0.5, 0.2, 0.07, 0.02, 0.005)
"""Of the search for the smallest mean error, as shares of the priors' standard deviations."""

SMALLEST_GAIN = 1e-6

SLIGHT_GIB = 4.0
"""A twentieth of the sweep's devices."""

COUNTED = COLUMNS.index("counted")

NEARLY_FREE = 10.0
"""Priors so many times as wide hold nothing back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """
    A judged peak and the same rank's work as measured in calibrating runs, GiB.

    Parameters
    ----------
    run
        The judged row.
    peak_gib
        As measured.
    twin_gib
        Median over calibrating runs with as much work on a rank: their peaks, less what they hold between iterations,
        plus what the judged run holds then; all measured.
    predicted_gib
        Ours.
    """

    run: MeasuredRun
    peak_gib: float
    twin_gib: float
    predicted_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Reversal:
    """A run that fits although another ran out with no more activations; and what the first has less of the rest."""

    died: MeasuredRun
    lived: MeasuredRun
    less_static_gib: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusals:
    """
    Expected verdicts of whoever knows every need up to normal errors of its logarithm, and accepts a risk.

    Parameters
    ----------
    spread
        Standard deviation of the errors.
    refused, missed
        Expected numbers of fitting runs refused and of dead ones accepted.
    fitted, ran_out
        How many there are.
    """

    spread: float
    refused: float
    missed: float
    fitted: int
    ran_out: int

    @property
    def accuracy(self) -> float:
        """Expected share of right verdicts."""
        return 1 - (self.refused + self.missed) / (self.fitted + self.ran_out)


def twins(known: Sequence[Pair], judged: Sequence[Pair], framework: Framework) -> list[Twin]:
    """
    Judged peaks with a twin among the calibrating runs.

    Twins agree in model, sequence, tensor and pipeline degree, micro-batch and ZeRO stage, have several replicas and at
    least as many micro-batches as stages: nothing else changes what a rank works with.
    """
    groups: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for run, memory in known:
        if memory.peak_gib is not None and _is_steady(run):
            groups[_work(run)].append(memory.peak_gib - held_gib(run))
    return [
        Twin(
            run=run,
            peak_gib=memory.peak_gib,
            twin_gib=held_gib(run) + median(groups[_work(run)]),
            predicted_gib=predict_memory(framework, memory).taken_gib,
        )
        for run, memory in judged
        if memory.peak_gib is not None and _is_steady(run) and _work(run) in groups
    ]


def _work(run: MeasuredRun) -> tuple[object, ...]:
    """What decides the work of a rank."""
    return (*_model(run), run.tp, run.pp, run.mbs, run.zero_stage)


def _model(run: MeasuredRun) -> tuple[object, ...]:
    """What is trained, and by which kernels."""
    widths = (run.hidden, run.ffn_hidden, run.heads, run.kv_heads, run.vocab)
    return (run.model, run.num_layers, *widths, run.seq_len, run.recompute_text, run.attention_kernel)


def _is_steady(run: MeasuredRun) -> bool:
    """Whether gradients are reduced, the pipeline is filled, and the source says what stays between iterations."""
    dp, pp, mbs = run.dp or 1, run.pp or 1, run.mbs or 1
    return dp > 1 and (run.gbs or 0) >= dp * mbs * pp and bool(run.extra.get(STATIC_COLUMN))


def held_gib(run: MeasuredRun) -> float:
    """What stays between iterations: as measured, less what the step gathers where replicas share the state."""
    static, replicas = float(run.extra[STATIC_COLUMN]), run.dp or 1
    if not run.zero_stage or replicas == 1:
        return static
    gathered = (GATHERED_BYTES + SENT_BYTES / replicas) * float(run.extra.get(FIRST_PARAMETERS_COLUMN) or 0)
    return static - gathered / GIB


def reversals(known: Sequence[Pair], judged: Sequence[Pair]) -> list[Reversal]:
    """
    Pairs of a calibrating run that ran out and a judged one that fits with no less to hold.

    No less: the same model, one replica without a pipeline, a micro-batch as large or larger, and as large or larger a
    share of it on each tensor rank. Then every activation, whole or split, is as large or larger; weights, gradients
    and state are smaller by at most ``SLIGHT_GIB``.
    """
    dead = [(run, memory) for run, memory in known if memory.ran_out and _alone(run)]
    found = []
    for run, memory in judged:
        if memory.ran_out is not False or not _alone(run):
            continue
        for other, theirs in dead:
            # The optimizer step's row has no activations: state, weights and gradients as counted.
            less = float(theirs.columns[-1, COUNTED] - memory.columns[-1, COUNTED])
            if _no_more(other, run) and less <= SLIGHT_GIB:
                found.append(Reversal(died=other, lived=run, less_static_gib=less))
    return found


def _alone(run: MeasuredRun) -> bool:
    return (run.dp or 1) == (run.pp or 1) == 1


def _no_more(one: MeasuredRun, other: MeasuredRun) -> bool:
    """Whether the first has no more activations than the second."""
    batch, others = one.mbs or 1, other.mbs or 1
    return _model(one) == _model(other) and batch <= others and batch * (other.tp or 1) <= others * (one.tp or 1)


def on_full_device(framework: Framework, pairs: Sequence[Pair]) -> list[Pair]:
    """Rows that would take more than there is, and would not without what the allocator can take back."""
    back = replace(framework, run_ahead_buffers=0.0, pile_up_buffers=0.0)
    found = []
    for run, memory in pairs:
        least = predict_memory(back, memory)
        most = float((memory.columns * framework.factor(memory.version) @ framework.vector()).max())
        if least.needed_gib < least.usable_gib < most:
            found.append((run, memory))
    return found


def hindsight(judged: Sequence[MemoryRun], base: Framework) -> dict[str, Framework]:
    """
    Constants fitted to the judged runs themselves, by name of the fit.

    The same fit; with priors that hold nothing back; and, where there are peaks, the best of searches for the least
    mean error itself from these and from the starting stack, constants one by one, up or down by smaller and smaller
    steps: a local optimum.
    """
    found = {
        OUR_FIT: fit_constants(judged, base),
        FREE_FIT: fit_constants(judged, base, NEARLY_FREE),
    }
    measured = [run for run in judged if run.peak_gib is not None]
    if measured:
        ends = [_least_mean_error(measured, start) for start in (*found.values(), base)]
        found[LEAST_ERROR] = min(ends, key=lambda one: float(relative_errors(one, measured).mean()))
    return found


def furthest_off(framework: Framework, pairs: Sequence[Pair]) -> list[tuple[float, Pair]]:
    """Every row with a peak and its relative error, the largest first."""
    measured = [(run, memory) for run, memory in pairs if memory.peak_gib is not None]
    errors = relative_errors(framework, [memory for _, memory in measured]).tolist()
    return sorted(zip(errors, measured, strict=True), key=lambda one: -one[0])


def relative_errors(framework: Framework, runs: Sequence[MemoryRun]) -> FloatArray:
    """``abs(predicted / measured - 1)`` of every run with a peak."""
    pairs = [(predict_memory(framework, run).taken_gib, run.peak_gib) for run in runs if run.peak_gib is not None]
    return np.array([abs(predicted / measured - 1) for predicted, measured in pairs])


def _least_mean_error(runs: Sequence[MemoryRun], start: Framework) -> Framework:
    framework, best = start, float(relative_errors(start, runs).mean())
    for share in HINDSIGHT_STEPS:
        moved = True
        while moved:
            moved = False
            for name, spread in SPREADS.items():
                for step in (share * spread, -share * spread):
                    value = max(getattr(framework, name) + step, LOWEST.get(name, 0.0))
                    trial = replace(framework, **{name: value})
                    error = float(relative_errors(trial, runs).mean())
                    if error < best - SMALLEST_GAIN:
                        framework, best, moved = trial, error, True
    return framework


def labelled_room(framework: Framework, runs: Sequence[MemoryRun]) -> tuple[FloatArray, BoolArray]:
    """``log(need / usable)`` of every run with a label, and whether it ran out."""
    labelled = [run for run in runs if run.ran_out is not None]
    said = [predict_memory(framework, run) for run in labelled]
    room = np.array([np.log(one.needed_gib / one.usable_gib) for one in said])
    return room, np.array([bool(run.ran_out) for run in labelled])


def least_refusals(over: FloatArray, ran_out: BoolArray, spread: float, max_oom_risk: float) -> Refusals:
    """
    What must be refused at a risk where needs are known up to a spread.

    A job of need ``n`` on a device of ``c`` is predicted as ``n exp(e)``, ``e`` normal, and refused where
    ``P(n > c)`` as seen from there exceeds the risk: where ``log(n / c) + e > -z spread``. Jobs on the wrong side of
    the device, which only says that ``n`` is not known, count as judged rightly.

    Parameters
    ----------
    over
        ``log(n / c)`` of every job, shape ``(num_jobs,)``.
    ran_out
        Whether it did, shape ``(num_jobs,)``.
    spread
        Standard deviation of ``e``; must be positive.
    """
    normal = NormalDist()
    refuses = np.array([normal.cdf(value / spread + normal.inv_cdf(1 - max_oom_risk)) for value in over])
    return Refusals(
        spread=spread,
        refused=float(refuses[~ran_out & (over <= 0)].sum()),
        missed=float((1 - refuses)[ran_out & (over > 0)].sum()),
        fitted=int((~ran_out).sum()),
        ran_out=int(ran_out.sum()),
    )
