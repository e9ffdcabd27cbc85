"""Our overrides name fields that Megatron-Bridge and megatron-core have, and Hydra reads them."""

import ast
import dataclasses
import json
import warnings
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from asking import ask, installed_file
from factories import llama_plan

from pipette_opt.export.megatron import TRIAL_ITERATIONS
from pipette_opt.export.targets import export
from pipette_opt.frameworks.nemo import PRECISION_FIELDS, hydra_words, overrides
from pipette_opt.layers.adapters import BRIDGE_TARGETS
from pipette_opt.read.recipe_overrides import PRECISIONS, WITHOUT_OPTION

pytestmark = pytest.mark.client("megatron.core", "hydra", "omegaconf")

PLANS: list[dict[str, Any]] = [
    {},
    {"layers_per_stage": (14, 18), "virtual_pipeline_model_parallel_size": 2, "recompute_granularity": "full"},
    {"layers_per_stage": (16, 16), "virtual_pipeline_model_parallel_size": 17},
    {"recompute_granularity": "selective", "overlap_grad_reduce": True},
]

QUESTION = """
import json, sys
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from omegaconf import OmegaConf
words, known = json.load(open("words.json"))
config = OmegaConf.create(known)
OmegaConf.set_struct(config, True)
parsed = OverridesParser.create().parse_overrides(words)
ConfigLoaderImpl._apply_overrides_to_config(overrides=parsed, cfg=config)
print(json.dumps(OmegaConf.to_container(config)))
"""


def dataclass_fields(path: Path, name: str) -> set[str]:
    """Annotated fields of a class, without importing its module, which wants a GPU's libraries."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return {
                one.target.id
                for one in node.body
                if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)
            }
    raise AssertionError(f"{path} has no class {name}")


def bridge(*parts: str) -> Path:
    """A source file of megatron-bridge, or skip."""
    path = installed_file("megatron", "bridge", *parts)
    if path is None:
        pytest.skip("needs megatron-bridge, which .ci/run installs")
    return path


def known_fields() -> dict[str, set[str]]:
    """Fields of every section of ``ConfigContainer`` that we write."""
    config = bridge("training", "config.py")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from megatron.core.datasets.gpt_dataset import GPTDatasetConfig
        from megatron.core.distributed import DistributedDataParallelConfig
        from megatron.core.optimizer import OptimizerConfig
        from megatron.core.transformer.transformer_config import TransformerConfig
    core = {
        "model": TransformerConfig,
        "ddp": DistributedDataParallelConfig,
        "optimizer": OptimizerConfig,
        "dataset": GPTDatasetConfig,
    }
    known = {name: {field.name for field in dataclasses.fields(one)} for name, one in core.items()}
    known["model"] |= dataclass_fields(bridge("models", "gpt_provider.py"), "GPTModelProvider")
    known["train"] = dataclass_fields(config, "TrainingConfig")
    known["dist"] = dataclass_fields(config, "DistributedInitConfig")
    known["logger"] = dataclass_fields(config, "LoggerConfig")
    assert {*known, "mixed_precision", "comm_overlap"} <= dataclass_fields(config, "ConfigContainer")
    return known


@pytest.mark.parametrize("options", PLANS)
def test_hydra_applies_every_override(options: dict[str, Any], tmp_path: Path) -> None:
    """In struct mode Hydra refuses unknown fields; the YAML file says the same as the command line."""
    known = {name: dict.fromkeys(fields) for name, fields in known_fields().items()}
    plan = llama_plan(**options)
    words = [*hydra_words(overrides(plan)), f"train.train_iters={TRIAL_ITERATIONS}", "logger.log_interval=1"]
    (tmp_path / "words.json").write_text(json.dumps([words, {**known, "mixed_precision": None, "comm_overlap": None}]))
    applied = ask(QUESTION, tmp_path)
    written = yaml.safe_load(export(plan, "nemo")["overrides.yaml"])
    for section, entries in written.items():
        if isinstance(entries, dict):
            assert {name: applied[section][name] for name in entries} == entries
        else:
            assert applied[section] == entries
    assert applied["train"]["train_iters"] == TRIAL_ITERATIONS


def test_an_unknown_field_would_be_noticed(tmp_path: Path) -> None:
    """The same question with a misspelt name fails."""
    known = {name: dict.fromkeys(fields) for name, fields in known_fields().items()}
    (tmp_path / "words.json").write_text(json.dumps([["model.tensor_model_paralel_size=2"], known]))
    with pytest.raises(AssertionError, match="tensor_model_paralel_size"):
        ask(QUESTION, tmp_path)


def test_precision_names_are_registered() -> None:
    """They are Megatron-Bridge's, with all their fields but those on which no prediction depends."""
    path = bridge("training", "mixed_precision.py")
    tree = ast.parse(path.read_text())
    recipes = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    harmless = {"fp4_recipe", "fp8_margin", "fp8_amax_history_len", "fp8_amax_compute_algo", *WITHOUT_OPTION}
    for name, known in PRECISIONS.items():
        found: dict[str, Any] = {}
        for node in ast.walk(recipes[name]) if name != "null" else ():
            if isinstance(node, ast.Call) and ast.unparse(node) == "bf16_mixed()":
                found |= PRECISIONS["bf16_mixed"]
            elif isinstance(node, ast.keyword | ast.Assign) and isinstance(node.value, ast.Constant):
                field = node.arg if isinstance(node, ast.keyword) else ast.unparse(node.targets[0])
                found[str(field).removeprefix("cfg.")] = node.value.value
        plain = {field: value for field, value in found.items() if field not in harmless}
        assert {field: value for field, value in plain.items() if value or field == "grad_reduce_in_fp32"} == known
    assert dataclass_fields(path, "MixedPrecisionConfig") >= PRECISION_FIELDS


