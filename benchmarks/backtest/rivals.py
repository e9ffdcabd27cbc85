"""
Iteration-time formulas of other systems, applied to the stage, message and reduction times of this project.

Only the formulas differ, so differences between the results come from each formula's view of the schedule.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pipette_opt.calibrate.cases import Case, make_cases
from pipette_opt.calibrate.metrics import by_group, measure_predictions
from pipette_opt.calibrate.predict import Prediction
from pipette_opt.calibrate.tables import errors_entry
from pipette_opt.costs.placed import PlacedTimes, placed_times
from pipette_opt.parallel import microbatches_of
from pipette_opt.specs import StackSpec

OURS = "ours"
"""Name of the simulator's times among the compared times."""


def pipette_form_s(times: PlacedTimes, num_microbatches: int) -> float:
    """
    Return the iteration time by Pipette (arXiv 2405.18093, as its released code computes it), seconds.

    One round trip with its messages for every ``pp`` micro-batches, then the remaining stages, and the reduction of the
    first stage only.
    """
    pp = times.forward_s.shape[1]
    stage = _stage_s(times)
    messages = _messages_s(times)
    rounds = num_microbatches // pp
    if rounds >= 1:
        replica = rounds * (pp * stage + messages) + (pp - 1) * stage
    else:
        replica = pp * stage + messages + (num_microbatches - 1) * stage
    return float(replica + times.reduction_s[0])


def amp_form_s(times: PlacedTimes, num_microbatches: int) -> float:
    """
    Return the iteration time by AMP (Li et al., NeurIPS 2022, ``src/cost_homogeneous.py``), seconds.

    Forward and backward of a stage take three forwards. The sum counts each stage once, the slowest stage for each
    further micro-batch, messages once, and the slowest reduction.
    """
    forward = times.forward_s.sum(axis=0).max(axis=1)
    work = 3.0 * (float(forward.sum()) + (num_microbatches - 1) * float(forward.max()))
    return work + _messages_s(times) + float(times.reduction_s.max())


def varuna_form_s(times: PlacedTimes, num_microbatches: int) -> float:
    """
    Return the iteration time by Varuna (Athlur et al., EuroSys 2022) as a formula, seconds.

    Measured forward and backward replace three forwards; sends are hidden once the pipeline is full. Varuna's
    simulator, which this formula replaces, adds jitter.
    """
    both = (times.forward_s + times.backward_s).sum(axis=0).max(axis=1)
    work = float(both.sum()) + (num_microbatches - 1) * float(both.max())
    return work + _messages_s(times) + float(times.reduction_s.max())


def megatron_form_s(times: PlacedTimes, num_microbatches: int) -> float:
    """Return iteration seconds by Megatron-LM (Narayanan et al., SC 2021): ``(m + (pp - 1) / chunks) (f + b)``."""
    chunks, pp = times.forward_s.shape[:2]
    return float((num_microbatches + (pp - 1) / chunks) * _stage_s(times))


RIVALS: Mapping[str, Callable[[PlacedTimes, int], float]] = {
    "pipette": pipette_form_s,
    "amp": amp_form_s,
    "varuna": varuna_form_s,
    "megatron": megatron_form_s,
}
"""Formulas of other systems, by name."""


def by_form(predictions: Sequence[Prediction], stack: StackSpec) -> dict[str, list[Prediction]]:
    """
    Return the predictions by our simulator and by each of the other systems' formulas.

    Runs without a predicted time are left out, as are formulas' infinite times.

    Parameters
    ----------
    stack
        Stack of the predictions.
    """
    timed = [prediction for prediction in predictions if prediction.iter_time_s is not None]
    found: dict[str, list[Prediction]] = {OURS: timed} | {name: [] for name in RIVALS}
    for prediction, case in zip(timed, make_cases([each.run for each in timed], stack), strict=True):
        assert isinstance(case, Case)
        times = placed_times(case.instance, case.config, case.placement)
        for name, form in RIVALS.items():
            time_s = form(times, microbatches_of(case.instance.training, case.config))
            if math.isfinite(time_s):
                found[name].append(replace(prediction, iter_time_s=time_s))
    return found


def form_rows(forms: Mapping[str, Sequence[Prediction]]) -> list[dict[str, object]]:
    """Return errors of our simulator and of others' formulas over all runs, worst regret and mean rank of groups."""
    rows: list[dict[str, object]] = []
    for name, predictions in forms.items():
        errors = measure_predictions(predictions)
        if errors is None:
            continue
        groups = [
            found
            for members in by_group(predictions).values()
            if (found := measure_predictions(members)) is not None and found.num_runs > 1
        ]
        entry = errors_entry(errors)
        entry["worst_regret"] = max((errors_of.regret for errors_of in groups), default=None)
        ranks = [errors_of.spearman for errors_of in groups if not math.isnan(errors_of.spearman)]
        entry["mean_group_spearman"] = sum(ranks) / len(ranks) if ranks else None
        rows.append({"form": name} | entry)
    return rows


def _stage_s(times: PlacedTimes) -> float:
    """Return the forward plus backward time of the slowest stage, seconds."""
    return float((times.forward_s + times.backward_s).sum(axis=0).max())


def _messages_s(times: PlacedTimes) -> float:
    """Return the time of all messages of one micro-batch in both directions, in the slowest replica, seconds."""
    pp = times.forward_s.shape[1]
    both = (times.send_forward_s + times.send_backward_s)[: pp - 1].sum(axis=0)
    return float(both.max())
