"""
Launches in files of settings: YAML, TOML, JSON and Python programs, recognised by parsing, before any shell reads them.

A map of YAML with ``ARGS`` (or ``MODEL_ARGS``), a recipe of Megatron-LM, is read. Every other file of settings is
refused with the framework that it belongs to, the line, and what to give in its place.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipette_opt.base.errors import Errors, InputError, shown, together
from pipette_opt.read.files import parse_json, parse_yaml
from pipette_opt.read.frameworks import Framework, framework_of_imports, frameworks_of_keys
from pipette_opt.read.kinds_of_files import (
    LAUNCH_SCRIPT,
    MEGATRON_RECIPE,
    TYPED_ARGUMENTS,
    key_pattern,
    looks_like,
)
from pipette_opt.read.megatron_table import megatron_options
from pipette_opt.read.recipe_overrides import flat, override_text
from pipette_opt.read.shell.limits import MAX_SCRIPT_CHARACTERS
from pipette_opt.read.sizing_words import MODEL_INSTEAD, Given, Setting, way_on

RECIPE_KEYS = ("ARGS", "MODEL_ARGS")
"""Keys of a recipe of Megatron-LM in YAML whose map holds its options."""

_YAML_START = re.compile(r"---(?:\s|$)|%YAML|(?:\"[^\"]*\"|'[^']*'|[A-Za-z_][\w.-]*)\s*:(?:\s|$)")
_TOML_TABLE = re.compile(r"^[ \t]*\[\[?[\w.\"' -]+\]\]?[ \t]*(?:#.*)?$", re.MULTILINE)
_TOML_VALUE = re.compile(r"^[ \t]*[\w.\"-]+ *= *[^\s]", re.MULTILINE)
_TOML_SPACED = re.compile(r"[\w.-]+[ \t]+=[ \t]+\S")
_JSON_START = re.compile(r"\{\s*(?:\"|\}\s*\Z)|\[\s*[\[{\"]")
_PYTHON = re.compile(r"^(?:import [\w.]+|from [\w.]+ import\b|def \w+\(|class \w+[(:])", re.MULTILINE)
_NAME = re.compile(r"(?:--)?[A-Za-z][\w-]*", re.ASCII)
_SHEBANG = re.compile(r"#![^\n]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """
    File of settings that is no shell script.

    Parameters
    ----------
    language
        ``YAML``, ``TOML``, ``JSON`` or ``Python``.
    content
        Value that the text holds; ``None`` for a program.
    settings
        Names with their values: dotted paths of keys, or keywords and targets of assignments in a program.
    packages
        Dotted names that a program imports.
    """

    where: str
    text: str
    language: str
    content: Any = None
    settings: tuple[Setting, ...] = ()
    packages: tuple[str, ...] = ()

    @property
    def is_recipe(self) -> bool:
        """Return whether the file is a recipe of Megatron-LM, and of no other framework."""
        is_map = isinstance(self.content, Mapping) and any(key in self.content for key in RECIPE_KEYS)
        return is_map and all(framework.read for framework, _ in self._distinct())

    def _frameworks(self) -> list[tuple[Framework, tuple[str, ...]]]:
        """Return the frameworks that the file may belong to, each with what tells it; the most specific first."""
        if self.language == "Python":
            framework = framework_of_imports(self.packages)
            return [] if framework is None else [(framework, (framework.imports,))]
        return frameworks_of_keys(set(_keys(self.content)))

    def _distinct(self) -> list[tuple[Framework, tuple[str, ...]]]:
        """Return the frameworks that a single key tells, a key that files of no other framework have."""
        return [(framework, marks) for framework, marks in self._frameworks() if not marks[1:] and not framework.common]

    def words(self) -> list[str]:
        """
        Return the command line that sets the options of a recipe of Megatron-LM.

        ``true`` is a flag, ``false`` and an empty value omit the option, a list gives several words.
        """
        words: list[str] = []
        errors = Errors()
        given: dict[str, str] = {}
        for key in RECIPE_KEYS:
            options = self.content.get(key) or {}
            if not isinstance(options, Mapping):
                problem = f"{key} must be a map of options, such as tensor_model_parallel_size: 8."
                raise InputError(self.place(key), problem)
            for name, value in options.items():
                option = f"--{str(name).removeprefix('--').replace('_', '-')}"
                place = self.place(str(name))
                if not isinstance(name, str) or not _NAME.fullmatch(name):
                    errors.append(InputError(place, f"{key} has {shown(name)}, which is no option's name."))
                elif isinstance(value, Mapping) or any(isinstance(each, Mapping | list) for each in _listed(value)):
                    errors.append(InputError(place, f"{key}.{name} must be a value or a list of values."))
                elif option in given:
                    errors.append(InputError(place, f"sets {option} again, after {given[option]}; give it once."))
                else:
                    given[option] = name
                    words += _option(option, value)
        if errors:
            raise together(errors)
        if not words:
            raise InputError(self.where, f"has no option under {' or '.join(RECIPE_KEYS)}.")
        return words

    def given(self) -> dict[str, Given]:
        """Return the values of a map by dotted names, each with its line, without empty values; a list is a value."""
        found = [(name, value) for name, value in flat(self.content, "") if value is not None]
        return {name: Given(value, self.place(name.rpartition(".")[2])) for name, value in found}

    def overrides(self) -> tuple[str, ...]:
        """Return the values of a file of a recipe's fields as overrides; empty for files of other frameworks."""
        known = self._frameworks()
        if not known or not known[0][0].overrides or len(self._distinct()) > 1:
            return ()
        return tuple(f"{name}={override_text(value)}" for name, value in flat(self.content, ""))

    @property
    def framework(self) -> Framework | None:
        """Framework with a reader whose file it is; ``None`` for files of others, and of several frameworks."""
        known = self._frameworks()
        if not known or len(self._distinct()) > 1 or (self.language == "Python" and not known[0][0].in_python):
            return None
        return known[0][0] if known[0][0].reader else None

    @property
    def is_foreign(self) -> bool:
        """Return whether the file is a framework's whose launches are not read here."""
        return not self.is_recipe and any(not framework.read for framework, _ in self._frameworks())

    def refusal(self, *, of_model: bool = False) -> InputError:
        """Return the error that says what the file is, where, and what to give in its place: a launch, or a model."""
        way = MODEL_INSTEAD if of_model else way_on(self.settings)
        program = self.language == "Python"
        several = self._distinct()
        if len(several) > 1:
            names = [f"{framework.name} ({', '.join(marks)})" for framework, marks in several]
            problem = f"is {self.language} with settings of {' and of '.join(names)}; give those of one framework."
            return InputError(self.place(several[1][1][0]), problem)
        foreign = next((found for found in self._frameworks() if not found[0].read), None)
        if foreign is not None:
            framework, marks = foreign
            by = f"it imports {marks[0]}" if program else f"by {', '.join(marks)}"
            file = f"a {'program' if program else 'settings file'} of {framework.name} ({self.language}; {by})"
            hint = f" {framework.hint}" if framework.hint else ""
            problem = f"is {file}, which is not read here.{hint} {way}"
            return InputError(self.place(marks[0]), problem)
        if program:
            problem = "is a program in Python, not its launch; give the command or the script that starts it."
            return InputError(self.where, f"{problem} {way}")
        kind = looks_like(self.text, but=(LAUNCH_SCRIPT, TYPED_ARGUMENTS))
        if kind and self.language != "TOML":
            return InputError(self.where, f"is {self.language}, not a launch.{kind}")
        problem = f"is {self.language} with settings of no framework that is known here. {way}"
        return InputError(self.where, problem)

    def place(self, key: str) -> str:
        """Return a place for an error, with the line of a key or an imported package if it is found."""
        is_program = self.language == "Python"
        pattern = rf"^[ \t]*(?:import|from)[ \t]+{re.escape(key)}\b" if is_program else key_pattern(key)
        found = re.search(pattern, self.text, re.MULTILINE)
        return self.where if found is None else f"{self.where}, line {self.text.count(chr(10), 0, found.end()) + 1}"


