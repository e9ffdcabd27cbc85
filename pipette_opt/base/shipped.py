"""Paths of shipped files: ``data/`` and ``models/``, in a checkout or inside the installed package."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]


def shipped_path(*parts: str) -> Path:
    """
    Return the path of a shipped file or folder, e.g. ``shipped_path("data", "gpus.yaml")``.

    A wheel holds the two folders as ``pipette_opt/_shipped/``; a checkout has them beside the package.
    """
    installed = _PACKAGE / "_shipped"
    root = installed if installed.is_dir() else _PACKAGE.parent
    return root.joinpath(*parts)
