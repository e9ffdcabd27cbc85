"""Reader and writer of stack files: constants of a software stack, in YAML."""

import logging
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from pipette_opt.base.errors import InputError
from pipette_opt.base.files import is_file, write_atomically
from pipette_opt.base.shipped import shipped_path
from pipette_opt.base.typed import typed
from pipette_opt.read.fields import Fields, did_you_mean
from pipette_opt.read.files import read_yaml
from pipette_opt.read.kinds_of_files import STACK_FILE, reads
from pipette_opt.specs import StackSpec
from pipette_opt.specs.layers import LayerFactor, LearnedLayers
from pipette_opt.specs.stack import CONSTANTS, OTHERS

logger = logging.getLogger(__name__)

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
"""Constants of stack files of older versions; such files are refused."""

UNPRICED = ("flush_s", "refill_s", "refill_s_per_billion", "refill_half_gpus")
"""Constants of older versions for time lost near full memory, which nothing prices now. They are read and left out."""


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
    content = read_yaml(path)
    old = [name for name in RETIRED if isinstance(content, dict) and name in content]
    if old:
        problem = (
            f"{', '.join(old)}: constants of an older version with other formulas; run `pipette-opt calibrate` again."
        )
        raise InputError(str(path), problem)
    data = Fields(str(path), without_unpriced(content, str(path)), (*CONSTANTS, *OTHERS))
    values = {name: value for name, value in data.data.items() if value is not None}
    values |= {"name": data.text("name", path.stem), "source": data.text("source", "")}
    layers = values.pop("layers", None)
    stack = typed(StackSpec, values, str(path))
    return stack if layers is None else replace(stack, layers=_layers(layers, str(path)))


def without_unpriced(content: object, where: str) -> object:
    """Leave out constants of ``UNPRICED``; warn of those that are not zero."""
    if not isinstance(content, dict):
        return content
    dropped = [name for name in UNPRICED if content.get(name)]
    if dropped:
        lost = "time lost near full memory has no price any more; calibrate again, as the other constants counted on it"
        logger.warning("%s: not used: %s; %s.", where, ", ".join(dropped), lost)
    kept = {name: value for name, value in content.items() if name not in UNPRICED}
    if isinstance(origins := kept.get("origins"), dict):
        kept["origins"] = {name: origin for name, origin in origins.items() if name not in UNPRICED}
    return kept


def _layers(entries: object, where: str) -> LearnedLayers:
    """Return the factors of measured over predicted layer time in a stack file; an entry must have all fields."""
    shapes = [
        typed(LayerFactor, entry, where, f"layers[{index}]", closed=True, needed=("factor", "num_runs"))
        for index, entry in enumerate(typed(list[Any], entries, where, "layers"))
    ]
    return LearnedLayers(shapes=tuple(shapes))


def write_stack(stack: StackSpec, path: str | Path, comment: str = "") -> None:
    """Write a stack as a file for :func:`read_stack`; each line of ``comment`` becomes a comment at its head."""
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
    if stack.anchors:
        data["anchors"] = [asdict(anchor) | {"terms": list(anchor.terms)} for anchor in stack.anchors]
    if stack.origins:
        data["origins"] = dict(stack.origins)
    head = "".join(f"# {line}\n" for line in comment.splitlines())
    write_atomically(path, head + yaml.safe_dump(data, sort_keys=False, width=120))


def _short(value: float) -> float:
    """Return a number rounded to four digits, more than a fit can resolve."""
    return float(f"{value:.4g}")
