"""Stopping a benchmark of placements early keeps what is done."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from commands_here import wait_for

pytestmark = pytest.mark.search

ROOT = Path(__file__).parents[3]


def test_an_interrupted_benchmark_keeps_what_is_done(tmp_path: Path) -> None:
    """SIGTERM during the third instance: the first two stay, it is no row, and the fourth does not begin."""
    path = tmp_path / "rows.csv"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.placement", "--set", "reach", "--instances", "tree"),
            *("--sizes", "8,64", "--weights", "balanced", "--p2p", "async", "--seeds", "1", "--csv", str(path)),
        ],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    wait_for(process, "2/4 ")
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 4, out + err
    assert "stopped early: 2 of 4" in err
    assert "--resume" in err
    assert [row.split(",")[3] for row in path.read_text().splitlines()[1:]] == ["8", "8"]
