"""Interpreter of a script's syntax tree: control flow and commands."""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from pipette_opt.read.shell.builtin_commands import BUILTINS, DECLARING, Flow, assignment_of, declare
from pipette_opt.read.shell.conditions import bracket_holds, test_status
from pipette_opt.read.shell.expansion import expand_fields, expand_quoted, pieces_of
from pipette_opt.read.shell.limits import Budget, RefusalError
from pipette_opt.read.shell.pieces import Field, Piece
from pipette_opt.read.shell.programs import FOLDERS, keeps_one_word, writes_one_word, written_by
from pipette_opt.read.shell.scanner import split_at, split_words
from pipette_opt.read.shell.state import State, Variable
from pipette_opt.read.shell.syntax import Node, Script
from pipette_opt.read.shell.unknowns import Unknown, Unknowns, is_known, is_marker, may_split
from pipette_opt.read.shell.values import Values

_BLANK = re.compile(r"(?:[ \t]|\\\n)*")
_BETWEEN = re.compile(r"(?:\s|\\\n)*")
_REDIRECTS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_SIMPLE = ("command", "declaration_command", "unset_command", "variable_assignment", "variable_assignments")
_MAX_LOOP_ROUNDS = 20
"""Largest number of rounds of a loop with an unknown condition until no variable changes any more. Chosen."""


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


