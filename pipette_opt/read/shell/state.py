"""State of a shell: variables, positional parameters and options, and the values that are not known."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pipette_opt.read.shell.limits import Budget, RefusalError
from pipette_opt.read.shell.unknowns import Unknown, Unknowns, is_known, may_split

SET_BY_BASH = (
    "RANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM", "PWD", "OLDPWD", "HOSTNAME", "UID", "EUID", "PPID",
    "BASHPID", "LINENO", "BASH_VERSION", "HOSTTYPE", "OSTYPE", "MACHTYPE", "BASH", "SHELL", "PATH", "BASH_SOURCE",
    "FUNCNAME", "SHLVL", "_", "TERM",
)  # fmt: skip
"""Variables that bash sets to a single word if the environment does not."""

SET_BY_LOGIN = ("HOME", "USER", "LOGNAME")
"""Variables that every session has, so that ``set -u`` stops no script at them."""

EVERYTHING, ARGUMENTS = "*", "@"
"""Names in :attr:`Variables.changed` for all variables, and for the positional parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """
    Variable of a shell.

    Parameters
    ----------
    value
        Text, or the elements of an array; ``None`` if the variable is declared but not set.
    """

    value: str | tuple[str, ...] | None = None
    exported: bool = False

    @property
    def text(self) -> str | None:
        """Value of the variable used without a subscript; ``None`` if unset."""
        if isinstance(self.value, tuple):
            return self.value[0] if self.value else None
        return self.value

    def elements(self) -> list[str]:
        """Return the elements of an array, or the text of a plain variable as a list."""
        if isinstance(self.value, tuple):
            return list(self.value)
        return [] if self.value is None else [self.value]


@dataclass(slots=True, kw_only=True)
class State:
    """
    State of a shell.

    Parameters
    ----------
    launches
        Numbers of the launches of training programs, in order.
    status
        Exit status of the last command; ``None`` if unknown.
    stdin
        Text on standard input, ``None`` if unknown.
    unread
        Reason why variables may have changed unseen, such as a sourced file; empty if there is none.
    """

    variables: dict[str, Variable] = field(default_factory=dict)
    positional: tuple[str, ...] = ()
    options: frozenset[str] = frozenset()
    launches: tuple[int, ...] = ()
    status: int | None = 0
    stdin: str | None = None
    unread: str = ""

    def copy(self) -> "State":
        """Return an independent copy."""
        return replace(self, variables=dict(self.variables))


