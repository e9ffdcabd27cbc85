"""Limits of an evaluation: a script cannot make it take long, use much memory or recurse deeply."""

from dataclasses import dataclass

MAX_SCRIPT_CHARACTERS = 100_000
"""Characters of a script; chosen, thirty times the longest that people publish."""

MAX_OPEN_BRACKETS, MAX_PIPES = 400, 2000
"""
Round brackets that are open at once, and signs ``|`` of a text. The parser takes time and memory in proportion to the
square of either where something is missing at the end, and does not stop in time. Chosen.
"""

MAX_PARSE_S = 1.0
"""Seconds that the parser may take for a script; it takes about 0.001 s per kilobyte."""

MAX_STEPS = 10_000
"""Commands, words and turns of loops that are evaluated; chosen so that an evaluation takes less than a second."""

MAX_TEXT = 500_000
"""Characters of a single value; chosen, above the longest command line that Linux takes in an argument."""

MAX_PRODUCED = 20_000_000
"""Characters that all expansions make together; chosen, about a second."""

MAX_WORDS = 20_000
"""Elements of an array, or words of a command line; chosen."""

MAX_DEPTH = 40
"""Commands, expansions and calls inside each other; each takes several of Python's 1,000 frames."""


class RefusalError(Exception):
    """
    A script cannot be evaluated.

    Parameters
    ----------
    problem
        What is wrong, for people.
    line
        Of the script; ``None`` until it is known.
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
        """Count steps; too many are refused."""
        self.steps += count
        if self.steps > MAX_STEPS:
            raise RefusalError(f"takes more than {MAX_STEPS:,} steps to evaluate; a loop may have no end.")

    def produce(self, characters: int) -> None:
        """Count characters before they are made; too many are refused."""
        if characters > MAX_TEXT:
            raise RefusalError(f"makes a text of more than {MAX_TEXT:,} characters.")
        self.produced += characters
        if self.produced > MAX_PRODUCED:
            raise RefusalError(f"makes texts of more than {MAX_PRODUCED:,} characters together.")

    def enter(self) -> None:
        """Go one level deeper; :meth:`leave` comes back."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise RefusalError(f"has more than {MAX_DEPTH} commands or expansions inside each other.")

    def leave(self) -> None:
        """Come back from a level."""
        self.depth -= 1

    def words(self, count: int) -> None:
        """Check a number of words before they are made."""
        if count > MAX_WORDS:
            raise RefusalError(f"makes more than {MAX_WORDS:,} words.")
        self.step(count // 8)
