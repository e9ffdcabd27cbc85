"""Folder of a capture run: programs that stand in for launchers and Python, and their records."""

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pipette_opt.read.capture.records import DRY, starts_folder
from pipette_opt.read.capture.stand_in import LAUNCHERS, LOOKED_THROUGH, PYTHONS, SHELLS_AND_WRAPPERS

_SHELL = """#!/bin/sh
exec {python} -IS {main} "$0" "$@"
"""

_PYTHON = """#!/bin/sh
case "$1" in
-c|-V|--version|-)
    [ -n "${variable}" ] && exit 0
    fields=$IFS; IFS=:
    for folder in $PATH; do
        if [ "$folder" != {folder} ] && [ -x "$folder/{name}" ] && [ ! -d "$folder/{name}" ]; then
            IFS=$fields; exec "$folder/{name}" "$@"
        fi
    done
    echo "{name}: command not found" >&2; exit 127;;
esac
exec {python} -IS {main} "$0" "$@"
"""
"""Shell script that stands in for Python. Calls that cannot train are passed on at once, as they are many."""

_MAIN = """import os, sys
sys.path.insert(0, {package!r})
from pipette_opt.read.capture.stand_in import main
sys.exit(main({folder!r}, [os.path.basename(sys.argv[1]), *sys.argv[2:]]))
"""

VERSIONS = tuple(f"python3.{minor}" for minor in range(6, 16))
"""Versions of Python that get a stand-in program if installed."""


def stand_in_folders(folder: Path) -> tuple[Path, Path]:
    """Return the folders of stand-in programs in the folder of a run: everywhere, and only elsewhere."""
    return folder / "bin", folder / "shells"


@contextmanager
def stand_ins(environment: Mapping[str, str]) -> Iterator[tuple[Path, dict[str, str]]]:
    """
    Make a private folder of programs that stand in for launchers and Python; remove it at the end.

    Yield the folder, and the environment variables with this folder first on ``PATH``.
    """
    with tempfile.TemporaryDirectory(prefix="pipette-opt-capture-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        path = environment.get("PATH", os.defpath)
        inner = {**environment, "PATH": f"{folder / 'bin'}{os.pathsep}{path}"}
        for part in ("bin", "shells", "starts", "elsewhere"):
            (folder / part).mkdir()
        assert starts_folder(folder).is_dir()
        (folder / "environment.json").write_text(json.dumps(inner), encoding="utf-8", errors="surrogateescape")
        package = str(Path(__file__).resolve().parents[3])
        (folder / "stand_in.py").write_text(_MAIN.format(package=package, folder=str(folder)), encoding="utf-8")
        installed = [version for version in VERSIONS if shutil.which(version, path=path)]
        for program in (*LAUNCHERS, *LOOKED_THROUGH, "scontrol"):
            _write(folder, program, _SHELL)
        for program in (*PYTHONS, *installed):
            _write(folder, program, _PYTHON)
        for program in SHELLS_AND_WRAPPERS:
            _write(folder, program, _SHELL, part="shells")
        yield folder, inner


def _write(folder: Path, program: str, text: str, part: str = "bin") -> None:
    filled = text.format(
        python=shlex.quote(sys.executable),
        main=shlex.quote(str(folder / "stand_in.py")),
        folder=shlex.quote(str(folder / "bin")),
        name=program,
        variable=DRY,
    )
    target = folder / part / program
    target.write_text(filled, encoding="utf-8")
    target.chmod(0o700)
