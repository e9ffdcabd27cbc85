"""Other programs' own readers, asked in a process of their own: what they warn of on import is not our affair."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BARE = '''
import importlib.util, sys, types
from pathlib import Path

def bare(name):
    """Make a package importable without running its __init__, which may want a GPU's libraries."""
    folders = [str(Path(entry, *name.split("."))) for entry in sys.path if Path(entry, *name.split(".")).is_dir()]
    package = types.ModuleType(name)
    package.__path__ = folders
    sys.modules[name] = package
'''
"""For packages of which only the configuration is wanted."""


def ask(question: str, folder: Path, *arguments: str) -> Any:
    """Run Python code in the folder; what it prints last is the answer, as JSON."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", question, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


def installed_file(*parts: str) -> Path | None:
    """A file of an installed package, found without importing it."""
    return next((path for entry in sys.path if (path := Path(entry, *parts)).is_file()), None)
