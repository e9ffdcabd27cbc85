"""What a console shows of renderables, and lines in it."""

import io

from rich.console import Console, RenderableType

from pipette_opt.base.table import Table


def shown(*parts: RenderableType, encoding: str = "utf-8", terminal: bool = False, width: int = 100) -> str:
    """What a console prints."""
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    colours = "standard" if terminal else "auto"
    console = Console(file=file, width=width, force_terminal=terminal, highlight=False, color_system=colours)
    for part in parts:
        console.print(part)
    file.flush()
    return raw.getvalue().decode(encoding)


def row(text: str, name: str) -> list[str]:
    """Words of the first line that starts with ``name``, without it."""
    return next(line for line in text.splitlines() if line.startswith(name))[len(name) :].split()


def texts(table: Table) -> list[list[str]]:
    """Texts of the cells that people see, row by row."""
    return [[cell.text for cell in table.shown_cells(row)] for row in table.rows]
