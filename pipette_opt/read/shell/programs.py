"""Programs that only transform text, such as ``basename`` and ``seq``; their output is computed."""

import re
from collections.abc import Callable, Mapping, Sequence

from pipette_opt.read.shell.arithmetic import evaluate_arithmetic
from pipette_opt.read.shell.limits import MAX_WORDS, RefusalError
from pipette_opt.read.shell.unknowns import Unknown, all_known
from pipette_opt.read.shell.values import Values

Result = tuple[str, int]
"""Output and exit status of a program."""

ONE_WORD = ("pwd", "hostname", "whoami", "nproc", "mktemp", "uname", "readlink", "realpath", "arch", "logname")
"""Programs whose output, with usual options, is a single word known only when they run. Chosen."""

_NEVER_OPTIONS = re.compile(
    rf"(?:\$\(|`)\s*(?:date|{'|'.join(ONE_WORD)})\b(?![^)`]*\+[\"']?-)[^)`;|&]*[)`]"
    r"|\$\{?(?:RANDOM|SRANDOM|EPOCHSECONDS|SECONDS|PPID|BASHPID|UID|EUID|\$)\}?"
)
"""Pattern of substitutions and variables that are never options, such as ``$(hostname)``, ``$RANDOM``."""

FOLDERS = ("basename", "dirname")
"""Programs that print a single word for a single path, even if the path is unknown."""


def written_by(shell: Values, words: Sequence[str]) -> Result | None:
    """Return output and exit status of a program if they can be computed; ``None`` for others and if a file is read."""
    name, *arguments = words
    program = _PROGRAMS.get(name.removeprefix("/usr/bin/").removeprefix("/bin/"))
    if program is None or not all_known(arguments):
        return None
    return program(shell, arguments)


def writes_one_word(words: Sequence[str]) -> bool:
    """Return whether a command prints exactly one word."""
    name, *arguments = words
    if name == "date":
        return len(arguments) == 1 and arguments[0].startswith("+") and not re.search(r"\s|%[cxXrnt]", arguments[0])
    if name == "id":
        return arguments in (["-u"], ["-un"], ["-g"])
    if name == "wc":
        return len(arguments) == 1 and arguments[0] in ("-l", "-w", "-c")
    return name in ONE_WORD and len(arguments) < 3


def never_option(unknown: Unknown) -> bool:
    """Return whether no word of an unknown text can be an option."""
    return _NEVER_OPTIONS.fullmatch(unknown.text) is not None


def keeps_one_word(words: Sequence[str], read: Unknown) -> bool:
    """
    Return whether a filter prints exactly one word of the unknown text that it reads.

    The text is a single word or, for filters that take the first line, a list of host names.
    """
    text = " ".join(words)
    if re.fullmatch(r"(?:head|tail) -(?:n ?)?1|sed -n ['\"]?1p['\"]?|awk NR ?== ?1", text):
        return read.one_word or re.match(r"(?:\$\()?scontrol show hostnames?\b", read.text) is not None
    return (
        read.one_word and re.fullmatch(r"awk \{ ?print \$1 ?;? ?\}|cut -d ?  ?-f ?1|cut -f ?1 -d  ", text) is not None
    )


def _basename(shell: Values, arguments: list[str]) -> Result | None:
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if len(arguments) not in (1, 2) or arguments[0].startswith("-"):
        return None
    path = arguments[0]
    name = path.rstrip("/").rpartition("/")[2] or ("/" if path else "")
    if len(arguments) == 2 and name != arguments[1]:
        name = name.removesuffix(arguments[1]) if arguments[1] else name
    return f"{name}\n", 0


def _dirname(shell: Values, arguments: list[str]) -> Result | None:
    if arguments[:1] == ["--"]:
        arguments = arguments[1:]
    if not arguments or any(path.startswith("-") for path in arguments):
        return None
    folders = []
    for path in arguments:
        stripped = path.rstrip("/")
        folder, slash, _ = stripped.rpartition("/")
        root = "/" if (slash or (path and not stripped)) else "."
        folders.append(folder.rstrip("/") or root)
    return "".join(f"{folder}\n" for folder in folders), 0


