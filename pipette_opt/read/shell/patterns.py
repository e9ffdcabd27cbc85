"""Patterns of the shell (``*``, ``?``, ``[a-z]``), matched in time proportional to text length times pattern length."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pipette_opt.read.shell.limits import Budget, RefusalError

_CLASSES: Mapping[str, Callable[[str], bool]] = {
    "alpha": str.isalpha,
    "digit": str.isdigit,
    "alnum": str.isalnum,
    "upper": str.isupper,
    "lower": str.islower,
    "space": str.isspace,
    "punct": lambda c: c.isascii() and c.isprintable() and not c.isalnum() and c != " ",
    "blank": lambda c: c in " \t",
    "xdigit": lambda c: c in "0123456789abcdefABCDEF",
}


@dataclass(frozen=True, slots=True)
class _Part:
    """Element of a pattern: a given character, any character, any text, or a character of a set."""

    kind: str
    sign: str = ""
    negated: bool = False
    ranges: tuple[tuple[str, str], ...] = ()
    classes: tuple[str, ...] = ()

    def takes(self, character: str) -> bool:
        if self.kind == "sign":
            return character == self.sign
        if self.kind == "any":
            return True
        found = any(low <= character <= high for low, high in self.ranges)
        found = found or any(_CLASSES[name](character) for name in self.classes)
        return found != self.negated


class Pattern:
    """
    Pattern of the shell.

    Parameters
    ----------
    pieces
        Texts of the pattern, each with whether it is literal because it is quoted.
    """

    def __init__(self, pieces: Iterable[tuple[str, bool]], budget: Budget) -> None:
        self.budget = budget
        self.parts: list[_Part] = []
        signs = [(character, literal) for text, literal in pieces for character in text]
        index = 0
        while index < len(signs):
            index = self._add(signs, index)

    @property
    def matches_all(self) -> bool:
        """Return whether the pattern matches every text."""
        return bool(self.parts) and all(part.kind == "star" for part in self.parts)

    def _add(self, signs: Sequence[tuple[str, bool]], index: int) -> int:
        character, literal = signs[index]
        if not literal and character in "@!+?*" and signs[index + 1 : index + 2] == [("(", False)]:
            raise RefusalError("has an extended pattern such as @(a|b), which cannot be evaluated here.")
        if literal or character not in "*?[\\":
            self.parts.append(_Part("sign", character))
            return index + 1
        if character == "\\" and index + 1 < len(signs):
            self.parts.append(_Part("sign", signs[index + 1][0]))
            return index + 2
        if character == "[":
            return self._add_set(signs, index)
        self.parts.append(_Part("star" if character == "*" else "any" if character == "?" else "sign", character))
        return index + 1

    def _add_set(self, signs: Sequence[tuple[str, bool]], start: int) -> int:
        index = start + 1
        negated = index < len(signs) and signs[index][0] in "!^" and not signs[index][1]
        index += negated
        ranges: list[tuple[str, str]] = []
        classes: list[str] = []
        first = index
        while index < len(signs):
            character, literal = signs[index]
            if character == "]" and not literal and index > first:
                self.parts.append(_Part("set", "", negated, tuple(ranges), tuple(classes)))
                return index + 1
            text = "".join(sign for sign, _ in signs[index : index + 12])
            name = text[2:].partition(":]")[0]
            if text.startswith("[:") and name in _CLASSES:
                classes.append(name)
                index += len(name) + 4
                continue
            if character == "\\" and not literal and index + 1 < len(signs):
                index += 1
                character = signs[index][0]
            if index + 2 < len(signs) and signs[index + 1] == ("-", False) and signs[index + 2] != ("]", False):
                ranges.append((character, signs[index + 2][0]))
                index += 3
            else:
                ranges.append((character, character))
                index += 1
        self.parts.append(_Part("sign", "["))
        return start + 1

    def ends(self, text: str, start: int = 0, parts: Sequence[_Part] | None = None) -> list[int]:
        """Return the lengths of all prefixes of ``text[start:]`` that match."""
        parts = self.parts if parts is None else parts
        reached = _closure({0}, parts)
        found = [0] if len(parts) in reached else []
        for index in range(start, len(text)):
            character = text[index]
            self.budget.compare(1 + len(reached))
            reached = _closure({_next(state, parts) for state in reached if _goes_on(state, parts, character)}, parts)
            if not reached:
                break
            if len(parts) in reached:
                found.append(index + 1 - start)
        return found

    def matches(self, text: str) -> bool:
        """Return whether the whole text matches."""
        if all(part.kind == "sign" for part in self.parts):
            return text == "".join(part.sign for part in self.parts)
        return self.matches_all or len(text) in self.ends(text)

    def without_prefix(self, text: str, longest: bool) -> str:
        """Return a text without its shortest or longest matching prefix."""
        found = self.ends(text)
        return text[(max if longest else min)(found) :] if found else text

    def without_suffix(self, text: str, longest: bool) -> str:
        """Return a text without its shortest or longest matching suffix."""
        found = self.ends(text[::-1], parts=self.parts[::-1])
        return text[: len(text) - (max if longest else min)(found)] if found else text

    def replaced(self, text: str, new: str, *, all_of_them: bool, place: str = "") -> str:
        """
        Return a text with its longest matches replaced.

        ``place`` is ``#`` to replace only at the beginning, ``%`` only at the end.
        """
        if place == "%":
            found = [end for end in self.ends(text[::-1], parts=self.parts[::-1]) if end or not self.parts]
            return text[: len(text) - max(found)] + new if found else text
        parts: list[str] = []
        index = 0
        while index < len(text):
            found = [end for end in self.ends(text, index) if end or place == "#"]
            if place == "#" and index > 0:
                break
            if found:
                self.budget.produce(len(new))
                parts.append(new)
                index += max(found)
                if not all_of_them:
                    break
                if max(found) == 0:
                    break
            elif place == "#":
                break
            else:
                parts.append(text[index])
                index += 1
        return "".join(parts) + text[index:]


def _goes_on(state: int, parts: Sequence[_Part], character: str) -> bool:
    return state < len(parts) and (parts[state].kind == "star" or parts[state].takes(character))


def _next(state: int, parts: Sequence[_Part]) -> int:
    return state if parts[state].kind == "star" else state + 1


def _closure(states: set[int], parts: Sequence[_Part]) -> set[int]:
    """Return positions in a pattern, plus the position after each ``*``, which may match nothing."""
    reached = set(states)
    for state in states:
        while state < len(parts) and parts[state].kind == "star":
            state += 1
            reached.add(state)
    return reached
