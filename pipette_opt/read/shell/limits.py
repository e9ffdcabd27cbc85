"""Limits of an evaluation, which bound its time and memory for any script."""

from dataclasses import dataclass

MAX_SCRIPT_CHARACTERS = 100_000
"""Largest number of characters of a script. Chosen: thirty times the longest published script."""

MAX_TEXT = 500_000
"""Largest number of characters of a value. Chosen: more than Linux accepts in a command-line argument."""

MAX_WORK = 20_000_000
"""Most characters that expansions make and patterns compare, about a second of work. Chosen."""

COMMAND_WORK, WORD_WORK = 1000, 50
"""Work of a command, and of a word, in characters. Chosen: they take about as long."""


class RefusalError(Exception):
    """
    Reason why a script cannot be evaluated.

    Parameters
    ----------
    line
        Line of the script; ``None`` as long as it is unknown.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(slots=True, kw_only=True)
class Budget:
    """Work that an evaluation has used so far, in characters."""

    used: int = 0

    def work(self, characters: int) -> None:
        """Count work before it is done. ``RefusalError`` above ``MAX_WORK``."""
        self.used += characters
        if self.used > MAX_WORK:
            raise RefusalError("takes too much work to evaluate.")

    def produce(self, characters: int) -> None:
        """Count the characters of a value before it is made; ``RefusalError`` above ``MAX_TEXT``."""
        if characters > MAX_TEXT:
            raise RefusalError(f"makes a text of more than {MAX_TEXT:,} characters.")
        self.work(characters)
