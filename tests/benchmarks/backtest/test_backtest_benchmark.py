"""The back-test of public runs: without measurements, and AMP's unequal layers by hand."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from benchmark_modules import BENCHMARKS, loaded
from factories import make_run

from pipette_opt.base.types import FloatArray

pytestmark = pytest.mark.search

FOLDER = BENCHMARKS / "backtest"
"""Where the back-test is."""


@pytest.fixture(scope="module")
def het_model() -> ModuleType:
    """AMP's unequal layers."""
    return loaded("het_model")


def layers() -> dict[int, FloatArray]:
    """A millisecond each."""
    return {tp: np.full(56, 1e-3) for tp in (1, 2, 4)}


def test_without_measurements(tmp_path: Path) -> None:
    """Every source is named as missing."""
    if not FOLDER.is_dir():
        pytest.skip("benchmarks are not beside the installed package")
    out = tmp_path / "page.md"
    environment = {
        **os.environ,
        "PIPETTE_OPT_SHARED": str(tmp_path),
        "PYTHONPATH": str(FOLDER.parents[1]),
    }
    command = [sys.executable, "-m", "benchmarks.backtest.run", "--out", str(out), "--jobs", "1"]
    subprocess.run(command, env=environment, capture_output=True, check=True)
    num_experiments = len(loaded("experiments").EXPERIMENTS) + len(loaded("special").SPECIAL)
    assert out.read_text().count("| not there |") == num_experiments


def test_ceiling_without_measurements(tmp_path: Path) -> None:
    """It says so, and writes no page."""
    if not FOLDER.is_dir():
        pytest.skip("benchmarks are not beside the installed package")
    page = tmp_path / "page.md"
    environment = {
        **os.environ,
        "PIPETTE_OPT_SHARED": str(tmp_path),
        "PYTHONPATH": str(FOLDER.parents[1]),
    }
    command = [sys.executable, "-m", "benchmarks.backtest.ceiling", "--page", str(page)]
    found = subprocess.run(command, env=environment, capture_output=True, check=True, text=True)
    assert "not there" in found.stdout
    assert not page.exists()


def test_one_stage_on_one_gpu_each(het_model: ModuleType) -> None:
    """
    Sixteen replicas, 64 samples: four micro-batches of 56 layers, forward and twice that back.

    Then 12 blocks of 12 * 1024^2 and of 12 * 16^2 parameters in 32 bits, around four hosts with four GPUs each:
    2 * 15 / 16 of them at what a host sends.
    """
    run = make_run(gbs=64, mbs=1, tp=1, pp=1, dp=16, notes="stage boundaries [0,56]")
    constants = het_model.Constants(launch_share=0.5, node_bytes_per_s=1e9, iteration_s=0.1)
    parameters = 12 * (12 * 1024**2 + 12 * 16**2)
    expected = 4 * 56e-3 * 3 + 2 * 15 / 16 * parameters * 4 / 1e9 + 0.1
    assert het_model.predict_s([run], layers(), constants)[0] == pytest.approx(expected, rel=2e-3)


def test_samples_share_launches(het_model: ModuleType) -> None:
    """Half of a layer's time comes once, so that two samples take one and a half times as long."""
    runs = [
        make_run(gbs=64, mbs=mbs, tp=4, pp=4, dp=1, num_gpus=16, notes="stage boundaries [0,14,28,42,56]")
        for mbs in (1, 2)
    ]
    constants = het_model.Constants(launch_share=0.5, node_bytes_per_s=1e12, iteration_s=1e-9)
    times = het_model.predict_s(runs, layers(), constants)
    assert times[0] == pytest.approx(67 * 42e-3, rel=0.02)
    assert times[1] == pytest.approx(35 * 63e-3, rel=0.02)
