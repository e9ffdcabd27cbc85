"""Expansion of words: variables and their operators, quotes, word splitting and patterns."""

import fnmatch
import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

from pipette_opt.read.shell.arithmetic import UnknownNumberError, changed_names, evaluate_arithmetic
from pipette_opt.read.shell.limits import WORD_WORK, RefusalError
from pipette_opt.read.shell.state import Variables
from pipette_opt.read.shell.syntax import NAME, Arithmetic, Parameter, Substitution, Text, Word
from pipette_opt.read.shell.unknowns import is_known, may_split


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


_BRACES = re.compile(r"\{[^{}]*\}")
_FILES = re.compile(r"[^*?\[]*(?:[*?]|\[.*[*?\]])", re.DOTALL)
_PATH = re.compile(r"/|\.\w+$|^\*|\*$")
_ASSIGNED = re.compile(r"\s*([A-Za-z_]\w*)\s*([-+*/%]?)=(?!=)(.*)", re.ASCII | re.DOTALL)


class Expander(Variables):
    """Variables of a shell, and the expansion of words with them."""

    @abstractmethod
    def substitute(self, part: Substitution) -> str:
        """Return the output of a command substitution."""

    def fields(self, word: Word) -> list[Field]:
        """Return the words to which a word expands. ``RefusalError`` for ``{a,b}`` and ``{1..3}``."""
        plain = "".join(part.text if isinstance(part, Text) and not part.quoted else "$" for part in word.parts)
        if any("," in inside or ".." in inside for inside in _BRACES.findall(plain)):
            raise RefusalError(f"has {word.source[:40]!r}, whose braces make several words, which is not evaluated.")
        found: list[Field] = []
        current: str | None = None
        pattern = ""
        for kind, text in (*self.pieces(word), Piece("break", "")):
            runs = [text]
            if kind == "expanded" and text:
                runs = re.split(f"[{self.separators()}]+", self.unknowns.split(text))
            self.budget.work(WORD_WORK * len(runs))
            for number, run in enumerate(runs):
                if (number or kind == "break") and current is not None:
                    found.append(Field(current, _FILES.match(pattern) is not None))
                    current, pattern = None, ""
                if run or kind == "quoted":
                    current, pattern = (current or "") + run, pattern + (run if kind != "quoted" else "_")
            self.budget.produce(len(current or ""))
        return found

    def array(self, words: Sequence[Word]) -> tuple[str, ...]:
        """Return the elements of an array as written; a pattern of files is unknown."""
        found: list[str] = []
        for word in words:
            self.line = word.line
            for text, is_pattern in self.fields(word):
                kept = not is_pattern or "noglob" in self.state.options or not _PATH.search(text) or not is_known(text)
                why = "it depends on the files that are there"
                found.append(text if kept else self.unknowns.split(self.unknown(text, why=why)))
        return tuple(found)

    def text(self, word: Word) -> str:
        """Return a word expanded without splitting, as in assignments."""
        text = "".join(" " if piece.kind == "break" else piece.text for piece in self.pieces(word, is_value=True))
        self.budget.produce(len(text))
        return text

    def pieces(self, word: Word, *, is_value: bool = False) -> list[Piece]:
        """Return the expanded parts of a word; ``is_value`` if it is assigned, where ``~`` may follow a colon, too."""
        found: list[Piece] = []
        for number, part in enumerate(word.parts):
            if not isinstance(part, Text):
                found += self._expanded(part)
            elif part.text.startswith("~") and not part.quoted and self._is_home(word, number, is_value):
                found.append(Piece("quoted", self.unknown(part.text, why="a home folder", one_word=True)))
            else:
                found.append(Piece("quoted" if part.quoted else "plain", part.text))
        return found

    def _is_home(self, word: Word, number: int, is_value: bool) -> bool:
        return number == 0 or (is_value and word.parts[number - 1] == Text(":"))

    def _expanded(self, part: Parameter | Substitution | Arithmetic) -> list[Piece]:
        kind: Literal["quoted", "expanded"] = "quoted" if part.quoted else "expanded"
        self.line = part.line
        if isinstance(part, Substitution):
            return [Piece(kind, self.substitute(part))]
        if isinstance(part, Arithmetic):
            number = self.arithmetic(self.text(part.word))
            shown = self.unknown(part.source, one_word=True) if number is None else str(number)
            return [Piece(kind, shown)]
        found = self.parameter(part)
        if isinstance(found, str):
            return [Piece(kind, found)]
        pieces: list[Piece] = []
        for piece in found:
            if isinstance(piece, Piece):
                pieces.append(piece)
            else:
                pieces += [Piece("break", "")] * bool(pieces) + [Piece(kind, piece)]
        return pieces

    # Arithmetic.

    def arithmetic(self, text: str) -> int | None:
        """Return the value of an expanded arithmetic expression; ``None`` if unknown. ``x = 1`` sets a variable."""
        *before, text = text.split(",")
        for part in before:
            self.arithmetic(part)
        assigned = _ASSIGNED.fullmatch(text)
        changed = changed_names(text)
        if assigned is not None and len(changed) == 1:
            name, sign, rest = assigned.groups()
            value = self.arithmetic(f"{name} {sign} ({rest})" if sign else rest)
            shown = self.unknown(f"$(({text.strip()}))", because_of=text, one_word=True)
            self.assign(name, shown if value is None else str(value))
            return value
        if changed:
            self.forget(changed, f"line {self.line} changes it in (({text.strip()[:60]}))")
            return None
        try:
            return evaluate_arithmetic(text, self._number_text)
        except UnknownNumberError:
            return None

    def _number_text(self, name: str) -> str:
        value = self.value(name)
        return self.unset_text(name) if value is None else value

    # Parameters.

    def parameter(self, part: Parameter) -> "str | list[str] | list[Piece]":
        """Return the value of ``$name`` or ``${name...}``; a list for ``$@`` and arrays."""
        name, subscript = part.name, part.subscript
        which = None if subscript is None else subscript.source
        if name in ("@", "*") or which in ("@", "*"):
            return self._list(part, starred="*" in (name, which))
        if part.prefix == "!":
            raise RefusalError(f"has {part.source}, a variable whose name is in a variable, which is not evaluated.")
        if subscript is None:
            value = self.value(name)
        else:
            value = self.element(name, None if name in self.special else self.arithmetic(self.text(subscript)))
        if part.operator in _DEFAULTS:
            return self._default(part, name, value)
        if value is None:
            value = self.unset_text(name)
        if part.prefix:
            return str(len(value)) if is_known(value) else self.unknown(part.source, one_word=True)
        return self._changed(part, value) if part.operator else value

    def _default(self, part: Parameter, name: str, value: str | None) -> str | list[Piece]:
        """Return ``${name:-word}`` and similar expansions; with a colon, an empty value counts as unset."""
        counts_empty, kind = part.operator.startswith(":"), part.operator[-1]
        if value and self.unknowns.may_be_empty(value):
            return self.unknown(part.source, because_of=value)
        if value is None and self.state.unread:
            return self.unknown(part.source, why=self.state.unread)
        if value is None:
            self.defaults.setdefault(name, self.line)
        is_set = value is not None and not (counts_empty and value == "")
        if is_set == (kind == "+"):
            if kind in "-+":
                return self._operand(part)
            if kind == "?":
                return self.require(name, self.unknowns.rendered(self.text(part.operands[0])) or "null or not set")
            if part.subscript is not None or not NAME.fullmatch(name):
                raise RefusalError(f"has {part.source}, which assigns to what is no variable.")
            self.assign(name, self.text(part.operands[0]))
            return self.value(name) or ""
        return "" if kind == "+" else value or ""

    def _operand(self, part: Parameter) -> list[Piece]:
        """Return the expanded parts of the word after an operator; outside quotes, the word is split like a value."""
        pieces = self.pieces(part.operands[0])
        return [piece._replace(kind="expanded") if piece.kind == "plain" else piece for piece in pieces]

    def _list(self, part: Parameter, *, starred: bool) -> "str | list[str] | list[Piece]":
        """Return the expansion of ``${name[@]}`` or ``$@``, with its operator applied to each element."""
        name, operator = part.name, part.operator
        elements = self.elements(name)
        separators = self.separators() if starred else " "
        unsure = any(map(may_split, elements))
        if part.prefix == "!":
            raise RefusalError(f"has {part.source}, the keys of an array, which is not evaluated.")
        if part.prefix:
            return (
                self.unknown(part.source, because_of="".join(elements), one_word=True) if unsure else str(len(elements))
            )
        if operator in ("-", ":-", "+", ":+"):
            if unsure:
                return [self.unknowns.split(self.unknown(part.source, because_of="".join(elements)))]
            is_set = bool(elements) and not (operator[0] == ":" and "".join(elements) == "")
            if is_set == (operator[-1] == "+"):
                return self._operand(part)
            elements = elements if operator[-1] == "-" else []
        elif operator in _DEFAULTS:
            raise RefusalError(f"has {part.source}, which is not evaluated.")
        elif operator == ":":
            elements = self._slice(part, elements, unsure)
        elif operator:
            elements = [self._changed(part, element) for element in elements]
        elif not elements and name not in ("@", "*") and name not in self.state.variables:
            self.unset.setdefault(name, self.line)
        if not (starred and part.quoted):
            return elements
        text = separators[0].join(elements)
        self.budget.produce(len(text))
        return self.unknowns.kept(text)

    def _slice(self, part: Parameter, elements: list[str], unsure: bool) -> list[str]:
        offset, length = self._bounds(part)
        if offset is None or unsure:
            return [self.unknowns.split(self.unknown(part.source, because_of="".join(elements)))]
        if length is not None and length < 0:
            raise RefusalError(f"has {part.source}, whose length is negative.")
        if part.name in ("@", "*"):
            elements = [self.value("0") or "", *elements]
        offset += len(elements) if offset < 0 else 0
        return [] if offset < 0 else elements[offset:][:length]

    def _bounds(self, part: Parameter) -> tuple[int | None, int | None]:
        """Return offset and length of ``${name:offset:length}``; no offset if either is unknown."""
        numbers = [self.arithmetic(self.text(word)) for word in part.operands]
        return (None, None) if None in numbers else (numbers[0], numbers[1] if len(numbers) > 1 else None)

    def _changed(self, part: Parameter, value: str) -> str:
        """Return a value with a part selected, removed or replaced, or in other letters, by its operator."""
        operator = part.operator
        if operator == ":":
            return self._substring(part, value)
        if operator == "@" or (operator[0] in "^," and part.operands[0].parts):
            raise RefusalError(f"has {part.source}, which is not evaluated.")
        pieces = self.pieces(part.operands[0])
        if not is_known(value + "".join(piece.text for piece in pieces)):
            return self.unknown(part.source, because_of=value)
        if operator[0] in "^,":
            change = str.upper if operator[0] == "^" else str.lower
            return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]
        if operator[0] == "/":
            new = self.text(part.operands[1]) if len(part.operands) > 1 else ""
            return self._replaced(value, pieces, operator, new)
        pattern = pattern_of(pieces)
        self.budget.work(len(value) ** 2)
        lengths = range(len(value) + 1) if len(operator) == 1 else range(len(value), -1, -1)
        for length in lengths:
            cut, kept = (value[:length], value[length:]) if operator[0] == "#" else _last(value, length)
            if pattern.fullmatch(cut):
                return kept
        return value

    def _replaced(self, value: str, pieces: Sequence[Piece], operator: str, new: str) -> str:
        """Return a value with the matches of a pattern replaced."""
        expression = re.sub(r"\\[Zz]$", "", pattern_of(pieces).pattern)
        if ".*" in expression:
            raise RefusalError("replaces a pattern with * in a value, which is not evaluated.")
        if not pieces:
            return {"/#": new + value, "/%": value + new}.get(operator, value)
        expression = {"/#": rf"\A{expression}", "/%": rf"{expression}\Z"}.get(operator, expression)
        self.budget.produce(len(value) * (1 + len(new)))
        return re.sub(expression, lambda _: new, value, count=operator != "//")

    def _substring(self, part: Parameter, value: str) -> str:
        offset, length = self._bounds(part)
        if offset is None or not is_known(value):
            return self.unknown(part.source, because_of=value)
        offset += len(value) if offset < 0 else 0
        if offset < 0:
            return ""
        end = len(value) if length is None else offset + length if length >= 0 else len(value) + length
        if end < offset and (length or 0) < 0:
            raise RefusalError(f"has {part.source}, which ends before it begins.")
        return value[offset:end]

    def matches(self, text: str, word: Word) -> bool | None:
        """Return whether a text matches a pattern as written in the script; ``None`` if unknown."""
        pieces = self.pieces(word)
        if pieces and all(piece == Piece("plain", "*") for piece in pieces):
            return True
        if not is_known(text + "".join(piece.text for piece in pieces)):
            return None
        self.budget.work(len(text))
        return pattern_of(pieces).fullmatch(text) is not None


_DEFAULTS = ("-", "=", "?", "+", ":-", ":=", ":?", ":+")


def _last(value: str, length: int) -> tuple[str, str]:
    """Return the last characters of a value, and the characters before them."""
    return value[len(value) - length :], value[: len(value) - length]


def pattern_of(pieces: Sequence[Piece]) -> re.Pattern[str]:
    """Return a pattern of the shell as a regular expression, which takes time in proportion to the text."""
    plain = "".join(piece.text for piece in pieces if piece.kind != "quoted")
    quoted = "".join(piece.text for piece in pieces if piece.kind == "quoted")
    if re.search(r"\\|\[[^\]]*\[|[@!+?*]\(", plain) or ("[" in plain and re.search(r"[][!^-]", quoted)):
        raise RefusalError(f"has the pattern {plain[:40]!r}, which is not evaluated.")
    signs = [
        re.sub(r"([*?[])", r"[\1]", text) if kind == "quoted" else text.replace("[^", "[!") for kind, text in pieces
    ]
    return re.compile(fnmatch.translate("".join(signs)))
