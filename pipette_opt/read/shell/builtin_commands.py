"""Builtin commands of bash that change variables, options or control flow."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from pipette_opt.read.shell.conditions import test_status
from pipette_opt.read.shell.expansion import _unescaped as unescaped
from pipette_opt.read.shell.limits import RefusalError
from pipette_opt.read.shell.state import Variable
from pipette_opt.read.shell.unknowns import all_known, is_known, may_split
from pipette_opt.read.shell.values import Values

DECLARING = ("declare", "typeset", "local", "export", "readonly")
"""Builtin commands whose arguments may be assignments."""

Status = int | None


class Flow(Exception):  # noqa: N818 - it is no error
    """Change of control flow, such as ``break`` or ``exit``, raised to leave the current statements."""

    def __init__(self, kind: str, number: int | None = 0) -> None:
        super().__init__(kind)
        self.kind = kind
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Flow) and (self.kind, self.number) == (other.kind, other.number)

    def __hash__(self) -> int:
        return hash((self.kind, self.number))


def _options_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the option letters of a command as one text, and the words after its options."""
    letters = ""
    rest = list(words)
    while rest and re.fullmatch(r"[-+][A-Za-z]+", rest[0]):
        word = rest.pop(0)
        letters += word[1:] if word[0] == "-" else word[1:].upper() + "+"
    if rest[:1] == ["--"]:
        rest.pop(0)
    return letters, rest


