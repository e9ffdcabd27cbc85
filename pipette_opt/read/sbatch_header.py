"""Reader of the ``#SBATCH`` lines of a batch script, and stand-ins for variables that Slurm and MPI set for a job."""

import re
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace

from pipette_opt.base.errors import InputError
from pipette_opt.base.units import whole_number
from pipette_opt.read.launchers import known_launchers
from pipette_opt.read.launches import Started, read_options

LONG_NAMES: Mapping[str, str] = {
    "A": "account",
    "a": "array",
    "C": "constraint",
    "c": "cpus-per-task",
    "D": "chdir",
    "d": "dependency",
    "e": "error",
    "G": "gpus",
    "J": "job-name",
    "m": "distribution",
    "N": "nodes",
    "n": "ntasks",
    "o": "output",
    "p": "partition",
    "q": "qos",
    "t": "time",
    "tasks-per-node": "ntasks-per-node",
    "w": "nodelist",
    "x": "exclude",
}
"""Long names of sbatch's short options and aliases (sbatch's manual)."""

_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "gpus": ("SLURM_GPUS",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "gpus-per-task": ("SLURM_GPUS_PER_TASK",),
    "cpus-per-gpu": ("SLURM_CPUS_PER_GPU",),
    "job-name": ("SLURM_JOB_NAME",),
    "partition": ("SLURM_JOB_PARTITION",),
    "account": ("SLURM_JOB_ACCOUNT",),
    "nodelist": ("SLURM_JOB_NODELIST", "SLURM_NODELIST"),
    "qos": ("SLURM_JOB_QOS",),
    "reservation": ("SLURM_JOB_RESERVATION",),
    "dependency": ("SLURM_JOB_DEPENDENCY",),
    "licenses": ("SLURM_JOB_LICENSES",),
    "ntasks-per-core": ("SLURM_NTASKS_PER_CORE",),
    "ntasks-per-socket": ("SLURM_NTASKS_PER_SOCKET",),
    "ntasks-per-gpu": ("SLURM_NTASKS_PER_GPU",),
    "threads-per-core": ("SLURM_THREADS_PER_CORE",),
    "gpus-per-socket": ("SLURM_GPUS_PER_SOCKET",),
    "gpu-bind": ("SLURM_GPU_BIND",),
    "gpu-freq": ("SLURM_GPU_FREQ",),
    "distribution": ("SLURM_DISTRIBUTION",),
    "hint": ("SLURM_HINT",),
    "export": ("SLURM_EXPORT_ENV",),
    "profile": ("SLURM_PROFILE",),
    "container": ("SLURM_CONTAINER",),
}
"""Variables that Slurm sets to the value of an option (sbatch's manual, "output environment variables")."""

_FIRST_PROCESS = {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
"""Variables of a batch script, which runs as the first process on the first host of its job."""


_MADE_UP = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_TASK_PID", "SLURM_JOB_START_TIME"), "1"),
    **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME", "SLURM_SUBMIT_HOST"), "localhost"),
    **dict.fromkeys(("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE"), "64"),
    **dict.fromkeys(("SLURM_JOB_UID", "SLURM_JOB_GID"), "1000"),
    **dict.fromkeys(("SLURM_CLUSTER_NAME", "SLURM_WORKING_CLUSTER"), "cluster"),
    "SLURM_JOB_END_TIME": "86401",
    "SLURM_SUBMIT_DIR": ".",
    "SLURM_TASKS_PER_NODE": "1",
    "SLURM_JOB_NAME": "job",
    "SLURM_JOB_PARTITION": "partition",
    "SLURM_JOB_ACCOUNT": "account",
    "SLURM_JOB_QOS": "normal",
    "SLURM_JOB_USER": "user",
    "SLURM_GTIDS": "0",
    "SLURM_PRIO_PROCESS": "0",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
    "SLURM_TOPOLOGY_ADDR": "localhost",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
}
"""Placeholder values of variables that every batch job of Slurm has (sbatch's manual; ``src/common/env.c``)."""

_OF_ARRAYS = {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "0"}
"""Placeholder values of variables that a job with ``--array`` has, too."""

_MEMORY = {"mem": "SLURM_MEM_PER_NODE", "mem-per-cpu": "SLURM_MEM_PER_CPU", "mem-per-gpu": "SLURM_MEM_PER_GPU"}
"""Variables that Slurm sets to the memory of an option in MiB."""

_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}
"""MiB of a unit of ``--mem``, by its letter."""

_FIRST_MPI_PROCESS = dict.fromkeys(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "PMI_RANK"), "0")
"""Variables that MPI launchers set for the first process of a job."""


