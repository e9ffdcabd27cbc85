"""
Parts of texts that are unknown until a script runs.

An unknown part is a single character of Unicode's private planes inside an ordinary text, so that joined texts keep it.
A character of plane 15 stays inside its word; one of plane 16 may be no word, or several.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipette_opt.read.shell.limits import RefusalError

_KEPT = 0xF0000
_SPLIT = 0x100000
_MAX = 60_000
_MARKERS = re.compile("[\U000f0000-\U0010ffff]")
_SPLIT_MARKERS = re.compile("[\U00100000-\U0010ffff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unknown:
    """
    Value that is known only when the script runs.

    Parameters
    ----------
    text
        Text in the script, e.g. ``$(hostname)``.
    line
        Line of the script.
    why
        Cause, for people; empty if the text shows it.
    one_word
        Whether it is never empty and has no blanks.
    """

    text: str
    line: int
    why: str = ""
    one_word: bool = False

    def sentence(self) -> str:
        """Return a clause on the unknown value and its cause."""
        return f"{_short(self.text)} is known only when the script runs" + (f" ({self.why})" if self.why else "")


@dataclass(slots=True)
class Unknowns:
    """All unknown values of an evaluation."""

    values: list[Unknown] = field(default_factory=list)
    indices: dict[Unknown, int] = field(default_factory=dict)

    def marker(self, unknown: Unknown) -> str:
        """Return the character that stands for a value."""
        index = self.indices.setdefault(unknown, len(self.values))
        if index == len(self.values):
            self.values.append(unknown)
        if index >= _MAX:
            raise RefusalError("has too many values that are known only when it runs.")
        return chr(_KEPT + index)

    def all_in(self, text: str) -> list[Unknown]:
        """Return the unknown values in a text."""
        return [self.values[self._index(found[0])] for found in _MARKERS.finditer(text)]

    def may_be_empty(self, text: str) -> bool:
        """Return whether a text may be empty, as far as known."""
        return all(is_marker(character) and not self._of(character).one_word for character in text)

    def split(self, text: str) -> str:
        """Mark unknown parts that may be no word or several; those of exactly one word are kept."""
        return _MARKERS.sub(
            lambda found: found[0] if self._of(found[0]).one_word else chr(_SPLIT + self._index(found[0])), text
        )

    def kept(self, text: str) -> str:
        """Mark unknown parts as parts of their word again."""
        return _SPLIT_MARKERS.sub(lambda found: chr(_KEPT + self._index(found[0])), text)

    def rendered(self, text: str) -> str:
        """Return a text with the script's text for each unknown part."""
        return _MARKERS.sub(lambda found: self._of(found[0]).text, text)

    def _of(self, character: str) -> Unknown:
        return self.values[self._index(character)]

    @staticmethod
    def _index(character: str) -> int:
        code = ord(character)
        return code - (_SPLIT if code >= _SPLIT else _KEPT)


def is_known(text: str) -> bool:
    """Return whether a text has no unknown part."""
    return _MARKERS.search(text) is None


def all_known(texts: Iterable[str]) -> bool:
    """Return whether no text has an unknown part."""
    return all(map(is_known, texts))


def is_marker(character: str) -> bool:
    """Return whether a character stands for an unknown part."""
    return ord(character) >= _KEPT


def may_split(text: str) -> bool:
    """Return whether a word may be no word, or several."""
    return _SPLIT_MARKERS.search(text) is not None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."
