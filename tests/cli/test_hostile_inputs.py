"""Small inputs that hung, exhausted memory or traced back: each is one line, at once."""

import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))

FOLDER = SHARED / "cases" / "hostile"

SECONDS, KIB = 2.0, 500 * 1024
"""Time of the processor and memory that a command may take for such a file, beside what is loaded already."""

JOB = ("--model", "llama-3.1-8b", "--global-batch-size", "64", "--seq-length", "4096", "--time-limit", "1")

COMMANDS = {
    ".json": lambda path: ("import", "model", path),
    ".log": lambda path: ("import", "links", path, "-o", "c.yaml"),
    ".sh": lambda path: ("import", "args", path),
    ".yaml": lambda path: ("solve", "--cluster", path, *JOB),
}

FILES = sorted(FOLDER.glob("*")) if FOLDER.is_dir() else []


@pytest.mark.skipif(not FILES, reason="the shared hostile inputs are not here")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_one_line_at_once(command: Callable[..., tuple[int, str, str]], path: Path, tmp_path: Path) -> None:
    """Refused with a reason and nothing written, or read as bash reads it."""
    before, begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    code, out, err = command(*COMMANDS[path.suffix](str(path)))
    assert time.process_time() - begun < SECONDS + 1.5  # what the command's modules take to load
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < KIB
    assert "Traceback" not in err
    assert len(err) < 600 + len(str(path))
    assert not list(tmp_path.iterdir())
    assert (code, out) == (2, "") or (code == 0 and path.suffix == ".sh")
