"""Parts of an expanded word, and words after splitting."""

from collections.abc import Sequence
from typing import Literal, NamedTuple


class Piece(NamedTuple):
    """
    Part of an expanded word.

    ``quoted`` is neither split nor a pattern; ``plain`` may be a pattern but is not split; ``expanded`` may be split
    and be a pattern; ``break`` ends a word.
    """

    kind: Literal["quoted", "plain", "expanded", "break"]
    text: str


class Field(NamedTuple):
    """Word after expansion and splitting, and whether it is a pattern of file names."""

    text: str
    is_pattern: bool


def text_of(pieces: Sequence[Piece]) -> str:
    """Return the text of the expanded parts of a word; a break becomes a blank."""
    return "".join(" " if piece.kind == "break" else piece.text for piece in pieces)
