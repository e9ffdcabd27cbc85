"""Commands of a checkout, ``python -m MODULE``, run in this process."""

import importlib
import importlib.util
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commands_here import typed

from pipette_opt.cli.program import program, run_command

COMMANDS = (
    "benchmarks.memory.frameworks",
    *("models.memory.collect", "models.memory.trace_plan", "models.memory.train"),
)
"""Modules that take the options of all commands of ``pipette-opt``."""


def function_of(module: str) -> Callable[..., Any]:
    """Return the function behind a command."""
    name = module.rpartition(".")[2]
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.submodule_search_locations:
        module += ".__main__"
    return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]


def parsed_by(module: str) -> Any:
    """Return the command as click has it."""
    import typer.main

    return typer.main.get_command(program(function_of(module)))


def typed_module(folder: Path, module: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error on one line, of ``python -m MODULE`` in a folder."""
    return typed(folder, *arguments, main=partial(run_command, function_of(module)))


def typed_benchmark(folder: Path, name: str, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output, and standard error on one line, of ``python -m benchmarks.NAME`` in a folder."""
    return typed_module(folder, f"benchmarks.{name}", *arguments)
