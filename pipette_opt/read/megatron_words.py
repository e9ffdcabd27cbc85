"""Words of a Megatron command line, read from options alone, a launch script, or the printed arguments of a run."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import is_file
from pipette_opt.read.finetune import Finetune
from pipette_opt.read.foreign import Source
from pipette_opt.read.frameworks import Framework
from pipette_opt.read.kinds_of_files import LAUNCH_SCRIPT, TYPED_ARGUMENTS, file_kinds, kind_of, looks_like
from pipette_opt.read.launch_evidence import foreign_launch, framework_with_reader, overrides_recipe
from pipette_opt.read.launch_file import is_launch, read_launch
from pipette_opt.read.launchers import known_launchers
from pipette_opt.read.launches import Launch, may_train
from pipette_opt.read.megatron_printed import is_printed, printed_words
from pipette_opt.read.megatron_table import field_of, megatron_options
from pipette_opt.read.recipe_overrides import finetune_in, in_options, left_to_recipe
from pipette_opt.read.scripts import ScriptLaunch, argument_problem, read_script
from pipette_opt.read.settings_files import settings_file
from pipette_opt.read.shell import INSTEAD

_ENDS = re.compile(r"\|{1,2}|&{1,2}|;+|(?:[0-9]*|&)(?:>>?|<)(?:&[0-9])?")
"""Pattern of shell signs that end a command, as pasted options may be followed by them."""


_NAMED = re.compile(r"--[\w-]+=")
"""Pattern of the beginning of a word with an option and its value."""

UNSET = "not set, and taken for empty"
"""Beginning of the note on variables that a script uses but nothing sets."""


UNNEEDED = "known only when the script runs, and not needed"
"""Beginning of the note on unknown values of harmless options; other unknown values are refused."""


OTHERWISE = " It is neither options, nor a script that bash reads, nor settings that are known here."
"""Sentence on a text that no reader understands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """
    Words of a command line.

    Parameters
    ----------
    script
        Launch in the script that has the words; ``None`` for options alone.
    are_printed
        Whether Megatron printed the words, with the defaults of options that nobody gave.
    are_overrides
        Whether the words override fields of a recipe, which sets the others.
    remarks
        Notes on the overrides.
    finetune
        Adapters that overrides set; ``None`` without.
    source
        Launch of a framework with a reader of its own; ``None`` for Megatron-LM.
    """

    words: tuple[str, ...]
    script: ScriptLaunch | None = None
    are_printed: bool = False
    are_overrides: bool = False
    remarks: tuple[str, ...] = ()
    finetune: Finetune | None = None
    source: Source | None = None

    @property
    def launch(self) -> Launch | None:
        """Program with its launchers; ``None`` for options alone."""
        return None if self.script is None else self.script.launch

    def place(self, where: str) -> str:
        """Return the place of the launch for errors: the script with the line that starts the program."""
        return where if self.launch is None or self.script is None else f"{where}, line {self.script.line}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions made while the script was read."""
        if self.script is None:
            return ()
        launch_notes = () if self.script.launch is None else self.script.launch.notes
        unknown = [(argument.text, argument.line) for argument in self.script.unknown]  # of harmless options
        found = (*_about(UNSET, self.script.unset.items()), *_about(UNNEEDED, unknown), *launch_notes)
        return (*found, *self.script.notes, *self.remarks)

    def document(self) -> dict[str, Any]:
        """Return the words as a launch in JSON, with the launchers of the script."""
        found = self.script or ScriptLaunch(launch=None, arguments=self.words, line=1)
        return {**found.document(), "notes": list(self.notes)}

    def check_unknown(self, index: int, num_values: int, where: str, *, counts: bool) -> None:
        """
        Raise ``InputError`` if an option, or its value, is known only when the script runs.

        Parameters
        ----------
        num_values
            Number of words after the option that are its values; a value attached by ``=`` does not count.
        counts
            Whether the value matters; otherwise an unknown value is kept as written.
        """
        is_named = _NAMED.match(self.words[index]) is not None
        for argument in self.script.unknown if self.script is not None else ():
            if (argument.index == index and not is_named) or (counts and index <= argument.index <= index + num_values):
                raise InputError(f"{where}, line {argument.line}", argument_problem(self.words, argument))


