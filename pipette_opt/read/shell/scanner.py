"""Scanner of quotes and brackets in words as written in a script, and of the blanks between words."""

import re
from itertools import pairwise

from pipette_opt.read.shell.limits import MAX_WORDS, RefusalError

META = frozenset(";&|<>()")
"""Characters that end a word outside quotes."""

_PLAIN_RUN = re.compile(r"[^\s;&|<>()\\$'\"`]+")
"""Pattern of characters without a special meaning in a word."""

_HERE = re.compile(r"<<-?\s*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([\w.-]+))")
_OPENINGS = ("$((", "$(", "${", "$'", '$"', "$[", "'", '"', "`")


def end_of_bracket(text: str, start: int, quoted: bool = False) -> int:
    """
    Return the index after a quoted text, a substitution or an expansion.

    Parameters
    ----------
    start
        Index of its first character: a quote, a backtick, ``$(``, ``${``, ``$[`` or ``$'``.
    quoted
        Whether it is inside double quotes.
    """
    opening = _opening(text, start, quoted)
    stack = [_kind(opening, quoted)]
    index = start + len(opening)
    here: list[tuple[str, bool]] = []
    while index < len(text):
        kind, character = stack[-1], text[index]
        if kind == "'":
            index = _find(text, "'", index) + 1
            stack.pop()
        elif character == "\\":
            index += 2
        elif character == _CLOSING.get(kind):
            stack.pop()
            index += 1
        elif kind == "`" or (kind == "$'" and character != "'"):
            index += 1
        elif character.isalnum() and kind not in _COMMANDS:
            run = _LETTERS.match(text, index)
            index = run.end() if run is not None else index + 1
        elif kind in _COMMANDS and character == "#" and text[index - 1] in " \t\n;&|(":
            index = text.find("\n", index) if "\n" in text[index:] else len(text)
        elif kind in _COMMANDS and text.startswith("<<", index) and not text.startswith("<<<", index):
            index = _note_here_document(text, index, here)
        elif character == "\n" and here:
            index = _after_here_documents(text, index, here)
        elif kind in _COMMANDS and character == "(":
            stack.append("(")
            index += 1
        elif kind in _COMMANDS and character in "ce" and (word := _CASE.match(text, index)) is not None:
            if word[0] == "esac" and kind == "case":
                stack.pop()
            elif word[0] == "case" and _begins_command(text, index):
                stack.append("case")
            index = word.end()
        else:
            found = _opening(text, index, kind in ('"', '"{'))
            if found:
                stack.append(_kind(found, kind in ('"', '"{')))
            index += len(found) or (3 if text.startswith("<<<", index) else 1)
        if not stack:
            return index
    raise RefusalError("has a quote or a bracket that is not closed.")


_LETTERS = re.compile(r"\w+")

_COMMANDS = ("$(", "(", "case")
"""Constructs that contain commands; a bracket after a pattern of ``case`` closes none of them."""

_CASE = re.compile(r"(?<![\w$\-])(?:case|esac)(?![\w\-])")
_BEFORE_COMMAND = re.compile(r"(?:[;&|({\n`]|\b(?:then|do|else))[ \t]*$")


def _begins_command(text: str, index: int) -> bool:
    return _BEFORE_COMMAND.search(text[max(0, index - 20) : index]) is not None


_CLOSING = {"'": "'", "$'": "'", '"': '"', "`": "`", "$(": ")", "(": ")", "${": "}", '"{': "}", "$[": "]"}


def _opening(text: str, index: int, quoted: bool) -> str:
    """Return the characters at ``index`` that begin a quoted text, a substitution or an expansion; empty if none do."""
    if text[index] not in "$'\"`":
        return ""
    found = next((opening for opening in _OPENINGS if text.startswith(opening, index)), "")
    if quoted and found in ("'", "$'", '$"'):
        return ""
    return {"$((": "$(", '$"': '$"'}.get(found, found)


def _kind(opening: str, quoted: bool) -> str:
    if opening == '$"':
        return '"'
    return '"{' if opening == "${" and quoted else opening


def _find(text: str, sign: str, start: int) -> int:
    found = text.find(sign, start)
    if found < 0:
        raise RefusalError("has a quote that is not closed.")
    return found


def _note_here_document(text: str, index: int, here: list[tuple[str, bool]]) -> int:
    found = _HERE.match(text, index)
    if found is None:
        return index + 2
    here.append((found[1] or found[2] or found[3] or "", found[0].startswith("<<-")))
    return found.end()


def _after_here_documents(text: str, index: int, here: list[tuple[str, bool]]) -> int:
    """Return the index of the line break after the last line of all pending here-documents."""
    for delimiter, indented in here:
        tabs = "\t*" if indented else ""
        found = re.compile(rf"\n{tabs}{re.escape(delimiter)}(?=\n|$)").search(text, index)
        if found is None:
            raise RefusalError("has a here-document without its last line.")
        index = found.end()
    here.clear()
    return index


def split_words(text: str, operators: tuple[str, ...] = ()) -> list[str]:
    """Return the words of a text as written; see :func:`placed_words`."""
    return [word for word, _ in placed_words(text, operators)]


