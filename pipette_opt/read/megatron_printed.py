"""Reader of the arguments that Megatron prints at its start: ``tensor_model_parallel_size ...... 8``."""

import re
from collections.abc import Mapping
from functools import cache

from pipette_opt.read.log_lines import untagged
from pipette_opt.read.megatron_table import table_rows
from pipette_opt.read.sizing_words import Setting, sizing

DERIVED = (
    "data_parallel_size",
    "transformer_pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
)
"""Printed sizes that follow from options."""

ARGUMENT = re.compile(r"\s*(?:\S+:\s*)?(?:\[[^\]]*\]:?\s*)?(?P<name>[a-z][a-z0-9_]+) \.{2,} (?P<value>.*)")
"""Pattern of a line with a printed argument, with or without a rank before it."""

HEADER = "--- arguments ---"
"""Part of the line that precedes the printed arguments."""

_LEAST = 3
"""Smallest number of argument lines that make a text without ``HEADER`` a list of arguments. Chosen."""


def is_printed(text: str) -> bool:
    """Return whether a text is a list of printed arguments, or a log that contains such a list."""
    if " .." not in text:
        return False
    found = sum(" .." in line and ARGUMENT.match(line) is not None for line in text.splitlines())
    return found >= (1 if HEADER in text else _LEAST)


def printed_arguments(text: str) -> dict[str, str]:
    """Return the printed arguments by name. If a restarted job appended to its log, the last start counts."""
    lines = untagged(text[max(text.rfind(HEADER), 0) :]).splitlines()
    return {
        found["name"]: found["value"].rstrip() for line in lines if " .." in line and (found := ARGUMENT.match(line))
    }


def printed_words(text: str) -> list[str]:
    """Return a command line that sets the arguments printed in a text."""
    return words_of(printed_arguments(text))


def words_of(arguments: Mapping[str, str]) -> list[str]:
    """
    Return a command line that sets printed arguments, given by name.

    Printed values that are no options are left out: ranks, derived sizes and objects. Words of a fork that size the job
    stay, so that readers of the command line name them.
    """
    options = _options_by_name()
    words = [word for name, value in unread_arguments(arguments) for word in (f"--{name}", value or "")]
    for name, value in arguments.items():
        if name == "virtual_pipeline_model_parallel_size":
            if arguments.get("num_layers_per_virtual_pipeline_stage", "None") == "None":
                words += _option("--num-virtual-stages-per-pipeline-rank", value)
        elif value in ("True", "False"):
            words += [option for option in (options.get((name, value)),) if option]
        elif (name, "") in options:
            words += _option(options[name, ""], value)
    return words


def unread_arguments(arguments: Mapping[str, str]) -> list[Setting]:
    """Return printed arguments that size the job and are no options of Megatron-LM, such as a fork's ``lora_r``."""
    known = {name for name, _ in _options_by_name()}
    others = (Setting(name, value) for name, value in arguments.items() if name not in known and name not in DERIVED)
    return sizing(others)


def _option(name: str, value: str) -> list[str]:
    """Return an option with its printed value as words; empty for ``None`` or an empty value."""
    values = (
        value.strip("[]").replace(",", " ").replace("'", "").replace('"', "").split() if value[:1] == "[" else [value]
    )
    values = [word.removeprefix("AttnBackend.") for word in values]
    return [] if value in ("None", "", "[]") else [name, *values]


@cache
def _options_by_name() -> Mapping[tuple[str, str], str]:
    """Return options by printed name and printed value; the value is ``True`` or ``False`` for a flag, else empty."""
    found: dict[tuple[str, str], str] = {}
    for row in table_rows():
        option, kind = row["option"], row["kind"].partition(" ")[0]
        if not option:
            continue
        field = option[2:].replace("-", "_")
        shown = [field, *_OTHER_NAMES.get(option, ())]
        if kind != "flag":
            found |= {(name, ""): option for name in shown}
            continue
        bare = re.sub(r"^(no|disable)_", "", field)
        if bare != field:
            found |= {(name, "False"): option for name in (bare, *_OTHER_NAMES.get(option, ()))}
        found |= {(name, "True"): option for name in (shown if bare == field else [field])}
    return found


_OTHER_NAMES = {
    "--fp8-format": ("fp8",),
    "--fp4-format": ("fp4",),
    "--disable-bias-linear": ("add_bias_linear",),
    "--no-rope-fusion": ("apply_rope_fusion",),
    "--no-overlap-p2p-communication": ("overlap_p2p_comm",),
    "--disable-gloo-process-groups": ("enable_gloo_process_groups", "use_gloo_process_groups"),
}
"""Names under which Megatron prints certain options (``dest`` in ``megatron/training/arguments.py``)."""
