"""Reading of users' files; errors name the file."""

import csv
import hashlib
import io
import json
import math
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

try:
    from yaml import CSafeLoader as SafeLoader  # libyaml, eight times as fast
except ImportError:  # PyYAML built without it
    from yaml import SafeLoader  # type: ignore[assignment]

from pipette_opt.base.errors import INVISIBLE, InputError, shown
from pipette_opt.base.files import read_bytes
from pipette_opt.read.kinds_of_files import binary_looks_like

TOO_DEEP = "has lists or mappings inside each other that are too deep to be read."

MAX_YAML_NODES = 2_000_000
"""Most values in a YAML file, counting repeats by aliases. Chosen: a matrix of 1,280 hosts has 1.6 million."""


def read_text(path: str | Path, *, keep_line_ends: bool = False) -> str:
    """
    Return the text of a UTF-8 file. ``InputError`` says why the file cannot be read.

    Pipes and devices may be endless and are refused, except ``/dev/stdin`` and the pipes of ``<(command)``.

    Parameters
    ----------
    keep_line_ends
        Whether to keep carriage returns, which matter in a script; otherwise every line ends in a line feed.
    """
    try:
        text = decoded(read_bytes(path), str(path))
        return text if keep_line_ends else text.replace("\r\n", "\n").replace("\r", "\n")
    except FileNotFoundError:
        raise InputError(str(path), "the file does not exist.") from None
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None
    except ValueError as error:  # no file has a zero byte in its name
        if isinstance(error, InputError):
            raise
        raise InputError(repr(str(path)), "is not a valid file name.") from None


def decoded(data: bytes, where: str) -> str:
    """Return UTF-8 bytes as text. ``InputError`` for other bytes, with a guess of the file format."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = binary_looks_like(error.object)
        problem = f"must be a UTF-8 text file ({error.reason} at byte {error.start}).{hint}"
        raise InputError(where, problem) from None


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file. ``InputError`` for invalid YAML and for duplicate keys."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Return the content of a YAML text. ``InputError`` for invalid YAML and for duplicate keys."""
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise InputError(f"{where}{line}", f"is not valid YAML: {error.problem or error.context}.") from None
    except yaml.YAMLError as error:
        raise InputError(where, f"is not valid YAML: {str(error).splitlines()[0]}.") from None
    except RecursionError:
        raise InputError(where, TOO_DEEP) from None
    except ValueError as error:
        raise InputError(where, f"has a value that cannot be read: {_first_part(error)}.") from None


