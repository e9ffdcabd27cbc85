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
}
"""Variables that Slurm sets to the value of an option (sbatch's manual, "output environment variables")."""

_FIRST_PROCESS = {"SLURM_NODEID": "0", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
"""Variables of a batch script, which runs as the first process on the first host of its job."""


_MADE_UP = {"SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_JOB_NODELIST": "localhost", "SLURM_NODELIST": "localhost"}
"""Placeholder values of variables that every Slurm job has."""

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
    return {name: value for name, value in _MADE_UP.items() if options and name not in slurm_variables(options)}


def slurm_variables(options: Mapping[str, str]) -> dict[str, str]:
    """
    Return the variables that Slurm sets in a batch script, as far as its options determine them.

    ``SLURM_NTASKS`` follows from the tasks per host, ``SLURM_GPUS_ON_NODE`` from ``--gpus-per-node`` or ``--gres``.
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
    per_node = options.get("gpus-per-node") or next(iter(re.findall(r"gpu\b[:=]?[^,]*", options.get("gres", ""))), "")
    gpus = re.search(r"(?<![0-9])([0-9]+)$", per_node.split("(")[0])
    if gpus is not None:
        found["SLURM_GPUS_ON_NODE"] = gpus[1]
    return found
