"""Commands that take other names of options, and whose help cuts no name: a long one has a line of its own."""

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand

from pipette_opt.cli.option_names import with_usual_names
from pipette_opt.options.names import short_name

NAME_COLUMNS = 28
"""Longest name with its type that has its text beside it. Chosen for terminals of 80 columns."""


class Command(TyperCommand):
    """A command that takes options by all of their names, and whose help fits a terminal of 80 columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name."""
        check = not (self.ignore_unknown_options or ctx.ignore_unknown_options or ctx.resilient_parsing)
        return super().parse_args(ctx, with_usual_names(self.get_params(ctx), args, check=check))

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
    if record is None:
        return None
    own = next((name for name in parameter.opts if name.startswith("--")), "")
    short = short_name(own[2:])
    names = f"--{short}, {record[0]}" if short else record[0]
    return _plain(names), _plain(record[1])


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
