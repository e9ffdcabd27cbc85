"""
Rows of torchtitan's published tables (FSDP, that is ZeRO 3; some with tensor or context ranks), split at 8 GPUs.

Left out are rows with asynchronous tensor parallelism, which hides messages in products, and with fp8 scales for each
row; the simulator has neither.
"""

from collections.abc import Sequence

from benchmarks.measured import completed
from pipette_opt.read.runs import MeasuredRun

ONE_SCALE = "fp8 tensorwise"
"""Precision of the source with one scale per tensor, which the simulator calls fp8."""


def more_gpus(runs: Sequence[MeasuredRun]) -> tuple[list[MeasuredRun], list[MeasuredRun]]:
    """Return the runs on up to 8 GPUs, and on more."""
    usable = [described(run) for run in runs if is_modelled(run)]
    return [run for run in usable if run.num_gpus <= 8], [run for run in usable if run.num_gpus > 8]


def is_modelled(run: MeasuredRun) -> bool:
    """Return whether the simulator supports all options of the row."""
    return run.source.startswith("torchtitan") and "async TP" not in run.notes and run.precision != "fp8 rowwise"


def described(run: MeasuredRun) -> MeasuredRun:
    """Return the row with our name of its precision, and with unfused norms if it ran without ``torch.compile``."""
    precision = {"precision": "fp8"} if run.precision == ONE_SCALE else {}
    return completed(run, precision | ({"fused_norm": "false"} if "eager" in run.notes else {}))