def settings_file(text: str, where: str) -> SettingsFile | None:
    """
    Return the settings in a text that is YAML, TOML, JSON or a program in Python; ``None`` for any other text.

    The start of the text says which parser is due; that parser decides.

    Raises
    ------
    InputError
        If the text begins as one of these formats and cannot be parsed; the message names the line.
    """
    shebang = _SHEBANG.match(text)
    if shebang is not None and "python" not in shebang[0]:
        return None
    suffix = where.rpartition(".")[2].lower() if "." in where else ""
    start = re.match(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*", text)
    first = text[start.end() if start else 0 :]
    if not first or len(text) > MAX_SCRIPT_CHARACTERS:
        return None
    if shebang is not None or suffix == "py" or _PYTHON.search(text):
        found = _python(text, where, is_sure=shebang is not None or suffix == "py")
        if found is not None:
            return found
    if suffix == "json" or (_JSON_START.match(first) and suffix not in ("yaml", "yml")):
        return _of_content(text, where, "JSON", parse_json(text, where))
    if suffix == "toml" or _is_toml(text, first):
        return _toml(text, where)
    if suffix in ("yaml", "yml") or _YAML_START.match(first):
        return _of_content(text, where, "YAML", _yaml(text, where))
    return None


def is_recipe(text: str, where: str) -> bool:
    """Return whether a text is a recipe of Megatron-LM in YAML; other readers report errors of any other file."""
    try:
        file = settings_file(text, where)
    except InputError:
        return False
    return file is not None and file.is_recipe


def _is_toml(text: str, first: str) -> bool:
    has_table = _TOML_TABLE.search(text) is not None and _TOML_VALUE.search(text) is not None
    return (has_table and (first[0] == "[" or _TOML_VALUE.match(first) is not None)) or bool(_TOML_SPACED.match(first))


def _toml(text: str, where: str) -> SettingsFile:
    try:
        return _of_content(text, where, "TOML", tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        problem = str(error) if isinstance(error, tomllib.TOMLDecodeError) else "too deep"
        hint = looks_like(text)
        raise InputError(where, f"is not valid TOML: {problem}.{hint}") from None


def _yaml(text: str, where: str) -> Any:
    try:
        return parse_yaml(text, where)
    except InputError as error:
        raise InputError(error.where, f"{error.problem}{looks_like(text, but=(MEGATRON_RECIPE,))}") from None


def _of_content(text: str, where: str, language: str, content: Any) -> SettingsFile:
    settings = tuple(_settings("", content))
    return SettingsFile(where=where, text=text, language=language, content=content, settings=settings)


def _settings(prefix: str, value: Any) -> Iterator[Setting]:
    """Yield the values of nested maps and lists by dotted names; a list of plain values is one value."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _settings(f"{prefix}.{key}" if prefix else str(key), each)
    elif isinstance(value, list):
        for each in value:
            if isinstance(each, Mapping | list):
                yield from _settings(prefix, each)
    elif prefix:
        yield Setting(prefix, "" if value is None else str(value).lower() if isinstance(value, bool) else str(value))


def _keys(value: Any) -> Iterator[str]:
    """Yield the keys of nested maps, with ``_`` for ``-``."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield str(key).replace("-", "_")
            yield from _keys(each)
    elif isinstance(value, list):
        for each in value:
            yield from _keys(each)


def _python(text: str, where: str, *, is_sure: bool) -> SettingsFile | None:
    """Return the literals of a program in Python, which is parsed, not run; ``None`` if the text is no such program."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        if not is_sure:
            return None
        line = f", line {error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        problem = error.msg if isinstance(error, SyntaxError) else "it cannot be parsed"
        raise InputError(f"{where}{line}", f"is not valid Python: {problem}.") from None
    first = tree.body[0] if tree.body else None
    if not is_sure and isinstance(first, ast.Expr) and not isinstance(first.value, ast.Constant):
        return None  # commands of a shell may be expressions of Python, which no program begins with
    packages: list[str] = []
    settings: list[Setting] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            packages += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            packages.append(node.module)
        elif isinstance(node, ast.keyword) and node.arg is not None:
            settings += _literal(node.arg, node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                name = target.attr if isinstance(target, ast.Attribute) else getattr(target, "id", "")
                settings += _literal(name, node.value)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    settings += _literal(key.value, value)
    return SettingsFile(where=where, text=text, language="Python", settings=tuple(settings), packages=tuple(packages))


def _literal(name: str, value: ast.expr | None) -> list[Setting]:
    """Return the setting of a name to a literal number, word or truth value; empty for anything else."""
    if isinstance(value, ast.Constant) and isinstance(value.value, bool | int | float | str):
        return [Setting(name, str(value.value))] if name else []
    return []


def _option(option: str, value: Any) -> list[str]:
    """Return an option of a recipe with its value as words."""
    if value is True:
        return [option]
    if value is False:
        reversed_flag = f"no_{option[2:].replace('-', '_')}"
        return [f"--no-{option[2:]}"] if reversed_flag in megatron_options() else []
    return [] if value is None else [option, *map(str, _listed(value))]


def _listed(value: Any) -> Sequence[Any]:
    """Return the values of a list, also of a text in brackets (``"[mlp moe_act]"``), or a single value."""
    if isinstance(value, str) and (found := re.fullmatch(r"\[([^\[\]{}\"']*)\]", value)):
        return found[1].replace(",", " ").split()
    return value if isinstance(value, list) else [value]
