"""Registry of the formats of files with measured links, and the facts of a file."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.options.links import LinkOptions
from pipette_opt.read.kinds_of_files import binary_looks_like, looks_like
from pipette_opt.read.log_lines import Log
from pipette_opt.read.measurements import Fact, Note

HEAD_BYTES = 8192
"""Number of bytes at the start of a file; a zero byte among them marks a binary file. Chosen."""


class LinkFile:
    """Text of a file, as lines without tags of launchers, or as JSON."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.where = str(path)
        self.text = _text(path)
        self.is_json = self.text.lstrip().startswith("{")

    @cached_property
    def log(self) -> Log:
        """Lines without tags. A parser marks the lines that it uses."""
        return Log(self.text)

    @cached_property
    def content(self) -> object:
        """Content of the JSON; ``None`` if invalid."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


Reader = Callable[[LinkFile, LinkOptions], Iterable[Fact]]
"""Function that returns the facts of a file that its format recognises."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFormat:
    """
    Format of files with measured links.

    Parameters
    ----------
    name
        Programs that write it, for people.
    recognises
        Function that returns whether a file is of the format.
    order
        Place among all formats: the smallest is tried, and named, first.
    is_json
        Whether such files are JSON, an object or an object per line.
    """

    name: str
    recognises: Callable[[LinkFile], bool]
    read: Reader
    order: int
    is_json: bool


_FORMATS: list[LinkFormat] = []

USUAL_ORDER = 50
"""Place of a format that does not say it: after the known programs that measure, before descriptions of hosts."""


def link_format(
    name: str, recognises: Callable[[LinkFile], bool], *, order: int = USUAL_ORDER, is_json: bool = False
) -> Callable[[Reader], Reader]:
    """Register the reader below as that of a format of files; see :class:`LinkFormat`."""

    def register(read: Reader) -> Reader:
        _FORMATS.append(LinkFormat(name=name, recognises=recognises, read=read, order=order, is_json=is_json))
        return read

    return register


@cache
def link_formats() -> tuple[LinkFormat, ...]:
    """Return all formats, in the order in which they are tried."""
    from pipette_opt.read import link_formats as folder

    for module in iter_modules(folder.__path__):
        import_module(f"{folder.__name__}.{module.name}")
    return tuple(sorted(_FORMATS, key=lambda known: known.order))


def facts_of(path: Path, asked: LinkOptions) -> list[Fact]:
    """Return the facts of a file, with a note on its unused lines; ``InputError`` if no format reads it."""
    file = LinkFile(path)
    same_kind = [known for known in link_formats() if known.is_json == file.is_json]
    found = next((known for known in same_kind if known.recognises(file)), None)
    if found is None:
        raise InputError(file.where, _unknown(file))
    facts = list(found.read(file, asked))
    unused = "" if file.is_json else file.log.unused()
    return [*facts, Note(kind="unused", text=unused)] if unused else facts


def _unknown(file: LinkFile) -> str:
    """Return the problem of a file of no known format: the kind that it looks like, or the formats that are known."""
    kind = looks_like(file.text)
    printed, written = (
        [known.name for known in link_formats() if known.is_json == is_json] for is_json in (False, True)
    )
    if file.is_json:
        return f"is JSON neither of {' nor of '.join(written)}.{kind}"
    if kind:
        return f"has no measurement of links.{kind}"
    return f"is no output of {', '.join(printed)}, and no JSON of {', '.join(written[:-1])} or {written[-1]}."


def _text(path: Path) -> str:
    try:
        data = read_bytes(path)
    except FileNotFoundError:
        raise InputError(str(path), "the file or folder does not exist.") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    if b"\0" in data[:HEAD_BYTES]:
        raise InputError(str(path), f"is no text file.{binary_looks_like(data)}")
    text = data.decode("utf-8-sig", errors="replace")
    if not text.strip():
        raise InputError(str(path), "the file is empty.")
    return text
