"""Predicted times of measured runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pipette_opt.backtest.cases import Case, Skipped, make_cases
from pipette_opt.backtest.rivals import RIVALS
from pipette_opt.costs.placed import placed_times
from pipette_opt.estimator.estimate import estimate
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import ClusterSpec, StackSpec

MEMORY_COLUMNS = ("predicted_peak_mem_gib", "upper_peak_mem_gib", "oom_probability")
"""What a predictor of memory says of a run."""

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
    return [_predict(case, rivals=rivals, memory=memory) for case in make_cases(runs, stack, cluster)]


def _predict(case: Case | Skipped, *, rivals: bool, memory: MemoryColumns | None) -> Prediction:
    if isinstance(case, Skipped):
        return Prediction(run=case.run, reason=case.reason, memory=memory(case) if memory else {})
    others = {}
    if rivals:
        times = placed_times(case.instance, case.config, case.placement)
        num_microbatches = case.config.num_microbatches(case.instance.training.global_batch_size)
        others = {name: form(times, num_microbatches) for name, form in RIVALS.items()}
    return Prediction(
        run=case.run,
        iter_time_s=predicted_s(case),
        rivals_s=others,
        memory=memory(case) if memory else {},
    )


def predicted_s(case: Case) -> float:
    """Iteration time of a case by the judge."""
    return estimate(case.instance, case.config, case.placement).iteration_time_s
