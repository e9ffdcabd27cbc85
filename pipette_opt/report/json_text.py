"""JSON that is easy to read, and conversion of values to JSON types."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LINE_LENGTH = 120
"""Maximum characters of a line, unless a single value is longer. Chosen."""


def plain(value: Any) -> Any:
    """Convert a value to types that JSON supports; paths become text."""
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any, indent: int = 0) -> str:
    """Format a value as JSON; an object or list that fits on a line is not broken."""
    flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(flat) + indent <= LINE_LENGTH or not isinstance(value, dict | list):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {json_text(item, indent + 2)}" for key, item in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [json_text(item, indent + 2) for item in value]
        opening, closing = "[", "]"
    body = ",\n".join(pad + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"