def sbatch_options(text: str, where: str) -> dict[str, str]:
    """
    Return the options in the ``#SBATCH`` lines of a script, by long name; a flag has the value ``""``.

    As in sbatch, later lines override earlier ones, and the first line that is neither blank nor a comment ends them.
    """
    # No program follows the options, so a word after an unknown option is its value.
    header, found = replace(known_launchers()["sbatch"], all_take_values=True), dict[str, str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and not line.startswith("#"):
            break
        if not re.match(r"#SBATCH\s", line):
            continue
        place = f"{where}, line {number}"
        try:
            words = shlex.split(line.removeprefix("#SBATCH"), comments=True)
        except ValueError as error:
            raise InputError(place, f"#SBATCH has a quote that is not closed ({error}).") from None
        options = read_options(place, header, words)
        found |= {LONG_NAMES.get(name, name): value for name, value in options.items()}
    return found


def job_variables(options: Mapping[str, str]) -> dict[str, str]:
    """
    Return stand-ins for Slurm's variables in a batch script, as its options set them, else placeholders.

    A script without ``#SBATCH`` lines gets none, as it may run without Slurm.
    """
    return {**made_up_variables(options), **slurm_variables(options)}


def submitted_variables(text: str, words: Sequence[str]) -> dict[str, str]:
    """Return stand-ins for Slurm's variables in a script text that ``sbatch`` submits; empty for other commands."""
    return job_variables(sbatch_options(text, "the submitted script")) if words[0] == "sbatch" else {}


def first_process_variables(found: Started) -> dict[str, str]:
    """Return the variables that ``srun`` or an MPI launcher sets for its first process."""
    names = {starter.name for starter in found.launchers}
    by_mpi = names & {"mpirun", "mpiexec", "orterun", "prterun"}
    return {**(_FIRST_PROCESS if "srun" in names else {}), **(_FIRST_MPI_PROCESS if by_mpi else {})}


def made_up_note(options: Mapping[str, str], text: str, given: Container[str]) -> list[str]:
    """
    Return a note on the placeholders that a script's text uses, as a list; empty if it uses none.

    Parameters
    ----------
    given
        Names of variables with a value of the user's.
    """
    return note_on_variables("Made up, as no job of Slurm runs", made_up_variables(options), text, given)


def note_on_variables(beginning: str, variables: Mapping[str, str], text: str, given: Container[str]) -> list[str]:
    """Return a note on the variables that a script's text uses and the user does not set; empty without any."""
    used = [f"{name}={value}" for name, value in variables.items() if name in text and name not in given]
    return [f"{beginning}: {', '.join(used)}."] if used else []


def made_up_variables(options: Mapping[str, str]) -> dict[str, str]:
    """Return placeholder values of variables that Slurm sets for every job, for a script evaluated without Slurm."""
    if not options:
        return {}
    known = slurm_variables(options)
    placeholders = {**_MADE_UP, **(_OF_ARRAYS if "array" in options else {})}
    return {name: value for name, value in placeholders.items() if name not in known}


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables that Slurm sets in a batch script, as far as its options determine them.

    ``SLURM_NTASKS`` and ``SLURM_CPUS_ON_NODE`` follow from the tasks per host, ``SLURM_GPUS_ON_NODE`` from
    ``--gpus-per-node`` or ``--gres``.
    """
    if not options:
        return {}
    found = dict(_FIRST_PROCESS)
    for option, names in _VARIABLES.items():
        if options.get(option):
            found |= dict.fromkeys(names, options[option])
    if whole_number(found.get("SLURM_NNODES", "1")) is None:  # 2-4
        del found["SLURM_NNODES"], found["SLURM_JOB_NUM_NODES"]
    nodes, tasks = found.get("SLURM_NNODES", ""), options.get("ntasks-per-node", "")
    if "ntasks" not in options and whole_number(nodes) is not None and whole_number(tasks) is not None:
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    repeated = f"(x{nodes})" if (whole_number(nodes) or 1) > 1 else ""
    cpus = options.get("cpus-per-task", "")
    if whole_number(tasks) is not None:
        found["SLURM_TASKS_PER_NODE"] = f"{tasks}{repeated}"
    if whole_number(tasks) is not None and whole_number(cpus) is not None:
        found["SLURM_CPUS_ON_NODE"] = str(int(tasks) * int(cpus))
        found["SLURM_JOB_CPUS_PER_NODE"] = f"{int(tasks) * int(cpus)}{repeated}"
    for option, name in _MEMORY.items():
        size = re.fullmatch(r"([0-9]+)([KMGT]?)B?", options.get(option, "").upper())
        if size is not None:
            found[name] = str(int(int(size[1]) * _MIB[size[2] or "M"]))
    per_node = options.get("gpus-per-node") or next(iter(re.findall(r"gpu\b[:=]?[^,]*", options.get("gres", ""))), "")
    gpus = re.search(r"(?<![0-9])([0-9]+)$", per_node.split("(")[0])
    if gpus is not None:
        found["SLURM_GPUS_ON_NODE"] = gpus[1]
    return found