_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(?:\[((?:[^\]\"'$]|\"[^\"]*\"|'[^']*'|\$\w|\$\{\w+\})*)\])?(\+?)=", re.ASCII)


def assignment_of(word: str) -> tuple[str, str | None, bool, str] | None:
    """Return name, subscript, whether the assignment appends, and source of the value; ``None`` for others."""
    found = _ASSIGNMENT.match(word)
    return None if found is None else (found[1], found[2], found[3] == "+", word[found.end() :])


def declare(shell: Values, name: str, words: Sequence[str]) -> Status:
    """
    Run ``declare``, ``local``, ``export`` or ``readonly``; return the exit status.

    Parameters
    ----------
    words
        Arguments: assignments as written in the script, other words expanded.
    """
    letters, rest = _options_of(words)
    if name == "export" and "f" in letters:
        return 0
    if name == "local" and not shell.state.frames:
        return 1
    if set(letters) & set("fFpn"):
        if "n" in letters and name == "export":
            for word in rest:
                _change(shell, word, exported=False)
            return 0
        if "n" in letters:
            raise RefusalError(f"has {name} -n, a name for another variable, which cannot be evaluated here.")
        return 0
    for word in rest:
        _declare_word(shell, name, letters, word)
    return 0


def _change(shell: Values, name: str, **fields: bool) -> None:
    old = shell.state.variables.get(name, Variable())
    shell.state.variables[name] = replace(old, **fields)  # type: ignore[arg-type]


def _declare_word(shell: Values, command: str, letters: str, word: str) -> None:
    assigned = assignment_of(word)
    name = word if assigned is None else assigned[0]
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        if not is_known(name):
            raise RefusalError(f"has {command} of a name that is known only when it runs.")
        return
    is_local = command == "local" or (command in ("declare", "typeset") and shell.state.frames and "g" not in letters)
    if is_local and name not in shell.state.frames[-1]:
        hidden = shell.state.variables.pop(name, None)
        shell.state.frames = (*shell.state.frames[:-1], {**shell.state.frames[-1], name: hidden})
    old = shell.state.variables.get(name, Variable())
    kinds: dict[str, bool | str] = {}
    if "A" in letters and not (old.elements and not old.is_map):
        kinds["is_map"] = True
    if "a" in letters:
        kinds["is_array"] = True
    if "i" in letters:
        kinds["integer"] = True
    if command == "export" or "x" in letters:
        kinds["exported"] = True
    if set("ul") & set(letters):
        kinds["case"] = "u" if "u" in letters else "l"
    if kinds or assigned is None:
        shell.state.variables[name] = replace(old, **kinds)  # type: ignore[arg-type]
    if assigned is not None:
        shell.assign_source(*assigned)
    if command == "readonly" or "r" in letters:
        _change(shell, name, readonly=True)


def _echo(shell: Values, words: list[str]) -> Status:
    newline, escapes = "\n", False
    while words and re.fullmatch(r"-[neE]+", words[0]):
        for letter in words.pop(0)[1:]:
            newline = "" if letter == "n" else newline
            escapes = letter == "e" if letter in "eE" else escapes
    text = " ".join(words)
    if escapes:
        text, cut, _ = text.partition("\\c")
        newline = "" if cut else newline
        text = unescaped(re.sub(r"\\0([0-7]{1,3})", r"\\\1", text).replace("\\'", "\\\\'").replace('\\"', '\\\\"'))
    shell.write(text + newline)
    return 0


def _printf(shell: Values, words: list[str]) -> Status:
    target = None
    if words[:1] == ["-v"] and len(words) > 2:
        target, words = words[1], words[2:]
    if words[:1] == ["--"]:
        words = words[1:]
    if not words:
        return 2
    if any(map(may_split, words)):
        text = shell.unknown("printf", because_of="".join(words))
    else:
        text = _formatted(shell, words[0], words[1:])
    if target is None:
        shell.write(text)
    else:
        shell.assign(target, None, text)
    return 0


_DIRECTIVE = re.compile(
    r"%(?:%|([-+ #0]*)([1-9][0-9]*|\*|)(?:\.([0-9]+))?([a-zA-Z]))|\\(?:[0-7]{1,3}|.)|[^%\\]+|[%\\]", re.DOTALL
)


def _formatted(shell: Values, form: str, words: Sequence[str]) -> str:
    """Return the output of ``printf``; the format is repeated until all words are used."""
    pending = list(words)
    parts: list[str] = []
    while True:
        before = len(pending)
        for found in _DIRECTIVE.finditer(form):
            parts.append(_directive(shell, found, pending))
            shell.budget.produce(len(parts[-1]))
        shell.budget.step()
        if not pending or len(pending) == before:
            return "".join(parts)


def _directive(shell: Values, found: re.Match[str], pending: list[str]) -> str:
    if found[0] == "%%":
        return "%"
    if found[0][0] == "\\":
        return unescaped(found[0])
    if found[0] == "%":
        raise RefusalError("has printf with a form that ends in %.")
    if found[4] is None:
        return found[0]
    word = pending.pop(0) if pending else ""
    width = int(found[2] or 0) if found[2] != "*" else -1
    if not 0 <= width <= 1000 or (found[3] and len(found[3]) > 3):
        raise RefusalError("has printf with a width that is not evaluated.")
    if not is_known(word):
        return word if found[4] in "sdi" and not width else shell.unknown("printf", because_of=word)
    if found[4] in "sb":
        text = unescaped(word) if found[4] == "b" else word
        text = text[: int(found[3])] if found[3] else text
    elif found[4] in "dixXou":
        if not re.fullmatch(r"\s*[+-]?(?:0[xX][0-9A-Fa-f]{1,15}|[0-9]{1,18})|", word):
            raise RefusalError(f"has printf {found[0]} of {word[:40]!r}, which is no whole number.")
        value = shell.arithmetic_value(word) or 0
        text = f"%{found[1] or ''}{found[2] or ''}{found[4] if found[4] in 'xXo' else 'd'}" % value
        if value < 0 and found[4] in "xXou":
            raise RefusalError("has printf of a negative number without a sign, which cannot be evaluated here.")
        return text
    elif found[4] in "feg" and re.fullmatch(r"[+-]?[0-9]{0,15}(?:\.[0-9]{0,15})?(?:[eE][+-]?[0-9]{1,2})?", word or "0"):
        precision = "" if found[3] is None else f".{found[3]}"
        return f"%{found[1] or ''}{found[2] or ''}{precision}{found[4]}" % float(word or "0")
    elif found[4] == "q":
        raise RefusalError("has printf %q, which cannot be evaluated here.")
    else:
        raise RefusalError(f"has printf {found[0]}, which cannot be evaluated here.")
    return text.ljust(width) if "-" in (found[1] or "") else text.rjust(width)


def _set(shell: Values, words: list[str]) -> Status:
    letters = {
        "e": "errexit", "u": "nounset", "f": "noglob", "a": "allexport", "x": "xtrace", "v": "verbose", "n": "noexec",
        "E": "errtrace",
        "o": "", "h": "", "m": "", "b": "", "B": "", "C": "", "H": "", "P": "", "T": "", "p": "", "k": "",
    }  # fmt: skip
    options = set(shell.state.options)
    while words and re.fullmatch(r"[-+][A-Za-z]+", words[0]):
        word = words.pop(0)
        for letter in word[1:]:
            name = letters.get(letter)
            if letter == "o" and words and re.fullmatch(r"[a-z]+", words[0]):
                name = words.pop(0)
            if name is None:
                return 2
            (options.add if word[0] == "-" else options.discard)(name)
        if "noexec" in options:
            raise RefusalError("has set -n, after which bash runs nothing.")
    shell.state.options = frozenset(options - {""})
    if words and words[0] in ("--", "-"):
        shell.state.positional = tuple(words[1:])
    elif words:
        shell.state.positional = tuple(words)
    return 0


def _shift(shell: Values, words: list[str]) -> Status:
    count = _whole(shell, words, 1)
    if any(map(may_split, shell.state.positional)):
        raise RefusalError("has shift where the number of arguments is not known.")
    if count > len(shell.state.positional):
        return 1
    shell.state.positional = shell.state.positional[count:]
    return 0


def _whole(shell: Values, words: Sequence[str], default: int) -> int:
    if not words:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", words[0]):
        raise RefusalError(f"has {shell.unknowns.rendered(words[0])[:40]!r} where a whole number is needed.")
    return int(words[0])


def _unset(shell: Values, words: list[str]) -> Status:
    letters, names = _options_of(words)
    for name in names:
        found = re.fullmatch(r"([A-Za-z_]\w*)(?:\[(.*)\])?", name, re.ASCII)
        if not is_known(name):
            raise RefusalError("has unset of a name that is known only when it runs.")
        if "f" in letters or (found is not None and found[1] not in shell.state.variables and "v" not in letters):
            shell.state.functions.pop(name, None)
        elif found is not None:
            shell.unset_variable(found[1], found[2])
    return 0


def _exit(shell: Values, words: list[str]) -> Status:
    raise Flow("exit", _status_of(shell, words))


def _return(shell: Values, words: list[str]) -> Status:
    raise Flow("return", _status_of(shell, words))


def _status_of(shell: Values, words: Sequence[str]) -> int | None:
    if not words:
        return shell.state.status
    return int(words[0]) & 255 if re.fullmatch(r"-?[0-9]{1,9}", words[0]) else None


def _leave_loops(kind: str, shell: Values, words: list[str]) -> Status:
    if shell.loops:
        raise Flow(kind, min(_whole(shell, words, 1), shell.loops))
    return 0


def _let(shell: Values, words: list[str]) -> Status:
    value: int | None = 0
    for word in words:
        value = shell.arithmetic_value(word)
    return None if value is None else int(value == 0)


def _bracket(shell: Values, words: list[str]) -> Status:
    return test_status(shell, words[:-1]) if words and words[-1] == "]" else 2


_SETS_UP = re.compile(r"\S*(?:conda|mamba|ssh-agent|direnv|pyenv|modulecmd|brew)\b")
"""Programs whose output sets up a shell, such as ``conda``, and does not matter for the launch."""


def _eval(shell: Values, words: list[str]) -> Status:
    text = " ".join(words)
    if not is_known(text) and _SETS_UP.match(_inside(shell, text)):
        return None
    return shell.run_text(text)


def _inside(shell: Values, text: str) -> str:
    """Return the command inside a command substitution that makes up the whole text."""
    return re.sub(r"^\s*(?:\$\(|`)\s*", "", shell.unknowns.rendered(text))


_ACTIVATES = re.compile(
    r"(?:^|/)(?:activate|\.bashrc|\.bash_profile|\.profile|conda\.sh|mamba\.sh|setvars\.sh|vars\.sh|modules?\.sh|"
    r"lmod\.sh|init/(?:ba)?sh|cuda\.sh|nvm\.sh)$|^/etc/"
)
"""Files that set up a shell, such as ``activate``, and do not matter for the launch."""


def _source(shell: Values, words: list[str]) -> Status:
    name = shell.unknowns.rendered(words[0]) if words else ""
    shell.notes.append((shell.line, f"{name or 'source'} is not read"))
    if not _ACTIVATES.search(name):
        shell.forget_all(f"{name} is not read, and may set it")
    return None


def _read(shell: Values, words: list[str]) -> Status:
    raw, array, delimiter, names = False, None, "\n", list(words)
    while names and names[0].startswith("-") and len(names[0]) > 1:
        letters = names.pop(0)[1:]
        if set(letters) - set("adeinNprstu"):
            raise RefusalError(f"has read -{letters}, which bash does not know.")
        raw |= "r" in letters
        if letters[-1] in "adpntNiu":
            value = names.pop(0) if names else ""
            array = value if letters[-1] == "a" else array
            delimiter = value if letters[-1] == "d" else delimiter
            if letters[-1] in "nNtu":
                return _read_unknown(shell, names, array)
    text = shell.state.stdin
    if text is None or not is_known(text) or (not raw and "\\" in text) or len(delimiter) > 1:
        return _read_unknown(shell, names, array)
    line, found, rest = text.partition(delimiter or "\0")
    shell.state.stdin = rest
    _assign_line(shell, line, names or ["REPLY"], array)
    return 0 if found else 1


def _assign_line(shell: Values, line: str, names: Sequence[str], array: str | None) -> None:
    separators = shell.text("IFS")
    separators = " \t\n" if separators is None else separators
    blanks = "".join(sign for sign in separators if sign in " \t\n")
    others = "".join(sign for sign in separators if sign not in " \t\n")
    line = line if names == ["REPLY"] and array is None else line.strip(blanks)
    blank = f"[{re.escape(blanks)}]" if blanks else "(?!)"
    pattern = f"{blank}*[{re.escape(others)}]{blank}*|{blank}+" if others else f"{blank}+"
    if array is not None:
        parts = re.split(pattern, line) if pattern and line else [line] if line else []
        shell.set_array(array, parts[:-1] if others and parts[-1:] == [""] else parts)
        return
    for number, name in enumerate(names):
        is_last = number == len(names) - 1
        parts = [line] if is_last or not pattern else re.split(pattern, line, maxsplit=1)
        value = parts[0]
        if is_last and others and len(value) and value[-1] in others and not any(s in value[:-1] for s in others):
            value = value[:-1]
        shell.assign(name, None, value)
        line = parts[1] if len(parts) > 1 else ""


def _read_unknown(shell: Values, names: Sequence[str], array: str | None) -> Status:
    if array is not None:
        shell.set_array(array, [shell.unknown(f"${{{array}[@]}}", why="read", split=True)])
        return None
    for name in names or ["REPLY"]:
        if re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            shell.unset_variable(name)
            shell.assign(name, None, shell.unknown(f"${{{name}}}", why="read"))
    return None


def _mapfile(shell: Values, words: list[str]) -> Status:
    names = [word for word in words if re.fullmatch(r"[A-Za-z_]\w*", word, re.ASCII)]
    name = names[-1] if names else "MAPFILE"
    text = shell.state.stdin
    if text is None or not is_known(text) or set(words) - {"-t", name}:
        shell.set_array(name, [shell.unknown(f"${{{name}[@]}}", why="read", split=True)])
        return None if text is None else 0
    shell.set_array(name, text.splitlines() if "-t" in words else text.splitlines(keepends=True))
    return 0


def _getopts(shell: Values, words: list[str]) -> Status:
    if len(words) < 2:
        return 2
    letters, name = words[0].lstrip(":"), words[1]
    arguments = words[2:] if len(words) > 2 else list(shell.state.positional)
    if not all_known((*words, *arguments)):
        raise RefusalError("has getopts with arguments that are known only when it runs.")
    place = shell.state.variables.get("OPTIND", Variable(elements={0: "1"})).text or "1"
    index, _, inside = place.partition(":")
    position, letter_index = int(index) - 1 if index.isascii() and index.isdecimal() else 0, int(inside or 1)
    if position >= len(arguments) or not re.match(r"-[^-]", arguments[position]):
        if position < len(arguments) and arguments[position] == "--":
            shell.assign("OPTIND", None, str(position + 2))
        shell.assign(name, None, "?")
        return 1
    word = arguments[position]
    letter = word[letter_index]
    shell.unset_variable("OPTARG")
    if letter not in letters or letter == ":":
        raise RefusalError(f"has getopts, which does not know the option -{letter}.")
    if letters[letters.index(letter) + 1 : letters.index(letter) + 2] == ":":
        value = word[letter_index + 1 :]
        position += 1
        if not value:
            if position >= len(arguments):
                raise RefusalError(f"has getopts, and the option -{letter} has no value.")
            value, position = arguments[position], position + 1
        shell.assign("OPTARG", None, value)
        shell.assign("OPTIND", None, str(position + 1))
    elif letter_index + 1 < len(word):
        shell.state.variables["OPTIND"] = Variable(elements={0: f"{position + 1}:{letter_index + 1}"})
    else:
        shell.assign("OPTIND", None, str(position + 2))
    shell.assign(name, None, letter)
    return 0


def _cd(shell: Values, words: list[str]) -> Status:
    for name in ("PWD", "OLDPWD"):
        shell.state.variables.pop(name, None)
    return 0


def _shopt(shell: Values, words: list[str]) -> Status:
    if "-s" in words and {"nullglob", "failglob", "extglob"} & set(words) - {"extglob"}:
        raise RefusalError(f"has shopt {' '.join(words)}, under which words depend on files.")
    return 0


def _done(shell: Values, words: list[str]) -> Status:
    return 0


def _type(shell: Values, words: list[str]) -> Status:
    names = [word for word in words if not word.startswith("-")]
    return 0 if names and all(name in shell.state.functions or name in BUILTINS for name in names) else None


BUILTINS: Mapping[str, Callable[[Values, list[str]], Status]] = {
    ":": _done, "true": _done, "false": lambda shell, words: 1, "echo": _echo, "printf": _printf, "set": _set,
    "shift": _shift, "unset": _unset, "exit": _exit, "return": _return,
    "break": partial(_leave_loops, "break"), "continue": partial(_leave_loops, "continue"),
    "let": _let, "test": lambda shell, words: test_status(shell, words), "[": _bracket, "eval": _eval,
    "source": _source, ".": _source, "read": _read, "mapfile": _mapfile, "readarray": _mapfile, "getopts": _getopts,
    "cd": _cd, "pushd": _cd, "popd": _cd, "shopt": _shopt, "trap": _done, "wait": _done, "ulimit": _done,
    "umask": _done,
    "hash": _done, "alias": _done, "unalias": _done, "jobs": _done, "disown": _done, "enable": _done, "times": _done,
    "kill": lambda shell, words: None, "type": _type, "complete": _done, "sleep": _done, "logout": _exit,
}  # fmt: skip
"""Functions of builtin commands by name; each returns the exit status, ``None`` if unknown."""
