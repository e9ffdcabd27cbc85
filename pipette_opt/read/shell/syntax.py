"""Syntax of launch scripts: commands, and words with their expansions, parsed one command at a time as bash does."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from pipette_opt.read.shell.limits import RefusalError

NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
DECLARING = ("declare", "typeset", "local", "export", "readonly")
"""Builtin commands whose arguments may be assignments."""

_BLANKS = re.compile(r"(?:[ \t]|\\\n|(?:(?<![^\s;&|()])#[^\n]*))*")
_PLAIN = re.compile(r"[^\s\\'\"$`;&|<>()\[\]{}/:]+")
_BARE = re.compile(r"[^\s;&|<>()$'\"`\\]+")
_REDIRECT = re.compile(r"(?:[0-9]+|\{\w+\})?(<<<|<<-?|[<>]&|&>>?|>>|>\||<>|[<>](?!\())")
_PARAMETER = re.compile(r"[A-Za-z_]\w*|[0-9]+|[@*#?$!\-]", re.ASCII)
_OPERATOR = re.compile(r":[-=?+]|%%|##|//|/[#%]|\^\^|,,|[-=?+%#/^,:@]")
_ENDS = ("then", "elif", "else", "fi", "do", "done", "esac", "}")
_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", "'": "'", '"': '"'}
_OPENING = {")": "(", "]": "["}


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a word; quoted text is neither split nor a pattern."""

    text: str
    quoted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """
    Expansion such as ``$name``, ``${name[1]}``, ``${#name}`` or ``${name:-word}``.

    Parameters
    ----------
    prefix
        ``#`` for the length, ``!`` for a name in a variable, else empty.
    operands
        Words behind the operator: two for ``${name/old/new}`` and ``${name:offset:length}``.
    """

    source: str
    line: int
    quoted: bool
    name: str
    prefix: str = ""
    subscript: "Word | None" = None
    operator: str = ""
    operands: "tuple[Word, ...]" = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitution:
    """Output of commands, ``$(...)`` or backticks; or a file, ``<(...)``."""

    source: str
    line: int
    quoted: bool
    commands: "tuple[Command, ...]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """Value of ``$((...))``."""

    source: str
    line: int
    quoted: bool
    word: "Word"


Part = Text | Parameter | Substitution | Arithmetic


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """Word of a command as written, with its parts."""

    source: str
    line: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """
    Assignment such as ``name=value``, ``name[1]=value`` or ``name+=(words)``.

    Parameters
    ----------
    value
        Word; the words of an array; ``None`` for an element of an array, or an array with given keys.
    """

    name: str
    append: bool
    value: Word | tuple[Word, ...] | None
    line: int


@dataclass(slots=True, kw_only=True)
class Redirect:
    """Redirection; ``document`` is the content of a here-document."""

    sign: str
    target: Word
    document: Word | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Command with its line, source text and redirections."""

    line: int
    source: str
    redirects: tuple[Redirect, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Simple(Command):
    """Assignments, a command, or both."""

    assignments: tuple[Assignment, ...]
    words: tuple[Word | Assignment, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AndOr(Command):
    """Commands joined by ``&&`` and ``||``, each with the sign before it."""

    items: tuple[tuple[str, Command], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group(Command):
    """Commands in ``{ }`` or ``( )``, negated by ``!``, followed by ``&``, or joined by ``|``, by this sign."""

    sign: str
    body: tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class If(Command):
    """Clauses of ``if``: condition and body; ``else`` has no condition."""

    clauses: tuple[tuple[tuple[Command, ...], tuple[Command, ...]], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case(Command):
    """Items of ``case``: patterns, body, and the sign that ends it."""

    word: Word
    items: tuple[tuple[tuple[Word, ...], tuple[Command, ...], str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition(Command):
    """Condition in ``[[ ]]``: words, and signs between them."""

    tokens: tuple[Word | str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calculation(Command):
    """Arithmetic in ``(( ))``."""

    word: Word


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop(Command):
    """Loop: ``for`` and ``select`` with the variable that they set, ``for ((...))``, ``while`` and ``until``."""

    name: str
    words: tuple[Word, ...]
    head: Word | None
    condition: tuple[Command, ...]
    is_until: bool
    body: tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Function(Command):
    """Definition of a function."""

    name: str
    body: Command


class Parser:
    """Parser of a text; :meth:`commands` yields the commands of a line before it reads the next line."""

    def __init__(self, text: str, first_line: int = 1) -> None:
        self.text = text
        self.index = self._counted = 0
        self._line = first_line
        self.documents: list[Redirect] = []

    def commands(self) -> Iterator[Command]:
        """Yield the commands of the text in order. ``RefusalError`` at the first that cannot be read."""
        while not self._at_end():
            found = [self._and_or()]
            while self.documents and self.text[self.index : self.index + 1] not in ("\n", ""):
                found.append(self._and_or())
            self._lines()
            yield from found

    # Positions.

    @property
    def line(self) -> int:
        """Line of the next character."""
        forward, backward = (self._counted, self.index), (self.index, self._counted)
        self._line += self.text.count("\n", *forward) - self.text.count("\n", *backward)
        self._counted = self.index
        return self._line

    def _fail(self, problem: str = "cannot be read as bash here") -> NoReturn:
        raise RefusalError(f"{problem}.", self.line)

    def _take(self, *signs: str) -> str:
        """Skip and return the first of the signs that stands here; empty if none does."""
        sign = next((sign for sign in signs if self.text.startswith(sign, self.index)), "")
        self.index += len(sign)
        return sign

    def _expect(self, sign: str) -> None:
        self._blanks()
        if not self._take(sign):
            self._fail()

    def _match(self, pattern: str) -> re.Match[str]:
        """Skip and return what a pattern matches here; ``RefusalError`` if nothing."""
        found = re.compile(pattern, re.DOTALL).match(self.text, self.index)
        if found is None:
            self._fail("has a quote that is not closed, or with an escape that is not evaluated")
        self.index = found.end()
        return found

    def _blanks(self) -> None:
        found = _BLANKS.match(self.text, self.index)
        assert found is not None
        self.index = found.end()

    def _lines(self) -> None:
        """Skip blanks, comments and line ends; a line end begins the pending here-documents."""
        self._blanks()
        while self._take("\n"):
            self._here_documents()
            self._blanks()

    def _at_end(self) -> bool:
        self._lines()
        return self.index >= len(self.text)

    def _bare(self) -> str:
        """Return the next word if it is without quotes and expansions, else an empty text."""
        found = _BARE.match(self.text, self.index)
        return "" if found is None else found[0]

    def _keyword(self, *words: str) -> str:
        """Skip and return the next word. ``RefusalError`` if it is none of ``words``."""
        self._lines()
        word = self._bare()
        if word not in words:
            self._fail()
        self.index += len(word)
        self._blanks()
        return word

    # Commands.

    def _list(self) -> tuple[Command, ...]:
        """Return the commands before a keyword or a sign that ends a list."""
        found: list[Command] = []
        while not self._at_end() and self._bare() not in _ENDS and self.text[self.index] not in ";)":
            found.append(self._and_or())
        return tuple(found)

    def _and_or(self) -> Command:
        start, line = self.index, self.line
        items = [("", self._pipeline())]
        while sign := self._take("&&", "||"):
            self._lines()
            items.append((sign, self._pipeline()))
        source = self._source(start)
        command = items[0][1] if len(items) == 1 else AndOr(line=line, source=source, items=tuple(items))
        if self._take("&"):
            command = Group(line=line, source=source, sign="&", body=(command,))
        elif self.text.startswith(";", self.index) and not self.text.startswith((";;", ";&"), self.index):
            self.index += 1
        elif self.text[self.index : self.index + 1] not in ("\n", ")", ";", ""):
            self._fail()
        self._blanks()
        return command

    def _pipeline(self) -> Command:
        start, line, negated = self.index, self.line, False
        while self._bare() in ("!", "time"):
            negated ^= self._keyword("!", "time") == "!"
        stages = [self._command()]
        while self.text.startswith("|", self.index) and not self.text.startswith("||", self.index):
            self._take("|&", "|")
            self._lines()
            stages.append(self._command())
        source = self._source(start)
        command = stages[0] if len(stages) == 1 else Group(line=line, source=source, sign="|", body=tuple(stages))
        return Group(line=line, source=source, sign="!", body=(command,)) if negated else command

    def _command(self) -> Command:
        start, line, word = self.index, self.line, self._bare()
        command: Command
        if self._take("(("):
            inside = self._calculation()
            command = Calculation(line=line, source=self._source(start), word=inside)
        elif self._take("("):
            body = self._list()
            self._expect(")")
            command = Group(line=line, source=self._source(start), sign="(", body=body)
        elif word in _COMPOUND:
            self._keyword(word)
            command = _COMPOUND[word](self, start, line)
        elif word in (*_ENDS, "coproc"):
            self._fail()
        else:
            return self._simple(start, line)
        self._blanks()
        redirects: list[Redirect] = []
        while (found := self._redirect()) is not None:
            redirects.append(found)
        return replace(command, redirects=tuple(redirects)) if redirects else command

    def _source(self, start: int) -> str:
        return self.text[start : self.index].strip()

    def _braces(self, start: int, line: int) -> Group:
        body = self._list()
        self._keyword("}")
        return Group(line=line, source=self._source(start), sign="{", body=body)

    def _if(self, start: int, line: int) -> If:
        clauses: list[tuple[tuple[Command, ...], tuple[Command, ...]]] = []
        word = "if"
        while word in ("if", "elif"):
            condition = self._list()
            self._keyword("then")
            clauses.append((condition, self._list()))
            word = self._keyword("elif", "else", "fi")
        if word == "else":
            clauses.append(((), self._list()))
            self._keyword("fi")
        return If(line=line, source=self._source(start), clauses=tuple(clauses))

    def _case(self, start: int, line: int) -> Case:
        word = self._word()
        source = self._source(start)
        self._keyword("in")
        items: list[tuple[tuple[Word, ...], tuple[Command, ...], str]] = []
        self._lines()
        while self._bare() != "esac":
            patterns: list[Word] = []
            self._take("(")
            while not patterns or self._take("|"):
                self._blanks()
                patterns.append(self._word())
                self._blanks()
            self._expect(")")
            body = self._list()
            items.append((tuple(patterns), body, self._take(";;&", ";;", ";&") or ";;"))
            self._lines()
        self._keyword("esac")
        return Case(line=line, source=source, word=word, items=tuple(items))

    def _loop(self, start: int, line: int) -> Loop:
        name, head = "", None
        condition: tuple[Command, ...] = ()
        words: list[Word] = []
        if not self.text.startswith(("for", "select"), start):
            condition = self._list()
        elif self._take("(("):
            head = self._calculation()
        else:
            name = self._keyword(self._bare())
            self._lines()
            if self._bare() == "in":
                self._keyword("in")
                while self.text[self.index : self.index + 1] not in (";", "\n", ""):
                    words.append(self._word())
                    self._blanks()
        source = self._source(start)
        self._blanks()
        self._take(";")
        end = {"do": "done", "{": "}"}[self._keyword("do", "{")]
        body = self._list()
        self._keyword(end)
        return Loop(
            line=line,
            source=source.rstrip(";"),
            name=name,
            words=tuple(words),
            head=head,
            condition=condition,
            is_until=source.startswith("until"),
            body=body,
        )

    def _function(self, start: int, line: int) -> Function:
        name = self._keyword(self._bare())
        if self._take("("):
            self._expect(")")
        self._lines()
        return Function(line=line, source=name, name=name, body=self._command())

    def _simple(self, start: int, line: int) -> Command:
        assignments: list[Assignment] = []
        words: list[Word | Assignment] = []
        redirects: list[Redirect] = []
        while self.index < len(self.text):
            redirect = self._redirect()
            declares = bool(words) and isinstance(words[0], Word) and words[0].source in DECLARING
            if redirect is not None:
                redirects.append(redirect)
            elif self.text[self.index] == "(" and len(words) == 1 and not assignments:
                self.index = start
                return self._function(start, line)
            elif self.text[self.index] in "\n;&|()":
                break
            elif (not words or declares) and (assignment := self._assignment()) is not None:
                (words if declares else assignments).append(assignment)
            else:
                words.append(self._word())
            self._blanks()
        if not (assignments or words or redirects):
            self._fail()
        found = Simple(line=line, source=self._source(start), assignments=tuple(assignments), words=tuple(words))
        return replace(found, redirects=tuple(redirects))

    def _assignment(self) -> Assignment | None:
        start, line = self.index, self.line
        name = NAME.match(self.text, start)
        if name is None:
            return None
        self.index = name.end()
        is_element = bool(self._take("["))
        if is_element:
            self._quoted("]")
            self._expect("]")
        sign = self._take("+=", "=")
        if not sign:
            self.index = start
            return None
        value = self._elements() if self._take("(") else self._word(may_be_empty=True)
        return Assignment(name=name[0], append=sign == "+=", value=None if is_element else value, line=line)

    def _elements(self) -> tuple[Word, ...] | None:
        """Return the words of an array before the closing bracket; ``None`` if it gives keys."""
        words: list[Word] = []
        self._lines()
        while not self._take(")"):
            words.append(self._word())
            self._lines()
        has_keys = any(re.match(r"\[[^\]]*\]\+?=", word.source) for word in words)
        return None if has_keys else tuple(words)

    def _redirect(self) -> Redirect | None:
        found = _REDIRECT.match(self.text, self.index)
        if found is None:
            return None
        self.index = found.end()
        self._blanks()
        redirect = Redirect(sign=found[1], target=self._word())
        if redirect.sign in ("<<", "<<-"):
            self.documents.append(redirect)
        self._blanks()
        return redirect

    def _here_documents(self) -> None:
        """Read the pending here-documents, which begin at this line."""
        documents, self.documents = self.documents, []
        for redirect in documents:
            first_line = self.line
            delimiter = re.sub(r"[\"'\\]", "", redirect.target.source)
            tabs = "\t*" if redirect.sign == "<<-" else ""
            end = re.compile(rf"^{tabs}{re.escape(delimiter)}(?:\n|\Z)", re.MULTILINE).search(self.text, self.index)
            if end is None:
                self._fail("has a here-document without its last line")
            text = self.text[self.index : end.start()]
            text = re.sub(r"^\t+", "", text, flags=re.MULTILINE) if tabs else text
            self.index = end.end()
            if delimiter == redirect.target.source:
                redirect.document = Parser(text, first_line)._quoted("", escapable="$`\\\n")
            else:
                redirect.document = Word(source=text, line=first_line, parts=(Text(text, quoted=True),))

    def _condition(self, start: int, line: int) -> Condition:
        tokens: list[Word | str] = []
        self._lines()
        while not self._take("]]"):
            sign = self._take("&&", "||", "(", ")", "<", ">", "! ")
            is_regex = bool(tokens) and isinstance(tokens[-1], Word) and tokens[-1].source == "=~"
            tokens.append(sign.strip() or self._word(stops=" \t\n" if is_regex else ""))
            self._lines()
        return Condition(line=line, source=self._source(start), tokens=tuple(tokens))

    # Words.

    def _word(self, *, stops: str = "", may_be_empty: bool = False) -> Word:
        """Return the word that begins here and ends at one of ``stops``; by default, at a blank or an operator."""
        start, line = self.index, self.line
        ends = stops or " \t\n;&|<>()"
        parts: list[Part] = []
        while self.index < len(self.text) and (
            self.text[self.index] not in ends or (start == self.index and self._is_file())
        ):
            character = self.text[self.index]
            if character in "<>" and not stops:
                self.index += 2
                parts.append(self._substitution(start, line, quoted=True))
            elif character == "\\":
                parts += _escaped(self._match(r"\\(.?)")[1])
            elif self._take("'"):
                parts.append(Text(self._match("([^']*)'")[1], quoted=True))
            elif self._take("$'"):
                inside = self._match(r"((?:[^'\\]|\\[nt\\'\"])*)'")[1]
                parts.append(Text(re.sub(r"\\(.)", lambda sign: _ESCAPES[sign[1]], inside), quoted=True))
            elif self._take('$"', '"'):
                parts += self._quoted('"', escapable='$`\\\n"').parts or (Text("", quoted=True),)
                self._expect_now('"')
            elif character in "$`":
                parts.append(self._expansion(quoted=False))
            else:
                plain = _PLAIN.match(self.text, self.index)
                text = character if plain is None else plain[0]
                parts.append(Text(text))
                self.index += len(text)
        if not parts and not may_be_empty:
            self._fail()
        return Word(source=self.text[start : self.index], line=line, parts=tuple(parts))

    def _is_file(self) -> bool:
        return self.text.startswith(("<(", ">("), self.index)

    def _expect_now(self, sign: str) -> None:
        if not self._take(sign):
            self._fail("has a quote or a bracket that is not closed")

    def _quoted(self, stops: str, escapable: str = '$`\\\n"}') -> Word:
        """Return the text before one of ``stops``, expanded as inside double quotes; ``escapable`` ends an escape."""
        start, line, depth = self.index, self.line, 0
        parts: list[Part] = []
        while self.index < len(self.text) and (self.text[self.index] not in stops or depth):
            character = self.text[self.index]
            depth += (character == _OPENING.get(stops)) - (character == stops and stops in _OPENING)
            if character == "\\" and self.text[self.index + 1 : self.index + 2] in escapable:
                parts += _escaped(self._match(r"\\(.?)")[1])
            elif character in "$`":
                parts.append(self._expansion(quoted=True))
            else:
                plain = re.compile(r"[^\\\"$`:}()\[\]]+").match(self.text, self.index)
                text = character if plain is None else plain[0]
                # Inside ${...}, quotes within quotes only group.
                parts += [Text(text, quoted=True)] if text != '"' or '"}' not in escapable else []
                self.index += len(text)
        return Word(source=self.text[start : self.index], line=line, parts=tuple(parts))

    def _calculation(self) -> Word:
        """Return the expression before ``))``."""
        word = self._quoted(")")
        self._expect_now("))")
        return word

    def _substitution(self, start: int, line: int, quoted: bool) -> Substitution:
        commands = self._list()
        self._expect(")")
        return Substitution(source=self.text[start : self.index], line=line, quoted=quoted, commands=commands)

    def _expansion(self, quoted: bool) -> Part:
        """Return the expansion that begins with ``$`` or a backtick."""
        start, line = self.index, self.line
        if self._take("`"):
            source = re.sub(r'\\([$`\\"])' if quoted else r"\\([$`\\])", r"\1", self._match(r"((?:[^`\\]|\\.)*)`")[1])
            commands = tuple(Parser(source, line).commands())
            return Substitution(source=self.text[start : self.index], line=line, quoted=quoted, commands=commands)
        if self._take("$(("):
            word = self._calculation()
            return Arithmetic(source=self.text[start : self.index], line=line, quoted=quoted, word=word)
        if self._take("$("):
            return self._substitution(start, line, quoted)
        if self._take("${"):
            return self._braced(start, line, quoted)
        if self._take("$["):
            self._fail("has $[...], which is not evaluated; write $((...))")
        self.index += 1
        found = _PARAMETER.match(self.text, self.index)
        if found is None:
            return Text("$", quoted=True)
        name = found[0][0] if found[0][0].isdigit() else found[0]
        self.index += len(name)
        return Parameter(source=f"${name}", line=line, name=name, quoted=quoted)

    def _braced(self, start: int, line: int, quoted: bool) -> Parameter:
        prefix = self._match(r"(?:#(?![}:=?+%/-])|!(?=\w))?")[0]
        found = _PARAMETER.match(self.text, self.index)
        if found is None:
            self._fail(f"has {self.text[start : start + 40]}, which bash cannot expand")
        self.index = found.end()
        subscript = None
        if self._take("["):
            subscript = self._quoted("]")
            self._expect_now("]")
        operator = _OPERATOR.match(self.text, self.index)
        operands: tuple[Word, ...] = ()
        if operator is not None:
            self.index = operator.end()
            operands = self._operands(operator[0], quoted)
        self._expect_now("}")
        return Parameter(
            source=self.text[start : self.index],
            line=line,
            quoted=quoted,
            name=found[0],
            prefix=prefix,
            subscript=subscript,
            operator="" if operator is None else operator[0],
            operands=operands,
        )

    def _operands(self, operator: str, quoted: bool) -> tuple[Word, ...]:
        """Return the words between an operator and the closing brace."""
        if operator == ":":
            first = self._quoted(":}")
            return (first, self._quoted("}")) if self._take(":") else (first,)
        if operator[0] == "/":
            first = self._word(stops="/}", may_be_empty=True)
            return (first, self._word(stops="}", may_be_empty=True)) if self._take("/") else (first,)
        if quoted and operator[-1] in "-=?+":
            return (self._quoted("}"),)
        return (self._word(stops="}", may_be_empty=True),)


_COMPOUND: Mapping[str, Callable[[Parser, int, int], Command]] = {
    "{": Parser._braces,
    "if": Parser._if,
    "case": Parser._case,
    "for": Parser._loop,
    "select": Parser._loop,
    "while": Parser._loop,
    "until": Parser._loop,
    "function": Parser._function,
    "[[": Parser._condition,
}


def _escaped(character: str) -> list[Part]:
    """Return the text of a character behind a backslash; a line end vanishes."""
    return [] if character == "\n" else [Text(character or "\\", quoted=True)]