@pytest.mark.parametrize("recipe", ["bf16_mixed", {"bf16": True, "fp8": "hybrid", "autocast_enabled": False}, None])
def test_hydra_replaces_a_precision(recipe: object, tmp_path: Path) -> None:
    """Whatever the recipe has, and the function of the plan is said beside; the config's class has the fields."""
    plan = llama_plan()
    model = {**plan.inputs["model"], "activation_func": "squared_relu", "gated_linear_unit": False}
    training = {**plan.inputs["training"], "accumulate_allreduce_grads_in_fp32": False}
    wanted = overrides(dataclasses.replace(plan, inputs={**plan.inputs, "model": model, "training": training}))
    known = {name: dict.fromkeys(fields) for name, fields in known_fields().items()}
    known["model"].pop("activation_func")
    (tmp_path / "words.json").write_text(json.dumps([hydra_words(wanted), {**known, "mixed_precision": recipe}]))
    applied = ask(QUESTION, tmp_path)
    assert applied["mixed_precision"] == wanted["mixed_precision"]
    assert applied["model"]["activation_func"] == wanted["model"]["activation_func"]
    fields = dataclass_fields(bridge("training", "mixed_precision.py"), "MixedPrecisionConfig")
    assert set(wanted["mixed_precision"]) - {"_target_"} <= fields


def test_adapters_have_fields_of_their_class() -> None:
    """And names of matrices that it knows."""
    plan = llama_plan()
    adapters = {"rank": 8, "targets": list(BRIDGE_TARGETS), "base": "16-bit", "dropout": 0.1}
    model = {**plan.inputs["model"], "adapters": adapters}
    written = overrides(dataclasses.replace(plan, inputs={**plan.inputs, "model": model}))["peft"]
    path = bridge("peft", "canonical_lora.py")
    assert set(written) - {"_target_"} <= dataclass_fields(path, "CanonicalLoRA")
    assert written["_target_"] == "megatron.bridge.peft.canonical_lora.CanonicalLoRA"
    assert all(f'"{name}"' in path.read_text() for name in written["target_modules"])


def test_release() -> None:
    """Names were looked up in 0.3."""
    bridge("training", "config.py")
    assert metadata.version("megatron-bridge").startswith("0.3.")
