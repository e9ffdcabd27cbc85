"""Options as people type them, before a command parses its words: other names, and what a wrong name may mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pipette_opt.base.errors import InputError
from pipette_opt.options.names import NOT_THE_SAME, names_like, usual_name


@dataclass(frozen=True, slots=True)
class _Typed:
    """An option on the command line: the name that was typed, and its value, if it has one."""

    spelling: str
    value: str | None


def with_usual_names(parameters: Sequence[Any], words: Sequence[str], *, check: bool) -> list[str]:
    """
    Words of a command line with options under their own names.

    Parameters
    ----------
    parameters
        The command's, as click has them.
    words
        What was typed after the command's name.
    check
        Whether a name that the command does not have is an error.

    Raises
    ------
    InputError
        If an option is given under two names with different values, or is not known; with what may be meant.
    """
    values = _number_of_values(parameters)
    repeated = {name for one in parameters if one.multiple for name in one.opts} if parameters else set()
    found: list[str] = []
    typed: dict[str, list[_Typed]] = {}
    place = 0
    while place < len(words) and words[place] != "--":
        name, sign, value = words[place].partition("=")
        place += 1
        usual = _usual(name, values)
        if usual not in values and check and name.startswith("--"):
            raise _unknown(name, values)
        after = [] if sign else list(words[place : place + values.get(usual, 0)])
        place += len(after)
        found += [f"{usual}{sign}{value}", *after]
        typed.setdefault(usual, []).append(_Typed(name, value if sign else " ".join(after) or None))
    for usual, given in typed.items():
        if usual in values and usual not in repeated:
            _check_same(usual, given)
    return [*found, *words[place:]]


def _number_of_values(parameters: Sequence[Any]) -> dict[str, int]:
    """How many words follow each name of an option."""
    found = {"--help": 0, "-h": 0}
    for one in parameters:
        if one.param_type_name == "option":
            count = 0 if one.is_flag or one.count else one.nargs
            found |= dict.fromkeys((*one.opts, *one.secondary_opts), count)
    return found


def _usual(name: str, known: Mapping[str, int]) -> str:
    """The command's own name of an option; any other word as it is."""
    if not name.startswith("--") or name in known:
        return name
    usual = f"--{usual_name(name[2:])}"
    return usual if usual in known else name


def _check_same(usual: str, given: Sequence[_Typed]) -> None:
    """Raise where an option stands under two names with different values."""
    first = given[0]
    for other in given[1:]:
        if other.spelling != first.spelling and other.value != first.value:
            both = f"{first.spelling} {first.value} and {other.spelling} {other.value}"
            raise InputError(usual, f"is given under two names with different values: {both}; leave one out.")


def _unknown(name: str, known: Mapping[str, int]) -> InputError:
    """Error for an option that a command does not have."""
    bare = name[2:].replace("_", "-")
    options = sorted(one[2:] for one in known if one.startswith("--"))
    near = [f"--{one}" for one in names_like(bare, options)]
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    if bare in NOT_THE_SAME and "--virtual-pipeline" in known:
        hint = f" {NOT_THE_SAME[bare][:1].upper()}{NOT_THE_SAME[bare][1:]}."
    elif usual_name(bare) != bare and "--args" in known:
        hint = " This command takes a layout as Megatron-LM's arguments, in --args."
    return InputError("the command line", f"No such option: {name}.{hint}")
