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

PROLOGUE = """
set -euo pipefail
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
hostname head
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.254/24 dev bridge
ip link set bridge up
printf '127.0.0.1 localhost\\n10.77.0.254 head\\n' > /run/hosts
number=0
for host in $HOSTS; do
  number=$((number + 1))
  ip netns add "$host"
  ip link add "port$number" type veth peer name eth0 netns "$host"
  ip link set "port$number" master bridge up
  ip -n "$host" addr add "10.77.0.$number/24" dev eth0
  ip -n "$host" link set eth0 up
  ip -n "$host" link set lo up
  printf '10.77.0.%s %s\\n' "$number" "$host" >> /run/hosts
done
mount --bind /run/hosts /etc/hosts
cat > /run/on <<'ON'
#!/bin/bash
# on HOST COMMAND: as mpirun calls ssh, the words of the command are one line for the shell of the host.
host=$1
shift
exec ip netns exec "$host" unshare --uts bash -c "hostname $host; $*"
ON
chmod +x /run/on
"""


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
