"""Entry point of the command line; each command is a module of this folder."""

import errno
import gc
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

    from typer import Typer

    from pipette_opt.base.errors import PipetteError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
"""Error numbers of a write that failed because the disk is full, a quota is reached, or the device fails."""

INTERRUPTED = 130
"""Exit code after Ctrl-C or SIGTERM: 128 + SIGINT, as in shells. Schedulers send SIGTERM when a job's time is over."""


OBJECTS_OF_A_COLLECTION = 100_000
"""
Number of new objects after which Python looks for unreachable cycles; 700 by default. Chosen.

A search makes a million objects that live until its end, and hardly any cycle. By default, a tenth of the time until
the first plan passes with these looks.
"""


def main() -> None:
    """
    Run the command line.

    Exit codes: 0 done, 2 wrong input, 3 no feasible plan, 4 stopped early with the best plan so far written, 130
    interrupted. With ``--json`` an error is printed on standard output as
    ``{"error": {"place", "problem", "exit_code"}}``.
    """
    run(_all_commands)


def _all_commands() -> "Typer":
    from pipette_opt.cli.app import app

    return app


def run(load: "Callable[[], Typer]") -> None:
    """Run the commands of the app that ``load`` returns, with the errors, signals and exit codes of :func:`main`."""
    from pipette_opt.base.errors import InputError, PipetteError

    gc.set_threshold(OBJECTS_OF_A_COLLECTION)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.unraisablehook = _interrupt_again
    try:
        app = load()
        if "--json" in sys.argv[1:]:
            _run_for_machines(app)
        else:
            app()
    except PipetteError as error:
        _fail(error)
    except OSError as error:
        if error.filename is None and error.errno in FULL:
            _end_without_output(error)
        if error.filename is None:
            raise
        _fail(InputError(str(error.filename), f"cannot be opened: {_reason(error)}."))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail(
            InputError(
                "torch",
                "is not installed, but this command needs it. Install it with `pip install 'pipette-opt[torch]'`.",
            )
        )
    except KeyboardInterrupt:  # while the program is still being loaded
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            sys.stderr.write("interrupted: unwritten results are lost; every file on disk is complete\n")
        raise


def _interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that Python could not raise because compiled code was running; 0.05 s later."""
    import _thread
    import threading

    if isinstance(lost.exc_value, KeyboardInterrupt):
        threading.Timer(0.05, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


def _end_without_output(error: OSError) -> NoReturn:
    """Report on standard error that standard output cannot be written, and exit with code 2."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.stderr.write(f"error: standard output: cannot be written: {error.strerror}.\n")
    sys.exit(2)


def _reason(error: OSError) -> str:
    """Return why a file cannot be used; if its folder is missing, the text names the folder."""
    from pathlib import Path

    folder = Path(str(error.filename)).parent
    missing = isinstance(error, FileNotFoundError) and not folder.is_dir()
    return f"the folder {folder} does not exist" if missing else str(error.strerror)


def _run_for_machines(app: "Typer") -> None:
    """Run the app for ``--json``: an option that the parser refuses is reported as a JSON document."""
    try:
        ended = app(standalone_mode=False)
    except Exception as error:
        # Of click, or of typer's own copy of it, which is not public: known by what they have.
        if type(error).__name__ == "Abort":  # Ctrl-C, by typer before 0.16
            sys.exit(INTERRUPTED)
        if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
            raise
        _show_error("the command line", error.format_message(), error.exit_code)
        sys.exit(error.exit_code)
    sys.exit(ended if isinstance(ended, int) else 0)


def _show_error(place: str | None, problem: str, exit_code: int) -> None:
    import json

    error = {"place": place, "problem": problem, "exit_code": exit_code}
    sys.stdout.write(json.dumps({"error": error}, indent=2) + "\n")


def _fail(error: "PipetteError") -> NoReturn:
    if "--json" in sys.argv[1:]:
        from pipette_opt.base.errors import InputError, OverwriteError

        place, problem = (
            (error.where, error.problem) if isinstance(error, InputError | OverwriteError) else (None, str(error))
        )
        _show_error(place, problem, error.exit_code)
        sys.exit(error.exit_code)
    from rich.console import Console
    from rich.markup import escape

    from pipette_opt.base.errors import printable

    Console(stderr=True, emoji=False).print(f"[bold red]error:[/] {escape(printable(str(error)))}", soft_wrap=True)
    sys.exit(error.exit_code)
