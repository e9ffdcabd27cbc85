"""The tournament with real processes over gloo."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipette_opt.base.errors import InputError
from pipette_opt.measure.links import LinkParams, _continue_log
from pipette_opt.read.cluster import read_cluster
from pipette_opt.read.link_formats.link_log import LinkLog, link_line, parse_link_log

HOSTS = ("h0", "h1")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


LAUNCHER = """
import os, sys
import torch.distributed
from pipette_opt.cli import main
per_host, world, hosts = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(",")
children = []
for rank in range(world):
    child = os.fork()
    if not child:
        local = {"LOCAL_RANK": rank % per_host, "LOCAL_WORLD_SIZE": per_host}
        os.environ.update({name: str(value) for name, value in {"RANK": rank, "WORLD_SIZE": world, **local}.items()})
        sys.argv = ["pipette-opt", *sys.argv[4:], "--host", hosts[rank // per_host]]
        main()
    children.append(child)
sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))
"""
"""Imports torch once, then forks a process for each rank, as a launcher on one machine may."""


def start(folder: Path, *options: str, per_host: int = 1) -> subprocess.Popen[str]:
    """Start one process for each host and local rank, all on this machine."""
    environment = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    command = ["profile", "links", "-o", "c.yaml", "--sizes", "1", "--gpu", "a100-80gb", "--backend", "gloo", *options]
    world = str(per_host * len(HOSTS))
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, str(per_host), world, ",".join(HOSTS), *command],
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@pytest.mark.search
def test_a_run_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Two processes of each of two hosts: killed after the first results, then run again to the end."""
    first = start(tmp_path, "--seconds", "1", "--flows", "1,2", per_host=2)
    log = tmp_path / "c.links.jsonl"
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and (not log.exists() or log.read_text().count("\n") < 2):
        if first.poll() is not None:
            break
        time.sleep(0.05)
    os.killpg(first.pid, signal.SIGKILL)
    output, _ = first.communicate()
    assert log.exists(), output
    before = parse_link_log(log.read_text(), "log")
    assert 0 < len(before.rates) < 4, output
    second = start(tmp_path, "--seconds", "0.02", "--flows", "1,2", per_host=2)
    output, _ = second.communicate(timeout=240)
    assert second.returncode == 0, output
    after = parse_link_log(log.read_text(), "log")
    assert len(after.rates) == 4
    kept = {key for key, rates in before.rates.items() if after.rates[key] == rates}
    assert len(kept) >= len(before.rates) - 1  # of a pair whose other direction was missing both are measured again
    cluster = read_cluster(tmp_path / "c.yaml")
    assert cluster.hosts == HOSTS
    assert [matrix.concurrent_flows for matrix in cluster.link_matrices] == [1, 2]
    assert cluster.usable_links.sum() == 2


def test_a_log_is_cut_behind_its_last_whole_line(tmp_path: Path) -> None:
    """What was being written when the run died is measured again; a log of other hosts is refused."""
    path = tmp_path / "log"
    fresh = LinkLog(hosts=("a", "b"), gpus_per_node=1, device_name="", together=True)
    assert _continue_log(path, fresh) is fresh
    line = link_line(1, "a", "b", {4: 1.0e9}, 0.0)
    with path.open("a") as file:
        file.write(line + line[:10])
    assert list(_continue_log(path, fresh).rates) == [(1, "a", "b")]
    assert path.read_text().endswith(line)
    for other in (
        LinkLog(hosts=("a", "c"), gpus_per_node=1, device_name="", together=True),
        LinkLog(hosts=("a", "b"), gpus_per_node=1, device_name="", together=False),
    ):
        with pytest.raises(InputError, match="is the log of another measurement"):
            _continue_log(path, other)


def test_wrong_params() -> None:
    """Each names its field."""
    for wrong in ({"sizes": ()}, {"sizes": (0,)}, {"seconds": 0.0}, {"flows": (0,)}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            LinkParams(**wrong)
