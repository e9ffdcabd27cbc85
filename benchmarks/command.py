"""Words of the command lines of several benchmarks, and the versions and hardware that their pages name."""

import os
import platform
from importlib.metadata import version
from pathlib import Path

from pipette_opt import __version__

INSTANCES = "The instances"
"""Heading in the help text of the options that choose a benchmark's instances."""

OF_SOLVE = ("num_gpus", "gpu_price", "launcher", "p2p", "allreduce", "micro_batches")
"""Options of a job that do not matter where layers are priced on identical hosts."""


def environment() -> str:
    """Return versions and hardware as text."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("ortools", "numba", "numpy"))
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return (
        f"pipette-opt {__version__}, Python {platform.python_version()}, {packages}; "
        f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}{load}"
    )


def _processor() -> str:
    """Return the CPU's name as the operating system reports it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown CPU"
