"""
Markers for parts of texts that are known only when a script runs.

A marker is a single character of Unicode's private planes inside an ordinary text, so that joined texts keep it. A
marker of plane 15 is part of its word; a marker of plane 16 may expand to no word or to several.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from pipette_opt.base.units import one_line
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
        Value as written in the script, such as ``$(hostname)``.
    why
        Reason for people; empty if the text shows the reason.
    one_word
        Whether the value is never empty and has no blanks.
    """

    text: str
    line: int
    why: str = ""
    one_word: bool = False

    def sentence(self) -> str:
        """Return a clause for people: the unknown value, and the reason."""
        return f"{one_line(self.text)} is known only when the script runs" + (f" ({self.why})" if self.why else "")


@dataclass(slots=True)
class Unknowns:
    """All unknown values of an evaluation, each with the character that stands for it in texts."""

    values: list[Unknown] = field(default_factory=list)
    indices: dict[Unknown, int] = field(default_factory=dict)

    def marker(self, unknown: Unknown) -> str:
        """Return the character that stands for an unknown value in texts; equal values share a character."""
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
        """Return whether a text with unknown parts may be empty when the script runs."""
        return all(is_marker(character) and not self._of(character).one_word for character in text)

    def split(self, text: str) -> str:
        """Return a text whose unknown parts may expand to no word or several, unless a part is exactly one word."""
        return _MARKERS.sub(
            lambda found: found[0] if self._of(found[0]).one_word else chr(_SPLIT + self._index(found[0])), text
        )

    def kept(self, text: str) -> str:
        """Return a text whose unknown parts stay inside their words; undoes :meth:`split`."""
        return _SPLIT_MARKERS.sub(lambda found: chr(_KEPT + self._index(found[0])), text)

    def rendered(self, text: str) -> str:
        """Return a text with each unknown part as written in the script."""
        return _MARKERS.sub(lambda found: self._of(found[0]).text, text)

    def _of(self, character: str) -> Unknown:
        return self.values[self._index(character)]

    @staticmethod
    def _index(character: str) -> int:
        code = ord(character)
        return code - (_SPLIT if code >= _SPLIT else _KEPT)


def is_known(text: str) -> bool:
    """Return whether a text is completely known before the script runs."""
    return _MARKERS.search(text) is None


def all_known(texts: Iterable[str]) -> bool:
    """Return whether all texts are completely known before the script runs."""
    return all(map(is_known, texts))


def is_marker(character: str) -> bool:
    """Return whether a character stands for an unknown part of a text."""
    return ord(character) >= _KEPT


def may_split(text: str) -> bool:
    """Return whether a word has an unknown part that may expand to no word or several."""
    return _SPLIT_MARKERS.search(text) is not None
