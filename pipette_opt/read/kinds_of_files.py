"""
Kinds of files that people give to a planner, recognised by content, and the command that reads each kind.

A reader that does not understand a file names the kind that the file looks like: :func:`looks_like` for a text,
:func:`reads` as a decorator of a reader. A kind is recognised by words that its program always prints. The first
matching kind of :func:`file_kinds` counts.
"""

import re
import tomllib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import read_bytes
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.frameworks import frameworks
from pipette_opt.read.log_lines import untagged

P = ParamSpec("P")
T = TypeVar("T")

HEAD_CHARACTERS = 50_000
"""Number of characters at the start of a file that decide its kind. Chosen: arguments and headers are there."""

CLUSTER_FILE = "a cluster file of pipette-opt"
PLAN_FILE = "a plan of pipette-opt"
STACK_FILE = "a stack of pipette-opt (constants of a framework)"
ARCHITECTURE_FILE = "an architecture file of pipette-opt"
RUNS_TABLE = "a table of measured runs (runs.csv)"
PROFILE_TABLE = "a table of layer times (profile layers)"
HUGGING_FACE_CONFIG = "a config.json of Hugging Face"
LAUNCH_SCRIPT = "a shell script"
PRINTED_ARGUMENTS = "arguments of Megatron-LM, as it prints them"
TYPED_ARGUMENTS = "arguments of Megatron-LM, as they are typed"
CAPTURED_LAUNCH = "a launch that capture wrote"
MEGATRON_LOG = "a log of Megatron-LM"
MEGATRON_RECIPE = "a settings file of Megatron-LM"


@dataclass(frozen=True, slots=True)
class FileKind:
    """
    Kind of file, and the marks that recognise it.

    Parameters
    ----------
    name
        Name of the kind, with its article.
    reader
        Command and option of ``pipette-opt`` that reads the kind; empty if no command does.
    words
        Texts that all occur in such a file, case-sensitive.
    pattern
        Regular expression that must match, with ``^`` at line starts; empty for none.
    """

    name: str
    reader: str = ""
    words: tuple[str, ...] = ()
    pattern: str = ""

    @property
    def is_log(self) -> bool:
        """Return whether the kind is what a training prints."""
        return self.name.startswith("a log of")

    def matches(self, text: str) -> bool:
        """Return whether a text has all words and the pattern of the kind."""
        return all(word in text for word in self.words) and (
            not self.pattern or re.search(self.pattern, text, re.MULTILINE) is not None
        )

    def __str__(self) -> str:
        if self.reader:
            return f"{self.name}, which `pipette-opt {self.reader}` reads"
        return f"{self.name}, which no command reads"


@cache
def file_kinds() -> tuple[FileKind, ...]:
    """Return the kinds of ``data/file_kinds.toml``, the most specific first, and the settings files of frameworks."""
    rows = tomllib.loads(shipped_path("data", "file_kinds.toml").read_text(encoding="utf-8"))["kinds"]
    kinds: list[FileKind] = []
    for row in rows:
        kinds += (
            _settings_files() if "frameworks" in row else [FileKind(**row | {"words": tuple(row.get("words", ()))})]
        )
    return tuple(kinds)


def _settings_files() -> Iterator[FileKind]:
    """Yield the kinds of settings files that the keys of a framework tell."""
    for framework in frameworks():
        for keys in framework.files.split():
            patterns = [rf"(?=[\s\S]*?(?:{key_pattern(key)}))" for key in keys.split("+")]
            reader = "--launch and import model" if framework.read else ""
            yield FileKind(
                name=f"a settings file of {framework.name}", reader=reader, pattern=rf"\A{''.join(patterns)}"
            )


def key_pattern(key: str) -> str:
    """Return the pattern of a line with a key in YAML, JSON or TOML, also as a table; ``-`` in it counts as ``_``."""
    name = re.escape(key).replace("_", "[-_]")
    return (
        rf"^[ \t]*(?:- +)?(?:[{{,] *)?[\"']?{name}[\"']?(?:[ \t]*:| += )|^[ \t]*\[(?:[\w.-]*\.)?{name}(?:\.[\w.-]*)?\]"
    )


_SIGNATURES = (
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"\x1f\x8b", "a gzip archive; unpack it first"),
    (b"BZh", "a bzip2 archive; unpack it first"),
    (b"\xfd7zXZ", "an xz archive; unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive; unpack it first"),
    (b"PK\x03\x04", "a zip archive (also .xlsx, .docx, .npz and PyTorch's checkpoints)"),
    (b"\x7fELF", "a program"),
    (b"\x89HDF", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "a database of SQLite (Nsight Systems writes them)"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"\x80\x02", "a pickle of Python"),
    (b"\x80\x04", "a pickle of Python"),
    (b"\xff\xfe", "a text in UTF-16; save it as UTF-8"),
    (b"\xfe\xff", "a text in UTF-16; save it as UTF-8"),
)
"""First bytes of binary files, and the name of each kind."""


def kind_of(text: str) -> FileKind | None:
    """Return the kind of file that a text is; ``None`` if no kind matches."""
    head = untagged(text[:HEAD_CHARACTERS].removeprefix("\ufeff"))
    return next((kind for kind in file_kinds() if kind.matches(head)), None)


def looks_like(text: str, *, but: Sequence[str] = ()) -> str:
    """
    Return a sentence that names the kind of file that a text looks like, with a leading blank; empty if none matches.

    Parameters
    ----------
    but
        Names of kinds that the reader accepts, for which no sentence is returned.
    """
    kind = kind_of(text)
    return "" if kind is None or kind.name in but else f" It looks like {kind}."


def binary_looks_like(data: bytes) -> str:
    """Return the sentence of :func:`looks_like` for a binary file, by its first bytes; empty if unknown."""
    return next((f" It looks like {name}." for start, name in _SIGNATURES if data.startswith(start)), "")


def file_looks_like(path: Path, *, but: Sequence[str] = ()) -> str:
    """Return the sentence of :func:`looks_like` for a file; empty if the file cannot be read."""
    try:
        data = read_bytes(path)
    except (OSError, ValueError):
        return ""
    return binary_looks_like(data) or looks_like(data[: 4 * HEAD_CHARACTERS].decode(errors="replace"), but=but)


def reads(*kinds: str) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """Decorate a reader of a file, its first argument, so that errors name the kind that the file looks like."""

    def decorated(reader: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(reader)
        def read(path: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return reader(path, *args, **kwargs)
            except InputError as error:
                hint = file_looks_like(Path(path), but=kinds)
                if not hint or "It looks like" in error.problem or "a settings file of" in error.problem:
                    raise
                raise type(error)(error.where, f"{error.problem}{hint}") from None

        return read

    return decorated
