"""The hosts that other tests run on leave nothing behind."""

import os
import signal
import time
from pathlib import Path

import hosts
import pytest

MARK = "hosts-test-7321"


def processes(mark: str) -> list[int]:
    """Processes whose command line has the mark."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in command and int(entry.name) != os.getpid():
            found.append(int(entry.name))
    return found


@pytest.mark.client(programs=hosts.TOOLS)
@pytest.mark.parametrize("how", ["ends", "killed"])
def test_nothing_is_left(how: str, tmp_path: Path) -> None:
    """Servers on hosts, their network and their names are gone with the script, also if it is killed."""
    hosts.require()
    before = set(Path("/sys/class/net").iterdir())
    mark = f"{MARK}-{os.getpid()}-{how}"
    script = f"for host in $HOSTS; do /run/on $host 'exec -a {mark} sleep 600' & done; touch up; sleep 0.2"
    world = hosts.start_on(["a", "b"], script if how == "ends" else f"{script}; sleep 600", tmp_path)
    deadline = time.monotonic() + 30
    while not ((tmp_path / "up").exists() and len(processes(mark)) >= 2):
        assert world.poll() is None or how == "ends", world.stderr
        if world.poll() is not None or time.monotonic() > deadline:
            break
        time.sleep(0.02)
    if how == "killed":
        assert processes(mark)
        world.send_signal(signal.SIGKILL)
    world.communicate(timeout=30)
    while processes(mark) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert processes(mark) == []
    ours = {Path("/sys/class/net", name) for name in ("bridge", "port1", "port2")}
    assert not ours & set(Path("/sys/class/net").iterdir()) - before
    assert "10.77.0." not in Path("/etc/hosts").read_text()


@pytest.mark.client(programs=hosts.TOOLS)
def test_hosts_have_names_and_see_each_other(tmp_path: Path) -> None:
    """By name, over their own interfaces."""
    hosts.require()
    script = "for host in $HOSTS; do /run/on $host 'hostname; getent hosts b'; done"
    done = hosts.run_on(["a", "b"], script, tmp_path)
    assert done.stdout.split() == ["a", "10.77.0.2", "b", "b", "10.77.0.2", "b"]
