"""
Lines of logs, without the tags that launchers, schedulers and loggers put before them.

Known tags are those of ``srun --label``, ``mpirun --tag-output`` and ``--timestamp-output`` (Open MPI 4 and 5), HPE
MPT, ``torchrun``, pdsh and clush, ``kubectl logs --timestamps`` and ``--prefix``, and Ray. Formats of Python's logging,
loguru, NeMo, Primus and nanotron are known, too. Tags may be in any order and number. Colours are removed. A progress
bar that returns to the start of its line becomes several lines.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

from pipette_opt.base.units import counted, one_line

_LINE_END = re.compile(r"\r\n|\n|\r")
_COLOUR = re.compile(r"\x1b(?:\[[0-9;:?]{0,40}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|\([A-B0-2])")

_MONTH_AND_DAY = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec) [ 0-9][0-9]"
_CLOCK = r"[0-9][0-9]:[0-9][0-9]:[0-9][0-9](?:[.,][0-9]{1,9})?"
_DATE = (
    rf"(?:[0-9]{{4}}-[0-9][0-9]-[0-9][0-9][T ]{_CLOCK}(?:Z|[+-][0-9][0-9]:?[0-9][0-9])?"
    rf"|[0-9][0-9]/[0-9][0-9]/[0-9]{{4}} {_CLOCK})"
)
_BEHIND = r"(?: - | \| |: ?| ?)"

_LEVEL = r"(?:DEBUG|INFO|NOTICE|WARNING|WARN)"
"""Logging levels that are removed as tags; levels of errors stay in their lines."""

_TAGS_BY_START = {
    "digit": (
        r"(?P<source>[0-9]{1,7}):(?: |$)",  # srun --label
        rf"{_DATE}{_BEHIND}",  # kubectl logs --timestamps, loggers
    ),
    "letter": (
        rf"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) {_MONTH_AND_DAY} {_CLOCK} [0-9]{{4}}){_BEHIND}",  # mpirun
        rf"{_MONTH_AND_DAY} {_CLOCK} (?P<source>[\w.-]{{1,253}}) [\w./-]{{1,100}}\[[0-9]{{1,10}}\]: ",  # journalctl
        rf"{_MONTH_AND_DAY} {_CLOCK} ",  # ts
        rf"(?:{_LEVEL}|SUCCESS|TRACE) *\| [\w.<>]{{1,200}}:[\w.<>]{{1,100}}:[0-9]{{1,7}} - ",  # loguru
        rf"(?:[\w.-]{{1,80}} - )?{_LEVEL} - |{_LEVEL}:[\w.-]{{1,200}}:|{_LEVEL}:? ",  # logging of Python
    ),
    "[": (
        r"\[(?P<source>[^\[\]<>\s]{1,300}[,@][0-9]{1,9})\](?:\[[^\[\]\s]{1,300}\])?<std(?:out|err|diag)>: ?",
        r"\[(?P<source>(?:default|rank|trainer|worker)_?[0-9]{1,7})\]: ?",  # torchrun
        r"\[(?P<source>[0-9]{1,7})\]",  # HPE MPT, Hydra
        r"\[(?P<source>pod/[^\[\]\s]{1,300})\] ?",  # kubectl logs --prefix
        rf"\[(?:{_DATE}|{_CLOCK})\]{_BEHIND}",
        r"\[[0-9]{8} [0-9][0-9]:[0-9][0-9]:[0-9][0-9]\]\[(?P<source>rank-[0-9]{1,7})/[0-9]{1,7}\]",  # Primus
        rf"\[{_LEVEL} *(?:\|[^\[\]]{{0,200}})?\]:? ?",  # nanotron, Primus, DeepSpeed
        r"\[[-\w./]{1,300}\.(?:py|cc|cpp|cu):[0-9]{1,7}(?::\w{1,100})?\](?: ?: ?| )",  # a place in the source
        r"\[titan\] ",
        r"\[NeMo [DIW] [^\[\]]{0,300}\] ?",
    ),
    "(": (r"\((?P<source>[^()]{0,200}\bpid=[0-9]{1,10}[^()]{0,200})\) ?",),  # Ray
    "<": (r"<std(?:out|err|diag)>: ?",),  # Open MPI 4 with --timestamp-output alone
}
_TAGS = {start: tuple(re.compile(pattern) for pattern in patterns) for start, patterns in _TAGS_BY_START.items()}
"""Patterns of tags after leading blanks, by kind of first character; each matches in linear time."""

MAX_TAGS = 12
"""Largest number of tags before a line. Chosen."""

MAX_LINES, MAX_CHARACTERS = 150_000, 2**25
"""Most lines and characters of a log that are read, half from its start and half from its end. Chosen: two seconds."""

_HOST = re.compile(
    r"(?P<host>[A-Za-z][A-Za-z0-9._-]{0,252})(?:: | {1,60}\| )"
    r"|\[(?P<inside>[A-Za-z][A-Za-z._-]{0,200}[0-9][A-Za-z0-9._-]{0,200})\]:? "
)
"""Tags of pdsh, clush, pssh and docker compose. A word is a host only if such tags precede most lines of a log."""

HOST_SHARE, LINES_OF_A_HOST = 0.5, 3
"""Smallest share of lines with a host tag, and smallest mean number of lines per host, for such tags. Chosen."""


class LogLine(NamedTuple):
    """
    Line of a log.

    Parameters
    ----------
    number
        Line number in the file, from 1.
    text
        Output of the program, without tags.
    source
        Ranks and hosts in the tags, which identify a process of a job; empty without tags.
    """

    number: int
    text: str
    source: str = ""


class Log:
    """
    Lines of a log, with a record of the lines that a reader used.

    A reader marks the lines that it understands with :meth:`use`; :meth:`unused` counts the others.
    """

    def __init__(self, text: str) -> None:
        self.lines = tuple(log_lines(text))
        self.is_cut = not text.endswith(("\n", "\r"))
        self._used: set[int] = set()

    @cached_property
    def text(self) -> str:
        """Log without tags; ends without a line break if the file does."""
        return "\n".join(line.text for line in self.lines) + ("" if self.is_cut else "\n")

    def use(self, *lines: LogLine) -> None:
        """Mark lines as used."""
        self._used.update(line.number for line in lines)

    def use_like(self, pattern: re.Pattern[str]) -> None:
        """Mark lines that begin with a pattern as used: known output that no reader needs."""
        self.use(*(line for line in self.lines if pattern.match(line.text)))

    def unused(self) -> str:
        """Return a sentence with the number of unused lines and the first of them; empty if all are used."""
        left = {
            line.number: line.text for line in self.lines if line.number not in self._used and not line.text.isspace()
        }
        unused = [(number, text.strip()) for number, text in left.items() if text]
        if not unused:
            return ""
        (number, first), num_lines = unused[0], counted(self.lines[-1].number, "line")
        return f"{len(unused)} of {num_lines} were not used: first, line {number}: {one_line(first, 60)!r}."


def log_lines(text: str) -> list[LogLine]:
    """Return all lines of a log without tags and colours. A carriage return inside a line begins a new line."""
    lines = []
    number = 1
    start = 0
    for end in _LINE_END.finditer(text):
        lines.append(_without_tags(LogLine(number, text[start : end.start()])))
        number += end.group() != "\r"
        start = end.end()
    if start < len(text):
        lines.append(_without_tags(LogLine(number, text[start:])))
    for _ in range(MAX_TAGS):
        hosts = _hosts_before(lines)
        if not hosts:
            break
        lines = [_without_host(line, hosts) for line in lines]
    return lines


def within_caps(text: str) -> tuple[str, int]:
    """Return the start and the end of a text within the caps of a log, and the number of characters left out."""
    if len(text) <= MAX_CHARACTERS and text.count("\n") <= MAX_LINES:
        return text, 0
    half = min(len(text), MAX_CHARACTERS) // 2
    start, end = half, len(text) - half
    for number, line_end in enumerate(re.finditer("\n", text[:half]), start=1):
        if number == MAX_LINES // 2:
            start = line_end.end()
            break
    place = len(text)
    for _ in range(MAX_LINES // 2 + 1):
        place = text.rfind("\n", end, place)
        if place < 0:
            break
    else:
        end = place + 1
    end = max(start, end)
    return f"{text[:start]}\n{text[end:]}", end - start


def untagged(text: str) -> str:
    """Return a log without tags; it ends without a line break if the file does."""
    return Log(text).text


def by_source(lines: Iterable[LogLine]) -> dict[str, list[LogLine]]:
    """Return the lines of each source (rank or host), in the order of the log."""
    found: dict[str, list[LogLine]] = {}
    for line in lines:
        found.setdefault(line.source, []).append(line)
    return found


def _without_tags(line: LogLine) -> LogLine:
    if not line.text or line.text.isspace():
        return line
    text = _COLOUR.sub("", line.text) if "\x1b" in line.text else line.text
    sources = [line.source] if line.source else []
    for _ in range(MAX_TAGS):
        tag = _tag_before(text)
        if tag is None:
            break
        text = text[tag.end() :]
        source = tag.groupdict().get("source")
        if source is not None:
            sources.append(source)
            if tag.group().strip() == f"[{source}]":  # HPE MPT repeats it before each write
                text = text.replace(f"[{source}]", "")
    return LogLine(line.number, text, " ".join(sources))


def _tag_before(text: str) -> re.Match[str] | None:
    """Return the tag at the start of a line, after blanks; ``None`` without a tag."""
    start = len(text) - len(text.lstrip(" \t"))
    first = text[start : start + 1]
    kind = "digit" if first.isdigit() else "letter" if first.isalpha() else first
    return next((match for pattern in _TAGS.get(kind, ()) if (match := pattern.match(text, start)) is not None), None)


def _hosts_before(lines: Sequence[LogLine]) -> frozenset[str]:
    """Return the words before most lines as host tags; empty if they are too few or too varied to be hosts."""
    written = [line.text for line in lines if line.text.strip()]
    words = Counter(_host_of(match) for text in written if (match := _HOST.match(text + " ")) is not None)
    if not words or words.total() < HOST_SHARE * len(written) or words.total() < LINES_OF_A_HOST * len(words):
        return frozenset()
    return frozenset(words)


def _host_of(match: re.Match[str]) -> str:
    return str(match["host"] or match["inside"])


def _without_host(line: LogLine, hosts: frozenset[str]) -> LogLine:
    match = _HOST.match(line.text + " ")
    if match is None or _host_of(match) not in hosts:
        return line
    sources = f"{line.source} {_host_of(match)}".strip()
    return _without_tags(LogLine(line.number, line.text[match.end() :], sources))