class Shell(Values):
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
        self._scripts: dict[tuple[str, int], Script] = {}
        self._ignores_errors = 0
        self._captures = False

    # Evaluation of texts.

    def run_script(self, text: str) -> None:
        """Evaluate a whole script, up to its end or ``exit``."""
        try:
            self.run_text(text)
        except Flow as flow:
            if flow.kind == "exit":
                self.state.status = flow.number

    def pieces_of(self, word: str, *, in_quotes: bool = False, tilde_after_colon: bool = False) -> list[Piece]:
        """Return the expanded parts of a word; see :func:`~pipette_opt.read.shell.expansion.pieces_of`."""
        return pieces_of(self, word, in_quotes=in_quotes, tilde_after_colon=tilde_after_colon)

    def expand_fields(self, word: str) -> list[Field]:
        """Return the words to which a word as written in the script expands."""
        return expand_fields(self, word)

    def run_text(self, text: str) -> int | None:
        """Evaluate a text in this shell, as ``eval`` does; return the exit status."""
        script = self._parsed(self._as_source(text))
        self.budget.enter()
        self._run_all(script.root.children, script.root)
        self.budget.leave()
        return self.state.status

    def run_inner(self, text: str, environment: Mapping[str, str], arguments: Sequence[str]) -> tuple[int, ...]:
        """Evaluate a script that a command of this shell starts in a new shell; return the numbers of its launches."""
        outer, loops, captures = self.state, self.loops, self._captures
        variables = {name: Variable(elements={0: value}, exported=True) for name, value in environment.items()}
        variables["IFS"] = Variable(elements={0: " \t\n"})
        self.state = State(variables=variables, positional=tuple(arguments))
        self.loops, self._captures, ignores, self._ignores_errors = 0, False, self._ignores_errors, 0
        self.budget.enter()
        line = self.line
        try:
            self.run_script(text)
            return self.state.launches
        finally:
            self.budget.leave()
            self.state, self.loops, self._captures, self._ignores_errors = outer, loops, captures, ignores
            self.line = line

    def _as_source(self, text: str) -> str:
        """Return a text as source code, with a variable for each part that is known only when the script runs."""
        if is_known(text):
            return text
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
            self.state.variables[name] = Variable(elements={0: self.unknowns.kept(character)})
            parts.append(f"${{{name}}}")
        return "".join(parts)

    def _parsed(self, text: str) -> Script:
        key = (text, self.line)
        if key not in self._scripts:
            self.budget.produce(len(text))
            self._scripts[key] = Script(text, self.line)
        return self._scripts[key]

    def write(self, text: str) -> None:
        """Write a text to standard output, if the output is captured."""
        if self._captures:
            self.budget.produce(len(self.state.output) + len(text))
            self.state.output += self.unknowns.kept(text)

    def substitute(self, source: str, shown: str) -> str:
        """Return the output of a command substitution; ``shown`` is the substitution as written."""
        found = re.fullmatch(r"\s*<\s*\S+\s*", source)
        if found is not None:
            return self.unknown(shown)
        line = self.line
        script = self._parsed(source)
        self.budget.enter()

        def body() -> None:
            self.state.options -= {"errexit"}
            self._run_all(script.root.children, script.root)

        output = self._captured(body, shown)
        self.line = line
        self.budget.leave()
        self.state.substitution_status = self.state.status
        return output.rstrip("\n")

    def _captured(self, body: Callable[[], object], shown: str) -> str:
        """Return the output of ``body`` in a subshell; an unknown value if it depends on an unknown condition."""
        outer, captures, self._captures = self.state.output, self._captures, True
        self.state.output = ""
        output = self._subshell(body, keep_output=True)
        self._captures = captures
        self.state.output = outer
        unknown = self.unknowns.all_in(output)
        if any(value.text == _OUTPUT for value in unknown):
            why = next((value.why for value in unknown if value.why), "")
            return self.unknown(shown, why=why)
        if len(unknown) == 1 and output.rstrip("\n") and len(output.rstrip("\n")) == 1:
            why = "" if unknown[0].text in shown else unknown[0].text
            return self.unknown(shown, one_word=unknown[0].one_word, why=why)
        return output

    def _subshell(self, body: Callable[[], object], *, keep_output: bool = False) -> str:
        """Run ``body`` in a copy of the state; keep only launches, output and status. Return the output."""
        outer, loops = self.state, self.loops
        self.state, self.loops = outer.copy(), 0
        try:
            body()
        except Flow as flow:
            if flow.kind in ("exit", "return"):
                self.state.status = flow.number
        inner, self.state, self.loops = self.state, outer, loops
        self.state.launches, self.state.status = inner.launches, inner.status
        if not keep_output:
            self.state.output = inner.output
        return inner.output

    # Statements.

    def _run_all(self, nodes: Sequence[Node], parent: Node) -> None:
        """Run statements in order; a statement followed by ``&`` runs in a subshell."""
        for before, after in pairwise(nodes):
            gap = parent.between(before.end, after.start)
            if not _BETWEEN.fullmatch(gap):
                raise RefusalError(f"has {gap.strip()[:40]!r}, which cannot be read.", before.line)
        statements = [node for node in nodes if node.raw.is_named and node.type != "comment"]
        signs = {node.start: node.type for node in nodes if not node.raw.is_named}
        for node in statements:
            following = next((signs[place] for place in range(node.end, node.end + 3) if place in signs), "")
            if following == "&":
                self._subshell(lambda node=node: self._run(node))  # type: ignore[misc]
                self.state.status = 0
            else:
                self._run(node)

    def _run(self, node: Node) -> None:
        """Run a statement. A ``RefusalError`` gets the line of the statement."""
        self.line = node.line
        try:
            self.budget.step()
            self.budget.enter()
            node.check()
            self._dispatch(node)
            self.budget.leave()
        except RefusalError as refusal:
            if refusal.line is None:
                refusal.line = self.line
            raise

    def _dispatch(self, node: Node) -> None:
        kind = node.type
        if kind in _SIMPLE:
            self._simple(node, [])
            self._check_error()
        elif kind == "test_command":
            self.state.status = self._test(node)
            self._check_error()
        elif kind in _COMPOUND:
            _COMPOUND[kind](self, node)
        else:
            raise RefusalError(f"has {_first_line(node.text)!r}, which cannot be evaluated here.")

    def _check_error(self) -> None:
        """End the script if a command failed under ``set -e``."""
        if self.state.status and "errexit" in self.state.options and not self._ignores_errors:
            self.notes.append((self.line, "set -e ends the script, as a command fails"))
            raise Flow("exit", self.state.status)

    def _quietly(self, body: Callable[[], object]) -> None:
        """Run ``body`` so that a failing command does not end the script, as in a condition."""
        self._ignores_errors += 1
        try:
            body()
        finally:
            self._ignores_errors -= 1

    # Simple commands.

    def _simple(self, node: Node, redirects: Sequence[Node]) -> None:
        """Run a simple command: assignments, a command, or both."""
        words, own_redirects = self._words_of(node)
        redirects = [*redirects, *own_redirects]
        assignments: list[tuple[str, int]] = []
        while words and assignment_of(words[0][0]) is not None:
            assignments.append(words.pop(0))
        self.state.substitution_status = 0
        if not words:
            for word in assignments:
                self._assign_word(*word)
            if redirects:
                self._redirected(redirects, lambda: None)
            self.state.status = self.state.substitution_status
            return
        fields = self._fields(words)
        if not fields:
            for word in assignments:
                self._assign_word(*word)
            self.state.status = self.state.substitution_status
            return
        if fields == ["exec"]:
            self.state.status = 0
            return
        self._redirected(redirects, lambda: self._with_assignments(assignments, fields, node))

    def _words_of(self, node: Node) -> tuple[list[tuple[str, int]], list[Node]]:
        """Return the words of a command as written, each with its line, and the command's redirections."""
        parts: list[tuple[int, int, int]] = []
        redirects: list[Node] = []
        end = node.start
        for child in node.children:
            gap = node.between(end, child.start) if child.start >= end else ""
            if not _BLANK.fullmatch(gap):
                raise RefusalError(f"has {gap.strip()[:40]!r}, which cannot be read.", child.line)
            if child.type in _REDIRECTS:
                redirects.append(child)
            elif parts and parts[-1][1] == child.start and child.start == end:
                parts[-1] = (parts[-1][0], child.end, parts[-1][2])
            else:
                parts.append((child.start, child.end, child.line))
            end = max(end, child.end)
        return [(_stripped(node.between(start, end)), line) for start, end, line in parts], redirects

    def _fields(self, words: Sequence[tuple[str, int]]) -> list[str]:
        """Return the words of a command after expansion. Assignments after ``export`` and such stay as written."""
        fields: list[str] = []
        for word, line in words:
            self.line = line
            if fields and fields[0] in DECLARING and assignment_of(word) is not None:
                fields.append(self._declared(word))
                continue
            if not _is_one_word(word):
                raise RefusalError(f"has {word[:40]!r}, whose words cannot be told apart.")
            for field in self.expand_fields(word):
                fields.append(field.text)
                if field.is_pattern and "/" in field.text and "noglob" not in self.state.options:
                    self.notes.append((self.line, f"{field.text} is a pattern of file names, and is kept as it stands"))
        self.budget.words(len(fields))
        return fields

    def _declared(self, word: str) -> str:
        """Return an assignment after ``export`` with its value expanded; bash expands all values first."""
        found = assignment_of(word)
        assert found is not None
        value = found[3]
        if value.startswith("(") or not value:
            return word
        before = word[: len(word) - len(value)]
        text = self.unknowns.kept(self.expand_text(value, tilde_after_colon=True))
        return before + shlex.quote(text)

    def _assign_word(self, word: str, line: int) -> None:
        self.line = line
        found = assignment_of(word)
        assert found is not None
        self.assign_source(*found)

    def assign_source(self, name: str, subscript: str | None, append: bool, value: str) -> None:
        """Assign a value as written in the script to a variable, an element or an array."""
        if value.startswith("(") and value.endswith(")") and subscript is None:
            self.assign_list(name, value[1:-1], append=append)
            return
        if not _is_one_word(value):
            raise RefusalError(f"has {name}={value[:40]!r}, whose words cannot be told apart.")
        self.assign(name, subscript, self.expand_text(value, tilde_after_colon=True), append=append)

    def _with_assignments(self, assignments: Sequence[tuple[str, int]], fields: list[str], node: Node) -> None:
        """Run a command with variables that are set only for this command."""
        hidden: dict[str, Variable | None] = {}
        for word, line in assignments:
            found = assignment_of(word)
            assert found is not None
            hidden.setdefault(found[0], self.state.variables.get(found[0]))
            self._assign_word(word, line)
            variable = self.state.variables[found[0]]
            self.state.variables[found[0]] = Variable(
                elements=variable.elements, is_array=variable.is_array, is_map=variable.is_map, exported=True
            )
        try:
            self._call(fields, node)
        finally:
            for name, before in hidden.items():
                self.state.variables.pop(name, None)
                if before is not None:
                    self.state.variables[name] = before

    def _call(self, fields: list[str], node: Node) -> None:
        """Run a function, a builtin command or an external command."""
        self.line = node.line
        name = fields[0]
        while name in ("command", "builtin", "time", "exec") and len(fields) > 1:
            is_exec = name == "exec"
            if name == "command" and fields[1] in ("-v", "-V"):
                self.state.status = None
                self.write(self.unknown(f"$({' '.join(fields)})", one_word=True) + "\n")
                return
            fields = [word for number, word in enumerate(fields[1:]) if number or word != "-p"]
            name = fields[0] if fields else ":"
            if is_exec:
                self.state.status = self._external(fields)
                raise Flow("exit", self.state.status)
        function = self.state.functions.get(name)
        if name in DECLARING:
            self.state.status = declare(self, name, fields[1:])
        elif function is not None:
            self._function(function, fields[1:])
        elif name in BUILTINS:
            self.state.status = BUILTINS[name](self, fields[1:])
        else:
            self.state.status = self._external(fields)

    def _function(self, body: Node, arguments: Sequence[str]) -> None:
        state, loops, line = self.state, self.loops, self.line
        positional = state.positional
        state.positional, state.frames, self.loops = tuple(arguments), (*state.frames, {}), 0
        self.budget.enter()
        flow: Flow | None = None
        try:
            self._run(body)
        except Flow as found:
            flow = found
        self.budget.leave()
        self.loops, self.line = loops, line
        for name, hidden in self.state.frames[-1].items():
            self.state.variables.pop(name, None)
            if hidden is not None:
                self.state.variables[name] = hidden
        self.state.positional, self.state.frames = positional, self.state.frames[:-1]
        if flow is not None and flow.kind == "return":
            self.state.status = flow.number
        elif flow is not None:
            raise flow

    def _external(self, fields: list[str]) -> int | None:
        """Return the exit status of an external program, ``None`` if unknown, and write its output if captured."""
        written = written_by(self, fields)
        if written is not None:
            self.write(written[0])
            return written[1]
        command = ExternalCommand(
            words=tuple(fields), environment=self.environment(), line=self.line, stdin=self.state.stdin
        )
        launch = self.run(command)
        if launch is not None:
            self.state.launches = (*self.state.launches, launch)
            return 0
        if self._captures:
            paths = fields[1:] if fields[0] in FOLDERS else [" "]
            one_word = writes_one_word(fields) or not any(
                may_split(path) or (self.unknowns.may_be_empty(path)) for path in paths[:1]
            )
            if fields[0] not in FOLDERS:
                read = self.unknowns.all_in(self.state.stdin or "")
                only = len(read) == 1 and len((self.state.stdin or "").strip()) == 1
                one_word = writes_one_word(fields) or (only and keeps_one_word(fields, read[0]))
            shown = self.unknowns.rendered(" ".join(fields))
            self.write(self.unknown(f"$({shown})", one_word=one_word) + "\n")
        return None

    # Redirections.

    def _redirected(self, redirects: Sequence[Node], body: Callable[[], object]) -> None:
        """Run ``body`` with its redirections: input from a text, output to a file."""
        discards, stdin, reads = False, self.state.stdin, False
        for node in redirects:
            if node.type == "heredoc_redirect":
                stdin, reads = self._here_document(node), True
                inner = [child for child in node.children if child.type == "file_redirect"]
                discards |= any(map(self._discards, inner))
                if any(child.type in ("list", "|", "&&", "||") for child in node.children):
                    raise RefusalError(
                        "has a here-document with a further command in its first line, which cannot be evaluated here."
                    )
            elif node.type == "herestring_redirect":
                stdin, reads = self.expand_text(node.text[3:].strip()) + "\n", True
            elif node.text.lstrip("0").startswith("<"):
                stdin, reads = None, True
            else:
                discards |= self._discards(node)
        outer, output, captures = self.state.stdin, self.state.output, self._captures
        self.state.stdin, self._captures = stdin, captures and not discards
        try:
            body()
        finally:
            self._captures = captures
            if reads:
                self.state.stdin = outer
            if discards:
                self.state.output = output

    def _discards(self, node: Node) -> bool:
        """Return whether a redirection sends standard output elsewhere, so that it is not captured."""
        found = re.match(r"([0-9]*|&|\{\w+\})(>>|>\||>&|>|<&|<>|<)(&)?\s*(.*)", node.text, re.DOTALL)
        if found is None or "<" in found[2]:
            return False
        target = found[4]
        if target and not target.startswith((">(", "<(")) and "$" in target and not found[1].isdigit():
            self.expand_text(target)
        return found[1] in ("", "1", "&") and not (found[2] == ">&" and target in ("1", "-"))

    def _here_document(self, node: Node) -> str | None:
        """Return the expanded text of a here-document."""
        delimiter = node.child("heredoc_start")
        end = node.child("heredoc_end")
        if delimiter is None or end is None:
            raise RefusalError("has a here-document without its last line.")
        source = node.script.source
        begin = source.find(b"\n", delimiter.end) + 1
        text = node.between(begin, max(begin, source.rfind(b"\n", 0, end.start + 1) + 1 if end.start else begin))
        word = re.sub(r"[\"'\\]", "", delimiter.text)
        lines = node.between(begin, len(source)).split("\n")
        indented = node.text.lstrip("0").startswith("<<-")
        kept: list[str] = []
        for line in lines:
            plain = line.lstrip("\t") if indented else line
            if plain == word:
                break
            kept.append(plain)
        text = "".join(f"{line}\n" for line in kept)
        return text if word != delimiter.text else expand_quoted(self, text)

    # Conditions.

    def _test(self, node: Node) -> int | None:
        """Return the exit status of ``[ ... ]`` or ``[[ ... ]]``; ``None`` if unknown."""
        text = node.text
        if text.startswith("[["):
            holds = bracket_holds(self, text[2:-2])
            return None if holds is None else int(not holds)
        return test_status(self, self._fields([(word, node.line) for word in split_words(text[1:-1])]))

    def _holds(self, nodes: Sequence[Node], parent: Node) -> Unknown | bool:
        """Return whether a condition holds, or the unknown value on which it depends."""
        self._quietly(lambda: self._run_all(nodes, parent))
        if self.state.status is not None:
            return self.state.status == 0
        statements = [node for node in nodes if node.raw.is_named and node.type != "comment"]
        shown = parent.between(statements[0].start, statements[-1].end) if statements else "the condition"
        return Unknown(text=_first_line(shown), line=statements[0].line if statements else self.line)

    def either(self, alternatives: Sequence[Callable[[], object]], cause: Unknown) -> None:
        """Run each branch of an unknown condition from the current state, and go on with what they share."""
        begun = self.state
        outcomes: list[tuple[State, Flow | None]] = []
        for alternative in alternatives:
            self.budget.step(4)
            self.state = begun.copy()
            flow = None
            try:
                alternative()
            except Flow as found:
                flow = found
            outcomes.append((self.state, flow))
        state, flow = outcomes[0]
        for other, other_flow in outcomes[1:]:
            state, flow = self._merged((state, flow), (other, other_flow), begun, cause)
        self.state = state
        if flow is not None:
            raise flow

    def _merged(
        self,
        first_outcome: tuple[State, Flow | None],
        second_outcome: tuple[State, Flow | None],
        begun: State,
        cause: Unknown,
    ) -> tuple[State, Flow | None]:
        """Return the common outcome of two branches, or that of the only branch that starts a training program."""
        (first, first_flow), (second, second_flow) = first_outcome, second_outcome
        if first.launches != second.launches:
            for outcome, empty in ((first_outcome, second), (second_outcome, first)):
                if empty.launches == begun.launches:
                    self._assume(cause, "starts training")
                    return outcome
            raise RefusalError(f"starts training in two ways: {cause.sentence()}.", cause.line)
        if first_flow != second_flow:
            for outcome, ending in ((second_outcome, first_flow), (first_outcome, second_flow)):
                if ending is not None and ending.kind == "exit":
                    self._assume(cause, "does not end the script")
                    return outcome
            raise RefusalError(f"goes on in two ways: {cause.sentence()}.", cause.line)
        return self._common(first, second, cause), first_flow

    def _assume(self, cause: Unknown, event: str) -> None:
        self.notes.append((cause.line, f"it is assumed that {cause.text} {event}"))

    def _common(self, first: State, second: State, cause: Unknown) -> State:
        """Return a state in which every value that differs between two states is unknown."""
        state = first.copy()
        why = f"it depends on {cause.text}, line {cause.line}"
        for name in first.variables.keys() | second.variables.keys():
            first_value, second_value = first.variables.get(name), second.variables.get(name)
            if first_value == second_value:
                continue
            any_kind = first_value or second_value or Variable()
            marker = self.unknowns.marker(Unknown(text=f"${{{name}}}", line=cause.line, why=why))
            is_list = any(
                variable is not None and (variable.is_array or variable.is_map)
                for variable in (first_value, second_value)
            )
            state.variables[name] = Variable(
                elements={0: self.unknowns.split(marker) if is_list else marker},
                is_array=is_list,
                exported=any_kind.exported,
            )
        for name in first.functions.keys() ^ second.functions.keys():
            state.functions.pop(name, None)
        if first.positional != second.positional:
            marker = self.unknowns.marker(Unknown(text="$@", line=cause.line, why=why))
            state.positional = (self.unknowns.split(marker),)
        if first.output != second.output:
            state.output = self.unknowns.marker(Unknown(text=_OUTPUT, line=cause.line, why=cause.text))
        if first.stdin != second.stdin:
            state.stdin = None
        state.status = first.status if first.status == second.status else None
        state.options = first.options & second.options
        state.unread = first.unread or second.unread
        return state

    # Compound commands.

    def _list(self, node: Node) -> None:
        """Run a list such as ``a && b || c``."""
        items: list[tuple[str, Node]] = []
        current = node
        while current.type == "list":
            left, sign, right = (child for child in current.children if child.type != "comment")
            items.append((sign.type, right))
            current = left
        items.append(("", current))
        self._run_list(items[::-1], 0)

    def _run_list(self, items: Sequence[tuple[str, Node]], index: int) -> None:
        last = len(items) - 1
        while index < len(items):
            sign, node = items[index]
            status = self.state.status
            if sign and status is None:
                before = items[index - 1][1]
                cause = Unknown(text=_first_line(before.text), line=before.line)
                self.budget.enter()
                self.either([self._list_from(items, index, 0), self._list_from(items, index, 1)], cause)
                self.budget.leave()
                return
            if not sign or (status == 0) == (sign == "&&"):
                if index == last:
                    self._run(node)
                else:
                    self._quietly(lambda node=node: self._run(node))  # type: ignore[misc]
            index += 1

    def _list_from(self, items: Sequence[tuple[str, Node]], index: int, status: int) -> Callable[[], None]:
        def run() -> None:
            self.state.status = status
            self._run_list(items, index)

        return run

    def _pipeline(self, node: Node) -> None:
        """Run a pipeline such as ``a | b``: each command in a subshell that reads the output of the command before."""
        stages = [child for child in node.children if child.raw.is_named and child.type != "comment"]
        self._run_stages([(partial(self._run, stage), stage.text) for stage in stages])

    def _run_stages(self, stages: Sequence[tuple[Callable[[], object], str]]) -> None:
        outer, statuses = self.state.stdin, []
        text: str | None
        for number, (run, shown) in enumerate(stages):
            if number < len(stages) - 1:
                text = self._captured(run, _first_line(shown))
            else:
                self._subshell(run)
                text = outer
            statuses.append(self.state.status)
            self.state.stdin = text
        if "pipefail" in self.state.options:
            failed = [status for status in statuses if status != 0]
            self.state.status = failed[-1] if failed else 0
            if None in failed and len(failed) > 1:
                self.state.status = None
        self._check_error()

    def _redirected_statement(self, node: Node) -> None:
        redirects = [child for child in node.children if child.type in _REDIRECTS]
        body = next((child for child in node.children if child.raw.is_named and child.type not in _REDIRECTS), None)
        piped = [
            stage
            for child in redirects
            for part in child.children
            if part.type == "pipeline"
            for stage in part.children
        ]
        if body is None:
            self._redirected(redirects, lambda: None)
            self.state.status = 0
        elif piped:
            first = (lambda: self._redirected(redirects, lambda: self._run(body)), body.text)
            stages = [stage for stage in piped if stage.raw.is_named and stage.type != "comment"]
            self._run_stages([first, *((partial(self._run, stage), stage.text) for stage in stages)])
        elif body.type in _SIMPLE:
            self.line = body.line
            self._simple(body, redirects)
            self._check_error()
        elif body.type in ("pipeline", "list"):
            # The tree attaches redirections of the last command to the whole list.
            self._redirected(redirects, lambda: self._run(body))
        else:
            self._redirected(redirects, lambda: self._run(body))

    def _negated(self, node: Node) -> None:
        inner = next(child for child in node.children if child.raw.is_named)
        self._quietly(lambda: self._run(inner))
        if self.state.status is not None:
            self.state.status = int(self.state.status == 0)

    def _if(self, node: Node) -> None:
        condition, body, rest = _parts_of_if(node)
        self._choose(node, condition, body, rest)

    def _choose(self, node: Node, condition: list[Node], body: list[Node], rest: list[Node]) -> None:
        holds = self._holds(condition, node)
        if isinstance(holds, Unknown):
            self.either([lambda: self._branch(node, body), lambda: self._other(node, rest)], holds)
        elif holds:
            self._branch(node, body)
        else:
            self._other(node, rest)

    def _branch(self, node: Node, body: list[Node]) -> None:
        self.state.status = 0
        self._run_all(body, node)

    def _other(self, node: Node, rest: list[Node]) -> None:
        """Run the ``elif`` and ``else`` clauses of an ``if``; recursion is needed only after an unknown condition."""
        for number, clause in enumerate(rest):
            if clause.type == "else_clause":
                self._run_all(clause.children[1:], clause)
                return
            condition, body, _ = _parts_of_if(clause)
            holds = self._holds(condition, clause)
            if isinstance(holds, Unknown):
                self.budget.enter()
                self.either(
                    [partial(self._branch, clause, body), partial(self._other, node, rest[number + 1 :])], holds
                )
                self.budget.leave()
                return
            if holds:
                self._branch(clause, body)
                return
        self.state.status = 0

    def _case(self, node: Node) -> None:
        children = node.children
        subject_end = next(child for child in children if child.type == "in")
        source = node.between(children[0].end, subject_end.start).strip()
        word = self.expand_text(source)
        items = [child for child in children if child.type == "case_item"]
        self.state.status = 0
        self._run_case(word, source, items, 0, node)

    def _run_case(self, word: str, source: str, items: Sequence[Node], index: int, node: Node) -> None:
        while index < len(items):
            item = items[index]
            matches = self._matches_item(word, item)
            if matches is None:
                cause = Unknown(text=f"case {_first_line(source)}", line=node.line)
                self.budget.enter()
                self.either(
                    [
                        partial(self._run_items, word, source, items, index, node),
                        partial(self._run_case, word, source, items, index + 1, node),
                    ],
                    cause,
                )
                self.budget.leave()
                return
            if matches:
                self._run_items(word, source, items, index, node)
                return
            index += 1

    def _matches_item(self, word: str, item: Node) -> bool | None:
        self.line = item.line
        bracket = next(child for child in item.children if child.type == ")")
        source = item.between(item.start, bracket.start).strip()
        source = source[1:] if source.startswith("(") else source
        is_open = False
        for part in split_at(source, "|"):
            pattern, text = self.expand_pattern(part.strip())
            if pattern.matches_all:
                return True if not is_open else None
            if not is_known(word) or not is_known(text):
                is_open = True
            elif pattern.matches(word):
                return True
        return None if is_open else False

    def _run_items(self, word: str, source: str, items: Sequence[Node], index: int, node: Node) -> None:
        """Run the bodies of a ``case`` from the matching item on, by the rules of ``;;``, ``;&`` and ``;;&``."""
        while index < len(items):
            item = items[index]
            children = item.children
            start = next(number for number, child in enumerate(children) if child.type == ")") + 1
            self.state.status = 0
            self._run_all(children[start:], item)
            if children[-1].type == ";;&":
                self._run_case(word, source, items, index + 1, node)
                return
            if children[-1].type != ";&":
                return
            index += 1

    def _loop(self, body: Callable[[], object]) -> bool:
        """Run one round of a loop; return whether the loop continues."""
        self.loops += 1
        self.budget.step()
        try:
            body()
        except Flow as flow:
            if flow.kind not in ("break", "continue"):
                raise
            if (flow.number or 1) > 1:
                raise Flow(flow.kind, (flow.number or 1) - 1) from None
            self.state.status = 0
            return flow.kind == "continue"
        finally:
            self.loops -= 1
        return True

    def _for(self, node: Node) -> None:
        children = node.children
        if children[0].type == "select":
            raise RefusalError("has select, which asks the user.")
        name = children[1].text
        group = next(child for child in children if child.type == "do_group")
        if any(child.type == "in" for child in children):
            begin = next(child for child in children if child.type == "in").end
            end = next(
                (child.start for child in children if child.type in (";", "\n", "do") and child.start >= begin),
                group.start,
            )
            words: list[str] = []
            for word in split_words(node.between(begin, min(end, group.start))):
                words += [
                    self.unknown_if_path(field.text) if field.is_pattern else field.text
                    for field in self.expand_fields(word)
                ]
        else:
            words = list(self.state.positional)
        self.state.status = 0
        unknown = next((word for word in words if may_split(word)), None)
        if unknown is not None:
            cause = self.unknowns.all_in(unknown)[0]
            self.assign(name, None, unknown)
            self._unknown_loop(lambda: self._run_all(group.children, group), cause)
            return
        for word in words:
            self.assign(name, None, word)
            if not self._loop(lambda: self._run_all(group.children, group)):
                break

    def _c_for(self, node: Node) -> None:
        group = next(child for child in node.children if child.type in ("do_group", "compound_statement"))
        opening = next(child for child in node.children if child.type == "((")
        closing = next(child for child in node.children if child.type == "))")
        parts = split_at(node.between(opening.end, closing.start), ";")
        if len(parts) != 3:
            raise RefusalError("has for (( )) without three parts.")
        first, condition, step = parts
        self.arithmetic(first)
        self.state.status = 0
        while True:
            value = self.arithmetic(condition) if condition.strip() else 1
            if value is None:
                cause = Unknown(text=f"(({condition.strip()}))", line=node.line)
                self._unknown_loop(lambda: self._run_all(group.children, group), cause)
                return
            if value == 0 or not self._loop(lambda: self._run_all(group.children, group)):
                return
            self.arithmetic(step)

    def _while(self, node: Node) -> None:
        group = next(child for child in node.children if child.type == "do_group")
        condition = [child for child in node.children[1:] if child.start < group.start]
        wanted = node.children[0].type == "while"
        status: int | None = 0
        while True:
            holds = self._holds(condition, node)
            if isinstance(holds, Unknown):
                self._unknown_loop(lambda: self._run_all(group.children, group), holds)
                return
            if holds != wanted:
                break
            if not self._loop(lambda: self._run_all(group.children, group)):
                status = 0
                break
            status = self.state.status
        self.state.status = status

    def _unknown_loop(self, body: Callable[[], object], cause: Unknown) -> None:
        """Run a loop with an unknown number of rounds; variables that a round changes become unknown."""
        launches = self.state.launches
        for _ in range(_MAX_LOOP_ROUNDS):
            before = self.state.variables
            self.either([lambda: None, lambda: self._loop(body)], cause)
            if self.state.launches != launches:
                raise RefusalError(f"starts training in a loop: {cause.sentence()}.", cause.line)
            if self.state.variables == before:
                self.state.status = None
                return
        raise RefusalError(f"has a loop that cannot be followed: {cause.sentence()}.", cause.line)

    def _group(self, node: Node) -> None:
        """Run ``{ ... }`` or ``(( ... ))``."""
        if node.children[0].type != "((":
            self._run_all([child for child in node.children if child.type not in ("{", "}")], node)
            return
        value = self.arithmetic(node.text[2:-2])
        self.state.status = None if value is None else int(value == 0)
        self._check_error()

    def _brackets(self, node: Node) -> None:
        self._subshell(lambda: self._run_all([child for child in node.children if child.type not in ("(", ")")], node))
        self._check_error()

    def _define(self, node: Node) -> None:
        name = next(child for child in node.children if child.type == "word").text
        self.state.functions[name] = node.children[-1]
        self.state.status = 0


