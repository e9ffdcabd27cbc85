"""Rank, world size and host of this process, from the environment of torchrun, Slurm or Open MPI."""

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from pipette_opt.base.errors import InputError
from pipette_opt.read.hosts import expand_hosts

DEFAULT_PORT = 29533
"""TCP port of rank 0 if ``MASTER_PORT`` is not set. Chosen."""

_NAMES = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
    "mpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
}
"""Environment variables with rank, world size, local rank and local size, by launcher."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Process with its rank and host among all processes of the job."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    master_addr: str
    master_port: int
    host: str


def find_world(
    environment: Mapping[str, str],
    master_addr: str | None = None,
    master_port: int | None = None,
    host: str | None = None,
) -> World:
    """
    Return the rank and host of a process that torchrun, ``srun`` or ``mpirun`` has started, from its environment.

    The address of rank 0 comes from ``master_addr``, from ``MASTER_ADDR``, or from Slurm's list of nodes.
    """
    for names in _NAMES.values():
        rank, size, local_rank, local_size = (environment.get(name) for name in names)
        if rank is not None and size is not None and local_rank is not None:
            break
    else:
        raise InputError(
            "profile links",
            "must be started on every host by torchrun, srun or mpirun, e.g. srun --ntasks-per-node=1 pipette-opt "
            "profile links -o cluster.yaml; no variable has the rank of this process.",
        )
    counts = {name: environment[name] for name in names[:3]}
    if "MASTER_PORT" in environment and master_port is None:
        counts["MASTER_PORT"] = environment["MASTER_PORT"]
    for name, value in counts.items():
        if not (value.isascii() and value.isdigit()):
            raise InputError(name, f"must be a whole number >= 0, got {value!r}.")
    if int(rank) >= int(size):
        raise InputError(names[0], f"must be below {names[1]} = {size}, got {rank}.")
    address = master_addr or environment.get("MASTER_ADDR") or _first_slurm_host(environment)
    if address is None:
        raise InputError("--master-addr", "is needed: the address of the host of rank 0, as other hosts reach it.")
    port = master_port or int(environment.get("MASTER_PORT", DEFAULT_PORT))
    return World(
        rank=int(rank),
        size=int(size),
        local_rank=int(local_rank),
        local_size=int(re.match(r"[0-9]*", local_size or "1").group() or 1),  # type: ignore[union-attr]
        master_addr=address,
        master_port=port,
        host=host or environment.get("SLURMD_NODENAME") or socket.gethostname(),
    )


def process_environment() -> Mapping[str, str]:
    """Return the environment variables of this process."""
    return os.environ


def _first_slurm_host(environment: Mapping[str, str]) -> str | None:
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST")
    return expand_hosts(nodes, "SLURM_JOB_NODELIST")[0] if nodes else None
