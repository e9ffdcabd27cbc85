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
        Elements of an array by index, of an associative array by key; a plain variable has index 0. ``None`` if the
        variable is declared but not set.
    is_array, is_map
        Whether the variable is an indexed array, and whether it is an associative array.
    case
        ``u`` or ``l`` if values are changed to upper or lower case; else empty.
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
        """Value of the variable used without a subscript; ``None`` if unset."""
        if self.elements is None:
            return None
        return self.elements.get("0" if self.is_map else 0)

    def values(self) -> list[str]:
        """Return the elements in the order of :meth:`keys`."""
        if self.elements is None:
            return []
        return [self.elements[key] for key in self.keys()]

    def keys(self) -> list[int | str]:
        """Return the keys: indices in ascending order, keys of an associative array in order of assignment."""
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
        Local names of each active function call, with the variables that they hide.
    output, stdin
        Output captured so far; text on standard input, ``None`` if unknown.
    launches
        Numbers of the launches of training programs, in order.
    status
        Exit status of the last command; ``None`` if unknown.
    substitution_status
        Exit status of the last command substitution in the current command.
    unread
        Reason why variables may have changed unseen, such as a sourced file; empty if there is none.
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
