"""Former commands of ``pipette-opt``, and the modules that replace them."""

from typing import Any

from typer.core import TyperGroup

from pipette_opt.base.errors import InputError

MOVED = {
    "benchmark layers": "benchmarks.layers",
    "benchmark squares": "benchmarks.squares",
    "benchmark systems": "benchmarks.systems",
    "benchmark experts": "benchmarks.experts",
    "benchmark slices": "benchmarks.slices",
    "benchmark stages": "benchmarks.stages",
    "benchmark placement": "benchmarks.placement",
    "benchmark annealing": "benchmarks.annealing",
    "memory collect": "models.memory.collect",
    "memory train": "models.memory.train",
    "memory evaluate": "benchmarks.memory.evaluate",
}
"""Module that replaces each former command; it takes the command's options."""


def moved(command: str, module: str, how: str) -> InputError:
    """
    Return the error for a former command that a module in a checkout replaces.

    Parameters
    ----------
    how
        Further options of the module, in words that follow its name in the message.
    """
    return InputError(command, f"is now `python -m {module}`, {how}, in a checkout of the repository.")


class CommandGroup(TyperGroup):
    """A group of commands that answers a former command with its replacement; ``--help`` lists no former command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """
        Return the command of this name.

        Raises
        ------
        InputError
            If the command was moved.
        """
        words = f"{ctx.info_name} {cmd_name}"
        if words in MOVED:
            raise moved(f"pipette-opt {words}", MOVED[words], "with the same options")
        return super().get_command(ctx, cmd_name)
