"""Commands that are no longer part of ``pipette-opt``, and what runs in their place."""

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
"""The module that replaces each moved command; it takes the same options."""


def moved(command: str, module: str, how: str) -> InputError:
    """
    Return the error for a command that a module of a checkout replaces.

    Parameters
    ----------
    how
        Options of the new command beside those of the old one, as words that follow its name.
    """
    return InputError(command, f"is now `python -m {module}`, {how}, in a checkout of the repository.")


class CommandGroup(TyperGroup):
    """A group whose moved commands answer with the command that replaces them; ``--help`` does not list them."""

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
