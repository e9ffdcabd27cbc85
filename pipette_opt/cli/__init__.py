"""The command line; one file per command."""

import sys


def main() -> None:
    """
    Run the command line.

    Exit codes: 0 done, 2 wrong input, 3 infeasible, 4 stopped early with the best plan so far written.
    """
    from pipette_opt.cli.app import app
    from pipette_opt.errors import PipetteError

    try:
        app()
    except PipetteError as error:
        from rich.console import Console

        Console(stderr=True).print(f"[bold red]error:[/] {_escaped(str(error))}", soft_wrap=True)
        sys.exit(error.exit_code)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
