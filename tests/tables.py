"""Tables of cases that are data: a JSON file beside the test file has them by name, a row in each line."""

import json
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """Return the table ``name`` of the JSON file beside ``test_file``."""
    return json.loads(Path(test_file).with_suffix(".json").read_text(encoding="utf-8"))[name]


def tuples(value: Any) -> Any:
    """Return a value of a table with tuples in place of lists."""
    if isinstance(value, dict):
        return {name: tuples(part) for name, part in value.items()}
    return tuple(map(tuples, value)) if isinstance(value, list) else value
