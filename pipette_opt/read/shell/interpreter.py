"""
Interpreter of a subset of bash: assignments, ``if``, ``case``, lists and pipelines, and commands.

Loops and functions are not evaluated: the variables that they set become unknown, and none of them may start training.
A variable that depends on an unknown condition becomes unknown, too.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pipette_opt.base.units import one_line
from pipette_opt.read.shell.conditions import condition_holds, test_status
from pipette_opt.read.shell.expansion import Expander
from pipette_opt.read.shell.limits import COMMAND_WORK, Budget, RefusalError
from pipette_opt.read.shell.state import ARGUMENTS, EVERYTHING, State, Variable
from pipette_opt.read.shell.syntax import (
    DECLARING,
    AndOr,
    Assignment,
    Calculation,
    Case,
    Command,
    Condition,
    Function,
    Group,
    If,
    Loop,
    Parser,
    Redirect,
    Simple,
    Substitution,
    Word,
)
from pipette_opt.read.shell.unknowns import Unknown, Unknowns, is_known, is_marker

_CHANGING = ("read", "mapfile", "readarray", "getopts", "printf", "let", "shift")
"""Builtin commands that are not evaluated: the variables that they may set become unknown."""

_WITHOUT_EFFECT = (
    ":", "true", "cd", "pushd", "popd", "trap", "wait", "ulimit", "umask", "hash", "jobs", "disown", "enable", "times",
    "sleep", "alias", "unalias", "complete", "break", "continue", "return",
)  # fmt: skip
"""Builtin commands that do not matter for a launch; the last three stand in loops and functions only."""

_OPTIONS = {"u": "nounset", "f": "noglob", "a": "allexport"}
"""Names of the options of ``set`` that are evaluated, by letter."""

_ONE_WORD = re.compile(
    r"(?:\$\(|`)\s*+(?:(?:basename|dirname|hostname|id -u|mktemp|nproc|pwd|readlink|realpath|whoami)\b[^|;&\n]*"
    r"|date \+[^\s|;&]+|(?:hostname|scontrol show hostnames?)\b[^|;&\n]*\|\s*(?:awk|cut|head|sed|tail)\b[^|;&\n]*"
    r"|[^;&\n]*\|\s*wc -[lwc]\s*)[)`]"
)
"""Pattern of substitutions that print a single word, which is no option."""

_ACTIVATES = re.compile(
    r"(?:^|/)(?:activate|\.bashrc|\.bash_profile|\.profile|conda\.sh|mamba\.sh|setvars\.sh|vars\.sh|modules?\.sh|"
    r"lmod\.sh|init/(?:ba)?sh|cuda\.sh|nvm\.sh)$|^/etc/"
)
"""Files that set up a shell, such as ``activate``, and do not matter for the launch."""

_SETS_UP = re.compile(r"\s*(?:\$\(|`)\s*\S*(?:conda|mamba|ssh-agent|direnv|pyenv|modulecmd|brew)\b")
"""Substitutions whose output sets up a shell, such as ``$(conda shell.bash hook)``."""


class _Outcome(NamedTuple):
    """State to which commands lead, names of the variables that they change, and whether they end the script."""

    state: State
    changed: set[str]
    ends: bool


class _Exit(Exception):  # noqa: N818 - it is no error
    """End of a script."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalCommand:
    """
    Command that runs a program outside bash.

    Parameters
    ----------
    words
        Program and arguments; markers stand for parts known only when the script runs.
    stdin
        Text on the command's standard input; ``None`` if unknown.
    """

    words: tuple[str, ...]
    environment: Mapping[str, str]
    line: int
    stdin: str | None = None


Run = Callable[[ExternalCommand], int | None]
"""Function called for an external command; returns the number of a launch if the command starts a training program."""


