"""Memory constants of a software stack, from a shipped file or a file of the user."""

from pathlib import Path

from pipette_opt.base.errors import InputError
from pipette_opt.base.shipped import shipped_path
from pipette_opt.memory.framework import Framework, framework_of
from pipette_opt.read.fields import did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.kinds_of_files import reads


@reads()
def read_framework(source: str | Path) -> Framework:
    """
    Return the memory constants of a file in ``data/frameworks`` by its name, or of any YAML file with a block
    ``memory``.

    ``calibrate`` writes such a block. ``InputError`` for an unknown name, a missing block or an unknown constant.
    """
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        names = sorted(path.stem for path in shipped_path("data", "frameworks").glob("*.yaml"))
        if str(source) not in names:
            hint = did_you_mean(str(source), names)
            raise InputError(
                "--framework", f"unknown {str(source)!r}.{hint} Give a .yaml file or one of {', '.join(names)}."
            )
        path = shipped_path("data", "frameworks", f"{source}.yaml")
    data = read_yaml(path)
    block = data.get("memory") if isinstance(data, dict) else None
    if not isinstance(block, dict):
        raise InputError(str(path), "has no block 'memory' with constants.")
    wrong = next((name for name, value in block.items() if isinstance(value, bool) or not _is_number(value)), None)
    if wrong is not None:
        raise InputError(str(path), f"memory.{wrong} must be a number, got {block[wrong]!r}.")
    return framework_of({str(name): float(value) for name, value in block.items()}, f"{path}, memory")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float)
