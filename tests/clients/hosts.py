"""
Hosts as network namespaces, for tests that start real launchers.

Everything lives in one private world: a network, mount, host-name and process namespace of its own, in which each
host is a network namespace with an address on a bridge. The world's processes, servers included, end with its first
one, and that ends with the test, also if the test is killed; the kernel then drops the namespaces.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from clients_here import server_path

TOOLS = ("setpriv", "unshare", "ip", "mount", "hostname")
"""Programs that make them."""

WORLD = ("setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc")
WORLD += ("--fork", "--kill-child=KILL", "bash")

PROLOGUE = Path(__file__).with_name("hosts.sh").read_text()


def reason_against() -> str | None:
    """Why no hosts can be made here."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    done = subprocess.run(
        [*WORLD, "-c", PROLOGUE], env=_environment(["a"]), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        return f"network namespaces cannot be made: {done.stderr.strip().splitlines()[-1:]}"
    return None


def require() -> None:
    """Skip unless hosts can be made."""
    against = reason_against()
    if against is not None:
        pytest.skip(against)


def run_on(
    hosts: Sequence[str],
    script: str,
    folder: Path,
    variables: Mapping[str, str] | None = None,
    timeout_s: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """
    Run a bash script on ``head``, beside the hosts; ``/run/on HOST COMMAND`` runs there.

    The whole world is gone when this returns or fails.
    """
    world = start_on(hosts, script, folder, variables)
    try:
        out, err = world.communicate(timeout=timeout_s)
    except BaseException:
        world.send_signal(signal.SIGKILL)
        world.communicate()
        raise
    return subprocess.CompletedProcess(world.args, world.returncode, out, err)


def start_on(
    hosts: Sequence[str], script: str, folder: Path, variables: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """The same, without waiting."""
    return subprocess.Popen(
        [*WORLD, "-c", PROLOGUE + script],
        cwd=folder,
        env={**_environment(hosts), **(variables or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _environment(hosts: Sequence[str]) -> dict[str, str]:
    """Ours, without what another launcher left in it."""
    foreign = ("SLURM", "OMPI", "PMIX", "MASTER", "RANK", "LOCAL_RANK", "WORLD_SIZE", "CUDA")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
    return {**kept, "PATH": server_path(), "HOSTS": " ".join(hosts)}