class Variables:
    """
    Variables of a shell, and what was noticed about them.

    Parameters
    ----------
    changed
        Names that changed since the beginning of the current branch, loop or function.
    special
        Variables with properties that are not evaluated, such as ``declare -i``, each with the reason for people; their
        values are unknown.
    """

    def __init__(self, state: State, unknowns: Unknowns, budget: Budget) -> None:
        self.state, self.unknowns, self.budget = state, unknowns, budget
        self.line = 1
        self.unset: dict[str, int] = {}
        self.missing: dict[str, tuple[int, str]] = {}
        self.defaults: dict[str, int] = {}
        self.notes: list[tuple[int, str]] = []
        self.changed: set[str] = set()
        self.arrays: set[str] = set()
        self.special: dict[str, str] = {}
        self.readonly: set[str] = set()

    # Unknown values.

    def unknown(self, text: str, *, because_of: str = "", why: str = "", one_word: bool = False) -> str:
        """
        Return a marker, a character that stands for a value known only when the script runs.

        Parameters
        ----------
        text
            Value as written in the script.
        because_of
            Text whose unknown parts are the reason.
        """
        causes = self.unknowns.all_in(because_of)
        if causes and not why:
            first = causes[0]
            why = first.why or (f"{first.text}, line {first.line}" if first.text != text else "")
        shown = self.unknowns.rendered(text)[:200]
        return self.unknowns.marker(Unknown(text=shown, line=self.line, why=why[:200], one_word=one_word))

    def forget(self, names: Iterable[str], why: str) -> None:
        """Make variables unknown; those that were an array at some point may have any number of elements."""
        for name in names:
            if name == EVERYTHING:
                self.forget_all(why)
            elif name == ARGUMENTS:
                self.changed.add(name)
                self.state.positional = (self.unknowns.split(self.unknown("$@", why=why)),)
            else:
                marker = self.unknown(f"${{{name}}}", why=why)
                self._store(name, (self.unknowns.split(marker),) if name in self.arrays else marker)

    def forget_all(self, why: str) -> None:
        """Make all variables unknown, including variables that are not set."""
        self.forget([name for name in self.state.variables if name != "IFS"], why)
        self.changed.add(EVERYTHING)
        self.state.unread = why

    # Reading.

    def value(self, name: str) -> str | None:
        """Return the value of a variable or of a special parameter such as ``$1``; ``None`` if unset."""
        positional = self.state.positional
        if name.isdigit():
            place = int(name) if len(name) < 9 else len(positional) + 1
            if place == 0 or any(map(may_split, positional[:place])):
                return self.unknown(f"${name}", because_of="".join(positional[:place]), one_word=place == 0)
            return positional[place - 1] if place <= len(positional) else None
        if name == "#" and not any(map(may_split, positional)):
            return str(len(positional))
        if name == "?" and self.state.status is not None:
            return str(self.state.status)
        if name in ("#", "?", "$", "!", "-"):
            return self.unknown(f"${name}", because_of="".join(positional) if name == "#" else "", one_word=True)
        variable = self.state.variables.get(name)
        if variable is None:
            return self.unknown(f"${name}", one_word=name != "_") if name in SET_BY_BASH else None
        return None if variable.text is None else self.unknowns.kept(variable.text)

    def elements(self, name: str) -> list[str]:
        """Return all elements of an array, or the value of a plain variable as a list."""
        if name in ("@", "*"):
            return list(self.state.positional)
        variable = self.state.variables.get(name)
        if variable is not None:
            return variable.elements()
        if self.state.unread:
            return [self.unknowns.split(self.unknown(f"${{{name}}}", why=self.state.unread))]
        return [self.unknown(f"${name}", one_word=True)] if name in SET_BY_BASH else []

    def element(self, name: str, index: int | None) -> str | None:
        """Return an element of an array, ``None`` if unset; an unknown value for an unknown index."""
        elements = self.elements(name)
        if index is None or any(map(may_split, elements)):
            return self.unknown(f"${{{name}[...]}}", because_of="".join(elements))
        index += len(elements) if index < 0 else 0
        if index < 0:
            raise RefusalError(f"has a subscript of {name} that is no index of the array.")
        return elements[index] if index < len(elements) else None

    def unset_text(self, name: str) -> str:
        """Return bash's value for an unset parameter, and record the use; under ``set -u``, see :meth:`require`."""
        if self.state.unread and not name.isdigit():
            return self.unknown(f"${{{name}}}", why=self.state.unread)
        if name in SET_BY_LOGIN and "nounset" in self.state.options:
            return self.unknown(f"${name}", why="set by the login", one_word=True)
        self.unset.setdefault(name, self.line)
        return self.require(name) if "nounset" in self.state.options else ""

    def require(self, name: str, message: str = "") -> str:
        """
        Record a parameter without which the script stops there, and go on with an unknown value to find others.

        ``message`` is the script's own; without it, ``set -u`` stops the script.
        """
        self.missing.setdefault(name, (self.line, message))
        return self.unknown(f"${{{name}}}", why="not set", one_word=True)

    def separators(self) -> str:
        """Return the characters at which words are split. ``RefusalError`` if the script changes them."""
        variable = self.state.variables.get("IFS")
        if variable is not None and variable.text != " \t\n":
            raise RefusalError("splits words by an IFS that the script changes, which is not evaluated.")
        return " \t\n"

    def environment(self) -> dict[str, str]:
        """Return the exported variables of the shell."""
        exported = {name: variable.text for name, variable in self.state.variables.items() if variable.exported}
        return {name: self.unknowns.kept(text) for name, text in exported.items() if text is not None}

    # Setting.

    def _store(self, name: str, value: str | tuple[str, ...] | None) -> None:
        old = self.state.variables.get(name, Variable())
        exported = old.exported or "allexport" in self.state.options
        self.changed.add(name)
        self.arrays |= {name} if isinstance(value, tuple) else set()
        self.state.variables[name] = replace(old, value=value, exported=exported)

    def assign(self, name: str, value: str | tuple[str, ...], *, append: bool = False) -> None:
        """Set a variable or an array."""
        if name in self.readonly:
            raise RefusalError(f"assigns to {name}, which is readonly.")
        old = self.state.variables.get(name, Variable())
        if name in self.special:
            self.forget([name], self.special[name])
            return
        if isinstance(value, tuple):
            value = (*(old.elements() if append else ()), *value)
        else:
            value = self.unknowns.kept(((self.value(name) or "") if append else "") + value)
            if isinstance(old.value, tuple):
                value = old.value if any(map(may_split, old.value)) else (value, *old.value[1:])
        self.budget.produce(sum(map(len, value)))
        self._store(name, value)

    def remove(self, name: str) -> None:
        """Unset a variable; an element of an array makes the array unknown."""
        found = re.fullmatch(r"([A-Za-z_]\w*)(\[.*\])?", name, re.ASCII)
        if not is_known(name):
            self.forget_all(f"line {self.line} unsets a variable that is not known")
        elif found is not None and found[2]:
            self.forget([found[1]], f"line {self.line} unsets one of its elements")
        elif found is not None and name in self.readonly:
            raise RefusalError(f"unsets {name}, which is readonly.")
        elif found is not None:
            self.changed.add(name)
            self.state.variables.pop(name, None)