def read_csv(path: str | Path) -> tuple[list[str], list[tuple[int, dict[Any, Any]]]]:
    """
    Return the columns of a CSV table, and each row with the number of its last line, as ``csv.DictReader`` reads them.

    ``InputError`` for an unclosed quote or a field of more than 131,072 characters.
    """
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        reader.fieldnames = header = [name.strip() for name in reader.fieldnames or ()]
        return header, [(reader.line_num, row) for row in reader]
    except csv.Error as error:
        raise InputError(f"{path}, line {reader.line_num}", f"is not valid CSV: {error}.") from None


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file. ``InputError`` for invalid JSON, also for ``NaN`` and ``Infinity``."""
    return parse_json(read_text(path), str(path))


def parse_json(text: str, where: str) -> Any:
    """Return the content of a JSON text. ``InputError`` for duplicate keys, huge numbers and control characters."""
    for escape in _ESCAPE.finditer(text):
        if escape[1] in ("b", "f") or (escape[2] and _CONTROL.match(chr(int(escape[2], 16)))):
            line = text.count("\n", 0, escape.start()) + 1
            raise InputError(_at_line(where, text, line), f"contains the control character {escape[0]}; remove it.")
    try:
        return json.loads(text, parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_each_once)
    except json.JSONDecodeError as error:
        raise InputError(_at_line(where, text, error.lineno), f"is not valid JSON: {error.msg}.") from None
    except RecursionError:
        raise InputError(where, TOO_DEEP) from None
    except ValueError as error:
        raise InputError(where, f"is not valid JSON: {_first_part(error)}.") from None


def _at_line(where: str, text: str, line: int) -> str:
    """Return a place for an error, with the line number if the text has several lines."""
    return f"{where}, line {line}" if "\n" in text else where


def sha256_of(path: str | Path) -> str:
    """Return the SHA-256 hash of a file in hexadecimal; ``plan.json`` records the hash of every input."""
    try:
        return hashlib.sha256(read_bytes(path)).hexdigest()
    except OSError as error:
        raise InputError(str(path), f"cannot be read: {error.strerror or error}.") from None


def _first_part(error: ValueError) -> str:
    """Return the text of an error up to the first semicolon, after which Python advises programmers."""
    return str(error).split(";")[0].rstrip(".")


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")


def _finite(text: str) -> float:
    """Return a number of a JSON text. ``ValueError`` if a double cannot hold the number."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{shown(text)} is too large for a number")
    return number


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a mapping. ``ValueError`` for duplicate keys."""
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, number in Counter(key for key, _ in pairs).items() if number > 1)
        raise ValueError(f"{shown(twice)} is given twice")
    return found


class _UniqueKeyLoader(SafeLoader):
    """
    YAML loader that refuses values which PyYAML accepts, or reads by surprising rules.

    Refused are duplicate keys, aliases that expand to gigabytes, and control characters. YAML 1.1 numbers in base 8 and
    60 (``010``, ``8:30``) are read as texts, so a field that needs a number reports them.
    """

    def get_single_node(self) -> yaml.Node | None:
        """Return the root node of the document, after a check of its expanded size."""
        node = super().get_single_node()
        if node is not None:
            _check_size(node)
        return node

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """Return a scalar value. ``ConstructorError`` for invisible characters other than tabs and line ends."""
        value = super().construct_scalar(node)
        if isinstance(value, str) and INVISIBLE.search(value):
            kind = "a control" if _CONTROL.search(value) else "an invisible"
            raise _refusal(f"{kind} character in {shown(value)!a}", node)
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Return a mapping. ``ConstructorError`` for duplicate keys."""
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise _refusal(f"{shown(key.value)} is given twice", key)
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


_ESCAPE = re.compile(r"\\(u([0-9a-fA-F]{4})|.)", re.DOTALL)
"""Pattern of an escaped character in a JSON text."""

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Pattern of control characters except tabs and line ends; a terminal or a script may execute them."""

_RESOLVERS = {
    letter: [
        (tag, pattern) for tag, pattern in known if tag not in ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
    ]
    for letter, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_UniqueKeyLoader.yaml_implicit_resolvers = _RESOLVERS
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0|[1-9][0-9]*|[1-9][0-9]{0,2}(?:_[0-9]{3})+)$"), list("-+0123456789")
)
_UniqueKeyLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"(?:[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)


def _check_size(root: yaml.Node) -> None:
    """Raise ``ConstructorError`` if aliases repeat too many values, or if a value contains itself."""
    sizes: dict[int, int | None] = {}  # None for values that contain the value at hand
    stack = [(root, False)]
    while stack:
        node, is_counted = stack.pop()
        if is_counted:
            size = 1 + sum(sizes[id(child)] or 0 for child in _inside(node))
            if size > MAX_YAML_NODES:
                raise _refusal(f"aliases that repeat more than {MAX_YAML_NODES:,} values", node)
            sizes[id(node)] = size
        elif id(node) not in sizes:
            sizes[id(node)] = None
            stack += [(node, True), *((child, False) for child in _inside(node))]
        elif sizes[id(node)] is None:
            raise _refusal("a value that contains itself", node)


def _refusal(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _inside(node: yaml.Node) -> list[yaml.Node]:
    """Return the direct children of a YAML node, including the keys of a mapping."""
    if isinstance(node, yaml.SequenceNode):
        return list(node.value)
    return [item for pair in node.value for item in pair] if isinstance(node, yaml.MappingNode) else []
