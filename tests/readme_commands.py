"""
The README's two commands, as text: which of its fenced blocks a new user runs.

``python tests/readme_commands.py solve`` prints the first, ``... test`` the second, for ``.ci/run``.
"""

import re
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"

PHRASES = {"solve": "pipette-opt solve --example", "test": "pytest"}
"""Words that a block has; each block installs first, too."""


def readme_command(name: str, text: str) -> str:
    """
    The only fenced block of a Markdown text that installs the project and runs what is asked for.

    Raises ``ValueError`` if there is none, or several.
    """
    blocks = re.findall(r"^```[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    found = [block for block in blocks if "pip install" in block and PHRASES[name] in block]
    if len(found) != 1:
        raise ValueError(f"{len(found)} fenced blocks have `pip install` and `{PHRASES[name]}`, there must be one.")
    return str(found[0])


if __name__ == "__main__":
    sys.stdout.write(readme_command(sys.argv[1], README.read_text(encoding="utf-8")))
