"""
Rows of torchtitan's published tables (FSDP, that is ZeRO 3, some with tensor or context ranks): 8 GPUs, and more.

Left out: asynchronous tensor parallelism, which hides messages in products, and scales for each row in fp8; the clock
has neither.
"""

from collections.abc import Sequence
from dataclasses import replace

from pipette_opt.read.runs import MeasuredRun

ONE_SCALE = "fp8 tensorwise"
"""One scale for each tensor is what the clock calls fp8."""


def more_gpus(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """Up to 8 GPUs, and more."""
    usable = [described(run) for run in runs if is_modelled(run)]
    return [run for run in usable if run.num_gpus <= 8], [run for run in usable if run.num_gpus > 8]


def is_modelled(run: MeasuredRun) -> bool:
    """Whether the clock knows all that the row says."""
    return run.source.startswith("torchtitan") and "async TP" not in run.notes and run.precision != "fp8 rowwise"


def described(run: MeasuredRun) -> MeasuredRun:
    """Without ``torch.compile`` norms are not fused."""
    precision = "fp8" if run.precision == ONE_SCALE else run.precision
    extra = {**run.extra, "fused_norm": "false"} if "eager" in run.notes else run.extra
    return replace(run, precision=precision, extra=extra)
