"""Expansion of words in a script: quotes, variables, substitutions, word splitting and patterns."""

import re
from collections.abc import Sequence
from typing import Literal

from pipette_opt.read.shell.limits import RefusalError
from pipette_opt.read.shell.parameters import NAME, expand_parameter, read_parameter
from pipette_opt.read.shell.pieces import Field, Piece, text_of
from pipette_opt.read.shell.scanner import end_of_bracket, expand_braces
from pipette_opt.read.shell.values import Values

_PLAIN = re.compile(r"[^\\'\"$`]+")
_IN_QUOTES = re.compile(r"[^\\\"$`]+")
_ESCAPES = {"a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_GLOB = re.compile(r"[^*?\[]*(?:[*?]|\[.*[*?\]])", re.DOTALL)


def expand_fields(shell: Values, word: str) -> list[Field]:
    """Return the words to which a word as written in the script expands."""
    found: list[Field] = []
    for part in expand_braces(word):
        found += split_fields(shell, pieces_of(shell, part))
    shell.budget.words(len(found))
    return found


def expand_quoted(shell: Values, text: str) -> str:
    """Return a text expanded as inside double quotes, such as a here-document or an arithmetic expression."""
    return text_of(_quoted_pieces(shell, text, "document"))


def split_fields(shell: Values, pieces: Sequence[Piece]) -> list[Field]:
    """Return the words that expanded parts make, split at the characters of ``IFS``."""
    separators = shell.text("IFS")
    separators = " \t\n" if separators is None else separators
    fields: list[Field] = []
    current: str | None = None
    is_pattern = False

    def end() -> None:
        nonlocal current, is_pattern
        if current is not None:
            fields.append(Field(current, is_pattern))
        current, is_pattern = None, False

    for kind, text in pieces:
        if kind == "break":
            end()
        elif kind == "quoted":
            current = (current or "") + text
        elif kind == "plain" or not separators:
            if text:
                current = (current or "") + text
                is_pattern |= _GLOB.match(text) is not None
        else:
            for is_separator, part in _parts(shell.unknowns.split(text), separators):
                if not is_separator:
                    current = (current or "") + part
                    is_pattern |= _GLOB.match(part) is not None
                    continue
                # A character of IFS that is not a blank ends a field even if that is empty.
                for _ in range(sum(1 for sign in part if sign not in " \t\n")):
                    if current is None:
                        fields.append(Field("", False))
                    end()
                end()
        if current is not None:
            shell.budget.produce(len(text))
    end()
    return fields


def _parts(text: str, separators: str) -> list[tuple[bool, str]]:
    """Return runs of separators and runs of other characters, each with whether it consists of separators."""
    runs = re.split(f"([{re.escape(separators)}]+)", text)
    return [(index % 2 == 1, run) for index, run in enumerate(runs) if run]


def pieces_of(shell: Values, word: str, *, in_quotes: bool = False, tilde_after_colon: bool = False) -> list[Piece]:
    """
    Return the expanded parts of a word as written in the script.

    Parameters
    ----------
    in_quotes
        Whether the word is in ``${name:-word}`` inside double quotes.
    tilde_after_colon
        Whether ``~`` after a colon is a home folder, too, as in assignments.
    """
    if in_quotes:
        return _quoted_pieces(shell, word, "expansion")
    found: list[Piece] = []
    index = counted = 0
    first_line = shell.line
    while index < len(word):
        shell.line += word.count("\n", counted, index)
        counted = index
        character = word[index]
        if character == "\\":
            escaped = word[index + 1 : index + 2]
            if escaped != "\n":
                found.append(Piece("quoted", escaped or "\\"))
            index += 2
        elif character == "'":
            end = end_of_bracket(word, index)
            found.append(Piece("quoted", word[index + 1 : end - 1]))
            index = end
        elif character == '"' or word.startswith('$"', index):
            end = end_of_bracket(word, index)
            inside = word[index + 1 + (character == "$") : end - 1]
            pieces = _quoted_pieces(shell, inside, "string")
            found += pieces or ([Piece("quoted", "")] if not _only_lists(inside) else [])
            index = end
        elif word.startswith("$'", index):
            end = end_of_bracket(word, index)
            found.append(Piece("quoted", _unescaped(word[index + 2 : end - 1])))
            index = end
        elif character in "$`":
            pieces, index = _substitution(shell, word, index, quoted=False)
            found += pieces
        elif word.startswith(("<(", ">("), index) and index == 0:
            index = end_of_bracket(f"${word[1:]}", 0)
            found.append(Piece("quoted", shell.unknown(word[:index], one_word=True)))
        else:
            plain = _PLAIN.match(word, index)
            assert plain is not None
            text = plain[0]
            is_first = index == 0
            index = plain.end()
            if "~" in text and (is_first or tilde_after_colon):
                found += _with_homes(shell, text, is_first, tilde_after_colon)
            else:
                found.append(Piece("plain", text))
    shell.line = first_line
    return found


def _only_lists(inside: str) -> bool:
    """Return whether the content of double quotes is only ``$@`` or arrays, which may expand to no word at all."""
    return re.fullmatch(r"(?:\$@|\$\{(?:@|!?[A-Za-z_]\w*\[@\])[^}]*\})+", inside) is not None


def _with_homes(shell: Values, text: str, is_first: bool, after_colon: bool) -> list[Piece]:
    """Return the parts of a text, with home folders in place of ``~`` and ``~name``."""
    found: list[Piece] = []
    parts = text.split(":") if after_colon else [text]
    for number, part in enumerate(parts):
        if number:
            found.append(Piece("plain", ":"))
        name, slash, rest = part.partition("/")
        if (number or is_first) and re.fullmatch(r"~(?:[+-]|[A-Za-z_][\w.-]*)?", name):
            home = shell.text("HOME") if name == "~" else None
            found.append(Piece("quoted", home if home is not None else shell.unknown(name, one_word=True)))
            part = slash + rest
        if part:
            found.append(Piece("plain", part))
    return found


Quoting = Literal["string", "expansion", "document"]
"""Kind of quoted text: double quotes, ``${name:-text}`` inside double quotes, or a here-document."""


def _quoted_pieces(shell: Values, text: str, quoting: Quoting) -> list[Piece]:
    """Return the expanded parts of a quoted text, in which blanks and patterns have no meaning."""
    escapable = "$`\\" + {"string": '"', "expansion": '"}', "document": ""}[quoting]
    found: list[Piece] = []
    index = counted = 0
    first_line = shell.line
    while index < len(text):
        shell.line += text.count("\n", counted, index)
        counted = index
        character = text[index]
        if character == "\\":
            escaped = text[index + 1 : index + 2]
            if escaped != "\n":
                found.append(Piece("quoted", escaped if escaped and escaped in escapable else character + escaped))
            index += 2
        elif character == '"':
            if quoting != "expansion":
                found.append(Piece("quoted", character))
            index += 1
        elif character in "$`":
            pieces, index = _substitution(shell, text, index, quoted=True)
            found += pieces
        else:
            plain = _IN_QUOTES.match(text, index)
            assert plain is not None
            found.append(Piece("quoted", plain[0]))
            index = plain.end()
    shell.line = first_line
    return found


def _substitution(shell: Values, text: str, index: int, quoted: bool) -> tuple[list[Piece], int]:
    """Return the expanded parts of a substitution that begins with ``$`` or a backtick, and the index after it."""
    kind: Literal["quoted", "expanded"] = "quoted" if quoted else "expanded"
    shell.budget.step()
    if text[index] == "`":
        end = end_of_bracket(text, index, quoted)
        escaped = r'\\([$`\\"])' if quoted else r"\\([$`\\])"
        source = re.sub(escaped, r"\1", text[index + 1 : end - 1])
        return [Piece(kind, shell.substitute(source, text[index:end]))], end
    if text.startswith("$(", index):
        end = end_of_bracket(text, index, quoted)
        source = text[index + 2 : end - 1]
        if source.startswith("(") and source.endswith(")") and end_of_bracket(f"${source}", 0) == len(source) + 1:
            return [Piece(kind, shell.arithmetic_text(source[1:-1]))], end
        return [Piece(kind, shell.substitute(source, text[index:end]))], end
    if text.startswith("$[", index):
        end = end_of_bracket(text, index, quoted)
        return [Piece(kind, shell.arithmetic_text(text[index + 2 : end - 1]))], end
    if text.startswith("${", index):
        end = end_of_bracket(text, index, quoted)
        shell.budget.enter()
        pieces = _as_pieces(expand_parameter(shell, text[index + 2 : end - 1], quoted), kind)
        shell.budget.leave()
        return pieces, end
    found = NAME.match(text, index + 1)
    if found is not None:
        return _as_pieces(read_parameter(shell, found[0], quoted), kind), found.end()
    special = text[index + 1 : index + 2]
    if special and special in "0123456789@*#?$!-":
        return _as_pieces(read_parameter(shell, special, quoted), kind), index + 2
    return [Piece("quoted" if quoted else "plain", "$")], index + 1


def _as_pieces(found: "str | list[str] | list[Piece]", kind: Literal["quoted", "expanded"]) -> list[Piece]:
    """Return a text, a list of texts or expanded parts as :class:`Piece`, with breaks between texts of a list."""
    if isinstance(found, str):
        return [Piece(kind, found)]
    if found and isinstance(found[0], Piece):
        return [piece for piece in found if isinstance(piece, Piece)]
    pieces: list[Piece] = []
    for element in found:
        assert isinstance(element, str)
        pieces += [Piece("break", "")] * bool(pieces) + [Piece(kind, element)]
    return pieces


def _unescaped(text: str) -> str:
    """Return the text of ``$'...'`` with its escapes replaced."""

    def sign(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "01234567":
            return chr(int(code, 8) & 0xFF)
        if code[0] in "xuU" and len(code) > 1:
            number = int(code[1:], 16)
            if number > 0x10FFFF:
                raise RefusalError(f"has a character {found[0]} that does not exist.")
            return chr(number)
        if code[0] == "c" and len(code) == 2:
            return chr(ord(code[1].upper()) & 0x1F)
        return _ESCAPES.get(code, code if code in "\\'\"?" else found[0])

    pattern = r"\\([0-7]{1,3}|x[0-9A-Fa-f]{1,2}|u[0-9A-Fa-f]{1,4}|U[0-9A-Fa-f]{1,8}|c.|.)"
    return re.sub(pattern, sign, text, flags=re.DOTALL).partition("\0")[0]
