"""State of a shell: variables, functions and positional parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pipette_opt.read.shell.syntax import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """
    Variable of a shell.

    Parameters
    ----------
    elements
        Elements by index, of an array; by key, of a map; a plain variable has the key 0. ``None``: declared, not set.
    """

    elements: Mapping[int | str, str] | None = None
    is_array: bool = False
    is_map: bool = False
    exported: bool = False
    readonly: bool = False
    integer: bool = False
    case: str = ""

    @property
    def text(self) -> str | None:
        """Return the value without a subscript."""
        if self.elements is None:
            return None
        return self.elements.get("0" if self.is_map else 0)

    def values(self) -> list[str]:
        """Return the elements in order."""
        if self.elements is None:
            return []
        return [self.elements[key] for key in self.keys()]

    def keys(self) -> list[int | str]:
        """Return the keys in the order of the elements."""
        if self.elements is None:
            return []
        return list(self.elements) if self.is_map else sorted(self.elements, key=int)


@dataclass(slots=True, kw_only=True)
class State:
    """
    State of a shell.

    Parameters
    ----------
    frames
        Local names of each active call, with the variables that they hide.
    output, stdin
        Captured output so far, and text on standard input; ``None``: unknown.
    launches
        Numbers of the commands that started a training program, in order.
    status
        Exit status of the last command; ``None``: unknown.
    substitution_status
        Exit status of the last command substitution in the current command.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    functions: dict[str, "Node"] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    frames: tuple[Mapping[str, Variable | None], ...] = ()
    output: str = ""
    stdin: str | None = None
    launches: tuple[int, ...] = ()
    status: int | None = 0
    substitution_status: int | None = 0
    unread: str = ""

    def copy(self) -> "State":
        """Return an independent copy."""
        return replace(self, variables=dict(self.variables), functions=dict(self.functions))
