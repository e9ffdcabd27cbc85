"""Limits of an evaluation, which bound its time, memory and recursion for any script."""

from dataclasses import dataclass

MAX_SCRIPT_CHARACTERS = 100_000
"""Most characters of a script, thirty times the longest published one. Chosen."""

MAX_OPEN_BRACKETS, MAX_PIPES = 400, 2000
"""
Most round brackets that are open at once, and most signs ``|`` of a text. If the end of a construct is missing, the
parser takes time and memory in proportion to the square of either, and does not stop in time. Chosen.
"""

MAX_PARSE_S = 1.0
"""Most seconds that the parser may take for a script; it takes about 0.001 s per kilobyte."""

MAX_STEPS = 10_000
"""Most evaluated commands, words and rounds of loops, so that an evaluation takes less than a second. Chosen."""

MAX_TEXT = 500_000
"""Most characters of a value, more than Linux accepts in an argument of a command line. Chosen."""

MAX_PRODUCED = 20_000_000
"""Most characters that all expansions make together, about a second. Chosen."""

MAX_WORDS = 20_000
"""Most elements of an array, or words of a command line. Chosen."""

MAX_DEPTH = 40
"""Most nested commands, expansions and calls; each takes several of Python's 1,000 stack frames."""


class RefusalError(Exception):
    """
    Reason why a script cannot be evaluated.

    Parameters
    ----------
    problem
        Problem, for people.
    line
        Line of the script; ``None`` until it is known.
    """

    def __init__(self, problem: str, line: int | None = None) -> None:
        super().__init__(problem)
        self.problem = problem
        self.line = line


@dataclass(slots=True, kw_only=True)
class Budget:
    """Steps, characters and depth that an evaluation has used."""

    steps: int = 0
    produced: int = 0
    depth: int = 0

    def step(self, count: int = 1) -> None:
        """Count steps; refuse too many."""
        self.steps += count
        if self.steps > MAX_STEPS:
            raise RefusalError(f"takes more than {MAX_STEPS:,} steps to evaluate; a loop may have no end.")

    def produce(self, characters: int) -> None:
        """Count characters before they are made; refuse too many."""
        if characters > MAX_TEXT:
            raise RefusalError(f"makes a text of more than {MAX_TEXT:,} characters.")
        self.produced += characters
        if self.produced > MAX_PRODUCED:
            raise RefusalError(f"makes texts of more than {MAX_PRODUCED:,} characters together.")

    def enter(self) -> None:
        """Enter a nested level, which :meth:`leave` leaves."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusalError(f"has more than {MAX_DEPTH} commands or expansions inside each other.")

    def leave(self) -> None:
        """Leave a nested level."""
        self.depth -= 1

    def words(self, count: int) -> None:
        """Check a number of words before they are made."""
        if count > MAX_WORDS:
            raise RefusalError(f"makes more than {MAX_WORDS:,} words.")
        self.step(count // 8)
