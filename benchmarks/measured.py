"""Folders of public measurements, read in place and never copied."""

import os
from pathlib import Path

VARIABLE = "PIPETTE_OPT_SHARED"
"""Environment variable with the folder of shared data; without it, ``../shared`` beside the checkout."""


def shared_folder() -> Path:
    """Return the folder of shared data; it may not exist."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "shared")


def measured_folder() -> Path:
    """Return the folder of measured runs; it may not exist."""
    return shared_folder() / "measured"
