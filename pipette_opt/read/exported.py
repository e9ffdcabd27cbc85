"""Launches in files that ``export`` wrote: scripts that start Megatron-LM with the arguments in an array."""

import json
import re
import shlex
from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file, read_output
from pipette_opt.read.files import read_text

RECORD = ".pipette-opt-export.json"
"""File in the folder with the SHA-256 of each exported file; both hashes while a file is being replaced."""

ARGUMENTS = "megatron_args.sh"
"""File with the arguments of an exported launch, for launchers whose script reads it."""

OVERRIDES = "nemo_args.sh"
"""File with the overrides of a recipe of Megatron-Bridge."""

TASK, NODES = "task.sh", "nodes.txt"
"""Files with the hosts of an exported launch: a host and GPU for each rank, and a line for each host."""

SCRIPTS = ("job.sbatch", "launch.sh", ARGUMENTS, OVERRIDES)
"""Names of exported files that are a launch, in the order in which a folder is searched for them."""

_READS_ARGUMENTS = re.compile(r'^source "\$\{ARGUMENTS:-\./megatron_args\.sh\}"$', re.MULTILINE)
_HOLDS_ARGUMENTS = re.compile(r"^NODE_RANK=\$\{1:\?the rank of this node is missing\}$", re.MULTILINE)
_OF_RANKS = {name: re.compile(rf"^{name}=\(\n(.*?)^\)", re.MULTILINE | re.DOTALL) for name in ("HOSTS", "LOCAL_RANKS")}
_ARRAY = re.compile(r"^MEGATRON_ARGS=\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"^exec ((?:torchrun|accelerate|deepspeed) .*)", re.MULTILINE | re.DOTALL)
_DEGREES = re.compile(r"^DEGREES=\(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_RANKS = re.compile(r"^(?:export WORLD_SIZE=|mpirun -np )([0-9]+)\b", re.MULTILINE)
_RANKS_OF_NODES = re.compile(r"^exec torchrun --nnodes ([0-9]+) --nproc-per-node ([0-9]+) ", re.MULTILINE)


def is_exported(folder: Path) -> bool:
    """Return whether a folder has a launch that ``export`` wrote."""
    return any(is_file(folder / name) for name in SCRIPTS)


def exported_hashes(folder: Path) -> dict[str, str]:
    """Return the hashes of the files that ``export`` wrote into a folder, by name; empty without a readable record."""
    try:
        found = json.loads(read_output(folder / RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else {}


def launch_in(folder: Path) -> Path:
    """Return the launch script in a folder that ``export`` wrote; ``InputError`` if it has none."""
    for name in SCRIPTS:
        if is_file(folder / name):
            return folder / name
    raise InputError(str(folder), f"is a folder without {', '.join(SCRIPTS)}; give the launch script in it.")


def exported_launch(path: Path, text: str) -> str:
    """
    Return a command line with the arguments of an exported launch script; any other text unchanged.

    Raises
    ------
    InputError
        If the file of arguments that the script reads is not beside it.
    """
    if _READS_ARGUMENTS.search(text):
        beside = path.parent / ARGUMENTS
        if not is_file(beside):
            raise InputError(str(path), f"reads its arguments from {ARGUMENTS}, which is not beside it; put it there.")
        found = _ARRAY.search(read_text(beside, keep_line_ends=True))
    elif (command := _COMMAND.search(text)) and not _ARRAY.search(text):
        return _of_framework(command[1], text)
    elif _HOLDS_ARGUMENTS.search(text) or path.name == OVERRIDES:
        found = _ARRAY.search(text)
    else:
        return text
    if found is None:
        raise InputError(str(path), "has no array MEGATRON_ARGS; export the plan again.")
    lines = [line.strip() for line in found[1].splitlines()]
    return " \\\n".join([_starter(text), *(line for line in lines if line and not line.startswith("#"))])


def _of_framework(command: str, text: str) -> str:
    """Return the command of an exported script of another framework, with names in place of its variables."""
    degrees = _DEGREES.search(text)
    words = {
        '"$SCRIPT"': "pretrain_gpt.py",
        '"$@" --': "train.py --",
        '"$@"': "",
        '"${DEGREES[@]}"': "" if degrees is None else " ".join(degrees[1].split()),
        '"$NODE_RANK"': "0",
        '"$MASTER_ADDR"': "localhost",
        '"$MASTER_PORT"': "29500",
        '"$(IFS=@; echo "${CHOSEN[*]}")"': "localhost",
    }
    for variable, word in words.items():
        command = command.replace(variable, word)
    return command


def exported_ranks(path: Path, text: str) -> tuple[tuple[str, int], ...]:
    """Return host and GPU of each rank of an exported launch, by the files beside it; empty if they name no host."""
    if _READS_ARGUMENTS.search(text) and is_file(path.parent / TASK):
        task = read_text(path.parent / TASK)
        hosts, gpus = (shlex.split(found[1]) if (found := array.search(task)) else [] for array in _OF_RANKS.values())
        if len(hosts) != len(gpus) or not all(gpu.isdecimal() for gpu in gpus):
            return ()
        return tuple(zip(hosts, map(int, gpus), strict=True))
    nodes = _RANKS_OF_NODES.search(text)
    if not (_HOLDS_ARGUMENTS.search(text) and nodes and is_file(path.parent / NODES)):
        return ()
    return tuple((host, gpu) for host in read_text(path.parent / NODES).split() for gpu in range(int(nodes[2])))


def _starter(script: str) -> str:
    """Return the beginning of a command line that starts as many processes as an exported script."""
    nodes, ranks = _RANKS_OF_NODES.search(script), _RANKS.search(script)
    launcher = f"torchrun --nnodes {nodes[1]} --nproc-per-node {nodes[2]}" if nodes else "python"
    return f"{f'srun --ntasks={ranks[1]} python' if ranks else launcher} pretrain_gpt.py"
