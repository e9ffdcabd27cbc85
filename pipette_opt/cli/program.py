"""Programs beside ``pipette-opt`` in a checkout: options, messages and exit codes as those of its commands."""

from collections.abc import Callable
from typing import Any

import typer

from pipette_opt.cli import run
from pipette_opt.cli.app import SETTINGS, give_common


def program(command: Callable[..., Any]) -> typer.Typer:
    """Return a program with one command, a function with typer's annotations."""
    app = typer.Typer(add_completion=False, **SETTINGS)
    app.command()(command)
    give_common(app)
    return app


def run_command(command: Callable[..., Any]) -> None:
    """Run a function as the command of this process; exit codes are those of :func:`pipette_opt.cli.main`."""
    run(lambda: program(command))
