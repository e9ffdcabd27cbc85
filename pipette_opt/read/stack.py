"""Reader and writer of a software stack's constants, in YAML."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from pipette_opt.base.errors import InputError, shown
from pipette_opt.base.files import is_file, write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.kinds_of_files import STACK_FILE, reads
from pipette_opt.specs import DEFAULT_STACK, StackSpec
from pipette_opt.specs.layers import LayerFactor, LearnedLayers
from pipette_opt.specs.stack import CONSTANTS, OTHERS

DEFAULT_NAME = "megatron-core"
"""Shipped stack that commands use without ``--calibration``."""


RETIRED = (
    "best_matmul",
    "best_matmul_fp8",
    "best_attention_forward",
    "best_attention_backward",
    "tile",
    "smallest_tile",
    "num_tiles_at_once",
    "inner_half",
    "ring_step",
    "congestion",
    "tensor_overlap",
    "gradient_overlap",
    "assumed_node_bytes_per_s",
)
"""Constants of older versions: shares of the peak common to all kinds of GPU, and constants of collectives."""


def read_stack(source: str | Path = DEFAULT_NAME) -> StackSpec:
    """Read a shipped stack by name, or a file of ``calibrate``; missing constants have defaults."""
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
    content = read_yaml(path)
    old = [name for name in RETIRED if isinstance(content, dict) and name in content]
    if old:
        problem = f"{', '.join(old)}: from an older version with other formulas. Calibrate again."
        raise InputError(str(path), problem)
    data = Fields(str(path), content, (*CONSTANTS, *OTHERS))
    values = {name: data.not_negative(name) for name in CONSTANTS if data.has(name)}
    try:
        return replace(
            DEFAULT_STACK.with_constants(values),
            name=data.text("name", path.stem),
            source=data.text("source", ""),
            fitted=_mapping(data, "fitted"),
            memory=_numbers(data, "memory"),
            layers=_layers(data),
            versions=_numbers(data, "versions"),
            origins=_mapping(data, "origins") or {},
        )
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(str(path), str(error)) from None


def write_stack(stack: StackSpec, path: str | Path, comment: str = "") -> None:
    """Write a stack as :func:`read_stack` reads it; ``comment`` goes above, line by line."""
    data: dict[str, Any] = {"name": stack.name} | ({"source": stack.source} if stack.source else {})
    data |= {name: _short(getattr(stack, name)) for name in CONSTANTS}
    if stack.fitted is not None:
        data["fitted"] = dict(stack.fitted)
    if stack.memory is not None:
        data["memory"] = dict(stack.memory)
    if stack.layers is not None:
        data["layers"] = [asdict(shape) for shape in stack.layers.shapes]  # rounding would change interpolated values
    if stack.versions is not None:
        data["versions"] = {name: _short(factor) for name, factor in stack.versions.items()}
    if stack.origins:
        data["origins"] = dict(stack.origins)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    write_atomically(path, head + yaml.safe_dump(data, sort_keys=False, width=120))


def _short(value: float) -> float:
    """Round to four digits, more than a fit can resolve."""
    return float(f"{value:.4g}")


def _mapping(data: Fields, name: str) -> dict[str, Any] | None:
    if not data.has(name):
        return None
    value = data.any(name)
    if not isinstance(value, dict):
        raise InputError(data.where, f"{name} must be a mapping, got {shown(value)}.")
    return value


def _layers(data: Fields) -> LearnedLayers | None:
    if not data.has("layers"):
        return None
    entries = data.any("layers")
    kinds = get_type_hints(LayerFactor)
    if not isinstance(entries, list):
        raise InputError(data.where, f"layers must be a list, got {shown(entries)}.")
    for entry in entries:
        if not isinstance(entry, dict) or set(entry) != set(kinds):
            raise InputError(data.where, f"layers: each needs {', '.join(kinds)}, got {shown(entry)}.")
        for name, kind in kinds.items():
            if type(entry[name]) is not kind and not (kind is float and type(entry[name]) is int):
                raise InputError(
                    data.where, f"layers: {name} must be of type {kind.__name__}, got {shown(entry[name])}."
                )
    return LearnedLayers(shapes=tuple(LayerFactor(**entry) for entry in entries))


def _numbers(data: Fields, name: str) -> dict[str, float] | None:
    found = _mapping(data, name)
    for key, value in (found or {}).items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InputError(data.where, f"{name}: {key} must be a number, got {shown(value)}.")
    return found
