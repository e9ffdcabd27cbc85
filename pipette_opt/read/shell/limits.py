"""Limits of an evaluation, which bound its time, memory and recursion for any script."""

from dataclasses import dataclass

MAX_SCRIPT_CHARACTERS = 100_000
"""Largest number of characters of a script. Chosen: thirty times the longest published script."""

MAX_OPEN_BRACKETS, MAX_PIPES = 400, 2000
"""
Largest number of open round brackets, and of ``|`` signs in a text. Chosen: if the end of a construct is missing, the
parser's time and memory grow with the square of either number.
"""

MAX_PARSE_S = 1.0
"""Longest time for parsing a script, seconds. Chosen: the parser takes about 0.001 s per kilobyte."""

MAX_STEPS = 10_000
"""Most evaluated commands, words and loop rounds. Chosen so that an evaluation takes less than a second."""

MAX_TEXT = 500_000
"""Largest number of characters of a value. Chosen: more than Linux accepts in a command-line argument."""

MAX_PRODUCED = 20_000_000
"""Largest number of characters that all expansions make together, about a second of work. Chosen."""

MAX_COMPARED = 1_000_000
"""Most characters that all patterns compare, once for each place in a pattern, about a second of work. Chosen."""

MAX_WORDS = 20_000
"""Largest number of elements of an array, or words of a command line. Chosen."""

MAX_DEPTH = 40
"""Largest depth of nested commands, expansions and calls. Chosen: each takes several of Python's 1,000 stack frames."""


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
    """Steps, characters, comparisons and nesting depth that an evaluation has used so far."""

    steps: int = 0
    produced: int = 0
    compared: int = 0
    depth: int = 0

    def step(self, count: int = 1) -> None:
        """Count steps. ``RefusalError`` above ``MAX_STEPS``."""
        self.steps += count
        if self.steps > MAX_STEPS:
            raise RefusalError(f"takes more than {MAX_STEPS:,} steps to evaluate; a loop may have no end.")

    def produce(self, characters: int) -> None:
        """Count characters before they are made; ``RefusalError`` above ``MAX_TEXT`` or in all ``MAX_PRODUCED``."""
        if characters > MAX_TEXT:
            raise RefusalError(f"makes a text of more than {MAX_TEXT:,} characters.")
        self.produced += characters
        if self.produced > MAX_PRODUCED:
            raise RefusalError(f"makes texts of more than {MAX_PRODUCED:,} characters together.")

    def compare(self, places: int) -> None:
        """Count the places of a pattern that a character is compared with; ``RefusalError`` above ``MAX_COMPARED``."""
        self.compared += places
        if self.compared > MAX_COMPARED:
            raise RefusalError(f"compares more than {MAX_COMPARED:,} characters with patterns.")

    def enter(self) -> None:
        """Enter a nested level. ``RefusalError`` above ``MAX_DEPTH``; :meth:`leave` leaves the level."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusalError(f"has more than {MAX_DEPTH} commands or expansions inside each other.")

    def leave(self) -> None:
        """Leave a nested level."""
        self.depth -= 1

    def words(self, count: int) -> None:
        """Count words before they are made. ``RefusalError`` above ``MAX_WORDS`` at once."""
        if count > MAX_WORDS:
            raise RefusalError(f"makes more than {MAX_WORDS:,} words.")
        self.step(count // 8)
