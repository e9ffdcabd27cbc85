"""Models of rows of ``runs.csv`` that name their model but give no shape."""

from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file
from pipette_opt.read.model import read_model
from pipette_opt.read.model_names import preset_called
from pipette_opt.specs import ModelSpec

_FILES = (".json", ".yaml", ".yml")


def named_model(name: str, folder: Path) -> ModelSpec | None:
    """
    Model behind a preset's name, its id on the Hugging Face Hub, or the path of a config; ``None`` for other names.

    Parameters
    ----------
    folder
        Where a relative path starts: the folder of the table.
    """
    path = folder / name.strip()
    if path.suffix.lower() in _FILES or is_file(path / "config.json"):
        return read_model(path)
    try:
        preset = preset_called(name)
    except InputError:  # a name that several presets have is none
        return None
    return None if preset is None else read_model(preset)
