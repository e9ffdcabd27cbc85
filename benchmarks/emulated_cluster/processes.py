"""Processes of an emulated cluster: a server on each host, and commands of launch scripts."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from network import INTERFACE, Network
from training_step import Job

from pipette_opt.base.errors import InputError

STEP = Path(__file__).with_name("training_step.py")
_ports = itertools.count(20_000)


class Servers:
    """Processes, one on every host, that run jobs one after the other; a context manager."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.running: dict[str, subprocess.Popen[str]] = {}

    def __enter__(self) -> "Servers":
        for host in self.network.hosts:
            self.running[host] = subprocess.Popen(
                self.network.command(host, [sys.executable, str(STEP), "serve"]),
                env=environment(host),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.communicate()

    def measure(self, job: Job, host_of_rank: Sequence[str]) -> list[float]:
        """Return the seconds of each iteration of a job, for the slowest rank."""
        port = next(_ports)
        for rank, host in enumerate(host_of_rank):
            command = {
                "job": asdict(job),
                "rank": rank,
                "master_addr": self.network.address(host_of_rank[0]),
                "master_port": port,
            }
            pipe = self.running[host].stdin
            assert pipe is not None
            pipe.write(json.dumps(command) + "\n")
            pipe.flush()
        answers = []
        for host in host_of_rank:
            pipe = self.running[host].stdout
            assert pipe is not None
            line = pipe.readline()
            if not line:
                raise InputError("emulated cluster", f"the process on {host} died.")
            answers.append(json.loads(line))
        return [max(seconds) for seconds in zip(*answers, strict=True)]


def run_everywhere(
    network: Network, commands: Mapping[str, Sequence[str]], settings: Mapping[str, Mapping[str, str]]
) -> None:
    """Run a command on each host at the same time; raises ``InputError`` with the output of the first failure."""
    running = {
        host: subprocess.Popen(
            network.command(host, command),
            env={**environment(host), **settings[host]},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for host, command in commands.items()
    }
    while not any(process.poll() for process in running.values()):
        if all(process.poll() == 0 for process in running.values()):
            return
        time.sleep(0.1)
    failed = next(host for host, process in running.items() if process.poll())
    for process in running.values():
        process.kill()
    output = running[failed].communicate()[0]
    raise InputError("emulated cluster", f"{' '.join(commands[failed])} on {failed} failed:\n{output[-2000:]}")


def environment(host: str) -> dict[str, str]:
    """Return the environment of a process on a host: one thread, the network's interface, our programs."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **INTERFACE, "OMP_NUM_THREADS": "1", "PATH": programs, "EMULATED_HOST": host}
