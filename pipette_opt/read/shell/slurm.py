"""Lines ``#SBATCH`` of a script, and the variables that Slurm sets because of them."""

import re
from collections.abc import Mapping

_LINE = re.compile(r"#SBATCH[ \t]+(.*?)[ \t]*$")
_SHORT = {"N": "nodes", "n": "ntasks", "c": "cpus-per-task", "J": "job-name", "p": "partition", "A": "account",
          "t": "time", "G": "gpus", "w": "nodelist", "x": "exclude", "o": "output", "e": "error"}  # fmt: skip
_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "nodes": ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
    "ntasks": ("SLURM_NTASKS", "SLURM_NPROCS"),
    "ntasks-per-node": ("SLURM_NTASKS_PER_NODE",),
    "cpus-per-task": ("SLURM_CPUS_PER_TASK",),
    "gpus-per-node": ("SLURM_GPUS_PER_NODE",),
    "gpus-per-task": ("SLURM_GPUS_PER_TASK",),
    "gpus": ("SLURM_GPUS",),
    "job-name": ("SLURM_JOB_NAME",),
    "partition": ("SLURM_JOB_PARTITION",),
    "account": ("SLURM_JOB_ACCOUNT",),
}


def header_of(text: str) -> dict[str, str]:
    """Return the options of the header, up to the first command; a flag has the value ``""``."""
    options: dict[str, str] = {}
    for line in text.splitlines():
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        found = _LINE.match(stripped)
        if found is None:
            continue
        words = re.split(r"\s+#", found[1])[0].split()
        index = 0
        while index < len(words):
            name, equals, value = words[index].lstrip("-").partition("=")
            if not equals and not words[index].startswith("--") and len(name) > 1:
                name, equals, value = name[0], "=", name[1:]
            index += 1
            if not equals and index < len(words) and not words[index].startswith("-"):
                value = words[index]
                index += 1
            options[_SHORT.get(name, name)] = value.strip("\"'")
    return options


def variables_of(header: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that Slurm sets for a job with this header."""
    found = {variable: header[option] for option, names in _VARIABLES.items() if option in header for variable in names}
    found = {name: value for name, value in found.items() if value}
    if "SLURM_NNODES" in found and not found["SLURM_NNODES"].isdigit():
        del found["SLURM_NNODES"], found["SLURM_JOB_NUM_NODES"]
    nodes, tasks = found.get("SLURM_NNODES", ""), found.get("SLURM_NTASKS_PER_NODE", "")
    if "SLURM_NTASKS" not in found and nodes.isdigit() and tasks.isdigit():
        found["SLURM_NTASKS"] = found["SLURM_NPROCS"] = str(int(nodes) * int(tasks))
    return found