class Shell(Expander):
    """
    Shell that evaluates commands.

    Parameters
    ----------
    run
        Function called for each external command, in order.
    """

    def __init__(self, state: State, run: Run, unknowns: Unknowns, budget: Budget) -> None:
        super().__init__(state, unknowns, budget)
        self.run = run
        self.functions: dict[str, Function] = {}
        self.output: list[str] | None = None
        self.is_opaque = False
        self.num_branches = 0
        self.substitution_status: int | None = 0

    # Evaluation of texts.

    def run_script(self, text: str) -> None:
        """Evaluate a whole script, up to its end or ``exit``."""
        try:
            self._run_text(text)
        except _Exit:
            pass
        except RecursionError:
            raise RefusalError("has too many commands or expansions inside each other.", self.line) from None

    def _run_text(self, text: str) -> None:
        """Evaluate a text in this shell, as ``eval`` does."""
        self.budget.produce(len(text))
        for command in Parser(self._as_source(text), self.line).commands():
            self._run(command)

    def run_inner(self, text: str, environment: Mapping[str, str], arguments: Sequence[str]) -> tuple[int, ...]:
        """Evaluate a script that a command of this shell starts in a new shell; return the numbers of its launches."""
        outer = self.state, self.functions, self.output, self.num_branches, self.line, self.changed
        variables = {name: Variable(value=value, exported=True) for name, value in environment.items()}
        variables["IFS"] = Variable(value=" \t\n")
        self.state = State(variables=variables, positional=tuple(arguments))
        self.functions, self.output, self.num_branches = {}, None, 0
        try:
            self.run_script(text)
            return self.state.launches
        finally:
            self.state, self.functions, self.output, self.num_branches, self.line, self.changed = outer

    def _as_source(self, text: str) -> str:
        """Return a text as source code, with a variable for each part that is known only when the script runs."""
        parts: list[str] = []
        for character in text:
            if not is_marker(character):
                parts.append(character)
                continue
            # Unknown text may be any source; only parts of a single word are safe.
            unknown = self.unknowns.all_in(character)[0]
            if not unknown.one_word and not re.fullmatch(r"\$\{?\w+\}?", unknown.text):
                raise RefusalError(f"evaluates a text that is not known: {unknown.sentence()}.")
            name = f"__unknown_{ord(character):x}"
            self.state.variables[name] = Variable(value=self.unknowns.kept(character))
            parts.append(f"${{{name}}}")
        return "".join(parts)

    def substitute(self, part: Substitution) -> str:
        """Return the output of a substitution if only builtin commands write it, else an unknown value."""
        if part.source[0] in "<>":
            return self.unknown(part.source, one_word=True)
        outer, was_opaque, line = self.output, self.is_opaque, self.line
        self.output, self.is_opaque = [], False
        self._subshell(lambda: self._run_all(part.commands))
        output, is_opaque = "".join(self.output), self.is_opaque
        self.output, self.is_opaque, self.line = outer, was_opaque, line
        self.substitution_status = self.state.status
        if is_opaque or not part.commands:
            return self.unknown(part.source, because_of=output, one_word=_ONE_WORD.fullmatch(part.source) is not None)
        return output.rstrip("\n")

    def _tried(self, body: Callable[[], object]) -> _Outcome:
        """Run ``body`` in a copy of the state, and return what it leads to."""
        begun, outer, ends = self.state, self.changed, False
        self.state, self.changed = begun.copy(), set()
        self.budget.work(COMMAND_WORK)
        try:
            body()
        except _Exit:
            ends = True
        outcome = _Outcome(self.state, self.changed, ends)
        self.state, self.changed = begun, outer
        return outcome

    def _subshell(self, body: Callable[[], object]) -> None:
        """Run ``body`` in a subshell: only its launches and its status stay."""
        inner = self._tried(body).state
        self.state.launches, self.state.status = inner.launches, inner.status

    # What is not known.

    def _either(self, branches: Sequence[Callable[[], object]], cause: Unknown) -> None:
        """Try the branches of an unknown condition; a variable that one of them changes becomes unknown."""
        launches, self.is_opaque = self.state.launches, True
        self.num_branches += 1
        outcomes = list(map(self._tried, branches))
        self.num_branches -= 1
        starting = [outcome for outcome in outcomes if outcome.state.launches != launches]
        if len(starting) > 1:
            raise RefusalError(f"starts training in two ways: {cause.sentence()}.", cause.line)
        going_on = starting or [outcome for outcome in outcomes if not outcome.ends]
        if 0 < len(going_on) < len(outcomes):
            event = "starts training" if starting else "does not end the script"
            self.notes.append((cause.line, f"it is assumed that {cause.text} {event}"))
        changed = set[str]().union(*(outcome.changed for outcome in going_on))
        self.changed |= changed
        if len(going_on) == 1:
            self.state = going_on[0].state
        else:
            statuses = {outcome.state.status for outcome in going_on}
            self.forget(changed, _why(cause))
            self.state.status = statuses.pop() if len(statuses) == 1 else None
        if all(outcome.ends for outcome in going_on):
            raise _Exit

    def _skip(self, body: Callable[[], object], cause: Unknown) -> None:
        """
        Forget the variables that a loop or a function may change.

        Its commands are tried with these unknown until no further variable changes. A launch in it is kept, as every
        word that may change from round to round is unknown by then.
        """
        changed, self.is_opaque = set[str](), True

        def tried() -> None:
            self.forget(changed, _why(cause))
            body()

        while not (outcome := self._tried(tried)).changed <= changed:
            changed.update(outcome.changed)
        self.forget(changed, _why(cause))
        self.state.status = None
        if outcome.state.launches != self.state.launches:
            self.state.launches = outcome.state.launches
            self.notes.append((cause.line, f"it is assumed that {cause.text} starts training"))
            if outcome.ends:
                raise _Exit
        elif outcome.ends and not self.num_branches:
            raise RefusalError(f"may end in {cause.text}, which is not evaluated.", cause.line)
        elif outcome.ends:
            self.notes.append((cause.line, f"it is assumed that {cause.text} does not end the script"))

    # Commands.

    def _run_all(self, commands: Sequence[Command]) -> None:
        for command in commands:
            self._run(command)

    def _run(self, command: Command) -> None:
        """Run a command. A ``RefusalError`` gets the line of the command."""
        self.line = command.line
        self.budget.work(COMMAND_WORK)
        try:
            self._with_redirects(command.redirects, lambda: _RUN[type(command)](self, command))
        except RefusalError as refusal:
            if refusal.line is None:
                refusal.line = self.line
            raise

    def _and_or(self, command: AndOr) -> None:
        self._run_items(command.items, 0)

    def _run_items(self, items: Sequence[tuple[str, Command]], index: int, status: int | None = None) -> None:
        if status is not None:
            self.state.status = status
        while index < len(items):
            sign, command = items[index]
            if sign and self.state.status is None:
                before = items[index - 1][1]
                branches = [partial(self._run_items, items, index, 0), partial(self._run_items, items, index, 1)]
                self._either(branches, Unknown(text=one_line(before.source), line=before.line))
                return
            if not sign or (self.state.status == 0) == (sign == "&&"):
                self._run(command)
            index += 1

    def _if(self, command: If, first: int = 0) -> None:
        for number, (condition, body) in enumerate(command.clauses[first:], start=first):
            if not condition:
                self._run_all(body)
                return
            self._run_all(condition)
            if self.state.status is None:
                cause = Unknown(text=one_line(condition[-1].source), line=condition[-1].line)
                self._either([partial(self._run_all, body), partial(self._if, command, number + 1)], cause)
                return
            if self.state.status == 0:
                self._run_all(body)
                return
        self.state.status = 0

    def _case(self, command: Case, first: int = 0) -> None:
        text = self.text(command.word)
        for number, (patterns, body, end) in enumerate(command.items[first:], start=first):
            found = [self.matches(text, pattern) for pattern in patterns]
            if (True in found or None in found) and end != ";;":
                raise RefusalError(f"has a case that goes on behind {end}, which is not evaluated.")
            if True in found:
                self.state.status = self.state.status if body else 0
                self._run_all(body)
                return
            if None in found:
                cause = Unknown(text=one_line(command.source), line=command.line)
                self._either([partial(self._run_all, body), partial(self._case, command, number + 1)], cause)
                return
        self.state.status = 0

    def _group(self, command: Group) -> None:
        if command.sign in "{!":
            self._run_all(command.body)
        elif command.sign == "|":
            self._pipeline(command.body)
        else:
            self._subshell(lambda: self._run_all(command.body))
        if command.sign == "&":
            self.state.status = 0
        elif command.sign == "!" and self.state.status is not None:
            self.state.status = int(self.state.status == 0)

    def _pipeline(self, stages: Sequence[Command]) -> None:
        """Run a pipeline: each command in a subshell; the text between them is not evaluated."""
        stdin, self.state.stdin = self.state.stdin, None
        for stage in stages:
            self._subshell(partial(self._run, stage))
        self.state.stdin, self.state.status, self.is_opaque = stdin, None, True

    def _condition(self, command: Condition) -> None:
        holds = condition_holds(self, command.tokens)
        self.state.status = None if holds is None else int(not holds)

    def _calculation(self, command: Calculation) -> None:
        value = self.arithmetic(self.text(command.word))
        self.state.status = None if value is None else int(value == 0)

    def _loop(self, command: Loop) -> None:
        """Skip a loop; nothing changes if the condition of ``while`` or ``until`` ends it at once."""

        def body() -> None:
            for part in () if command.head is None else self.text(command.head).split(";"):
                self.arithmetic(part)
            if command.name:
                self.assign(command.name, self.unknown(f"${{{command.name}}}", why=_why(cause), one_word=are_words))
            self._run_all((*command.condition, *command.body))

        are_words = command.words != () and all(re.fullmatch(r"[\w./][\w.:/-]*", word.source) for word in command.words)
        if command.condition:
            self._run_all(command.condition)
            if self.state.status is not None and (self.state.status == 0) == command.is_until:
                self.state.status = 0
                return
        cause = Unknown(text=f"the loop {one_line(command.source)}", line=command.line)
        self._skip(body, cause)

    def _define(self, command: Function) -> None:
        self.functions[command.name] = command
        self.state.status = 0

    def _call_function(self, function: Function) -> None:
        def body() -> None:
            positional = self.state.positional
            self.forget([ARGUMENTS], f"they are those of {function.name}")
            self._run(function.body)
            self.state.positional = positional
            self.changed.discard(ARGUMENTS)

        self._skip(body, Unknown(text=f"the function {function.name}", line=function.line))

    # Redirections.

    def _with_redirects(self, redirects: Sequence[Redirect], body: Callable[[], object]) -> None:
        """Run ``body`` with its redirections: input from a here-document, output to a file."""
        outer, is_opaque = self.state.stdin, self.is_opaque
        for redirect in redirects:
            self.text(redirect.target)
            is_opaque |= redirect.target.source not in ("1", "2", "-")
            if "<" in redirect.sign:
                self.state.stdin = None if redirect.document is None else self.text(redirect.document)
        body()
        self.state.stdin = outer
        self.is_opaque |= is_opaque

    # Simple commands.

    def _simple(self, command: Simple) -> None:
        fields: list[str | Assignment] = []
        self.substitution_status = 0
        for word in command.words:
            self.line = word.line
            fields += [word] if isinstance(word, Assignment) else self._words(word)
        self.line = command.line
        if not fields:
            for assignment in command.assignments:
                self._assign(assignment)
            self.state.status = self.substitution_status
        else:
            self._with_assignments(command, fields)

    def _words(self, word: Word) -> list[str]:
        found = self.fields(word)
        for text, is_pattern in found:
            if is_pattern and "/" in text and "noglob" not in self.state.options:
                self.notes.append((self.line, f"{text} is a pattern of file names, and is kept as it stands"))
        return [field.text for field in found]

    def _assign(self, assignment: Assignment) -> None:
        self._assign_value(assignment, self._value(assignment))

    def _value(self, assignment: Assignment) -> str | tuple[str, ...]:
        """Return the expanded value of an assignment; empty for an array with given keys."""
        self.line = assignment.line
        value = assignment.value
        return self.text(value) if isinstance(value, Word) else self.array(value or ())

    def _assign_value(self, assignment: Assignment, value: str | tuple[str, ...]) -> None:
        name = assignment.name
        if name in self.special:
            self.forget([name], self.special[name])
        elif assignment.value is None:
            self.arrays.add(name)
            self.forget([name], f"line {assignment.line} sets elements by their keys")
        else:
            self.assign(name, value, append=assignment.append)

    def _with_assignments(self, command: Simple, fields: "list[str | Assignment]") -> None:
        """Run a command with variables that are set only for this command."""
        hidden: dict[str, Variable | None] = {}
        changed = set(self.changed)
        for assignment in command.assignments:
            hidden.setdefault(assignment.name, self.state.variables.get(assignment.name))
            self._assign(assignment)
            variable = self.state.variables[assignment.name]
            self.state.variables[assignment.name] = replace(variable, exported=True)
        self.line = command.line
        self.changed -= hidden.keys() - changed
        self._call(fields)
        for name, before in hidden.items():
            self.state.variables.pop(name, None)
            if before is not None:
                self.state.variables[name] = before

    def _call(self, fields: "list[str | Assignment]") -> None:
        """Run a function, a builtin command or an external command."""
        while fields[0] in ("command", "builtin", "exec") and len(fields) > 1:
            if fields[0] == "command" and fields[1] in ("-v", "-V"):
                self.is_opaque, self.state.status = True, None
                return
            is_exec, fields = fields[0] == "exec", fields[1:]
            if is_exec:
                self._external(fields)
                raise _Exit
        name, words = fields[0], [field for field in fields[1:] if isinstance(field, str)]
        assert isinstance(name, str)
        if name in DECLARING:
            self._declare(name, fields[1:])
        elif name in self.functions:
            self._call_function(self.functions[name])
        elif name in _BUILTINS:
            self.state.status = _BUILTINS[name](self, words)
        elif name in _CHANGING:
            self._change(name, words)
        elif name in _WITHOUT_EFFECT or name == "exec":
            self.state.status = 0
        else:
            self._external(fields)

    def _external(self, fields: "Sequence[str | Assignment]") -> None:
        words = tuple(field for field in fields if isinstance(field, str))
        self.is_opaque, self.state.status = True, None
        command = ExternalCommand(words=words, environment=self.environment(), line=self.line, stdin=self.state.stdin)
        launch = self.run(command)
        if launch is not None:
            self.state.launches = (*self.state.launches, launch)
            self.state.status = 0

    # Builtin commands.

    def _declare(self, command: str, fields: "Sequence[str | Assignment]") -> None:
        """Run ``export``, ``declare`` and such; a variable with properties that are not evaluated becomes unknown."""
        letters = "".join(str(field)[1:] for field in fields if isinstance(field, str) and field[:1] in "-+")
        names = [field for field in fields if isinstance(field, Assignment) or field[:1] not in ("-", "+")]
        self.state.status = 0
        if set(letters) & set("fFp"):
            return
        values = {id(field): self._value(field) for field in names if isinstance(field, Assignment)}
        for field in names:
            name = field if isinstance(field, str) else field.name
            if not is_known(name) or not re.fullmatch(r"[A-Za-z_]\w*(=.*)?", name, re.ASCII | re.DOTALL):
                self.forget_all(f"line {self.line} declares a variable that is not known")
                continue
            name, equals, value = name.partition("=")
            old = self.state.variables.get(name, Variable())
            exported = (old.exported or command == "export" or "x" in letters) and "n" not in letters
            self.changed.add(name)
            self.state.variables[name] = replace(old, exported=exported)
            if isinstance(field, Assignment):
                self._assign_value(field, values[id(field)])
            elif equals:
                self.assign(name, value)
            if set(letters) - set("xrga") or (command != "export" and "n" in letters):
                self.arrays.add(name)
                self.special[name] = f"line {self.line} declares it with -{letters}"
                self.forget([name], self.special[name])
            if command == "readonly" or "r" in letters:
                self.readonly.add(name)

    def _change(self, name: str, words: Sequence[str]) -> None:
        """Forget what a builtin command may set."""
        self.is_opaque, self.state.status = True, None
        if name == "printf":
            words = words[1:2] if words[:1] == ["-v"] else []
        found = {found[0] for word in words for found in re.finditer(r"[A-Za-z_]\w*", word, re.ASCII)}
        more = {"read": {"REPLY"}, "mapfile": {"MAPFILE"}, "getopts": {"OPTARG", "OPTIND"}, "shift": {ARGUMENTS}}
        self.arrays |= found if name in ("read", "mapfile", "readarray") else set()
        is_unsure = not all(map(is_known, words))
        changed = [EVERYTHING] if is_unsure else found | more.get(name, set())
        self.forget(changed, f"line {self.line} has {name}, which is not evaluated")

    def _echo(self, words: list[str]) -> int:
        ends_line = words[:1] != ["-n"]
        self.is_opaque |= ends_line and words[:1] != [] and re.fullmatch("-[neE]+", words[0]) is not None
        if self.output is not None:
            text = " ".join(words if ends_line else words[1:]) + "\n" * ends_line
            self.budget.produce(sum(map(len, self.output)) + len(text))
            self.output.append(self.unknowns.kept(text))
        return 0

    def _bracket(self, words: list[str]) -> int | None:
        return test_status(self, words[:-1]) if words[-1:] == ["]"] else 2

    def _set(self, words: list[str]) -> int:
        options = set(self.state.options)
        while words and re.fullmatch(r"[-+][A-Za-z]+", words[0]):
            word = words.pop(0)
            names = [_OPTIONS[letter] for letter in word[1:] if letter in _OPTIONS]
            if "o" in word and words:
                names.append(words.pop(0))
            if "n" in word[1:] or "noexec" in names:
                raise RefusalError("has set -n, after which bash runs nothing.")
            (options.update if word[0] == "-" else options.difference_update)(names)
        self.state.options = frozenset(options)
        if words:
            self.changed.add(ARGUMENTS)
            self.state.positional = tuple(words[1:] if words[0] in ("--", "-") else words)
        return 0

    def _unset(self, words: list[str]) -> int:
        for name in words:
            if name == "-f":
                return 0
            self.remove(name)
        return 0

    def _exit(self, words: list[str]) -> int:
        raise _Exit

    def _eval(self, words: list[str]) -> int | None:
        text = " ".join(words)
        if not is_known(text) and _SETS_UP.match(self.unknowns.rendered(text)):
            return None
        self._run_text(text)
        return self.state.status

    def _source(self, words: list[str]) -> None:
        name = self.unknowns.rendered(words[0]) if words else "source"
        self.notes.append((self.line, f"{name} is not read"))
        if not _ACTIVATES.search(name):
            self.forget_all(f"{name} is not read, and may set it")

    def _shopt(self, words: list[str]) -> int:
        if "-s" in words and {"nullglob", "failglob", "expand_aliases"} & set(words):
            raise RefusalError(f"has shopt {' '.join(words)}, which changes words in ways that are not evaluated.")
        return 0


_BUILTINS: Mapping[str, Callable[[Shell, list[str]], int | None]] = {
    "false": lambda shell, words: 1,
    "echo": Shell._echo,
    "[": Shell._bracket,
    "test": test_status,
    "set": Shell._set,
    "unset": Shell._unset,
    "exit": Shell._exit,
    "logout": Shell._exit,
    "eval": Shell._eval,
    "source": Shell._source,
    ".": Shell._source,
    "shopt": Shell._shopt,
}
"""Builtin commands that are evaluated; each returns the exit status, ``None`` if unknown."""

_RUN: Mapping[type[Command], Callable[..., None]] = {
    Simple: Shell._simple,
    AndOr: Shell._and_or,
    If: Shell._if,
    Case: Shell._case,
    Group: Shell._group,
    Condition: Shell._condition,
    Calculation: Shell._calculation,
    Loop: Shell._loop,
    Function: Shell._define,
}


def _why(cause: Unknown) -> str:
    return f"it depends on {cause.text}, line {cause.line}"
