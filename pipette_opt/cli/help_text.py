"""Help that cuts no option's name: a name that is longer than its column has a line of its own."""

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand

NAME_COLUMNS = 28
"""Longest name with its type that has its text beside it. Chosen for terminals of 80 columns."""


class Command(TyperCommand):
    """A command whose help fits a terminal of 80 columns."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, text, and options by heading."""
        self.format_usage(ctx, formatter)
        for paragraph in (self.help or "").split("\n\n"):
            formatter.write_paragraph()
            formatter.write_text(_plain(" ".join(paragraph.split())))
        panels = defaultdict(list)
        for parameter in self.get_params(ctx):
            record = _record(parameter, ctx)
            if record is not None:
                panels[_panel(parameter)].append(record)
        for panel, records in panels.items():
            with formatter.section(panel):
                formatter.write_dl(records, col_max=NAME_COLUMNS)


def _record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Names and text of an option or argument; ``None`` for a hidden one."""
    record = parameter.get_help_record(ctx)
    return None if record is None else (_plain(record[0]), _plain(record[1]))


def _panel(parameter: Any) -> str:
    """The heading that a parameter stands under."""
    usual = "Options" if parameter.param_type_name == "option" else "Arguments"
    return str(getattr(parameter, "rich_help_panel", None) or usual)


def _plain(text: str) -> str:
    """The text without markup."""
    from rich.errors import MarkupError
    from rich.text import Text

    try:
        return Text.from_markup(text).plain
    except MarkupError:
        return text
