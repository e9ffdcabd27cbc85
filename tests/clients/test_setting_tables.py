"""Names and defaults in the tables of frameworks are those of the installed packages."""

import ast
import re
from dataclasses import replace
from typing import Any

import pytest
import yaml
from asking import installed_file
from factories import LLAMA_8B, make_cluster, make_config, make_job, plan_of

from pipette_opt.export.targets import export
from pipette_opt.frameworks import accelerate, deepspeed, torchtitan
from pipette_opt.layers.adapters import Adapters

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


def fields_of(package: str, *folder: str) -> set[str]:
    """Return the fields of all classes in a folder of an installed package."""
    first = installed_file(package, *folder, "__init__.py")
    assert first is not None
    trees = [ast.parse(path.read_text()) for path in first.parent.rglob("*.py")]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    fields = [each.target for node in classes for each in node.body if isinstance(each, ast.AnnAssign)]
    return {target.id for target in fields if isinstance(target, ast.Name)}


OF_TRANSFORMERS = {
    *(accelerate.MICRO_BATCH, accelerate.STEPS, "bf16", "fp16"),
    *(accelerate.OPTIMIZER, accelerate.RECOMPUTES, accelerate.LIGER),
}
"""Arguments that LLaMA-Factory and ms-swift take from transformers' ``TrainingArguments``."""


@pytest.mark.parametrize(
    ("framework", "folder", "inherited"),
    [
        pytest.param("axolotl", ("axolotl", "utils", "schemas"), set(), marks=pytest.mark.client("axolotl")),
        pytest.param(
            "llamafactory", ("llamafactory", "hparams"), OF_TRANSFORMERS, marks=pytest.mark.client("llamafactory")
        ),
        pytest.param("msswift", ("swift", "arguments"), OF_TRANSFORMERS, marks=pytest.mark.client("swift")),
    ],
)
@pytest.mark.parametrize("base", ["full", "16-bit", "int8", "nf4-double"])
def test_trainers_have_what_is_written(framework: str, folder: tuple[str, ...], inherited: set[str], base: str) -> None:
    """Each setting is a field of the package's own classes: batch, adapters, bits, packing, losses, optimizer, FSDP."""
    if (framework, base) == ("llamafactory", "int8"):
        base = "nf4"
    adapters = None if base == "full" else Adapters(rank=8, targets=("q_proj",), dropout=0.1, base=base)  # type: ignore[arg-type]
    job = make_job(make_cluster(4, gpus=4), replace(LLAMA_8B, adapters=adapters), launcher="replicas-first")
    own = {**accelerate.TRAINING, "packed": True, "loss_chunks": 8, "optimizer": "lion", "fused_loss": True}
    job = replace(job, training=replace(job.training, global_batch_size=64, seq_length=1024, **own))
    shards = {"use_distributed_optimizer": True, "zero_stage": 3, "offload": "parameters"}
    config = make_config(dp=16, num_layers=32, num_distributed_optimizer_instances=2, **shards)
    files = export(plan_of(job, config, (0, 1, 2, 3)), framework)
    if "train.yaml" in files:
        settings = yaml.safe_load(files["train.yaml"])
        written = {*settings, *settings.get("fsdp_config", ())}
    else:
        written = set(re.findall(r" --(\w+)", files["launch.sh"].partition("swift.cli.sft")[2]))
    assert len(written) >= 9
    assert not written - fields_of(*folder) - inherited
