"""
Cleaner that removes the namespaces of one network when the process that made them is gone.

Its argument is the network's prefix. Its input is a pipe that the maker holds open and never writes to. The cleaner
ends when the maker closes the pipe or dies, even by SIGKILL. It uses the standard library only, so that it starts fast.
"""

import os
import signal
import subprocess
import sys
import time


def namespaces(prefix: str) -> list[str]:
    """Return the network's namespaces that still exist."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    return [
        line.split()[0] for line in listed.splitlines() if line.split() and line.split()[0].startswith(f"{prefix}-")
    ]


def processes(namespace: str) -> list[int]:
    """Return the process ids in a namespace."""
    found = subprocess.run(["ip", "netns", "pids", namespace], capture_output=True, text=True, check=False).stdout
    return [int(pid) for pid in found.split() if int(pid) != os.getpid()]


def clean(prefix: str) -> None:
    """Kill all processes in the network's namespaces, then remove the namespaces."""
    for _ in range(20):
        running = [pid for namespace in namespaces(prefix) for pid in processes(namespace)]
        if not running:
            break
        for pid in running:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    for namespace in namespaces(prefix):
        subprocess.run(["ip", "netns", "del", namespace], capture_output=True, check=False)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    clean(sys.argv[1])
