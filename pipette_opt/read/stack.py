"""Reader and writer of stack files: constants of a software stack, in YAML."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file, write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.typed import typed
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.kinds_of_files import STACK_FILE, reads
from pipette_opt.specs import StackSpec
from pipette_opt.specs.memory_constants import MemoryConstants
from pipette_opt.specs.stack import CONSTANTS, DEFAULT_STACK, OTHERS

DEFAULT_NAME = "megatron-core"
"""Shipped stack that commands use without ``--software``."""


MAX_ERRORS = 400
"""Maximum number of errors of held-out runs that a file keeps; of more, evenly chosen ones. Chosen."""


def read_stack(source: str | Path = DEFAULT_NAME) -> StackSpec:
    """Return a shipped stack by name, or the stack in a file of ``calibrate``; missing constants have defaults."""
    path = Path(source)
    shipped = sorted(file.stem for file in shipped_path("data", "stacks").glob("*.yaml"))
    if str(source) in shipped:
        path = shipped_path("data", "stacks", f"{source}.yaml")
    elif path.suffix not in (".yaml", ".yml") and not is_file(path):
        hint = did_you_mean(str(source), shipped)
        problem = f"is neither a .yaml file nor shipped.{hint} Shipped: {', '.join(shipped)}."
        raise InputError(f"stack {str(source)!r}", problem)
    return _read_stack_file(path)


@reads(STACK_FILE)
def _read_stack_file(path: Path) -> StackSpec:
    data = Fields(str(path), read_yaml(path), (*CONSTANTS, *OTHERS))
    values = {name: value for name, value in data.data.items() if value is not None}
    values |= {"name": data.text("name", path.stem), "source": data.text("source", "")}
    return typed(StackSpec, values, str(path), closed=True)


def write_stack(stack: StackSpec, path: str | Path, comment: str = "") -> None:
    """Write a stack as a file for :func:`read_stack`; each line of ``comment`` becomes a comment at its head."""
    given = asdict(stack)
    data = {name: given[name] for name in OTHERS if getattr(stack, name) != getattr(DEFAULT_STACK, name)}
    first = {"name": stack.name} | ({"source": data.pop("source")} if stack.source else {})
    data = first | {name: _short(given[name]) for name in CONSTANTS} | data
    if stack.memory != DEFAULT_STACK.memory:
        data["memory"] = _memory_numbers(stack.memory)
    if stack.versions is not None:
        data["versions"] = {name: _short(factor) for name, factor in stack.versions.items()}
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    write_atomically(path, head + yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120))


def _memory_numbers(memory: MemoryConstants) -> dict[str, Any]:
    """Return memory constants rounded to five digits, more than a fit can resolve; without empty lists."""
    errors = np.array(memory.errors)
    if len(errors) > MAX_ERRORS:
        errors = errors[np.linspace(0, len(errors) - 1, MAX_ERRORS).round().astype(int)]
    numbers: dict[str, Any] = {
        name: float(f"{value:.5g}") for name, value in asdict(memory).items() if isinstance(value, float)
    }
    offsets = {name: getattr(memory, name) for name in ("versions", "twins", "ran", "peaks")}
    numbers |= {
        name: {key: round(value, 5) for key, value in parts.items()} for name, parts in offsets.items() if parts
    }
    numbers["late_buffers"] = None if memory.late_buffers is None else asdict(memory.late_buffers)
    numbers |= {"information": [list(row) for row in memory.information]} if memory.information else {}
    return numbers | ({"errors": [round(error, 5) for error in errors.tolist()]} if len(errors) else {})


class _Dumper(yaml.SafeDumper):
    """Writer of YAML with lists of numbers in lines."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> yaml.SequenceNode:
        """Return a list in one node, in lines if it has only numbers."""
        in_lines = all(isinstance(value, float) for value in sequence)
        return super().represent_sequence(tag, sequence, in_lines or flow_style)


def _short(value: float) -> float:
    """Return a number rounded to four digits, more than a fit can resolve."""
    return float(f"{value:.4g}")
