"""JSON for people, and what it can hold."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LINE_LENGTH = 120
"""Characters of a line, at most, where what is on it can be broken."""


def plain(value: Any) -> Any:
    """What JSON can hold; paths become text."""
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, Path) else value


def json_text(value: Any, indent: int = 0) -> str:
    """JSON for people: whatever fits on a line is on one line."""
    flat = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(flat) + indent <= LINE_LENGTH or not isinstance(value, dict | list):
        return flat
    pad = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {json_text(one, indent + 2)}" for key, one in value.items()]
        opening, closing = "{", "}"
    else:
        parts = [json_text(one, indent + 2) for one in value]
        opening, closing = "[", "]"
    body = ",\n".join(pad + part for part in parts)
    return f"{opening}\n{body}\n{' ' * indent}{closing}"
