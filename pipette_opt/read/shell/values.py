"""Reading and setting of variables of a shell."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pipette_opt.read.shell.arithmetic import evaluate_arithmetic
from pipette_opt.read.shell.limits import Budget, RefusalError
from pipette_opt.read.shell.patterns import Pattern
from pipette_opt.read.shell.pieces import Field, Piece, text_of
from pipette_opt.read.shell.state import State, Variable
from pipette_opt.read.shell.unknowns import Unknown, Unknowns, all_known, is_known, may_split

SET_BY_BASH = (
    "RANDOM", "SECONDS", "EPOCHSECONDS", "EPOCHREALTIME", "SRANDOM", "PWD", "OLDPWD", "HOSTNAME", "UID", "EUID", "PPID",
    "BASHPID", "LINENO", "BASH_VERSION", "HOSTTYPE", "OSTYPE", "MACHTYPE", "BASH", "SHELL", "PATH", "BASH_SOURCE",
    "FUNCNAME",
    "BASH_LINENO",
    "BASH_SUBSHELL",
    "BASHOPTS",
    "SHELLOPTS",
    "GROUPS",
    "SHLVL",
    "_",
    "TERM",
)  # fmt: skip
"""Variables that bash sets to a single word if the environment does not."""


SET_BY_LOGIN = ("HOME", "USER", "LOGNAME")
"""Variables that every session has, so that ``set -u`` stops no script at them."""


class Values(ABC):
    """
    Variables of a shell, and the evaluation of texts that needs them.

    Parameters
    ----------
    state
        Current state, which commands change; each branch of an unknown condition gets a copy.
    unknowns
        Values known only when the script runs, and the characters that stand for them in texts.
    """

    def __init__(self, state: State, unknowns: Unknowns, budget: Budget) -> None:
        self.state = state
        self.unknowns = unknowns
        self.budget = budget
        self.line = 1
        self.unset: dict[str, int] = {}
        self.missing: dict[str, tuple[int, str]] = {}
        self.defaults: dict[str, int] = {}
        self.loops = 0
        self.notes: list[tuple[int, str]] = []

    # Evaluation, by the shell.

    @abstractmethod
    def pieces_of(self, word: str, *, in_quotes: bool = False, tilde_after_colon: bool = False) -> list[Piece]:
        """Return the expanded parts of a word as written in the script."""

    @abstractmethod
    def expand_fields(self, word: str) -> list[Field]:
        """Return the words to which a word as written in the script expands."""

    @abstractmethod
    def run_text(self, text: str) -> int | None:
        """Evaluate a text in this shell, as ``eval`` does; return the exit status."""

    @abstractmethod
    def write(self, text: str) -> None:
        """Write a text to standard output, if the output is captured."""

    @abstractmethod
    def substitute(self, source: str, shown: str) -> str:
        """Return the output of a command substitution; ``shown`` is the substitution as written."""

    @abstractmethod
    def assign_source(self, name: str, subscript: str | None, append: bool, value: str) -> None:
        """Assign a value as written in the script to a variable, an element or an array."""

    def expand_text(self, word: str, *, tilde_after_colon: bool = False) -> str:
        """Return the text to which a word as written expands if it is not split, such as in an assignment."""
        return text_of(self.pieces_of(word, tilde_after_colon=tilde_after_colon))

    def expand_pattern(self, word: str) -> tuple[Pattern, str]:
        """Return a word as written in the script as a pattern, and as the text it expands to."""
        pieces = self.pieces_of(word)
        pattern = Pattern(((piece.text, piece.kind == "quoted") for piece in pieces), self.budget)
        return pattern, text_of(pieces)

    # Markers of unknown values.

    def unknown(
        self, text: str, *, because_of: str = "", why: str = "", one_word: bool = False, split: bool = False
    ) -> str:
        """
        Return a character that stands for a value known only when the script runs.

        The first unknown part of ``because_of`` becomes the reason, unless ``why`` gives it.
        """
        causes = self.unknowns.all_in(because_of)
        if causes and not why:
            first = causes[0]
            why = first.why or (f"{first.text}, line {first.line}" if first.text != text else "")
        shown = self.unknowns.rendered(text)
        marker = self.unknowns.marker(Unknown(text=shown[:200], line=self.line, why=why[:200], one_word=one_word))
        return self.unknowns.split(marker) if split else marker

    def unread_value(self, name: str) -> str | None:
        """Return an unknown value for a variable that an unread file may have set; ``None`` if all files were read."""
        if not self.state.unread or name.isdigit():
            return None
        return self.unknown(f"${{{name}}}", why=self.state.unread)

    # Reading.

    def text(self, name: str) -> str | None:
        """Return the value of a variable, ``None`` if unset; the use is not recorded."""
        variable = self.state.variables.get(name)
        return None if variable is None else variable.text

    def parameter(self, name: str) -> str | None:
        """Return the value of a variable or of a special parameter such as ``$1``; ``None`` if unset."""
        if name.isdigit():
            place = int(name) if len(name) < 9 else len(self.state.positional) + 1
            if place == 0:
                return self.unknown("$0", one_word=True)
            known = self.state.positional[:place]
            if any(map(may_split, known)):
                return self.unknown(f"${name}", because_of="".join(known))
            return known[place - 1] if place <= len(self.state.positional) else None
        if name == "#":
            if any(map(may_split, self.state.positional)):
                return self.unknown("$#", because_of="".join(self.state.positional), one_word=True)
            return str(len(self.state.positional))
        if name == "?":
            return self.unknown("$?", one_word=True) if self.state.status is None else str(self.state.status)
        if name in ("$", "!"):
            return self.unknown(f"${name}", one_word=True)
        if name == "-":
            return self.unknown("$-", one_word=True)
        variable = self.state.variables.get(name)
        if variable is None:
            return self.unknown(f"${name}", one_word=True) if name in SET_BY_BASH else None
        if variable.is_array and any(map(may_split, variable.values())):
            return self._unknown_element(name, "0")
        return variable.text

    def unset_text(self, name: str) -> str:
        """Return bash's value for an unset parameter, and record the use; under ``set -u``, see :meth:`require`."""
        unread = self.unread_value(name)
        if unread is not None:
            return unread
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

    def unset_list(self, name: str) -> None:
        """Record the use of an array that is not set."""
        if "nounset" not in self.state.options:
            self.unset.setdefault(name, self.line)

    def note_default(self, name: str) -> None:
        """Record that the default of a parameter is used."""
        self.defaults.setdefault(name, self.line)

    def element(self, name: str, subscript: str) -> str | None:
        """Return an element of an array; ``None`` if unset."""
        variable = self.state.variables.get(name)
        if name == "PIPESTATUS" or (variable is None and name in SET_BY_BASH):
            return self.unknown(f"${{{name}[{subscript}]}}", one_word=True)
        if variable is None or variable.elements is None:
            return None
        if any(map(may_split, variable.elements.values())):
            return self._unknown_element(name, subscript)
        key = self._key(variable, subscript)
        if key is None:
            return self._unknown_element(name, subscript)
        return variable.elements.get(key)

    def _unknown_element(self, name: str, subscript: str) -> str:
        variable = self.state.variables[name]
        return self.unknown(f"${{{name}[{subscript}]}}", because_of="".join(variable.values()))

    def _key(self, variable: Variable, subscript: str) -> int | str | None:
        if variable.is_map:
            key = self.expand_text(subscript)
            return key if is_known(key) else None
        index = self.arithmetic(subscript)
        if index is None:
            return None
        if index < 0:
            index += max((int(key) for key in variable.elements or {}), default=-1) + 1
        if not 0 <= index < 1 << 48:
            raise RefusalError(f"has the subscript {subscript[:40]}, which is no index of the array.")
        return index

    def elements(self, name: str) -> list[str]:
        """Return all elements of an array, or the value of a plain variable as a list."""
        variable = self.state.variables.get(name)
        if variable is None:
            unread = self.unread_value(name)
            if unread is not None:
                return [self.unknowns.split(unread)]
            return [self.unknown(f"${name}", one_word=True)] if name in SET_BY_BASH else []
        return variable.values()

    def keys(self, name: str) -> list[int | str]:
        """Return the keys of all elements of a variable."""
        variable = self.state.variables.get(name)
        if variable is not None and any(map(may_split, variable.values())):
            return [self.unknown(f"${{!{name}[@]}}", because_of="".join(variable.values()), split=True)]
        return [] if variable is None else variable.keys()

    def is_map(self, name: str) -> bool:
        """Return whether a variable is an associative array."""
        variable = self.state.variables.get(name)
        return variable is not None and variable.is_map

    def is_set(self, name: str) -> bool | None:
        """Return whether ``[ -v name ]`` holds; ``None`` if unknown."""
        found = re.fullmatch(r"(\w+)\[(.*)\]", name)
        if found is not None:
            return self.element(found[1], found[2]) is not None
        if self.text(name) is None and (self.state.unread or name in SET_BY_BASH):
            return None
        return self.text(name) is not None

    def joined(self, elements: Sequence[str]) -> str:
        """Return the elements joined by the first character of ``IFS``."""
        separators = self.text("IFS")
        text = (" " if separators is None else separators[:1]).join(elements)
        self.budget.produce(len(text))
        return self.unknowns.kept(text)

    # Setting.

    def assign(self, name: str, subscript: str | None, value: str, *, append: bool = False) -> None:
        """Set a variable or an element of an array."""
        old = self.state.variables.get(name, Variable())
        if old.readonly:
            raise RefusalError(f"assigns to {name}, which is readonly.")
        if subscript in ("@", "*"):
            raise RefusalError(f"assigns to {name}[{subscript}], which bash refuses.")
        key: int | str = "0" if old.is_map else 0
        if subscript is not None:
            place = self._key(old, subscript)
            if place is None:
                raise RefusalError(f"assigns to {name}[{self.unknowns.rendered(subscript)}], whose index is not known.")
            key = place
        before = (old.elements or {}).get(key, "") if append else ""
        self.budget.produce(len(before) + len(value))
        value = self._typed(old, before, value, append)
        elements = {**(old.elements or {}), key: value} if old.elements else {key: value}
        self.budget.words(len(elements))
        is_array = old.is_array or (subscript is not None and not old.is_map)
        exported = old.exported or "allexport" in self.state.options
        self.state.variables[name] = replace(old, elements=elements, is_array=is_array, exported=exported)

    def _typed(self, variable: Variable, before: str, value: str, append: bool) -> str:
        value = self.unknowns.kept(value)
        if variable.integer:
            number = self.arithmetic_value(f"({before or 0})+({value or 0})" if append else value)
            return self.unknown_number(value) if number is None else str(number)
        value = before + value
        return {"": value, "u": value.upper(), "l": value.lower()}[variable.case]

    def set_array(self, name: str, elements: Iterable[str]) -> None:
        """Set an array to these elements."""
        old = self.state.variables.get(name, Variable())
        if old.readonly:
            raise RefusalError(f"assigns to {name}, which is readonly.")
        found: dict[int | str, str] = dict(enumerate(elements))
        self.state.variables[name] = replace(old, elements=found, is_array=True, is_map=False)

    def assign_list(self, name: str, source: str, *, append: bool = False) -> None:
        """Set an array to the words between the brackets of ``name=(...)``."""
        from pipette_opt.read.shell.scanner import placed_words

        old = self.state.variables.get(name, Variable())
        if old.readonly:
            raise RefusalError(f"assigns to {name}, which is readonly.")
        elements: dict[int | str, str] = {}
        # Words are expanded before the old elements are removed: A=("${A[@]}" more).
        if append and old.elements:
            elements.update(old.elements)
        following = 1 + max((int(key) for key in elements), default=-1) if not old.is_map else 0
        first_line = self.line
        for word, lines in placed_words(source):
            self.line = first_line + lines
            found = re.match(r"\[((?:[^\]\"']|\"[^\"]*\"|'[^']*')+)\](\+?)=", word)
            if found is not None:
                key = self._key(old, found[1])
                if key is None:
                    raise RefusalError(f"assigns to {name}[{found[1]}], whose index is not known.")
                value = self.expand_text(word[found.end() :])
                elements[key] = (elements.get(key, "") if found[2] else "") + value
                following = key + 1 if isinstance(key, int) else following
                continue
            if old.is_map:
                raise RefusalError(f"has the associative array {name} without keys, which cannot be evaluated here.")
            for field in self.expand_fields(word):
                elements[following] = self.unknown_if_path(field.text) if field.is_pattern else field.text
                following += 1
        self.budget.words(len(elements))
        self.state.variables[name] = replace(old, elements=elements, is_array=not old.is_map)

    def unknown_if_path(self, text: str) -> str:
        """Return a word that may be a pattern of files: an unknown value if it looks like a path, else unchanged."""
        if "noglob" in self.state.options or not re.search(r"/|\.\w+$|^\*|\*$", text) or not is_known(text):
            return text
        return self.unknown(text, why="it depends on the files that are there", split=True)

    def unset_variable(self, name: str, subscript: str | None = None) -> None:
        """Remove a variable, or an element of an array."""
        variable = self.state.variables.get(name)
        if variable is None:
            return
        if variable.readonly:
            raise RefusalError(f"unsets {name}, which is readonly.")
        if subscript is None:
            del self.state.variables[name]
            return
        key = self._key(variable, subscript)
        if key is None or any(map(may_split, variable.values())):
            raise RefusalError(f"unsets {name}[{subscript}], whose index is not known.")
        rest = {place: text for place, text in (variable.elements or {}).items() if place != key}
        self.state.variables[name] = replace(variable, elements=rest)

    def forget_all(self, why: str) -> None:
        """Make all variables unknown, including variables that are not set."""
        self.state.unread = why
        for name, variable in self.state.variables.items():
            if name == "IFS":
                continue
            marker = self.unknown(f"${{{name}}}", why=why)
            is_list = variable.is_array or variable.is_map
            self.state.variables[name] = Variable(
                elements={0: self.unknowns.split(marker) if is_list else marker},
                is_array=is_list,
                exported=variable.exported,
            )

    def environment(self) -> dict[str, str]:
        """Return the exported variables of the shell."""
        exported = {name: variable.text for name, variable in self.state.variables.items() if variable.exported}
        return {name: text for name, text in exported.items() if text is not None}

    # Arithmetic.

    def arithmetic(self, source: str) -> int | None:
        """Return the value of an arithmetic expression as written in the script; ``None`` if unknown."""
        text = text_of(self.pieces_of(source, in_quotes=True)) if re.search(r"[$`\"\\]", source) else source
        return self.arithmetic_value(text)

    def arithmetic_value(self, text: str) -> int | None:
        """Return the value of an expanded arithmetic expression; ``None`` if unknown."""
        return evaluate_arithmetic(text, self)

    def arithmetic_text(self, source: str) -> str:
        """Return the value of ``$((source))`` as text; an unknown value if it cannot be computed."""
        value = self.arithmetic(source)
        return self.unknown_number(f"$(({source}))") if value is None else str(value)

    def number_text(self, name: str, subscript: str | None) -> str:
        """Return the value of a variable for arithmetic, as text; empty if unset."""
        value = self.parameter(name) if subscript is None else self.element(name, subscript)
        return self.unset_text(name) if value is None else value

    def set_number(self, name: str, subscript: str | None, value: str) -> None:
        """Set a variable or an element of an array from arithmetic."""
        self.assign(name, subscript, value)

    def unknown_number(self, text: str) -> str:
        """Return a character that stands for a number that arithmetic cannot compute."""
        shown = text if text.startswith("$((") else f"$(({text}))"
        causes = self.unknowns.all_in(text)
        why = f"{causes[0].text}, line {causes[0].line}" if causes else ""
        return self.unknown(shown, why=why, one_word=True)

    def known(self, words: Iterable[str]) -> bool:
        """Return whether all words are completely known before the script runs."""
        return all_known(words)
