"""Tables of cases that are data: a JSON file beside the test file has them by name, a row in each line."""

import json
from pathlib import Path
from typing import Any


def table(test_file: str, name: str) -> Any:
    """Return the table ``name`` of the JSON file beside ``test_file``."""
    return json.loads(Path(test_file).with_suffix(".json").read_text(encoding="utf-8"))[name]