def read_words(
    text: str,
    where: str,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
    *,
    of_any_framework: bool = False,
    of_model: bool = False,
) -> Words:
    """
    Return the words of the arguments of a training program.

    Parameters
    ----------
    text
        Options alone, on one or several lines; a launch script; the arguments that Megatron prints at its start; a
        launch that ``capture`` wrote; or a recipe of Megatron-LM in YAML.
    environment, arguments
        Environment variables and positional arguments at the start of the script.
    of_any_framework
        Whether to return the words of launches of any framework; by default, those that are not read are refused.
    of_model
        Whether the words are to describe a model only.

    Raises
    ------
    InputError
        If the text has none of these forms.
    """
    if not text.strip():
        raise InputError(where, "is empty.")
    is_whole = not of_any_framework and not of_model
    found = _words_of(text, where, environment, arguments, of_model=of_model, is_whole=is_whole)
    framework = found.source.framework if found.source else framework_with_reader(found.words, found.launch)
    foreign = (
        None
        if framework and is_whole
        else foreign_launch(found.words, found.launch, found.place(where), of_model=of_model)
    )
    if foreign is not None and not of_any_framework:
        raise foreign
    if found.script is not None:
        arguments = found.script.arguments
        found.script.require_known(where, lambda each: each.may_be_option and not _is_value(arguments, each.index))
    if framework is not None and is_whole:
        return found if found.source else _of_framework(found, framework, where)
    is_recipe = not of_any_framework and overrides_recipe(found.words, found.launch)
    return _in_options(found, where) if is_recipe else found


def _of_framework(words: Words, framework: Framework, where: str) -> Words:
    """Return the words of a launch of a framework with a reader, none of which may be known only when it runs."""
    if words.script is not None:
        words.script.require_known(where)
    folder = Path(where).parent if is_file(where) else Path()
    source = Source(
        framework=framework,
        where=words.place(where),
        words=words.words,
        launch=words.launch,
        folder=folder,
        environment={} if words.script is None else words.script.environment,
    )
    return replace(words, source=source)


def _in_options(words: Words, where: str) -> Words:
    """Return the words of a recipe's launch with options of Megatron-LM in place of overrides."""
    found, finetune = in_options(words.words, words.place(where)), finetune_in(words.words, words.place(where))
    script = words.script
    if script is not None:
        moved = [(found.starts[argument.index], argument) for argument in script.unknown]
        unknown = tuple(replace(argument, index=index) for index, argument in moved if index is not None)
        script = replace(script, arguments=found.words, unknown=unknown)
    return Words(words=found.words, script=script, are_overrides=True, remarks=found.notes, finetune=finetune)


