"""Evidence that a launch is Megatron-LM's and that its size is read; a launch without it is refused by name."""

import re
from collections.abc import Collection, Sequence

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.frameworks import Framework, framework_of_launch, frameworks
from pipette_opt.read.launches import Launch
from pipette_opt.read.megatron_table import field_of, megatron_options
from pipette_opt.read.recipe_overrides import left_to_recipe
from pipette_opt.read.sizing_words import (
    MODEL_INSTEAD,
    Setting,
    in_megatron,
    named,
    settings_in,
    sizes_a_job,
    sizing,
    way_on,
)

_SETTINGS_FILE = re.compile(r"[^=]*\.(?:ya?ml|toml|json)", re.IGNORECASE)


def foreign_launch(
    words: Sequence[str], launch: Launch | None, place: str, *, of_model: bool = False
) -> InputError | None:
    """
    Return the error for a launch of a framework that is not read here; ``None`` for any other launch.

    Parameters
    ----------
    words
        Arguments of the program, or options without a program.
    place
        File and line of the launch.
    of_model
        Whether the launch is to describe a model only.
    """
    found = _framework(words, launch)
    if found is None or found[0].read or (overrides_recipe(words, launch) and not of_model):
        return None
    framework, mark = found
    settings = _settings(words, launch)
    hint = f" {framework.hint}" if framework.hint else ""
    left = left_to_recipe(words) if framework.overrides and not of_model else []
    hint += f" It is read if they also set {', '.join(left)}." if left else ""
    problem = f"is a launch of {framework.name} (by {mark}), which is not read here.{hint}{_files(words, launch)}"
    return InputError(place, f"{problem} {MODEL_INSTEAD if of_model else way_on(settings)}")


def framework_with_reader(words: Sequence[str], launch: Launch | None) -> Framework | None:
    """
    Return the framework of a launch if a module reads its launches; ``None`` for all other launches.

    A program whose words tell nothing, and are no options of Megatron-LM, is of the framework of its launcher.
    """
    found = _framework(words, launch)
    if found is not None:
        return found[0] if found[0].reader else None
    if launch is None or any(field_of(name) in megatron_options() for name in words if name.startswith("--")):
        return None
    names = [starter.name for starter in launch.launchers]
    return next((framework for framework in frameworks() if framework.reader and framework.launchers in names), None)


def overrides_recipe(words: Sequence[str], launch: Launch | None) -> bool:
    """Return whether a launch overrides all fields of a recipe that size a job, and is read in Megatron's options."""
    found = _framework(words, launch)
    return found is not None and found[0].overrides and not left_to_recipe(words)


def _framework(words: Sequence[str], launch: Launch | None) -> tuple[Framework, str] | None:
    program = "" if launch is None else launch.program
    return framework_of_launch(program, words, [setting.name for setting in settings_in(words)])


def check_all_read(words: Sequence[str], launch: Launch | None, place: str, *, but: Collection[str] = ()) -> None:
    """
    Raise ``InputError`` for words that size a job, in the spelling of any framework, and are not read.

    A word that repeats what an option of Megatron-LM says is harmless. The words in ``but`` are refused already.
    """
    settings = _settings(words, launch)
    read, _ = in_megatron(filter(_is_known, settings))
    unread = [word for word in sizing(settings) if not _is_known(word) and not _says_again(word, read)]
    unread = [word for word in unread if word.name not in but]
    if unread:
        raise InputError(place, _unread_problem(unread, words))


def check_evidence(words: Sequence[str], launch: Launch | None, fields: Collection[str], place: str) -> None:
    """
    Raise ``InputError`` if no option of Megatron-LM sizes the job of a launch, which would be priced by defaults.

    Parameters
    ----------
    fields
        Options of Megatron-LM that the words give, by name with underscores.
    """
    if any(sizes_a_job(field) for field in fields):
        return
    behind = zip(("", *words), words, strict=False)
    variable = next((word for before, word in behind if word.startswith("$") and not before.startswith("--")), None)
    if variable is not None:
        problem = f"has no option that sizes a job, and {variable} is not set here; write its options out."
        raise InputError(place, problem)
    started = "" if launch is None else f" {_started(launch)}"
    given = f" Given: {shown(' '.join(words))}." if words else ""
    problem = f"has no option that sizes a job.{started}{given}{_files(words, launch)}"
    raise InputError(place, f"{problem} {way_on(_settings(words, launch))}")


def _unread_problem(unread: Sequence[Setting], words: Sequence[str]) -> str:
    options, _ = in_megatron(unread)
    instead = f' In the options of Megatron-LM: "{" ".join(options)}".' if options else ""
    several = "change the size of the job and are" if unread[1:] else "changes the size of the job and is"
    problem = f"sets {named(unread)}, which {several} not read.{instead}{_files(words)}"
    return f"{problem} Leave out what the run does without; the rest is not modelled here."


def _settings(words: Sequence[str], launch: Launch | None) -> list[Setting]:
    """Return the settings of a launch: the options of its launchers, such as ``--fsdp_version 2``, and its words."""
    starters = () if launch is None else launch.launchers
    return [*(setting for starter in starters for setting in settings_in(starter.options)), *settings_in(words)]


def _says_again(word: Setting, read: Collection[str]) -> bool:
    options, _ = in_megatron([word])
    return bool(options) and options[0] in read


def _is_known(setting: Setting) -> bool:
    return setting.name.startswith("--") and field_of(setting.name) in megatron_options()


def _started(launch: Launch) -> str:
    """Return a sentence on the program of a launch and the framework of its launcher."""
    names = [starter.name for starter in launch.launchers]
    by = next((framework.name for framework in frameworks() if framework.launchers in names), "")
    starter = f", started by {by}," if by else ""
    return f"{launch.program}{starter} is given none of Megatron-LM's."


def _files(words: Sequence[str], launch: Launch | None = None) -> str:
    """Return a sentence on the settings files that a launch names, with a leading blank; empty without any."""
    words = [*(word for starter in (launch.launchers if launch else ()) for word in starter.options), *words]
    values = [word.partition("=")[2] if "=" in word else word for word in words]
    found = list(dict.fromkeys(value for value in values if _SETTINGS_FILE.fullmatch(value)))
    return f" Further settings are in {', '.join(found[:3])}." if found else ""
