"""Launch of a framework other than Megatron-LM, before the framework's module reads it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
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
    """

    framework: Framework
    where: str
    words: tuple[str, ...] = ()
    launch: Launch | None = None
    file: SettingsFile | None = None
    folder: Path = field(default=Path())

    def of_words(self) -> dict[str, Given]:
        """Return the settings of the command line, by name without leading dashes; of a repeated one, the last."""
        settings = settings_in(self.words)
        return {setting.name.lstrip("-"): Given(setting.value, self.where) for setting in settings}

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
