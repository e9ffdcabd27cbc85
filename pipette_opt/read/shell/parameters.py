"""Parameter expansion, such as ``$name``, ``${name:-word}``, ``${name%pattern}`` and ``${#name}``."""

import re
from collections.abc import Sequence

from pipette_opt.read.shell.limits import RefusalError
from pipette_opt.read.shell.pieces import Piece, text_of
from pipette_opt.read.shell.scanner import end_of_bracket, split_at
from pipette_opt.read.shell.unknowns import all_known, is_known, may_split
from pipette_opt.read.shell.values import Values

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!\-]", re.ASCII)
_OPERATORS = (
    ":-", ":=", ":?", ":+", "%%", "##", "//", "/#", "/%", "^^", ",,", "-", "=", "?", "+", "%", "#", "/", "^", ",", "@",
    ":",
)  # fmt: skip


def read_parameter(shell: Values, name: str, quoted: bool) -> str | list[str]:
    """Return the value of ``$name``; a list for ``$@``, and for ``$*`` outside quotes."""
    if name == "@" or (name == "*" and not quoted):
        return list(shell.state.positional)
    if name == "*":
        return shell.joined(shell.state.positional)
    value = shell.parameter(name)
    return shell.unset_text(name) if value is None else value


def expand_parameter(shell: Values, inside: str, quoted: bool) -> str | list[str] | list[Piece]:
    """
    Return the value of ``${inside}``.

    Raises
    ------
    RefusalError
        If bash would report an error, or if the expansion is not supported.
    """
    if inside.startswith("#") and inside != "#" and inside[1:2] not in tuple("-=?+%:/"):
        return _length(shell, inside[1:])
    indirect = inside.startswith("!") and len(inside) > 1
    found = _PARAMETER.match(inside, int(indirect))
    if found is None:
        raise RefusalError(f"has ${{{inside[:40]}}}, which bash cannot expand.")
    name, rest = found[0], inside[found.end() :]
    subscript: str | None = None
    if rest.startswith("["):
        end = _end_of_subscript(rest)
        subscript, rest = rest[1 : end - 1], rest[end:]
    if indirect:
        if rest in ("@", "*"):
            names = sorted(variable for variable in shell.state.variables if variable.startswith(name))
            return shell.joined(names) if quoted and rest == "*" else names
        if subscript in ("@", "*"):
            keys = [str(key) for key in shell.keys(name)]
            _check_order(shell, name, keys)
            return shell.joined(keys) if quoted and subscript == "*" else keys
        name, subscript = _target_of(shell, name, subscript)
        if subscript in ("@", "*") and not shell.elements(name):
            raise RefusalError(f"has ${{!...}}, which names all elements of {name}, and it has none.")
    operator = next((sign for sign in _OPERATORS if rest.startswith(sign)), "")
    if rest and not operator:
        raise RefusalError(f"has ${{{inside[:40]}}}, which bash cannot expand.")
    word = rest[len(operator) :]
    is_list = subscript in ("@", "*") or (subscript is None and name in ("@", "*"))
    if is_list:
        return _expand_list(shell, name, operator, word, quoted, starred=subscript == "*" or name == "*")
    value = shell.element(name, subscript) if subscript is not None else shell.parameter(name)
    shown = name if subscript is None else f"{name}[{subscript}]"
    return _expand_value(shell, (name, subscript, shown), value, operator, word, quoted)


