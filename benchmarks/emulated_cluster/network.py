"""
Hosts as network namespaces on one machine, joined by a bridge; every directed pair has a rate of its own.

Each host shapes its outgoing traffic: one HTB class for each receiver. A separate process (:mod:`janitor`) waits for
the end of the process that made the network. However that ends, it kills the processes in the namespaces and removes
them.
"""

import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import numpy as np

from pipette_opt.base.errors import InputError
from pipette_opt.base.types import FloatArray

NEEDED = ("ip", "tc")
SUBNET = "10.77"
INTERFACE = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "eth0"}
"""Environment variables of processes that communicate over the network."""

SEGMENT_BYTES = 8192
"""Maximum bytes that TCP hands to the interface at once; small, so that no message passes as one burst. Chosen."""

FAST_BYTES_PER_S = 10e9
"""Rate of traffic outside the named pairs, bytes/s. Chosen."""


def why_not() -> str | None:
    """Return the reason why this machine cannot make a network; ``None`` if it can."""
    if sys.platform != "linux":
        return "needs Linux, for its network namespaces"
    if os.geteuid() != 0:
        return "needs root, to make network namespaces and to limit rates"
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing:
        return f"needs {' and '.join(missing)} (Debian's package iproute2)"
    probe = f"po-probe-{uuid.uuid4().hex[:6]}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"cannot make a network namespace: {made.stderr.strip()}"
    try:
        shaped = subprocess.run(
            ["ip", "netns", "exec", probe, "tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", "htb"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return f"cannot limit rates: {shaped.stderr.strip()}" if shaped.returncode else None


@dataclass(slots=True, kw_only=True)
class Network:
    """
    Network of emulated hosts, as a context manager.

    Parameters
    ----------
    hosts
        Names of the hosts. ``hostname`` does not return them, so pass them to the processes.
    bytes_per_s
        Rate from the host of the row to the host of the column, shape ``(num_hosts, num_hosts)``; NaN for unlimited.
    """

    hosts: Sequence[str]
    bytes_per_s: FloatArray
    prefix: str = ""
    _janitor: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "Network":
        reason = why_not()
        if reason is not None:
            raise InputError("emulated cluster", f"{reason}.")
        self.prefix = f"po{uuid.uuid4().hex[:6]}"
        self._janitor = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("janitor.py")), self.prefix],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the network, by closing the janitor's input and waiting for it."""
        if self._janitor is not None and self._janitor.stdin is not None:
            self._janitor.stdin.close()
            self._janitor.wait(timeout=60)
            self._janitor = None

    def namespace(self, host: str) -> str:
        """Return the namespace of a host."""
        return f"{self.prefix}-{list(self.hosts).index(host)}"

    def address(self, host: str) -> str:
        """Return the IP address of a host."""
        return _address(list(self.hosts).index(host))

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """Return the command line that runs ``arguments`` on a host."""
        return ["ip", "netns", "exec", self.namespace(host), *arguments]

    def _make(self) -> None:
        hub = f"{self.prefix}-hub"
        _ip("netns", "add", hub)
        _ip("-n", hub, "link", "add", "br0", "type", "bridge")
        _ip("-n", hub, "link", "set", "br0", "up")
        for index in range(len(self.hosts)):
            namespace, port = f"{self.prefix}-{index}", f"p{index}"
            _ip("netns", "add", namespace)
            _ip("-n", hub, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("-n", hub, "link", "set", port, "master", "br0", "up")
            _ip("-n", namespace, "addr", "add", f"{_address(index)}/16", "dev", "eth0")
            for number, end in ((hub, port), (namespace, "eth0")):
                _ip("-n", number, "link", "set", "dev", end, "gso_max_size", str(SEGMENT_BYTES))
            _run("ip", "netns", "exec", namespace, "sysctl", "-qw", "net.ipv4.tcp_slow_start_after_idle=0")
            _ip("-n", namespace, "link", "set", "lo", "up")
            _ip("-n", namespace, "link", "set", "eth0", "up")
            self._shape(index)

    def _shape(self, sender: int) -> None:
        """Make one HTB class for each receiver's address on the sender."""
        lines = ["qdisc add dev eth0 root handle 1: htb default ffff r2q 1000"]
        lines.append(_class("ffff", FAST_BYTES_PER_S))
        for receiver, rate in enumerate(self.bytes_per_s[sender]):
            if receiver != sender and not np.isnan(rate):
                minor = f"{receiver + 1:x}"
                lines.append(_class(minor, float(rate)))
                lines.append(
                    f"filter add dev eth0 protocol ip parent 1: prio 1 u32 match ip dst {_address(receiver)}/32 "
                    f"flowid 1:{minor}"
                )
        batch = "\n".join(lines) + "\n"
        _run("ip", "netns", "exec", f"{self.prefix}-{sender}", "tc", "-batch", "-", text=batch)


def _class(minor: str, bytes_per_s: float) -> str:
    """Return the tc command of a class with a burst of half a millisecond, at least two segments."""
    burst = max(2 * SEGMENT_BYTES, int(bytes_per_s * 5e-4))
    return f"class add dev eth0 parent 1: classid 1:{minor} htb rate {int(bytes_per_s)}bps burst {burst} cburst {burst}"


def _address(index: int) -> str:
    return f"{SUBNET}.{index // 250}.{index % 250 + 1}"


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str, text: str | None = None) -> None:
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InputError("emulated cluster", f"{' '.join(command)} failed: {done.stderr.strip()}")
