"""Commands of benchmarks: options, messages and exit codes as those of ``pipette-opt``."""

from collections.abc import Callable
from typing import Any

import typer

from pipette_opt.cli import run
from pipette_opt.cli.app import SETTINGS, give_common

INSTANCES = "The instances"
"""Heading of the options that say on which instances a benchmark runs."""

OF_SOLVE = ("num_gpus", "gpu_price", "launcher", "p2p", "allreduce", "micro_batches")
"""Options of a job that change nothing where layers are priced on like hosts."""


def program(command: Callable[..., Any]) -> typer.Typer:
    """Return a program with one command, a function with typer's annotations."""
    app = typer.Typer(**SETTINGS)
    app.command()(command)
    give_common(app)
    return app


def run_command(command: Callable[..., Any]) -> None:
    """Run a function as the command of this process; exit codes are those of :func:`pipette_opt.cli.main`."""
    run(lambda: program(command))
