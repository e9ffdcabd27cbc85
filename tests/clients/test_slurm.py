"""A real Slurm: munged, slurmctld and a slurmd on each host, hosts as network namespaces."""

import os
import sys
from pathlib import Path

import hosts
import pytest
from factories import scrambled_plan
from reports import assert_as_planned, read_reports, write_job

from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.plans.plan import rank_rows

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")

pytestmark = pytest.mark.client(programs=(*hosts.TOOLS, *PROGRAMS))

SERVERS = Path(__file__).with_name("slurm_servers.sh").read_text()

JOB = r"""
timeout 90 sbatch --wait --output=job.out job.sbatch --save nowhere || { cat job.out "$state"/*.log >&2; exit 1; }
"""


def test_tasks_are_placed_as_the_hostfile_says(tmp_path: Path) -> None:
    """The exported batch script, submitted: sixteen scattered ranks on four of five nodes, each where the plan says."""
    hosts.require()
    plan = scrambled_plan()
    write_job(plan, "slurm", tmp_path)
    assert len({row.host for row in rank_rows(plan)}) == 4
    done = hosts.run_on(
        plan.hosts,
        SERVERS + JOB,
        tmp_path,
        {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PRETRAIN": "report.py"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reports = read_reports(tmp_path)
    assert_as_planned(plan, reports)
    assert all(one["args"] == [*megatron_arguments(plan), "--save", "nowhere"] for one in reports)
