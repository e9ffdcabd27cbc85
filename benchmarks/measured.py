"""Folders of public measurements, which are read in place and never copied."""

import os
from pathlib import Path

VARIABLE = "PIPETTE_OPT_SHARED"
"""Environment variable that names the folder of everything shared; ``../shared`` beside the checkout without it."""


def shared_folder() -> Path:
    """Return the folder of everything shared; nothing may be there."""
    return Path(os.environ.get(VARIABLE) or Path(__file__).resolve().parents[2] / "shared")


def measured_folder() -> Path:
    """Return the folder of measured runs; nothing may be there."""
    return shared_folder() / "measured"