def _seq(shell: Values, arguments: list[str]) -> Result | None:
    separator = "\n"
    if arguments[:1] == ["-s"] and len(arguments) > 1:
        separator, arguments = arguments[1], arguments[2:]
    numbers = [int(word) for word in arguments if re.fullmatch(r"-?[0-9]{1,15}", word)]
    if len(numbers) != len(arguments) or len(numbers) not in (1, 2, 3):
        return None
    first = numbers[0] if len(numbers) > 1 else 1
    step = numbers[1] if len(numbers) == 3 else 1
    if step == 0:
        return None
    count = max(0, (numbers[-1] - first) // step + 1)
    if count > MAX_WORDS:
        raise RefusalError(f"has seq {' '.join(arguments)}, which makes more than {MAX_WORDS:,} words.")
    shell.budget.words(count)
    values = separator.join(str(first + step * turn) for turn in range(count))
    return (f"{values}\n" if values else ""), 0


def _expr(shell: Values, arguments: list[str]) -> Result | None:
    """Compute ``expr`` for whole numbers with ``+ - * / %`` and brackets."""
    if not arguments or any(not re.fullmatch(r"-?[0-9]{1,15}|[-+*/%()]", word) for word in arguments):
        return None
    try:
        value = evaluate_arithmetic(" ".join(re.sub(r"^(-?)0+(?=[0-9])", r"\1", word) for word in arguments), shell)
    except RefusalError:
        return None
    return None if value is None else (f"{value}\n", int(value == 0))


def _cat(shell: Values, arguments: list[str]) -> Result | None:
    return _filtered_input(shell, lambda text: text) if arguments in ([], ["-"]) else None


def _tr(shell: Values, arguments: list[str]) -> Result | None:
    if len(arguments) == 2 and arguments[0] == "-d":
        removed = _signs(arguments[1])
        if removed is None:
            return None
        return _filtered_input(shell, lambda text: "".join(c for c in text if c not in removed))
    if len(arguments) != 2 or arguments[0].startswith("-"):
        return None
    old, new = map(_signs, arguments)
    if not old or not new:
        return None
    table = str.maketrans(old, (new + new[-1] * len(old))[: len(old)])
    return _filtered_input(shell, lambda text: text.translate(table))


def _signs(text: str) -> str | None:
    """Return the characters of a set of ``tr``; ``None`` if the set is not supported."""
    named = {"[:upper:]": "A-Z", "[:lower:]": "a-z", "[:digit:]": "0-9", "\\n": "\n", "\\t": "\t"}
    text = named.get(text, text)
    if re.search(r"[\[\\]", text):
        return None
    if re.search(r".-.", re.sub(r"[A-Za-z0-9]-[A-Za-z0-9]", "", text), re.DOTALL):
        return None
    ranges = re.sub(r"(.)-(.)", lambda found: "".join(map(chr, range(ord(found[1]), ord(found[2]) + 1))), text)
    return ranges if len(ranges) < 1000 else None


def _cut(shell: Values, arguments: list[str]) -> Result | None:
    found = re.fullmatch(r"-d ?(.) -f ?([0-9]{1,4})|-f ?([0-9]{1,4}) -d ?(.)", " ".join(arguments))
    if found is None:
        return None
    sign, number = found[1] or found[4], int(found[2] or found[3])
    if number < 1:
        return None

    def field(line: str) -> str:
        parts = line.split(sign)
        return line if len(parts) == 1 else parts[number - 1] if number <= len(parts) else ""

    return _filtered_input(shell, lambda text: "".join(f"{field(line)}\n" for line in text.splitlines()))


def _wc(shell: Values, arguments: list[str]) -> Result | None:
    counts: Mapping[str, Callable[[str], int]] = {
        "-w": lambda text: len(text.split()),
        "-l": lambda text: text.count("\n"),
        "-c": lambda text: len(text.encode()),
    }
    if len(arguments) != 1 or arguments[0] not in counts:
        return None
    return _filtered_input(shell, lambda text: f"{counts[arguments[0]](text)}\n")


def _head(shell: Values, arguments: list[str], *, last: bool = False) -> Result | None:
    found = re.fullmatch(r"(?:-n ?|-)([0-9]{1,6})|", " ".join(arguments))
    if found is None:
        return None
    count = int(found[1] or 10)

    def lines(text: str) -> str:
        all_lines = text.splitlines(keepends=True)
        return "".join(all_lines[max(0, len(all_lines) - count) :] if last else all_lines[:count])

    return _filtered_input(shell, lines)


def _sed(shell: Values, arguments: list[str]) -> Result | None:
    """Compute ``sed s/text/text/`` for texts without special characters."""
    words = [word for word in arguments if word not in ("-e",)]
    found = re.fullmatch(r"s([/,|#])([\w :=.-]*)\1([\w :=./-]*)\1(g?)", words[0]) if len(words) == 1 else None
    if found is None or found[1] in found[3] or "." in found[2] or not found[2]:
        return None
    old, new, count = found[2], found[3], -1 if found[4] else 1
    return _filtered_input(shell, lambda text: "".join(line.replace(old, new, count) for line in text.splitlines(True)))


def _awk(shell: Values, arguments: list[str]) -> Result | None:
    """Compute ``awk '{print $1}'``, also with another field or separator."""
    found = re.fullmatch(r"(?:-F ?([^\s\\\[\]*+?.|^$()]) )?\{ ?print \$([1-9]) ?;? ?\}", " ".join(arguments))
    if found is None:
        return None
    number = int(found[2])

    def field(line: str) -> str:
        parts = line.split(found[1]) if found[1] else line.split()
        return parts[number - 1] if number <= len(parts) else ""

    return _filtered_input(shell, lambda text: "".join(f"{field(line)}\n" for line in text.splitlines()))


def _filtered_input(shell: Values, change: Callable[[str], str]) -> Result | None:
    text = shell.state.stdin
    if text is None or not all_known((text,)):
        return None
    result = change(text)
    shell.budget.produce(len(result))
    return result, 0


_PROGRAMS: Mapping[str, Callable[[Values, list[str]], Result | None]] = {
    "basename": _basename,
    "dirname": _dirname,
    "seq": _seq,
    "expr": _expr,
    "cat": _cat,
    "tr": _tr,
    "cut": _cut,
    "wc": _wc,
    "head": _head,
    "tail": lambda shell, arguments: _head(shell, arguments, last=True),
    "sed": _sed,
    "awk": _awk,
}
