"""The command line; one file per command."""

import signal
import sys
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from pipette_opt.errors import PipetteError

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it, or SIGTERM, as schedulers send it when a job's time is over."""


def main() -> None:
    """
    Run the command line.

    Exit codes: 0 done, 2 wrong input, 3 infeasible, 4 stopped early with the best plan so far written, 130 interrupted.
    """
    from pipette_opt.errors import InputError, PipetteError

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from pipette_opt.cli.app import app

        app()
    except PipetteError as error:
        _fail(error)
    except OSError as error:
        if error.filename is None:
            raise
        _fail(InputError(str(error.filename), f"cannot be used: {_reason(error)}."))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        _fail(InputError("torch", "is not installed, and this command needs it; `pip install 'pipette-opt[torch]'`."))
    except KeyboardInterrupt:  # while the program is still being loaded
        sys.exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            sys.stderr.write("interrupted: what was not written yet is lost, and no file is left half written\n")
        raise


def _reason(error: OSError) -> str:
    """What is wrong with the file; the folder's name if it is the folder that is missing."""
    from pathlib import Path

    folder = Path(str(error.filename)).parent
    missing = isinstance(error, FileNotFoundError) and not folder.is_dir()
    return f"there is no folder {folder}" if missing else str(error.strerror)


def _fail(error: "PipetteError") -> NoReturn:
    from rich.console import Console
    from rich.markup import escape

    Console(stderr=True, emoji=False).print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
    sys.exit(error.exit_code)
