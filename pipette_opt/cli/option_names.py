"""Alternative names of options on the command line, and suggestions for unknown options."""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipette_opt.base.errors import InputError, shown
from pipette_opt.options.description import SpaceOptions, field_of, fields_of
from pipette_opt.options.names import NOT_THE_SAME, WITHOUT_OPTION, names_like, usual_field, usual_name

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Typed:
    """An option on the command line: its name as typed, and its value or ``None``."""

    spelling: str
    value: str | None


def with_usual_names(parameters: Sequence[Any], words: Sequence[str], *, check: bool) -> list[str]:
    """
    Return the words of a command line, with every alternative option name replaced by the command's own.

    Parameters
    ----------
    parameters
        Parameters of the command, as click defines them.
    words
        Words after the command's name.
    check
        Whether an unknown option raises an error.

    Raises
    ------
    InputError
        If an option is given under two names with different values, is unknown, or has other digits than 0 to 9.
    """
    values = _number_of_values(parameters)
    repeated = (
        {name for parameter in parameters if parameter.multiple for name in parameter.opts} if parameters else set()
    )
    found: list[str] = []
    typed: dict[str, list[_Typed]] = {}
    place = 0
    while place < len(words) and words[place] != "--":
        name, sign, value = words[place].partition("=")
        place += 1
        usual = _usual(name, values)
        if usual not in values and check and name.startswith("--"):
            raise _unknown(name, values, has_job_file=any(parameter.name == "job_file" for parameter in parameters))
        after = [] if sign else list(words[place : place + values.get(usual, 0)])
        place += len(after)
        found += [f"{usual}{sign}{value}", *after]
        typed.setdefault(usual, []).append(_Typed(name, value if sign else " ".join(after) or None))
    for usual, given in typed.items():
        _check_digits(usual, given)
        if usual in values and usual not in repeated:
            _check_same(usual, given)
    for parameter in parameters:
        _check_ways(parameter, typed)
    return [*found, *words[place:]]


def wrong_number(error: Exception, words: Sequence[str]) -> InputError | None:
    """
    Return the error for an option whose value is no number.

    ``None`` for other errors of the parser: of click, or of typer's own copy of it, known by what they have.

    Parameters
    ----------
    words
        Words of the command line, with the command's own names of options.
    """
    kind = re.search("valid (integer|number|float)", str(getattr(error, "message", "")))
    names = getattr(getattr(error, "param", None), "opts", ())
    typed = _value_of(words, names)
    if kind is None or typed is None:
        return None
    option = str(max(names, key=len))
    must = "a whole number" if kind[1] == "integer" else "a number"
    return InputError(option, f"must be {must}, got {shown(typed)}.")


def _value_of(words: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the last value that the words give an option with one of these names; ``None`` without."""
    found = None
    for word, after in zip(words, (*words[1:], None), strict=False):  # without words there is none behind
        name, sign, value = word.partition("=")
        if name in names:
            found = value if sign else after
    return found


def _number_of_values(parameters: Sequence[Any]) -> dict[str, int]:
    """Return the number of values that follow each name of an option."""
    found = {"--help": 0, "-h": 0}
    for parameter in parameters:
        if parameter.param_type_name == "option":
            count = 0 if parameter.is_flag or parameter.count else parameter.nargs
            found |= dict.fromkeys((*parameter.opts, *parameter.secondary_opts), count)
    return found


def _usual(name: str, known: Mapping[str, int]) -> str:
    """Return the command's own name of an option; any other word is returned unchanged."""
    if not name.startswith("--") or name in known:
        return name
    usual = f"--{usual_name(name[2:])}"
    return usual if usual in known else name


def _check_same(usual: str, given: Sequence[_Typed]) -> None:
    """Say that an option is given twice; raise ``InputError`` if it is under two names with different values."""
    first = given[0]
    for other in given[1:]:
        if other.value == first.value:
            continue
        if other.spelling == first.spelling:
            logger.warning("%s is given twice; the last, %s, counts", usual, shown(given[-1].value))
            return
        both = f"{first.spelling} {first.value} and {other.spelling} {other.value}"
        raise InputError(usual, f"is given under two names with different values, {both}; leave out {other.spelling}.")


def _check_ways(parameter: Any, typed: Mapping[str, Sequence[_Typed]]) -> None:
    """Raise ``InputError`` if an option is given together with its opposite, such as ``--no-sequence-parallel``."""
    ways = [[name for name in names if name in typed] for names in (parameter.opts, parameter.secondary_opts)]
    if all(ways):
        raise InputError(ways[0][0], f"is given together with its opposite {ways[1][0]}; leave out one.")


def _check_digits(usual: str, given: Sequence[_Typed]) -> None:
    """Raise ``InputError`` for a value that is a number to Python, but not in digits 0 to 9: ``\u0662``, ``1_0``."""
    for value in (typed.value for typed in given):
        if value is None or (value.isascii() and "_" not in value):
            continue
        try:
            float(value)
        except ValueError:
            continue
        raise InputError(usual, f"must be a number of digits 0 to 9, got {shown(value)}.")


def _unknown(name: str, known: Mapping[str, int], *, has_job_file: bool) -> InputError:
    """Return the error for an option that the command does not have, with similar names."""
    bare = name[2:].replace("_", "-")
    options = sorted(option[2:] for option in known if option.startswith("--"))
    near = [f"--{option}" for option in names_like(bare, options)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if bare in NOT_THE_SAME and "--virtual-pipeline" in known:
        hint = f" {NOT_THE_SAME[bare][:1].upper()}{NOT_THE_SAME[bare][1:]}."
    elif "--launch" in known:
        field = usual_field(bare)
        is_degree = field in fields_of(SpaceOptions) and "--tensor-parallel" not in known
        if is_degree and not has_job_file:
            hint = " Give the parallel degrees as Megatron-LM arguments in --launch."
        elif is_degree or field in WITHOUT_OPTION:
            section = field_of(field).option.section
            hint = f" Give it in a job file, as {field}{f' in the section {section}' if section else ''}."
    return InputError("the command line", f"No such option: {name}.{hint}")
