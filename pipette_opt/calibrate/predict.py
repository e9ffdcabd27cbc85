"""Predicted iteration times of measured runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.errors import MissingLinkError
from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, why_untimed
from pipette_opt.calibrate.versions import run_version
from pipette_opt.costs.collectives import has_tied_stages
from pipette_opt.costs.placed import costed_batch, grid_of, kinds_in_use, placed_times
from pipette_opt.costs.times import PlacedBatch
from pipette_opt.costs.unplaced import Costs, costs_of
from pipette_opt.parallel import ParallelConfig, microbatches_of
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.simulate.many import simulate_batches
from pipette_opt.specs import ClusterSpec, ModelSpec, StackSpec, TrainingSpec

MEMORY_COLUMNS = ("predicted_peak_mem_gib", "upper_peak_mem_gib", "oom_probability")
"""Columns of a run's memory prediction."""

NOT_FINITE = "the constants of the stack give no finite time"
"""Reason for a run whose time the constants of the stack make infinite or undefined."""

KnownCosts = dict[tuple[ModelSpec, TrainingSpec, ParallelConfig], Costs]
"""Cache of costs that do not depend on the placement, by model, training and configuration."""

MemoryColumns = Callable[[Case | Skipped], Mapping[str, float]]
"""Function that returns values for some or all of ``MEMORY_COLUMNS``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """
    Predictions for a measured run.

    Parameters
    ----------
    iter_time_s
        Iteration time by the simulator; ``None`` if it cannot be computed, for which ``reason`` gives the cause.
    memory
        Values of ``MEMORY_COLUMNS``; empty if no memory predictor was given.
    low_s, high_s
        Ends of the band of the iteration time (:mod:`~pipette_opt.calibrate.bands`), seconds.
    """

    run: MeasuredRun
    iter_time_s: float | None = None
    memory: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    low_s: float | None = None
    high_s: float | None = None

    @property
    def measured_s(self) -> float | None:
        """Measured iteration time, seconds; ``None`` if the run failed or has no time."""
        return None if self.run.oom else self.run.iter_time_s

    @property
    def error(self) -> float | None:
        """Predicted over measured time, minus one; ``None`` if either is missing."""
        if self.iter_time_s is None or self.measured_s is None:
            return None
        return self.iter_time_s / self.measured_s - 1.0


def predict_runs(
    runs: Sequence[MeasuredRun],
    stack: StackSpec,
    cluster: ClusterSpec | None = None,
    *,
    memory: MemoryColumns | None = None,
) -> list[Prediction]:
    """
    Return predictions for all runs in order, including runs out of memory, for which a plan would have promised a time.

    Parameters
    ----------
    memory
        Function that returns the memory columns.
    """
    cases = make_cases(runs, stack, cluster)
    reasons = [case.reason if isinstance(case, Skipped) else why_untimed(case) for case in cases]
    known = [case for case, reason in zip(cases, reasons, strict=True) if isinstance(case, Case) and not reason]
    times = iter(predicted_times_s(known).tolist())
    predictions = []
    for case, reason in zip(cases, reasons, strict=True):
        columns = memory(case) if memory else {}
        if isinstance(case, Skipped) or reason:
            predictions.append(Prediction(run=case.run, memory=columns, reason=reason))
        elif not math.isfinite(time_s := next(times)):
            predictions.append(Prediction(run=case.run, memory=columns, reason=why_not_finite(case)))
        else:
            predictions.append(Prediction(run=case.run, iter_time_s=time_s, memory=columns))
    return predictions


def predicted_times_s(cases: Sequence[Case]) -> FloatArray:
    """Return iteration times in seconds, shape ``(len(cases),)``; infinite if a placement uses an unmeasured link."""
    return with_version_s(cases, simulated_times_s(cases))


def with_version_s(cases: Sequence[Case], judged_s: FloatArray) -> FloatArray:
    """Return simulated times scaled by the software version of each run, seconds."""
    return judged_s * [(case.instance.stack.versions or {}).get(run_version(case.run), 1.0) for case in cases]


def simulated_times_s(cases: Sequence[Case], known: KnownCosts | None = None) -> FloatArray:
    """
    Return simulated iteration times in seconds, shape ``(len(cases),)``; infinite if a placement uses an unmeasured
    link.

    Parameters
    ----------
    known
        Cache of the costs of each configuration; calls with different stacks may share it.
    """
    batches = [(np.array(members), _costs(cases, members, known)) for members in _costed_together(cases)]
    microbatches = np.array([microbatches_of(case.instance.training, case.config) for case in cases], dtype=np.int64)
    times = np.full(len(cases), np.inf)
    for p2p in {case.instance.p2p for case in cases}:
        ours = [(members, batch) for members, batch in batches if cases[members[0]].instance.p2p == p2p]
        times = np.minimum(times, simulate_batches(ours, microbatches, p2p))
    return times


def _costed_together(cases: Sequence[Case]) -> list[list[int]]:
    """Return indices of cases that can be costed together, see :func:`~pipette_opt.costs.placed.costed_batch`."""
    found: dict[tuple[object, ...], list[int]] = {}
    for index, case in enumerate(cases):
        given, config = case.instance, case.config
        job = None if given.model.num_experts is None else (given.model, given.training)
        hosts = (id(given.cluster), id(given.stack), given.p2p, given.allreduce)
        key = (grid_of(config, case.placement), hosts, has_tied_stages(given.model, config), job)
        found.setdefault(key, []).append(index)
    return list(found.values())


def _costs(cases: Sequence[Case], members: Sequence[int], known: KnownCosts | None) -> PlacedBatch:
    """Return the costs of a group of cases that are costed together."""
    ours, costs = [cases[index] for index in members], []
    for case in ours:
        given = case.instance
        key = given.model, given.training, case.config
        before = None if known is None else known.get(key)
        costs.append(costs_of(given, case.config, before, kinds_in_use(given, case.placement)))
        if known is not None:
            known.setdefault(key, costs[-1])
    return costed_batch(ours[0].instance, [(case.config, case.placement) for case in ours], costs)


def why_not_finite(case: Case) -> str:
    """Return the reason why a run has no finite time: an unmeasured link, or the stack's constants."""
    try:
        placed_times(case.instance, case.config, case.placement)
    except MissingLinkError as error:
        return error.problem.rstrip(".")
    return NOT_FINITE
