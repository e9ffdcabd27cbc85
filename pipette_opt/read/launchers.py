"""Options of launchers and wrappers, as far as needed to find the program that their command line starts."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from pipette_opt.base.shipped import shipped_path

Role = Literal["launcher", "wrapper"]
"""Role of a program: a ``launcher`` starts a job's processes, a ``wrapper`` runs a command, as in a container."""

Writing = Literal["getopt", "argparse", "mpi"]
"""Syntax of options: ``mpi`` has long names after a single dash; ``argparse`` accepts ``_`` for ``-``."""


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """
    Options of a program that starts the command after its options.

    Parameters
    ----------
    flags, values, pairs
        Options with no value, one value, and two values: names separated by spaces, without dashes, ``-`` for ``_``. An
        option whose value must be attached (``--bcast=FILE``) is a flag.
    value_prefixes
        Beginnings of further option names with one value.
    all_take_values
        Whether options that are not listed take a value.
    positionals
        Number of words between options and command: an image, a duration, a CPU mask.
    assignments
        Whether ``NAME=VALUE`` words may precede the command.
    environment
        Options whose value sets environment variables.
    module_flag, direct_flag
        Options with which the program is a Python module, and with which it is a command in place of a Python script.
    nodes, processes, processes_per_node
        Options that give the number of hosts, processes, and processes per host.
    not_a_start
        Options with which no command is started.
    runs_python
        Whether the started program is a Python script or module.
    source
        Documentation of the options.
    """

    role: Role
    source: str
    writing: Writing = "getopt"
    flags: str = ""
    values: str = ""
    pairs: str = ""
    value_prefixes: tuple[str, ...] = ()
    all_take_values: bool = False
    positionals: int = 0
    assignments: bool = False
    environment: tuple[str, ...] = ()
    module_flag: tuple[str, ...] = ()
    direct_flag: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()
    processes: tuple[str, ...] = ()
    processes_per_node: tuple[str, ...] = ()
    not_a_start: tuple[str, ...] = ()
    runs_python: bool = False

    @cached_property
    def num_values(self) -> Mapping[str, int]:
        """Number of values of each listed option."""
        counted = ((self.flags, 0), (self.values, 1), (self.pairs, 2))
        return {option: number for options, number in counted for option in options.split()}

    def values_of(self, option: str) -> int | None:
        """Return the number of values of an option, full or abbreviated; ``None`` if the option is unknown."""
        found = self.num_values.get(option)
        if found is not None or len(option) == 1:
            return found if found is not None or not self.all_take_values else 1
        if option.startswith(self.value_prefixes) or self.all_take_values:
            return 1
        numbers = {number for name, number in self.num_values.items() if name.startswith(option)}
        return numbers.pop() if len(numbers) == 1 else None

    def name_of(self, option: str) -> str:
        """Return the full name of an abbreviated option; an unknown or ambiguous name is returned unchanged."""
        if option in self.num_values or len(option) == 1:
            return option
        names = [name for name in self.num_values if name.startswith(option)]
        return names[0] if len(names) == 1 else option


class LauncherTable(NamedTuple):
    """
    Content of ``data/launchers.toml``.

    Parameters
    ----------
    launchers
        Launchers and wrappers by name; a name of two words is a subcommand.
    python
        Options of the Python interpreter before ``-c``, ``-m`` or the script.
    python_tools
        Python modules that, under ``python -m``, run another Python script or module.
    """

    launchers: Mapping[str, Launcher]
    python: Launcher
    python_tools: Mapping[str, Launcher]


@cache
def launcher_table() -> LauncherTable:
    """Return the shipped table; names that share their options share a row. Stand-ins read it without site packages."""
    table = tomllib.loads(shipped_path("data", "launchers.toml").read_text(encoding="utf-8"))
    rows = {names: _launcher(row) for names, row in table["launchers"].items()}
    return LauncherTable(
        launchers={name: launcher for names, launcher in rows.items() for name in names.split(", ")},
        python=_launcher(table["python"]),
        python_tools={name: _launcher(row) for name, row in table["python_tools"].items()},
    )


def _launcher(row: Mapping[str, Any]) -> Launcher:
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}
    return Launcher(**fields)


def known_launchers() -> Mapping[str, Launcher]:
    """Return the known launchers and wrappers by name."""
    return launcher_table().launchers


PYTHON_MODULES: Mapping[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "torch.distributed.elastic.multiprocessing": "torchrun",
    "deepspeed.launcher.runner": "deepspeed",
    "deepspeed": "deepspeed",
    "accelerate.commands.launch": "accelerate launch",
    "accelerate.commands.accelerate_cli": "accelerate",
}
"""Python modules that are launchers under ``python -m``, with their names in :func:`known_launchers`."""

SHELLS = ("bash", "sh", "dash", "zsh", "ksh")

REMOTE = ("ssh", "pdsh", "clush", "dsh", "parallel-ssh", "pssh")
"""Programs that run a shell text on other hosts."""

REMOTE_VALUES: Mapping[str, str] = {
    "ssh": "B b c D E e F I i J L l m O o P p Q R S W w",
    "pdsh": "w x g X f u t l R e P a M",
    "clush": "w x g X f t u l n o b",
}
"""Short options with a value, by remote shell (manuals of OpenSSH, pdsh and ClusterShell)."""

HOSTS_FIRST = ("ssh",)
"""Remote shells whose first word after the options is the host."""

PYTHON_NAME = re.compile(r"python([0-9]+(\.[0-9]+)*)?t?|pypy3?")
"""File names of Python interpreters."""
