"""Predicted times of measured runs."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from pipette_opt.base.types import FloatArray
from pipette_opt.calibrate.cases import Case, Skipped, make_cases, untimed
from pipette_opt.calibrate.edge import edge_risks
from pipette_opt.calibrate.rivals import RIVALS
from pipette_opt.calibrate.versions import run_version
from pipette_opt.costs.edge import edge_times_s
from pipette_opt.costs.placed import placed_times
from pipette_opt.judge.many import judge_many
from pipette_opt.parallel import microbatches_of
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec

MEMORY_COLUMNS = ("predicted_peak_mem_gib", "upper_peak_mem_gib", "oom_probability")
"""What a predictor of memory says of a run."""

NOT_FINITE = "the constants of the stack give no finite time"

MemoryColumns = Callable[[Case | Skipped], Mapping[str, float]]
"""Gives ``MEMORY_COLUMNS``, or some of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """
    What is said about one run.

    Parameters
    ----------
    iter_time_s
        Ours; ``None`` if the row does not tell enough, and then ``reason`` says what.
    rivals_s
        The other closed forms, by name.
    memory
        Columns about memory, where a predictor was given: ``predicted_peak_mem_gib``, ``upper_peak_mem_gib``,
        ``oom_probability``.
    """

    run: MeasuredRun
    iter_time_s: float | None = None
    rivals_s: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""

    @property
    def measured_s(self) -> float | None:
        """Time of the run; ``None`` if it failed or nobody looked."""
        return None if self.run.oom else self.run.iter_time_s

    @property
    def error(self) -> float | None:
        """Predicted over measured, minus one; ``None`` without both."""
        if self.iter_time_s is None or self.measured_s is None:
            return None
        return self.iter_time_s / self.measured_s - 1.0


def predict_runs(
    runs: Sequence[MeasuredRun],
    stack: StackSpec,
    cluster: ClusterSpec | None = None,
    *,
    rivals: bool = True,
    memory: MemoryColumns | None = None,
) -> list[Prediction]:
    """
    Predict every run, in order; also those that ran out of memory, whose time a plan would have promised.

    Parameters
    ----------
    rivals
        Whether to add the other closed forms.
    memory
        Adds the columns about memory.
    """
    cases = make_cases(runs, stack, cluster)
    reasons = [case.reason if isinstance(case, Skipped) else untimed(case) for case in cases]
    known = [case for case, reason in zip(cases, reasons, strict=True) if isinstance(case, Case) and not reason]
    times = iter(predicted_times_s(known, edge_risks(known, stack)).tolist())
    predictions = []
    for case, reason in zip(cases, reasons, strict=True):
        told = memory(case) if memory else {}
        if isinstance(case, Skipped) or reason:
            predictions.append(Prediction(run=case.run, memory=told, reason=reason))
        elif not math.isfinite(time_s := next(times)):
            predictions.append(Prediction(run=case.run, memory=told, reason=NOT_FINITE))
        else:
            forms = rival_times_s(case) if rivals else {}
            predictions.append(Prediction(run=case.run, iter_time_s=time_s, rivals_s=forms, memory=told))
    return predictions


def predicted_times_s(cases: Sequence[Case], edge_risk: FloatArray | None = None) -> FloatArray:
    """
    Iteration times by the judge, shape ``(len(cases),)``.

    Parameters
    ----------
    edge_risk
        See :func:`~pipette_opt.calibrate.edge.edge_risks`; 0 without.
    """
    times = np.empty(len(cases))
    for p2p in {case.instance.p2p for case in cases}:
        members = [index for index, case in enumerate(cases) if case.instance.p2p == p2p]
        placed = [placed_times(cases[i].instance, cases[i].config, cases[i].placement) for i in members]
        microbatches = [microbatches_of(cases[i].instance.training, cases[i].config) for i in members]
        times[members] = judge_many(placed, microbatches, p2p)
    times *= [(case.instance.stack.versions or {}).get(run_version(case.run), 1.0) for case in cases]
    if edge_risk is None:
        return times
    lost: FloatArray = np.array([edge_times_s(case.instance, case.config) for case in cases]).reshape(-1, 3)
    times += (edge_risk * lost).sum(axis=1)
    return times


def rival_times_s(case: Case) -> dict[str, float]:
    """The other closed forms, by name, where they give a time."""
    times = placed_times(case.instance, case.config, case.placement)
    forms = {name: form(times, microbatches_of(case.instance.training, case.config)) for name, form in RIVALS.items()}
    return {name: time_s for name, time_s in forms.items() if math.isfinite(time_s)}
