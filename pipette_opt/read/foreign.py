"""Launch of a framework other than Megatron-LM, before the framework's module reads it."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from itertools import takewhile
from pathlib import Path
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file
from pipette_opt.read.files import read_text
from pipette_opt.read.frameworks import Framework
from pipette_opt.read.launches import Launch
from pipette_opt.read.settings_files import SettingsFile, settings_file
from pipette_opt.read.sizing_words import Given, settings_in


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """
    Launch of a framework that a module of :mod:`pipette_opt.frameworks` reads: a command line, or a settings file.

    Parameters
    ----------
    where
        File and line of the launch, for errors.
    words
        Arguments of the program; empty for a settings file.
    launch
        Program with its launchers; ``None`` for a settings file, and for options alone.
    file
        Settings file; ``None`` for a command line.
    folder
        Folder of the script or file, where files that settings name are looked for.
    environment
        Variables that the script sets for the program.
    """

    framework: Framework
    where: str
    words: tuple[str, ...] = ()
    launch: Launch | None = None
    file: SettingsFile | None = None
    folder: Path = field(default=Path())
    environment: Mapping[str, str] = field(default_factory=dict)

    def of_words(self, lists: Collection[str] = ()) -> dict[str, Given]:
        """
        Return the settings of the command line, by name without leading dashes; of a repeated one, the last.

        Options called like ``lists``, with ``_`` for ``-``, take all words up to the next option.
        """
        found = {setting.name.lstrip("-"): Given(setting.value, self.where) for setting in settings_in(self.words)}
        for index, word in enumerate(self.words):
            name = word.lstrip("-")
            if word.startswith("--") and name.replace("-", "_") in lists:
                following = takewhile(lambda each: not each.startswith("--"), self.words[index + 1 :])
                found[name] = Given(" ".join(following) or None, self.where)
        return found

    @property
    def num_processes(self) -> int | None:
        """Processes by the variables that commands such as ``swift sft`` read; ``None`` if they do not say."""
        numbers = [self.environment.get(name, default) for name, default in (("NNODES", "1"), ("NPROC_PER_NODE", ""))]
        is_known = all(re.fullmatch("[1-9][0-9]{0,5}", number) for number in numbers)
        return int(numbers[0]) * int(numbers[1]) if is_known else None

    def of_launcher(self, name: str) -> dict[str, Given]:
        """Return the options of a launcher, by name without leading dashes."""
        starters = () if self.launch is None else self.launch.launchers
        return {
            setting.name.lstrip("-"): Given(setting.value, self.where)
            for starter in starters
            if starter.name == name
            for setting in settings_in(starter.options)
        }

    def named_file(self, name: str, option: str) -> SettingsFile:
        """Return the settings file that a setting names; ``InputError`` if it is not beside the launch."""
        path = next((path for path in (self.folder / name, Path(name)) if is_file(path)), None)
        if path is None:
            raise InputError(self.where, f"{option} names {name}, which is not here; put it beside the launch.")
        file = settings_file(read_text(path), str(path))
        if file is None:
            raise InputError(str(path), f"is no settings file, but {option} names it.")
        return file


def launch_fields(source: Source) -> Mapping[str, Any]:
    """
    Return the fields of :class:`~pipette_opt.read.megatron_args.MegatronArgs` that a launch of a framework sets.

    The module is looked up by its name, as it also writes plans, with code above this floor.
    """
    found: Mapping[str, Any] = framework_module(source.framework.reader).read(source)
    return found


def framework_module(name: str) -> Any:
    """Return the module of a framework, by the name of its file."""
    return import_module(f"pipette_opt.frameworks.{name}")
