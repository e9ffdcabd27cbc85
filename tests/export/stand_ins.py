"""Runs of generated scripts, with stand-ins for the programs that they start."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

from pipette_opt.export.targets import export
from pipette_opt.plans.plan import Plan

RECORDER = f"""#!{sys.executable}
import json, os, sys
names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "CUDA_DEVICE_MAX_CONNECTIONS")
names += ("CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "HOST")
found = {{name: os.environ.get(name) for name in names}}
found["host"], found["args"] = os.environ.get("SLURMD_NODENAME"), sys.argv[1:]
with open(os.environ["RECORD"], "a") as file:
    file.write(json.dumps(found) + "\\n")
"""
"""Stands for the training program: notes what it is started with."""

MPIRUN = """#!/bin/bash
# Stands for mpirun: one process per line of the rank file, one after the other.
while [[ $1 == -* ]]; do
  case $1 in
    --rankfile) rankfile=$2 ;;
    -np) count=$2 ;;
  esac
  shift 2
done
while read -r word entry slot; do
  rank=${entry%%=*} host=${entry#*=}
  export HOST=$host OMPI_COMM_WORLD_RANK=$rank OMPI_COMM_WORLD_SIZE=$count
  PMIX_HOSTNAME=${NAMED:-$host} "$@" || exit
done < "$rankfile"
"""
"""Runs each process on the host of its rank, which is called ``NAMED`` there if that is set."""


def written(plan: Plan, target: str, folder: Path, **shims: str) -> dict[str, str]:
    """Write the files of an export in a folder, and stand-ins for programs; return the files."""
    files = export(plan, target)
    (folder / "bin").mkdir(exist_ok=True)
    for name, text in {**files, **{f"bin/{name}": text for name, text in shims.items()}}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(stat.S_IRWXU)
    return files


def run(command: list[str], folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run in a folder, stand-ins first on the path."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "MASTER", "RANK"))}
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**clean, "PATH": path, "RECORD": str(folder / "record"), **environment}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)


def records(folder: Path) -> list[dict[str, Any]]:
    """Return what the recorder saw, call by call."""
    return [json.loads(line) for line in (folder / "record").read_text().splitlines()]
