"""Launches in JSON, as ``capture`` and ``import args --json`` write them, read in place of typed arguments."""

import shlex

from pipette_opt.base.errors import InputError, shown
from pipette_opt.read.files import parse_json
from pipette_opt.read.launches import LAUNCH_KEYS


def is_launch(text: str) -> bool:
    """Return whether a text is a launch in JSON."""
    return text.lstrip().startswith("{") and all(f'"{key}"' in text for key in LAUNCH_KEYS)


def without_document(text: str, where: str) -> str:
    """Return the arguments in a JSON launch as words of a command line; return any other text unchanged."""
    if not is_launch(text):
        return text
    document = parse_json(text, where)
    arguments = document.get("arguments") if isinstance(document, dict) else None
    if not isinstance(arguments, list) or not all(isinstance(word, str) for word in arguments):
        raise InputError(where, f"arguments must be a list of words, got {shown(arguments)}.")
    if not arguments:
        raise InputError(where, f"{shown(document.get('program'))} was started without arguments.")
    return shlex.join(arguments)
