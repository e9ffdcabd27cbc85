"""
Programs of which a launch script may start the real one, as none of them starts a job.

Every other program is stopped before its first step, and named. Some of these start further programs (``xargs``,
``make``, ``conda run``): each of those is judged when it starts.
"""

import re
from collections.abc import Collection, Sequence
from functools import cache
from itertools import dropwhile
from pathlib import PurePosixPath

from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.launchers import PYTHON_NAME, SHELLS


@cache
def ordinary_programs() -> frozenset[str]:
    """Return the names of programs that start no job."""
    lines = shipped_path("data", "ordinary_programs.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(name for line in lines if not line.startswith("#") for name in line.split())


INTERPRETERS = ("perl", "ruby", "node", "lua", "tclsh", "tclsh8.6", "php", "Rscript")
"""Interpreters beside shells and Python; a script that they run counts by its own name."""


_STARTS = re.compile(r"(pre-?)?train|fine-?tune|sft|dpo|grpo|submit|launch|run")
"""Words by which a Python module starts a job."""


def unknown_program(executable: str, words: Sequence[str], allowed: Collection[str]) -> Sequence[str]:
    """
    Return the command line of a program that may start a job; empty if the program is ordinary or allowed.

    Parameters
    ----------
    executable
        File of the program as the kernel knows it, not the name that the program was given.
    words
        Command line. A script of an interpreter counts by its own name, unless it is a Python file; a module of Python
        counts if a word behind it starts a job.
    allowed
        Names of further programs that the user lets run.
    """
    name = PurePosixPath(executable).name
    if name in (*SHELLS, "rbash"):
        return ()
    command = [name, *words[1:]]
    is_python = PYTHON_NAME.fullmatch(name) is not None
    if is_python or name.startswith(INTERPRETERS):
        command = list(dropwhile(lambda word: word.startswith("-"), words[1:]))
        is_text = any(word in ("-c", "-e", "-") for word in words[1:3])
        if is_python and "-m" in words[1:3]:
            is_text = not any(_STARTS.fullmatch(word) for word in command[1:4])
        if is_text or not command or (is_python and command[0].endswith(".py")):
            return ()
    name = PurePosixPath(command[0]).name
    return () if name in ordinary_programs() or name in allowed else command
