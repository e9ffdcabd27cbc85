"""
Stand-in program that runs in place of a launcher or of Python, under the same name.

A training program is recorded, and the stand-in ends with status 0. A shell under a launcher is run, so that bash
itself finds its commands. A text for other hosts or a container runs with stand-ins only. Any other command is passed
to the real program, or is only recorded if it would start work on a cluster.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from pipette_opt.base.errors import InputError
from pipette_opt.read.capture.records import (
    DRY,
    FOREIGN_PATH,
    OUTER,
    base_environment,
    outer_of,
    started_by,
    write_record,
)
from pipette_opt.read.hosts import expand_hosts
from pipette_opt.read.launchers import PYTHON_NAME, REMOTE
from pipette_opt.read.launches import (
    STANDARD_INPUT,
    Launch,
    OtherCommand,
    ShellScript,
    ShellText,
    Started,
)
from pipette_opt.read.sbatch_header import first_process_variables, submitted_variables

CONTAINERS = ("docker", "podman", "nvidia-docker", "podman-hpc", "singularity", "apptainer", "enroot", "shifter")
"""Programs that run commands in containers."""

SUBMITTERS = ("kubectl", "helm", "qsub", "bsub", "condor_submit", "flux", "oarsub", "dlc", "sky", "gcloud", "aws", "az")
"""Programs that submit jobs to a cluster or a cloud; their arguments are not read."""

LAUNCHERS = (
    "torchrun",
    "deepspeed",
    "accelerate",
    "accelerate-launch",
    "srun",
    "salloc",
    "sbatch",
    "mpirun",
    "mpiexec",
    "mpiexec.hydra",
    "orterun",
    "prterun",
    "ray",
    "jsrun",
    "horovodrun",
    "colossalai",
    "composer",
    *REMOTE,
    *CONTAINERS,
    *SUBMITTERS,
)
"""Programs that start work elsewhere or in many processes; the real program is never started."""

LOOKED_THROUGH = ("numactl", "nsys", "ncu", "rocprof", "rocprofv3", "py-spy", "uv", "conda", "mamba", "poetry", "sudo")
"""Wrappers that may be missing on this machine; the real program runs if its command does not train."""

PYTHONS = ("python", "python3")

SHELLS_AND_WRAPPERS = ("bash", "sh", "env", "nohup", "setsid", "nice", "ionice", "stdbuf", "time", "timeout", "taskset")
"""Shells and wrappers that get stand-in programs in texts for other hosts and containers."""

NEVER_RUN = ("sudo", "salloc")
"""Programs that are never passed on, as they wait for a password or for hosts."""

HARMLESS = ("hostname", "echo", "printf", "date", "env", "printenv", "true", "false", "pwd", "whoami", "id", "uname")
"""Commands under a launcher that run on this machine for their output; all others are only recorded."""

ASKING = ("ps", "images", "inspect", "version", "info", "--version", "-v", "--help", "help")
"""First words after a container program with which it only answers; all others are recorded."""

_DRY_BEGINNING = r"""
cd() { :; }; pushd() { :; }; popd() { :; }; source() { :; }; .() { :; }; ulimit() { :; }; kill() { :; }; trap() { :; }
exec() { while [[ $1 == -* ]]; do [[ $1 == -*a ]] && shift; shift; done; __called "$@"; }
command_not_found_handle() { :; }
command() {
    case "$1" in -*[vV]*) builtin command "$@"; return;; esac
    while [[ $1 == -* ]]; do shift; done
    __called "$@"
}
__called() { if [[ $1 == */* ]]; then __stand_in "$@"; elif (( $# )); then builtin command "$@"; fi; }
__stand_in() { local name=${1##*/}; shift; if [[ -n $(type -P "$name") ]]; then "$name" "$@"; fi; }
__assigned='^(([A-Za-z_][A-Za-z_0-9]*=([^[:space:]"'\'']|"[^"]*"|'\''[^'\'']*'\'')*[[:space:]]+)*)(([^[:space:]=(`]+).*)$'
__by_name() {
    [[ $BASH_COMMAND =~ $__assigned ]] || return 0
    local before=${BASH_REMATCH[1]} command=${BASH_REMATCH[4]} first
    eval "first=( ${BASH_REMATCH[5]} )" 2>&-
    [[ ${first[0]} == */* ]] || return 0
    eval "$before __stand_in $command"
    return 1
}
shopt -s extdebug; builtin trap __by_name DEBUG
enable -n cd pushd popd source . ulimit kill trap exec history fc suspend umask enable
set -r || builtin exit 1
"""
"""
Shell code put before a text for another host or a container: its folders and programs need not exist.

A program named by a path is replaced by its stand-in: with ``extdebug``, a failing DEBUG trap skips the command. What
that misses cannot run either: the restricted shell refuses names with a slash, output files, and another ``PATH``.
"""

_OWN_PATH = re.compile(r"(?<![\w$\{])PATH(?=\+?=)")
"""Pattern of a setting of ``PATH`` in a text for another host, where it would end the restricted shell."""


_REDIRECTION = re.compile(
    r"""(?<![^\s;|&()])([0-9]*|&|\{\w+\})>[>|]?(?!\()          # 2>, &>, >>, >|
    \s*(&?[0-9]|&-|("[^"]*"|'[^']*'|\\.|[^\s;|&()<>"'\\])+)   # and the file, or &1
    |(?<=\w)>>?\s*("[^"]*"|'[^']*'|[^\s;|&()<>"'\\])+""",
    re.VERBOSE,
)
"""Pattern of an output redirection outside quotes."""


_COMPARISON = re.compile(r"\(\(.*?\)\)|\[\[\s.*?\s\]\]", re.DOTALL)
"""Pattern of arithmetic and conditions, in which ``>`` compares."""

SLURM_TIME_LIMIT_S = 5.0
"""
Longest time for an answer of the real ``scontrol``, seconds. Chosen: without configuration it may wait for a name
server.
"""


def main(folder: str, words: Sequence[str]) -> int:
    """Run the stand-in for a command line; return its exit status. ``folder`` is the folder of the run."""
    place, environment = Path(folder), os.environ
    outer = outer_of(environment)
    try:
        found = started_by(words, outer)
    except InputError as error:
        write_record(place, "refused", words, environment, problem=str(error))
        return 0
    if isinstance(found, Launch):
        write_record(place, "start", words, environment)
        return 0
    if words[0] == "scontrol":
        return _scontrol(place, words)
    if isinstance(found, ShellText | ShellScript):
        return _shell(place, words, found, environment)
    return _other(place, words, found, environment)


def only_asks(words: Sequence[str]) -> bool:
    """Return whether a command line asks a container program, and starts nothing."""
    return Path(words[0]).name in CONTAINERS and (len(words) == 1 or words[1] in ASKING)


def real_shell(place: Path) -> str:
    """Return the bash that stand-ins start; ``place`` is the folder of the run."""
    return shutil.which("bash", path=_real_path(place, base_environment(place))) or "/bin/sh"


def _other(place: Path, words: Sequence[str], found: OtherCommand, environment: Mapping[str, str]) -> int:
    """Pass on or record a command that does not train; return the exit status."""
    if DRY in environment:
        return 0
    name = words[0]
    if PYTHON_NAME.fullmatch(name) or (name in LOOKED_THROUGH and name not in NEVER_RUN):
        _pass_on(place, words, environment)
    if name in CONTAINERS and only_asks(words):
        _pass_on(place, words, environment)
    if found.launchers and found.words and Path(found.words[0]).name in HARMLESS and not _is_elsewhere(found):
        _pass_on(place, found.words, environment)
    write_record(place, "left out", words, environment)
    return 0


def _shell(place: Path, words: Sequence[str], found: ShellText | ShellScript, environment: Mapping[str, str]) -> int:
    """Run the shell text or script under a launcher, with the launcher's variables for its first process."""
    inner = {**environment, **first_process_variables(found), **found.environment}
    inner[OUTER] = json.dumps([*outer_of(environment), list(words)])
    shell = real_shell(place)
    dry = DRY in environment or _is_elsewhere(found)
    if isinstance(found, ShellScript) and found.path != STANDARD_INPUT:
        write_record(place, "script", words, environment, path=found.path)
        if not Path(found.path).is_file():
            write_record(place, "left out", words, environment)
            return 0
    if isinstance(found, ShellText):
        arguments = ["-c", found.text, *(found.arguments or ("bash",))]
    elif found.path == STANDARD_INPUT:
        text = sys.stdin.read()
        inner |= submitted_variables(text, words)
        arguments = ["-c", text, "bash", *found.arguments]
    else:
        inner |= submitted_variables(Path(found.path).read_text(encoding="utf-8", errors="replace"), words)
        arguments = [found.path, *found.arguments]
    if words[0] == "sbatch":
        print("1" if "--parsable" in words else "Submitted batch job 1", flush=True)
    if not dry:
        os.execve(shell, ["bash", *arguments], inner)
    return _dry(place, shell, arguments, inner)


def _dry(place: Path, shell: str, arguments: Sequence[str], environment: dict[str, str]) -> int:
    """Run a shell text for another host or a container; only stand-ins are found as commands."""
    if arguments[0] == "-c":
        text, words = arguments[1], arguments[2:]
    else:
        text, words = Path(arguments[0]).read_text(encoding="utf-8", errors="replace"), arguments
    text = _OWN_PATH.sub(FOREIGN_PATH, without_output_files(text))
    arguments = ["-c", f"{_DRY_BEGINNING}\n{text}", *words]
    environment |= {DRY: "1", "PATH": f"{place / 'bin'}{os.pathsep}{place / 'shells'}"}
    os.chdir(place / "elsewhere")
    os.execve(shell, ["bash", *arguments], environment)


def without_output_files(text: str) -> str:
    """Return a shell text without its output redirections; it then writes no file on this machine."""
    kept: list[str] = []
    index, quote = 0, ""
    while index < len(text):
        character = text[index]
        comparison = _COMPARISON.match(text, index) if not quote else None
        redirection = _REDIRECTION.match(text, index) if not quote else None
        if comparison is not None:
            kept.append(comparison[0])
            index = comparison.end()
            continue
        if redirection is not None:
            index = redirection.end()
            continue
        if character == "\\" and quote != "'":
            kept.append(text[index : index + 2])
            index += 2
            continue
        if character in "'\"" and quote in ("", character):
            quote = "" if quote else character
        kept.append(character)
        index += 1
    return "".join(kept)


def _is_elsewhere(found: Started) -> bool:
    """Return whether a command runs on other hosts or in a container, whose files are not on this machine."""
    names = [starter.name.split()[0] for starter in found.launchers]
    options = {option for starter in found.launchers for option in starter.values}
    in_container = bool(options & {"container-image", "container-name"})
    return in_container or any(name in (*REMOTE, *CONTAINERS, "ray") for name in names)


def _scontrol(place: Path, words: Sequence[str]) -> int:
    """
    Run ``scontrol``; return its exit status.

    Without Slurm's configuration, ``scontrol`` answers nothing. ``show hostnames`` then expands the names here, and any
    other command fails.
    """
    real = shutil.which("scontrol", path=_real_path(place, os.environ))
    if real is not None:
        with suppress(subprocess.TimeoutExpired):
            answer = subprocess.run([real, *words[1:]], capture_output=True, check=False, timeout=SLURM_TIME_LIMIT_S)
            if answer.returncode == 0:
                sys.stdout.buffer.write(answer.stdout)
                return 0
    if len(words) < 3 or words[1] != "show" or words[2] not in ("hostname", "hostnames"):
        print(f"{words[0]}: no cluster of Slurm here", file=sys.stderr)
        return 1
    listed = words[3] if len(words) > 3 else os.environ.get("SLURM_JOB_NODELIST", "localhost")
    for host in expand_hosts(listed, "scontrol show hostnames"):
        print(host)
    return 0


def _real_path(place: Path, environment: Mapping[str, str]) -> str:
    folders = environment.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(folder for folder in folders if folder != str(place / "bin"))


def _pass_on(place: Path, words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Replace this process by the real program; if it is not installed, exit with status 127 like a shell."""
    real = shutil.which(words[0], path=_real_path(place, environment))
    if real is None:
        print(f"{words[0]}: command not found", file=sys.stderr)
        sys.exit(127)
    os.execve(real, list(words), dict(environment))