def placed_words(text: str, operators: tuple[str, ...] = ()) -> list[tuple[str, int]]:
    """
    Return each word of a text as written, without comments, with the number of lines before it.

    Parameters
    ----------
    operators
        Signs that are words themselves, such as ``&&`` and ``(`` between ``[[`` and ``]]``. Any other sign that would
        end a command is an error.
    """
    words: list[tuple[str, int]] = []
    index = counted = lines = 0
    while index < len(text):
        if text[index] in " \t\n":
            index += 1
        elif text.startswith("\\\n", index):
            index += 2
        elif text[index] == "#":
            index = text.find("\n", index) if "\n" in text[index:] else len(text)
        else:
            lines += text.count("\n", counted, index)
            counted = index
            operator = next((sign for sign in operators if text.startswith(sign, index)), None)
            is_regex = bool(words) and words[-1][0] == "=~"
            if operator is not None and not is_regex:
                words.append((operator, lines))
                index += len(operator)
            else:
                end = regex_end(text, index) if is_regex else word_end(text, index)
                words.append((text[index:end], lines))
                index = end
        if len(words) > MAX_WORDS:
            raise RefusalError(f"has more than {MAX_WORDS:,} words.")
    return words


def word_end(text: str, start: int) -> int:
    """Return the index after the word that begins at ``start``."""
    index = start
    while index < len(text):
        character = text[index]
        if character in " \t\n":
            break
        if character in "<>" and text.startswith("(", index + 1) and index == start:
            index = end_of_bracket(f"${text[index + 1 :]}", 0) + index
        elif character in META:
            if index == start:
                raise RefusalError(f"has {character!r} where a word is expected.")
            break
        elif character == "\\":
            index += 2
        elif (run := _PLAIN_RUN.match(text, index)) is not None:
            index = run.end()
        else:
            index = end_of_bracket(text, index) if _opening(text, index, quoted=False) else index + 1
    return min(index, len(text))


def regex_end(text: str, start: int) -> int:
    """Return the index after a regular expression of ``=~``, in which brackets need no quotes."""
    index, depth = start, 0
    while index < len(text):
        character = text[index]
        if character in " \t\n" and depth == 0:
            break
        depth += (character == "(") - (character == ")")
        if character == "\\":
            index += 2
        else:
            index = end_of_bracket(text, index) if _opening(text, index, quoted=False) else index + 1
    return min(index, len(text))


def split_at(text: str, separator: str) -> list[str]:
    """Split a text at each separator outside quotes and brackets."""
    parts, begin, index, depth = [], 0, 0, 0
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 2
            continue
        if _opening(text, index, quoted=False):
            index = end_of_bracket(text, index)
            continue
        depth += (character == "(") - (character == ")")
        if character == separator and depth == 0:
            parts.append(text[begin:index])
            begin = index + 1
        index += 1
    return [*parts, text[begin:]]


def expand_braces(word: str) -> list[str]:
    """Return the words to which ``{a,b}`` and ``{1..3}`` in a word expand."""
    if "{" not in word:
        return [word]
    expanded, pending = [], [word]
    while pending:
        current = pending.pop()
        found = _first_brace(current)
        if found is None:
            expanded.append(current)
        else:
            before, parts, after = found
            pending.extend(before + part + after for part in reversed(parts))
        if len(expanded) + len(pending) > MAX_WORDS or sum(map(len, pending)) > MAX_WORDS * 50:
            raise RefusalError(f"makes more than {MAX_WORDS:,} words of braces.")
    return expanded


def _first_brace(word: str) -> tuple[str, list[str], str] | None:
    """Return the text before the first braces that expand, the alternatives in them, and the text after."""
    index = 0
    opened: list[tuple[int, list[int]]] = []
    best: tuple[int, list[int], int] | None = None
    while index < len(word):
        character = word[index]
        if character == "\\":
            index += 2
            continue
        if _opening(word, index, quoted=False):
            index = end_of_bracket(word, index)
            continue
        if character == "{":
            opened.append((index, []))
        elif character == "," and opened:
            opened[-1][1].append(index)
        elif character == "}" and opened:
            begin, commas = opened.pop()
            expands = bool(commas) or _sequence(word[begin + 1 : index]) is not None
            if expands and (best is None or begin < best[0]):
                best = (begin, commas, index)
        index += 1
    if best is None:
        return None
    begin, commas, end = best
    edges = [begin, *commas, end]
    parts = [word[left + 1 : right] for left, right in pairwise(edges)]
    if not commas:
        parts = _sequence(word[begin + 1 : end]) or []
    return word[:begin], parts, word[end + 1 :]


def _sequence(text: str) -> list[str] | None:
    """Return the words of a sequence such as ``1..3``, ``a..e`` or ``0..9..3``; ``None`` if it is no sequence."""
    found = re.fullmatch(r"([+-]?[0-9]{1,18}|[A-Za-z])\.\.([+-]?[0-9]{1,18}|[A-Za-z])(?:\.\.([+-]?[0-9]{1,18}))?", text)
    if found is None or found[1].isalpha() != found[2].isalpha():
        return None
    is_letter = found[1].isalpha()
    first, last = (ord(found[1]), ord(found[2])) if is_letter else (int(found[1]), int(found[2]))
    step = abs(int(found[3] or 1)) or 1
    if abs(last - first) // step >= MAX_WORDS:
        raise RefusalError(f"makes more than {MAX_WORDS:,} words of {{{text}}}.")
    values = range(first, last + 1, step) if last >= first else range(first, last - 1, -step)
    if is_letter:
        return [chr(value) for value in values]
    padded = any(re.match(r"[+-]?0[0-9]", end) for end in (found[1], found[2]))
    width = max(len(found[1].lstrip("+")), len(found[2].lstrip("+"))) if padded else 0
    return [f"{value:0{width}d}" if width else str(value) for value in values]
