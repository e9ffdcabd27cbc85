"""``pipette-opt capture``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipette_opt.cli import options as opt

if TYPE_CHECKING:
    from pipette_opt.read.capture.captured import Captured


def capture(
    command: Annotated[
        list[str], typer.Argument(help="Your launch command, after --, e.g. -- bash train.sh ARGUMENTS.")
    ],
    env: opt.Env = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="JSON file to write the captured launch to.")] = Path(
        "captured.json"
    ),
    time_limit: Annotated[float, typer.Option(help="Seconds until the script is stopped.", min=0.1, max=86400)] = 60,
    which: Annotated[
        int | None,
        typer.Option(help="Which training program to capture, counted from 1, if the script starts several.", min=1),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Name of a program that may run although it may start a job; may be repeated."),
    ] = None,
    json: opt.Json = False,
) -> None:
    """
    Run your launch script with stand-ins for torchrun, srun and other launchers, and record the training command.

    The script runs as you, with all its side effects; nothing is trained. `import args` reads a script without running
    it.

    Example: [bold]pipette-opt capture -o captured.json -- bash train.sh[/]
    """
    import json as documents
    import shlex

    from pipette_opt.base.files import is_stdout, note_input, write_atomically
    from pipette_opt.cli.output import answer, check_outputs, say, show_json
    from pipette_opt.read.capture.captured import capture as run_captured
    from pipette_opt.read.scripts import script_environment

    check_outputs(json, out)
    for word in command:
        note_input(word)
    _check_replaces_a_capture(out)
    people = say if is_stdout(out) or json else answer
    people(f"Running your own script: {shlex.join(command)}. Stand-ins replace its launchers; nothing is trained.")
    found = run_captured(
        command,
        environment=script_environment(env, numbered=False),
        time_limit_s=time_limit,
        which=which,
        allowed=allow or (),
    )
    document = found.document()
    write_atomically(out, documents.dumps(document, indent=2) + "\n")
    if json:
        show_json(document)
        return
    for line in _summary(found, document["notes"], out):
        people(line)


def _check_replaces_a_capture(out: Path) -> None:
    """Raise ``InputError`` if ``out`` exists and is no captured launch: it may be an input of the script."""
    from json import loads

    from pipette_opt.base.errors import InputError
    from pipette_opt.base.files import is_stdout, read_output

    if is_stdout(out) or not out.is_file():
        return
    try:
        is_capture = loads(read_output(out))["launchers"] is not None
    except (KeyError, RecursionError, TypeError, ValueError):
        is_capture = False
    if not is_capture:
        raise InputError(str(out), "exists, and was not written by capture; give another file name with -o.")


_DEGREES = {
    "--tensor-model-parallel-size": "tensor",
    "--pipeline-model-parallel-size": "pipeline",
    "--context-parallel-size": "context",
    "--expert-model-parallel-size": "expert",
    "--micro-batch-size": "micro-batch",
    "--global-batch-size": "global batch",
}
"""Megatron options shown in the summary, and the word printed for each of them."""


def _summary(found: "Captured", notes: list[str], out: Path) -> list[str]:
    from itertools import pairwise

    from pipette_opt.base.files import is_stdout
    from pipette_opt.base.units import counted

    launch = found.launch
    by = " ".join(starter.name for starter in launch.launchers) or "nothing before it"
    often = "" if found.num_starts == 1 else f", started {found.num_starts} times"
    lines = [f"Program: {launch.program}, {counted(len(launch.arguments), 'argument')}, launched by {by}{often}."]
    arguments = [part for word in launch.arguments for part in ([word] if word[:2] != "--" else word.split("=", 1))]
    degrees = [f"{_DEGREES[word]} {value}" for word, value in pairwise(arguments) if word in _DEGREES]
    if degrees:
        lines.append(f"Degrees: {', '.join(degrees)}.")
    processes = launch.num_processes
    if processes is not None:
        lines.append(f"Processes: {processes}.")
    lines += [f"- {note}" for note in notes]
    if not is_stdout(out):
        lines.append(f"Written to {out}. Next: pipette-opt estimate --launch {out} --cluster cluster.yaml")
    return lines
