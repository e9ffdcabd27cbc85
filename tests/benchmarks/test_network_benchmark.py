"""The benchmark of the network runs where there is nothing to compare, and compares what there is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.search

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "network.py"


def run(shared: Path) -> str:
    """The page, from measurements in a folder."""
    if not SCRIPT.is_file():
        pytest.skip("benchmarks are not beside the installed package")
    environment = {**os.environ, "PIPETTE_OPT_SHARED": str(shared), "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.network"], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_without_measurements(tmp_path: Path) -> None:
    """The page says that nothing was compared."""
    assert "Nothing was compared" in run(tmp_path)


def test_exact_sharing(tmp_path: Path) -> None:
    """
    Groups of two on two hosts set the bandwidth: 256 MiB each way in 0.1 s, eight groups at once.

    One group of sixteen then sends 15/8 of the message over all of it: 0.0234375 s, which the ring predicts exactly.
    """
    folder = tmp_path / "measured" / "bandwidth"
    folder.mkdir(parents=True)
    lines = [
        "gpu,nodes,gpus_per_node,intra_group,inter_group,MB,latency_ms",
        "a100-sxm4-40gb,2,8,1,2,256,100",
        f"a100-sxm4-40gb,2,8,8,2,256,{100 * 15 / 8 / 8}",
    ]
    (folder / "mist_g2g_bandwidth.csv").write_text("\n".join(lines))
    (folder / "p2p_curves.csv").write_text(
        "source,gpu,link,repeat,message_MB,p2p_GBps\n"
        + "\n".join(
            f"made-up,x,intra_node,0,{size},{size * 2**20 / (1e-4 + size * 2**20 / 2e11) / 1e9}"
            for size in (1, 2, 4, 8, 16, 32)
        )
    )
    (folder / "hf_ultrascale_job_collectives.csv").write_text(
        "nodes,allreduce_all_ranks_GBps\n" + "\n".join(f"{hosts},{200 / hosts}" for hosts in (2, 4, 8, 16))
    )
    page = run(tmp_path)
    assert (
        "| a100-sxm4-40gb | 21.5 | 2 | 8 | 1 | -0.0% |" in page
        or "| a100-sxm4-40gb | 21.5 | 2 | 8 | 1 | +0.0% |" in page
    )
    assert "| made x | 0.0% of 1 |" in page
    assert "| 8 | 1 | 25 | 25 |" in page
    assert "| 16 | 1 | 12.5 | 12.5 | +0%" in page  # one over the rate grows with the ranks: a ring
