"""Shared by all tests: the folder of shared helpers is importable, and the summary says how much was enumerated."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from instances import enumerated


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How many small problems were solved by trying every placement, to compare with."""
    if enumerated:
        instances, placements = enumerated["instances"], enumerated["placements"]
        terminalreporter.write_line(f"{instances:,} instances enumerated, {placements:,} placements.")