def _words_of(
    text: str,
    where: str,
    environment: Mapping[str, str] | None,
    arguments: Sequence[str],
    *,
    of_model: bool,
    is_whole: bool,
) -> Words:
    """Return the words of a text by its format, which its parser decides; bash reads what no other parser does."""
    if is_launch(text):
        launch = read_launch(text, where)
        return Words(words=launch.arguments, script=launch)
    if is_printed(text):
        return Words(words=tuple(printed_words(text)), are_printed=True)
    if _is_only_options(text):
        return Words(words=tuple(_without_torchrun(_plain_words(text, where, environment or {}))))
    is_script = any(kind.name == LAUNCH_SCRIPT and kind.matches(text) for kind in file_kinds())
    kind = None if is_script else kind_of(text)
    try:
        file = settings_file(text, where)
    except InputError:
        if kind is None or not kind.is_log:
            raise
        file = None
    if file is None and kind is not None and kind.is_log:
        raise InputError(where, f"is no launch.{looks_like(text)}")
    if file is not None:
        if file.framework is not None and is_whole:
            folder = Path(where).parent if is_file(where) else Path()
            return Words(words=(), source=Source(framework=file.framework, where=where, file=file, folder=folder))
        overrides = file.overrides()
        if overrides and is_whole and not left_to_recipe(overrides):
            return Words(words=overrides)
        if not file.is_recipe:
            raise file.refusal(of_model=of_model)
        return Words(words=tuple(file.words()))
    try:
        script = read_script(text, where, environment=environment, arguments=arguments)
    except InputError as error:
        hint = looks_like(text, but=(LAUNCH_SCRIPT, TYPED_ARGUMENTS))
        if is_script or not (hint or INSTEAD in error.problem) or (not hint and may_train(text.split())):
            raise InputError(error.where, f"{error.problem}{hint}") from None
        raise InputError(where, f"is no launch.{hint or OTHERWISE}") from None
    return Words(words=script.arguments, script=script)


def _is_value(words: Sequence[str], index: int) -> bool:
    """Return whether a word is the value of a harmless option."""
    option = megatron_options().get(field_of(words[index - 1])) if index and words[index - 1].startswith("--") else None
    return option is not None and option.kind != "flag" and option.status == "harmless"


def _about(beginning: str, lines: Iterable[tuple[str, int]]) -> list[str]:
    """Return a note on names or texts, each with its line; empty without any."""
    found = dict.fromkeys(f"{name} (line {line})" for name, line in lines)
    return [f"{beginning}: {', '.join(found)}"] if found else []


def _is_only_options(text: str) -> bool:
    """Return whether the first line that is not a comment begins with an option."""
    return re.match(r"(?:\s|#[^\n]*\n|\\\r?\n)*--?[A-Za-z]", text) is not None


def _plain_words(text: str, where: str, environment: Mapping[str, str]) -> list[str]:
    """Return the words of a text of options; line ends count as blanks, and shell operators end a line's options."""
    words: list[str] = []
    skipped = False
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        skipped = False
        for word, is_quoted in _words_of_line(line, where):
            skipped = skipped or (not is_quoted and _ENDS.fullmatch(word) is not None)
            if not skipped:
                words.append(_with_variables(word, environment))
    return words


def _without_torchrun(words: Sequence[str]) -> list[str]:
    """Return the words without torchrun options, which scripts keep among Megatron's."""
    kept: list[str] = []
    skipped = False
    for word in words:
        if word.startswith("--"):
            name = field_of(word.partition("=")[0])
            skipped = (
                name not in megatron_options() and name.replace("_", "-") in known_launchers()["torchrun"].num_values
            )
        if not skipped:
            kept.append(word)
    return kept


_PART = re.compile(r"\"((?:[^\"\\]|\\.)*)\"|'([^']*)'|\\(.)|([^\s\"'\\]+)|([\"'\\])")


def _words_of_line(line: str, where: str) -> list[tuple[str, bool]]:
    """Return the words of a line without their quotes, each with whether it was quoted or escaped."""
    words: list[tuple[str, bool]] = []
    index = 0
    while index < len(line):
        if line[index].isspace():
            index += 1
            continue
        if line[index] == "#":
            break
        text, is_quoted = "", False
        while index < len(line) and not line[index].isspace():
            found = _PART.match(line, index)
            assert found is not None
            if found[5] and found[5] != "\\":
                raise InputError(where, f"has an unclosed quote: {shown(line[index:])}; close it.")
            is_quoted |= found[4] is None
            text += (
                re.sub(r"\\([$`\"\\])", r"\1", found[1])
                if found[1] is not None
                else found[2] or found[3] or found[4] or ""
            )
            index = found.end()
        words.append((text, is_quoted))
    return words


def _with_variables(word: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$(?:(\w+)|\{(\w+)\})", lambda found: environment.get(found[1] or found[2], found[0]), word)
