"""Names and defaults in the tables of frameworks are those of the installed packages."""

import ast
from typing import Any

import pytest
from asking import installed_file

from pipette_opt.frameworks import deepspeed, torchtitan

MISSING = object()

NOT_OF_0_2 = (
    "compile.enable_async_tensor_parallel",
    "experimental.enable_async_tensor_parallel",
    "experimental.pipeline_parallel_split_points",
    "float8.enable_float8_linear",
    "loss.num_chunks",
    "parallelism.enable_sequence_parallel",
    "parallelism.pipeline_parallel_split_points",
)
"""Settings of torchtitan before 0.2, and of 0.3."""

COUNTED_OTHERWISE = ("quantize.linear.float8.recipe_name",)
"""Settings whose default is no word there: ``None`` is one scale for a tensor."""


def class_defaults(tree: ast.Module) -> dict[str, dict[str, Any]]:
    """Return the literal defaults of the fields of each class."""
    found: dict[str, dict[str, Any]] = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = {
                each.target.id: (ast.unparse(each.annotation), each.value)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
            }
    return found


def default_of(classes: dict[str, dict[str, Any]], name: str) -> Any:
    """Return the default of a setting by its dotted name; ``MISSING`` without such a setting."""
    kind = "JobConfig"
    for part in name.split("."):
        if part not in classes.get(kind, {}):
            return MISSING
        kind, value = classes[kind][part]
    if isinstance(value, ast.Call):  # field(default_factory=list)
        return []
    return ast.literal_eval(value)


@pytest.mark.client("torchtitan")
def test_settings_of_torchtitan() -> None:
    """Each row is a field of its configuration, with its default; other rows are named."""
    path = installed_file("torchtitan", "config", "job_config.py")
    assert path is not None
    classes = class_defaults(ast.parse(path.read_text()))
    found = {row.name: default_of(classes, row.name) for row in torchtitan.TABLE}
    assert sorted(name for name, default in found.items() if default is MISSING) == sorted(NOT_OF_0_2)
    for row in torchtitan.TABLE:
        if row.name not in (*NOT_OF_0_2, *COUNTED_OTHERWISE):
            assert found[row.name] == row.default, row.name


@pytest.mark.client("deepspeed")
def test_settings_of_deepspeed() -> None:
    """Each row on ZeRO is a field of its configuration, with its default where that is a number or a word."""
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    fields = {field.alias or name: field for name, field in DeepSpeedZeroConfig.model_fields.items()}
    for row in deepspeed.TABLE:
        section, _, name = row.name.partition(".")
        if section != "zero_optimization":
            continue
        first = name.partition(".")[0]
        if name == "mics_shard_size":  # of older releases
            assert first not in fields
            continue
        assert first in fields, row.name
        if first == name and fields[name].default is not None:
            default = fields[name].default
            assert float(default) == float(row.default), row.name
