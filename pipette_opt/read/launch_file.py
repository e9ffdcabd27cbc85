"""Launches in JSON, as ``capture`` and ``import args --json`` write them, read in place of typed arguments."""

from collections.abc import Mapping

import msgspec

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.typed import typed
from pipette_opt.read.files import parse_json
from pipette_opt.read.launchers import known_launchers
from pipette_opt.read.launches import LAUNCH_KEYS, Launch, Starter, read_options
from pipette_opt.read.scripts import ScriptLaunch


class StarterDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Launcher or wrapper of a launch in JSON; fields of :class:`~pipette_opt.read.launches.Starter`."""

    name: str
    options: tuple[str, ...] = ()

    def starter(self) -> Starter:
        """Return the launcher with the values of its options."""
        launcher = known_launchers().get(self.name)
        values = {} if launcher is None else read_options(self.name, launcher, self.options)
        return Starter(name=self.name, options=self.options, values=values)


class LaunchDocument(msgspec.Struct, frozen=True, kw_only=True):
    """Launch in JSON, with the fields of :func:`~pipette_opt.read.launches.launch_document`."""

    program: str
    launchers: tuple[StarterDocument, ...]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    sbatch: Mapping[str, str]
    notes: tuple[str, ...]


def is_launch(text: str) -> bool:
    """Return whether a text is a launch in JSON."""
    return text.lstrip().startswith("{") and all(f'"{key}"' in text for key in LAUNCH_KEYS)


def read_launch(text: str, where: str) -> ScriptLaunch:
    """Return the training program of a launch in JSON, with its launchers and the options of ``#SBATCH`` lines."""
    document = typed(LaunchDocument, parse_json(text, where), where)
    if not document.arguments:
        raise InputError(where, f"{shown(document.program)} was started without arguments.")
    launch = Launch(
        program=document.program.removeprefix("-m "),
        is_module=document.program.startswith("-m "),
        arguments=document.arguments,
        launchers=tuple(starter.starter() for starter in document.launchers),
    )
    return ScriptLaunch(
        launch=launch,
        arguments=document.arguments,
        line=1,
        environment=document.environment,
        header=document.sbatch,
        notes=document.notes,
    )