_OUTPUT = "the output"
"""Name of the output of a command if the branches of an unknown condition print different texts."""

_COMPOUND: Mapping[str, Callable[[Shell, Node], None]] = {
    "list": Shell._list,
    "pipeline": Shell._pipeline,
    "redirected_statement": Shell._redirected_statement,
    "negated_command": Shell._negated,
    "if_statement": Shell._if,
    "case_statement": Shell._case,
    "for_statement": Shell._for,
    "c_style_for_statement": Shell._c_for,
    "while_statement": Shell._while,
    "compound_statement": Shell._group,
    "subshell": Shell._brackets,
    "function_definition": Shell._define,
}


def _stripped(source: str) -> str:
    """Return a word as written, without blanks that the syntax tree counts as part of it."""
    source = source.lstrip(" \t")
    return source if source.endswith("\\ ") else source.rstrip(" \t")


def _parts_of_if(node: Node) -> tuple[list[Node], list[Node], list[Node]]:
    """Return condition, body, and further clauses of an ``if`` or ``elif``."""
    condition: list[Node] = []
    body: list[Node] = []
    rest: list[Node] = []
    target = condition
    for child in node.children[1:]:
        if child.type == "then":
            target = body
        elif child.type in ("elif_clause", "else_clause"):
            rest.append(child)
        elif child.type != "fi":
            target.append(child)
    return condition, body, rest


def _is_one_word(source: str) -> bool:
    """Return whether a word as written has no blank or operator outside quotes, as a check of the syntax tree."""
    from pipette_opt.read.shell.scanner import word_end

    return not source or word_end(source, 0) == len(source)


def _first_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 80 else f"{line[:77]}..."
