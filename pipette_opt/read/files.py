"""Opening a user's files, with errors that name them."""

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.read.kinds_of_files import binary_kind

TOO_DEEP = "has lists or mappings inside each other that are too deep to be read."


def read_text(path: str | Path, *, keep_line_ends: bool = False) -> str:
    """
    Text of a UTF-8 file; an :class:`InputError` says why it cannot be read.

    Parameters
    ----------
    keep_line_ends
        Keep carriage returns, which mean something in a script; else every line ends in a line feed.
    """
    try:
        text = decoded(Path(path).read_bytes(), str(path))
        return text if keep_line_ends else text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise InputError(str(path), "there is no such file.") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # no file has a name with a zero byte
        if isinstance(error, InputError):
            raise
        raise InputError(repr(str(path)), "is no name of a file.") from None


def decoded(data: bytes, where: str) -> str:
    """Text of UTF-8 bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        kind = binary_kind(error.object)
        hint = f" It looks like {kind}." if kind else ""
        problem = f"must be a UTF-8 text file ({error.reason} at byte {error.start}).{hint}"
        raise InputError(where, problem) from None


def read_yaml(path: str | Path) -> Any:
    """Content of a YAML file; keys given twice are refused."""
    try:
        return yaml.load(read_text(path), Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{path}{line}", f"is not valid YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise InputError(str(path), f"is not valid YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise InputError(str(path), TOO_DEEP) from None
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), f"has a value that cannot be read: {_first_part(error)}.") from None


def read_csv(path: str | Path) -> tuple[list[str], list[tuple[int, dict[Any, Any]]]]:
    """
    Columns of a table, and its rows with the line that each ends in, as ``csv.DictReader`` gives them.

    Quotes that are not closed, and fields of more than 131,072 characters, are refused.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        reader.fieldnames = header = [name.strip() for name in reader.fieldnames or ()]
        return header, [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}", f"is not valid CSV: {error}.") from None


def read_json(path: str | Path) -> Any:
    """Content of a JSON file; ``NaN`` and ``Infinity``, which JSON does not have, are refused."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    """Content of a JSON text."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        raise InputError(f"{where}, line {error.lineno}", f"is not valid JSON: {error.msg}.") from None
    except RecursionError:
        raise InputError(where, TOO_DEEP) from None
    except ValueError as error:
        raise InputError(where, f"is not valid JSON: {_first_part(error)}.") from None


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file, in hexadecimal; ``plan.json`` records it for every input."""
    try:
        with Path(path).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None


def _first_part(error: ValueError) -> str:
    """Without Python's advice to Python's programmers, which follows a semicolon."""
    return str(error).split(";")[0].rstrip(".")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; this one complains."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)