def _target_of(shell: Values, name: str, subscript: str | None) -> tuple[str, str | None]:
    """Return name and subscript of the parameter that the value of ``name`` names, as in ``${!name}``."""
    value = shell.element(name, subscript) if subscript is not None else shell.parameter(name)
    if value is None:
        raise RefusalError(f"has ${{!{name}}}, but {name} is not set.")
    found = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+|[@*#])(?:\[(.*)\])?", value, re.ASCII | re.DOTALL)
    if found is None:
        problem = "is known only when the script runs" if not is_known(value) else "names no variable"
        raise RefusalError(f"has ${{!{name}}}, which {problem}.")
    return found[1], found[2]


def _end_of_subscript(text: str) -> int:
    index, depth = 0, 0
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 2
            continue
        if character in "$'\"`" and (character != "$" or text[index + 1 : index + 2] in ("(", "{", "'", '"')):
            index = end_of_bracket(text, index)
            continue
        depth += (character == "[") - (character == "]")
        index += 1
        if depth == 0:
            return index
    raise RefusalError("has a subscript that is not closed.")


def _length(shell: Values, inside: str) -> str:
    found = re.fullmatch(r"([A-Za-z_]\w*|[0-9]+|[@*#?$!\-])(\[.*\])?", inside, re.ASCII | re.DOTALL)
    if found is None:
        raise RefusalError(f"has ${{#{inside[:40]}}}, which bash cannot expand.")
    name, subscript = found[1], None if found[2] is None else found[2][1:-1]
    if subscript in ("@", "*") or (subscript is None and name in ("@", "*")):
        elements = list(shell.state.positional) if name in ("@", "*") else shell.elements(name)
        if any(map(may_split, elements)):
            return shell.unknown(f"${{#{inside}}}", one_word=True)
        return str(len(elements))
    value = shell.parameter(name) if subscript is None else shell.element(name, subscript)
    value = shell.unset_text(name) if value is None else value
    return str(len(value)) if is_known(value) else shell.unknown(f"${{#{inside}}}", one_word=True)


def _expand_value(
    shell: Values,
    place: tuple[str, str | None, str],
    value: str | None,
    operator: str,
    word: str,
    quoted: bool,
) -> str | list[Piece]:
    """Return the expansion of a parameter with a single value."""
    shown = place[2]
    if operator in (":-", ":=", ":?", ":+", "-", "=", "?", "+"):
        return _default(shell, place, value, operator, word, quoted)
    if value is None:
        value = shell.unset_text(shown)
    if operator == "":
        return value
    if operator == ":":
        return _part(shell, value, word, shown)
    return _changed(shell, value, operator, word, shown)


def _default(
    shell: Values, place: tuple[str, str | None, str], value: str | None, operator: str, word: str, quoted: bool
) -> str | list[Piece]:
    """Return ``${name:-word}`` and similar expansions; with a colon, an empty value counts as unset."""
    name, subscript, shown = place
    empty_counts, kind = operator.startswith(":"), operator[-1]
    if value is not None and empty_counts and value and shell.unknowns.may_be_empty(value):
        return shell.unknown(f"${{{shown}{operator}{word}}}", because_of=value)
    is_set = value is not None and not (empty_counts and value == "")
    if value is None:
        shell.note_default(name)
        value = shell.unread_value(name)
        if value is not None:
            return shell.unknown(f"${{{shown}{operator}{word}}}", because_of=value)
    if kind == "+":
        return _word_pieces(shell, word, quoted) if is_set else ""
    if is_set:
        return value or ""
    if kind == "-":
        return _word_pieces(shell, word, quoted)
    if kind == "?":
        message = shell.unknowns.rendered(shell.expand_text(word)) or "parameter null or not set"
        return shell.require(name, message)
    text = text_of(shell.pieces_of(word, in_quotes=quoted))
    if not NAME.fullmatch(name):
        raise RefusalError(f"assigns to ${name}, which bash refuses.")
    shell.assign(name, subscript, text)
    return text


def _word_pieces(shell: Values, word: str, quoted: bool) -> list[Piece]:
    """Return the expanded parts of the word after an operator; outside quotes, the word is split like a value."""
    pieces = shell.pieces_of(word, in_quotes=quoted)
    return [piece._replace(kind="expanded") if piece.kind == "plain" else piece for piece in pieces]


def _changed(shell: Values, value: str, operator: str, word: str, shown: str) -> str:
    """Return a value with a part removed or replaced, or in upper or lower case, by the operator of the expansion."""
    if operator == "@":
        return _transformed(shell, value, word, shown)
    if operator.startswith("/"):
        old, *new = _split_slash(word)
        pattern, pattern_text = shell.expand_pattern(old)
        replacement = shell.expand_text(new[0]) if new else ""
        if value == "":
            return ""
        if not all_known((value, pattern_text)):
            return shell.unknown(f"${{{shown}{operator}{word}}}", because_of=value + pattern_text)
        if not pattern.parts and operator not in ("/#", "/%"):
            return value
        result = pattern.replaced(value, replacement, all_of_them=operator == "//", place=operator[1:].strip("/"))
    else:
        pattern, pattern_text = shell.expand_pattern(word)
        if value == "":
            return ""
        if not all_known((value, pattern_text)):
            return shell.unknown(f"${{{shown}{operator}{word}}}", because_of=value + pattern_text)
        if operator[0] in "^,":
            result = _in_letters(value, operator, None if not word else pattern)
        elif operator[0] == "#":
            result = pattern.without_prefix(value, longest=operator == "##")
        else:
            result = pattern.without_suffix(value, longest=operator == "%%")
    shell.budget.produce(len(result))
    return result


def _in_letters(value: str, operator: str, pattern: "object") -> str:
    if pattern is not None:
        raise RefusalError(f"has ${{...{operator}pattern}}, which cannot be evaluated here.")
    change = str.upper if operator[0] == "^" else str.lower
    return change(value) if len(operator) == 2 else change(value[:1]) + value[1:]


def _split_slash(word: str) -> list[str]:
    """Return pattern and replacement around a slash that is not quoted, escaped or inside an expansion."""
    parts = split_at(word, "/")
    return [parts[0], "/".join(parts[1:])] if len(parts) > 1 else parts


def _transformed(shell: Values, value: str, kind: str, shown: str) -> str:
    if kind in ("U", "L", "u") and is_known(value):
        return {"U": value.upper(), "L": value.lower(), "u": value[:1].upper() + value[1:]}[kind]
    raise RefusalError(f"has ${{{shown}@{kind}}}, which cannot be evaluated here.")


def _part(shell: Values, value: str, word: str, shown: str) -> str:
    """Return the part of a value that ``${name:offset:length}`` selects."""
    bounds = _bounds(shell, word, shown)
    if bounds is None or not is_known(value):
        return shell.unknown(f"${{{shown}:{word}}}", because_of=value)
    offset, length = bounds
    if offset < 0:
        offset += len(value)
        if offset < 0:
            return ""
    if length is None:
        return value[offset:]
    end = offset + length if length >= 0 else len(value) + length
    if length < 0 and end < offset:
        raise RefusalError(f"has ${{{shown}:{word}}}, which ends before it begins.")
    return value[offset:end]


def _bounds(shell: Values, word: str, shown: str) -> tuple[int, int | None] | None:
    """
    Return offset and length of a substring expansion such as ``${name:1:2}``.

    The length is ``None`` if not given. The result is ``None`` if either is unknown.
    """
    parts = split_at(word, ":")
    if len(parts) > 2:
        raise RefusalError(f"has ${{{shown}:{word[:40]}}}, which cannot be evaluated here.")
    numbers = [shell.arithmetic(part) for part in parts]
    if None in numbers:
        return None
    return numbers[0] or 0, (numbers[1] if len(numbers) > 1 else None)


def _expand_list(
    shell: Values, name: str, operator: str, word: str, quoted: bool, starred: bool
) -> str | list[str] | list[Piece]:
    """Return the expansion of ``${name[@]}`` or ``$@``, with its operator applied to each element."""
    is_positional = name in ("@", "*")
    elements = list(shell.state.positional) if is_positional else shell.elements(name)
    _check_order(shell, name, elements)
    if operator in (":-", "-", ":+", "+"):
        if any(shell.unknowns.may_be_empty(element) for element in elements if element) and operator[0] == ":":
            return shell.unknown(f"${{{name}[@]{operator}{word}}}", because_of="".join(elements))
        is_set = bool(elements) and not (operator[0] == ":" and "".join(elements) == "")
        if is_set != (operator[-1] == "-"):
            return _word_pieces(shell, word, quoted) if operator[-1] == "-" or is_set else []
        if operator[-1] == "+":
            return []
    elif operator == ":":
        elements = _slice(shell, name, elements, word, is_positional)
    elif operator:
        if operator in (":=", "=", ":?", "?"):
            raise RefusalError(f"has ${{{name}[@]{operator}...}}, which cannot be evaluated here.")
        elements = [_changed(shell, element, operator, word, f"{name}[@]") for element in elements]
    elif not is_positional and name not in shell.state.variables:
        shell.unset_list(name)
    shell.budget.words(len(elements))
    return shell.joined(elements) if starred and quoted else elements


def _check_order(shell: Values, name: str, elements: Sequence[str]) -> None:
    """Raise ``RefusalError`` for several elements of an associative array, as only bash knows their order."""
    if len(elements) > 1 and shell.is_map(name):
        raise RefusalError(f"lists the associative array {name}, whose order is known only to bash.")


def _slice(shell: Values, name: str, elements: list[str], word: str, is_positional: bool) -> list[str]:
    bounds = _bounds(shell, word, f"{name}[@]")
    if bounds is None or any(map(may_split, elements)):
        return [shell.unknown(f"${{{name}[@]:{word}}}", because_of="".join(elements), split=True)]
    offset, length = bounds
    if length is not None and length < 0:
        raise RefusalError(f"has ${{{name}[@]:{word}}}, whose length is negative.")
    if is_positional:
        elements = [shell.parameter("0") or "", *elements]
        offset = offset if offset >= 0 else offset + len(elements)
        return [] if offset < 0 else elements[offset:][:length]
    keys = [int(key) for key in shell.keys(name)] if not shell.is_map(name) else list(range(len(elements)))
    offset = offset if offset >= 0 else offset + (max(keys, default=-1) + 1)
    if offset < 0:
        return []
    return [element for key, element in zip(keys, elements, strict=True) if key >= offset][:length]
