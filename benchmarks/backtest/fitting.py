"""Calibration of a stack by runs, and its predictions of other runs."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from pipette_opt.calibrate.bands import with_bands
from pipette_opt.calibrate.fit import calibrate_runs
from pipette_opt.calibrate.memory import fit_memory, memory_columns
from pipette_opt.calibrate.predict import Prediction, predict_runs
from pipette_opt.read.runs import MeasuredRun
from pipette_opt.specs import StackSpec
from pipette_opt.specs.memory_constants import MEGATRON_CORE

RISK = 0.01
"""Accepted risk of running out of memory, the default of ``solve``."""


def fitted_stack(seen: Sequence[MeasuredRun], base: StackSpec) -> StackSpec:
    """Return the stack with memory constants fitted to the runs, calibrated by their times."""
    memory_constants, *_ = fit_memory(seen, base)
    started = replace(base, memory=memory_constants) if memory_constants.largest_job else base
    return calibrate_runs(seen, started, validate=False).stack


def predicted(tested: Sequence[MeasuredRun], stack: StackSpec) -> list[Prediction]:
    """Return predicted times, and predicted memory if the stack has fitted memory constants."""
    with_memory = stack.memory != MEGATRON_CORE
    memory = partial(memory_columns, memory_constants=stack.memory, max_oom_risk=RISK) if with_memory else None
    return with_bands(predict_runs(tested, stack, memory=memory), stack, None)
