"""
Iteration-time formulas of other systems, applied to the stage, message and reduction times of this project.

Only the formulas differ, so differences between the results come from each formula's view of the schedule.
"""

from collections.abc import Callable, Mapping

from pipette_opt.costs.placed import PlacedTimes


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


def _stage_s(times: PlacedTimes) -> float:
    """Return the forward plus backward time of the slowest stage, seconds."""
    return float((times.forward_s + times.backward_s).sum(axis=0).max())


def _messages_s(times: PlacedTimes) -> float:
    """Return the time of all messages of one micro-batch in both directions, in the slowest replica, seconds."""
    pp = times.forward_s.shape[1]
    both = (times.send_forward_s + times.send_backward_s)[: pp - 1].sum(axis=0)
    return float(both.max())
