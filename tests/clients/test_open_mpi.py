"""A real mpirun, hosts as network namespaces."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import hosts
import pytest
from factories import make_plan, scrambled_plan
from reports import assert_as_planned, read_reports, write_job

from pipette_opt.export.megatron import megatron_arguments
from pipette_opt.plans.plan import Plan, rank_rows

pytestmark = pytest.mark.client(programs=(*hosts.TOOLS, "mpirun"))

ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    "PRETRAIN": "report.py",
    "OMPI_MCA_plm_rsh_agent": "/run/on",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
}
"""How mpirun reaches the hosts, and which Python it starts."""


@pytest.mark.parametrize("make", [make_plan, scrambled_plan])
def test_every_rank_is_on_the_host_of_the_rankfile(make: Callable[[], Plan], tmp_path: Path) -> None:
    """Hosts, GPUs and arguments of sixteen processes on four hosts; none is bound to fewer cores than there are."""
    hosts.require()
    plan = make()
    write_job(plan, "mpi", tmp_path)
    used = list(dict.fromkeys(row.host for row in rank_rows(plan)))
    done = hosts.run_on(
        used,
        "bash launch.sh --save nowhere",
        tmp_path,
        ENVIRONMENT,
    )
    assert done.returncode == 0, done.stderr
    reports = read_reports(tmp_path)
    assert_as_planned(plan, reports)
    assert {one["cores"] for one in reports} == {len(os.sched_getaffinity(0))}
    assert all(one["args"] == [*megatron_arguments(plan), "--save", "nowhere"] for one in reports)


def test_a_host_that_is_not_there_stops_the_job(tmp_path: Path) -> None:
    """The rankfile is obeyed or nothing runs: without one of its hosts no process starts."""
    hosts.require()
    plan = make_plan()
    write_job(plan, "mpi", tmp_path)
    done = hosts.run_on(
        ["n3", "n0", "n4"],
        "timeout 60 bash launch.sh",
        tmp_path,
        ENVIRONMENT,
    )
    assert done.returncode != 0
    assert read_reports(tmp_path) == []
