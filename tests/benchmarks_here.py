"""Commands of benchmarks, ``python -m benchmarks.NAME``, run in this process."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commands_here import typed

from benchmarks.command import program, run_command

COMMANDS = ("annealing", "experts", "layers", "memory.evaluate", "placement", "slices", "squares", "stages", "systems")
"""Names of all benchmarks that take the options of ``pipette-opt``."""


def function_of(name: str) -> Callable[..., Any]:
    """Return the function behind a command."""
    module = f"benchmarks.{name}"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        module += ".__main__"
    return getattr(importlib.import_module(module), name.rpartition(".")[2])  # type: ignore[no-any-return]


def parsed_by(name: str) -> Any:
    """Return the command as click has it."""
    import typer.main

    return typer.main.get_command(program(function_of(name)))


def typed_benchmark(folder: Path, name: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error on one line, of a benchmark in a folder."""
    return typed(folder, *arguments, main=partial(run_command, function_of(name)))
