"""Wrapper for the programs of a checkout, with the options, messages and exit codes of ``pipette-opt`` commands."""

from collections.abc import Callable
from typing import Any

import typer

from pipette_opt.cli import run
from pipette_opt.cli.app import SETTINGS, give_common


def program(command: Callable[..., Any]) -> typer.Typer:
    """Return a program with one command, made from a function with typer annotations."""
    app = typer.Typer(add_completion=False, **SETTINGS)
    app.command()(command)
    give_common(app)
    return app


def run_command(command: Callable[..., Any]) -> None:
    """Run a function as the command of this process, with the exit codes of :func:`pipette_opt.cli.main`."""
    run(lambda: program(command))
