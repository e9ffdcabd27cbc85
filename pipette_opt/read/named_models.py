"""Models of ``runs.csv`` rows that name their model instead of giving its shape."""

from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file
from pipette_opt.read.model import read_model
from pipette_opt.read.model_names import preset_called
from pipette_opt.specs import ModelSpec

_FILES = (".json", ".yaml", ".yml")


def named_model(name: str, folder: Path) -> ModelSpec | None:
    """
    Return the model of a preset's name, Hugging Face Hub id or config path; ``None`` for other names.

    Parameters
    ----------
    folder
        Folder of the table; paths are relative to it.
    """
    path = folder / name.strip()
    if path.suffix.lower() in _FILES or is_file(path / "config.json"):
        return read_model(path)
    try:
        preset = preset_called(name)
    except InputError:  # a name that several presets share stands for none
        return None
    return None if preset is None else read_model(preset)
