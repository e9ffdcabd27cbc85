"""Syntax tree of a script, parsed by tree-sitter's bash grammar."""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pipette_opt.read.shell.limits import MAX_OPEN_BRACKETS, MAX_PARSE_S, MAX_PIPES, RefusalError

if TYPE_CHECKING:
    import tree_sitter


_CONTINUED_END = re.compile(r"(?<!\\)((?:\\\\)*)\\\n\s*\Z")
"""Pattern of a backslash at the end of the last line, which tree-sitter's grammar does not accept."""


@cache
def _language() -> "tree_sitter.Language":
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Language(tree_sitter_bash.language())


def _parser() -> "tree_sitter.Parser":
    """Return a new parser; a parser stopped by the time limit would continue with its former text."""
    import tree_sitter

    return tree_sitter.Parser(_language())


def _check_size(text: str, first_line: int) -> None:
    """Raise ``RefusalError`` for too many pipes or open round brackets; those in quotes and comments count, too."""
    if (num_pipes := text.count("|")) > MAX_PIPES:
        raise RefusalError(f"has {num_pipes:,} pipes; a launch script may have {MAX_PIPES:,}.", first_line)
    num_open = 0
    for found in re.finditer("[()]", text):
        num_open = num_open + 1 if found[0] == "(" else max(num_open - 1, 0)
        if num_open > MAX_OPEN_BRACKETS:
            line = first_line + text.count("\n", 0, found.start())
            raise RefusalError(f"has more than {MAX_OPEN_BRACKETS} open brackets.", line)


class Script:
    """Parsed text of a script."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.source = _CONTINUED_END.sub(r"\1\n", text).encode("utf-8", "surrogatepass")
        self.first_line = first_line
        _check_size(text, first_line)
        begun = time.monotonic()
        self.root = self._parsed(begun)
        while ends := _missed_ends(self.root):
            self.source = _with_semicolons(self.source, ends)
            self.root = self._parsed(begun)

    def _parsed(self, begun: float) -> "Node":
        """Return the root of the source's syntax tree. ``RefusalError`` after ``MAX_PARSE_S`` seconds."""
        source = self.source

        def read(offset: int, _: object) -> bytes:
            return source[offset : offset + 65536]

        def too_long(*_: Any) -> bool:
            return time.monotonic() - begun > MAX_PARSE_S

        try:
            tree = _parser().parse(read, progress_callback=too_long)
        except ValueError:
            raise RefusalError("takes too long to parse as bash.", self.first_line) from None
        return Node(self, tree.root_node)


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """Node of the syntax tree."""

    script: Script
    raw: "tree_sitter.Node"

    @property
    def type(self) -> str:
        """Kind of the node in tree-sitter's grammar."""
        return self.raw.type

    @property
    def children(self) -> list["Node"]:
        """Child nodes, including those of signs and keywords."""
        return [Node(self.script, child) for child in self.raw.children]

    @property
    def start(self) -> int:
        """Index of the first byte in the source."""
        return self.raw.start_byte

    @property
    def end(self) -> int:
        """Index after the last byte in the source."""
        return self.raw.end_byte

    @property
    def text(self) -> str:
        """Source text of the node."""
        return self.between(self.start, self.end)

    @property
    def line(self) -> int:
        """Line of the first byte, from 1."""
        return self.script.first_line + self.raw.start_point[0]

    def between(self, start: int, end: int) -> str:
        """Return the source text between two byte indices."""
        return self.script.source[start:end].decode("utf-8", "surrogatepass")

    def child(self, *types: str) -> "Node | None":
        """Return the first child node of one of the types, else ``None``."""
        return next((child for child in self.children if child.type in types), None)

    def check(self) -> None:
        """Raise ``RefusalError`` if the parser could not read the node completely."""
        if self.raw.has_error or self.raw.is_error:
            bad = self if self.raw.is_error else next(_faults(self), None)
            if bad is not None:
                raise RefusalError("cannot be read as bash here.", bad.line)


_OPAQUE = ("arithmetic_expansion", "expansion", "string", "command_substitution", "array")
"""Kinds of nodes whose content is read from the source, not from the tree."""


def _is_closed(node: Node) -> bool:
    if node.type not in _OPAQUE or not node.children:
        return False
    last = node.children[-1].raw
    return not last.is_missing and not last.is_error


def _faults(node: Node) -> Iterator[Node]:
    """Yield the nodes that the parser could not read, in source order."""
    stack = [node]
    while stack:
        current = stack.pop()
        if current.raw.is_error or current.raw.is_missing:
            yield current
        if _is_closed(current):
            continue
        stack.extend(child for child in reversed(current.children) if child.raw.has_error or child.raw.is_missing)


_LINE_END = re.compile(r"(?<!\\)(?:\\\\)*\n")


def _missed_ends(root: Node) -> list[int]:
    """
    Return the byte indices of line ends that the grammar misses after several assignments.

    The grammar reads ``A=1 B=2``, a line end and ``else`` as a command named ``else``.
    """
    found = []
    stack = [root]
    while stack:
        node = stack.pop()
        children = node.children
        name = node.child("command_name") if node.type == "command" else None
        before = [child for child in children if child.type == "variable_assignment"]
        if name is not None and before:
            gap = node.between(before[-1].end, name.start)
            found += [before[-1].end] if "#" in gap or _LINE_END.search(gap) else []
        stack += children
    return found


def _with_semicolons(source: bytes, places: list[int]) -> bytes:
    """Return the source with a semicolon inserted at each byte index."""
    cuts = [0, *sorted(places), len(source)]
    return b";".join(source[start:end] for start, end in pairwise(cuts))
