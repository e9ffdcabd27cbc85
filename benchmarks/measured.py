"""Folders of public measurements, read in place and never copied."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from pipette_opt.read.runs import MeasuredRun, read_row

VARIABLE = "PIPETTE_OPT_SHARED"
"""Environment variable with the folder of shared data; without it, ``../shared`` beside the checkout."""


def shared_folder() -> Path:
    """Return the folder of shared data; it may not exist."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "shared")


def measured_folder() -> Path:
    """Return the folder of measured runs; it may not exist."""
    return shared_folder() / "measured"


def completed(run: MeasuredRun, cells: Mapping[str, str]) -> MeasuredRun:
    """Return the run with other cells of its description, which are read as if the table had them."""
    if not cells:
        return run
    found = read_row(f"row {run.row}", run.row, {**run.cells, **cells}, measured_folder())
    measured = ("iter_time_s", "peak_mem_bytes", "oom", "mfu")
    return replace(found, **{name: getattr(run, name) for name in measured})
