"""Options outside the search that would save time, found by simulating the plan with each of them."""

from dataclasses import dataclass

from pipette_opt.candidates.unsearched_options import with_unsearched_options
from pipette_opt.memory.predictor import MemoryPredictor
from pipette_opt.parallel import ParallelConfig, Placement
from pipette_opt.simulate.estimate import estimate
from pipette_opt.simulate.solutions import stage_memory
from pipette_opt.specs import Instance

MIN_SAVED_SHARE = 0.005
"""Least saved fraction of an iteration for an option to be reported. Chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PayingOption:
    """
    Option that would save time.

    Parameters
    ----------
    option
        Option as in a launch script.
    saved_s
        Simulated seconds per iteration that the option saves alone, on the given placement.
    saved_share
        Saved fraction of the iteration, in (0, 1).
    condition
        Requirement or cost that the simulated time leaves out.
    """

    option: str
    saved_s: float
    saved_share: float
    condition: str


def paying_options(
    instance: Instance,
    config: ParallelConfig,
    placement: Placement,
    predictor: MemoryPredictor,
    max_oom_risk: float,
) -> tuple[PayingOption, ...]:
    """
    Return the options that would save time in a placed configuration, largest saving first.

    Options that Megatron-Core would refuse, or with which the configuration does not fit, are left out.
    """
    now_s = estimate(instance, config, placement).iteration_time_s
    found = []
    for option, changed in with_unsearched_options(instance, config):
        saved_s = now_s - estimate(changed, config, placement).iteration_time_s
        if saved_s < MIN_SAVED_SHARE * now_s:
            continue
        memory = stage_memory(changed, config, placement, predictor, max_oom_risk)
        if max(stage.oom_probability for stage in memory) <= max_oom_risk:
            share = saved_s / now_s
            found.append(
                PayingOption(option=option.option, saved_s=saved_s, saved_share=share, condition=option.condition)
            )
    return tuple(sorted(found, key=lambda option: -option.saved_s))
