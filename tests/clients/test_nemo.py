"""Our overrides name fields that Megatron-Bridge and megatron-core have, and Hydra reads them."""

import ast
import dataclasses
import json
import re
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
from pipette_opt.frameworks.nemo import RECIPE_PRECISION, hydra_words, overrides

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
    """They are Megatron-Bridge's, with the formats, the gather and the layers in bf16 that we take them for."""
    tree = ast.parse(bridge("training", "mixed_precision.py").read_text())
    recipes = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for name, known in RECIPE_PRECISION.items():
        if name is None:
            continue
        text = recipes[name]
        if not known.recipe:
            assert f"grad_reduce_in_fp32={known.precision != 'fp16'}" in text
            continue
        field = "fp4_recipe" if known.recipe == "nvfp4" else "fp8_recipe"
        assert f"cfg = {known.precision}_mixed()" in text
        assert f"cfg.{field} = '{known.recipe}'" in text
        assert f"cfg.fp8_param_gather = {known.gather}" in text
        ends = re.findall(r"num_layers_at_(?:start|end)_in_bf16 = (\d+)", text)
        assert ends == [str(known.ends)] * (2 if known.ends else 0)


def test_release() -> None:
    """Names were looked up in 0.3."""
    bridge("training", "config.py")
    assert metadata.version("megatron-bridge").startswith("0.3.")
