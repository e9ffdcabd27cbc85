"""Commands that accept alternative option names, and help texts that fit 80 columns without cutting a name."""

from collections import defaultdict
from typing import Any

from typer.core import TyperCommand

from pipette_opt.cli.option_names import with_usual_names, wrong_number
from pipette_opt.options.names import short_name

NAME_COLUMNS = 28
"""Columns of an option's name and type up to which its text stands on the same line. Chosen for 80-column terminals."""


class Command(TyperCommand):
    """A command that accepts every alternative name of an option, with help for terminals of 80 columns."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words after the command's name; alternative option names become the command's own."""
        check = not (self.ignore_unknown_options or ctx.ignore_unknown_options or ctx.resilient_parsing)
        words = with_usual_names(self.get_params(ctx), args, check=check)
        try:
            return super().parse_args(ctx, list(words))
        except Exception as error:
            if (wrong := wrong_number(error, words)) is not None:
                raise wrong from None
            raise

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write usage, help text, and the options under their headings."""
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
    """Return names and help text of an option or argument; ``None`` if it is hidden."""
    record = parameter.get_help_record(ctx)
    if record is None:
        return None
    own = next((name for name in parameter.opts if name.startswith("--")), "")
    short = short_name(own[2:])
    names = f"--{short}, {record[0]}" if short else record[0]
    return _plain(names), _plain(record[1])


def _panel(parameter: Any) -> str:
    """Return the heading of a parameter in the help."""
    usual = "Options" if parameter.param_type_name == "option" else "Arguments"
    return str(getattr(parameter, "rich_help_panel", None) or usual)


def _plain(text: str) -> str:
    """Return the text without rich markup."""
    from rich.errors import MarkupError
    from rich.text import Text

    try:
        return Text.from_markup(text).plain
    except MarkupError:
        return text
