"""torchtitan's own configuration manager reads our TOML; flavors and module names are torchtitan's."""

import ast
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from asking import BARE, ask, installed_file
from factories import llama_plan

from pipette_opt.export.targets import export
from pipette_opt.frameworks.torchtitan import LLAMA_3_FLAVORS, Shape, module_names

pytestmark = pytest.mark.client("torchtitan", "tyro")

QUESTION = f"""{BARE}
import json
from dataclasses import asdict
bare("torchtitan")
from torchtitan.config import ConfigManager
found = ConfigManager().parse_args(["--job.config_file", "torchtitan.toml", "--training.steps", "7"])
print(json.dumps({{name: asdict(getattr(found, name)) for name in (
    "model", "training", "parallelism", "activation_checkpoint")}}))
"""


def require_release() -> None:
    """Skip unless the release that takes TOML is installed."""
    if not metadata.version("torchtitan").startswith("0.2."):
        pytest.skip(f"needs torchtitan 0.2, found {metadata.version('torchtitan')}")


def parsed(tmp_path: Path, **options: object) -> dict[str, Any]:
    """What torchtitan makes of an exported plan."""
    for name, text in export(llama_plan(**options), "torchtitan").items():
        (tmp_path / name).write_text(text)
    answer: dict[str, Any] = ask(QUESTION, tmp_path)
    assert answer["training"]["steps"] == 7
    return answer


def test_torchtitan_reads_an_even_plan(tmp_path: Path) -> None:
    """Degrees, batch of a replica, micro-batch, schedule; sixteen ranks."""
    require_release()
    found = parsed(tmp_path)
    degrees = found["parallelism"]
    names = (
        "pipeline_parallel",
        "data_parallel_replicate",
        "data_parallel_shard",
        "context_parallel",
        "tensor_parallel",
    )
    assert [degrees[f"{name}_degree"] for name in names] == [2, 1, 4, 1, 2]
    assert (degrees["pipeline_parallel_schedule"], degrees["pipeline_parallel_microbatch_size"]) == ("1F1B", 1)
    assert degrees["fsdp_reshard_after_forward"] == "never"
    assert (found["training"]["local_batch_size"], found["training"]["global_batch_size"]) == (16, 64)
    assert found["training"]["seq_len"] == 1024
    assert (found["model"]["name"], found["model"]["flavor"]) == ("llama3", "8B")
    assert found["activation_checkpoint"]["mode"] == "none"


def test_torchtitan_reads_uneven_interleaved_stages(tmp_path: Path) -> None:
    """Chunks in model order, stage after stage; every layer once, the embedding first, the head last."""
    require_release()
    found = parsed(
        tmp_path,
        layers_per_stage=(14, 18),
        virtual_pipeline_model_parallel_size=2,
        recompute_granularity="full",
    )
    parts = found["parallelism"]["module_fqns_per_model_part"]
    assert [sum(name.startswith("layers.") for name in part) for part in parts] == [7, 9, 7, 9]
    assert [name for part in parts for name in part] == [
        "tok_embeddings",
        *(f"layers.{layer}" for layer in range(32)),
        "norm",
        "output",
    ]
    assert found["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert found["activation_checkpoint"]["mode"] == "full"


def function_of(path: Path, name: str) -> Any:
    """A function that needs nothing but builtins, taken out of a file that imports GPU libraries."""
    tree = ast.parse(path.read_text())
    node = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name)
    scope: dict[str, Any] = {}
    exec(compile(ast.Module([node], []), str(path), "exec"), scope)
    return scope[name]


def test_module_names_are_torchtitans() -> None:
    """Its own generator, told that embedding and head weigh nothing, names the modules of even stages as we do."""
    require_release()
    path = installed_file("torchtitan", "distributed", "pipeline_parallel.py")
    assert path is not None
    generate = function_of(path, "generate_llm_fqn_per_model_part")
    assert module_names(llama_plan().config) == generate(2, 32, 0, 0)
    chosen = llama_plan(virtual_pipeline_model_parallel_size=4).config
    assert module_names(chosen) == generate(8, 32, 0, 0)
    counted = llama_plan(layers_per_stage=(15, 15), virtual_pipeline_model_parallel_size=4).config
    assert module_names(counted) == generate(8, 30, 1, 1), "as it does unless told otherwise"


def test_flavors_are_torchtitans() -> None:
    """Layers, widths and heads of its flavors; the MLP's width by its rule (``TransformerBlock``, ``FeedForward``)."""
    require_release()
    path = installed_file("torchtitan", "models", "llama3", "__init__.py")
    assert path is not None
    table = next(
        node.value
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict)
    )
    theirs = {}
    for key, call in zip(table.keys, table.values, strict=True):
        assert isinstance(key, ast.Constant)
        assert isinstance(call, ast.Call)
        theirs[key.value] = {one.arg: ast.literal_eval(one.value) for one in call.keywords}
    for shape, flavor in LLAMA_3_FLAVORS.items():
        given = theirs[flavor]
        width = int(given["ffn_dim_multiplier"] * int(2 * (4 * given["dim"]) / 3))
        width = -(-width // given["multiple_of"]) * given["multiple_of"]
        assert shape == Shape(given["n_layers"], given["dim"], width, given["n_heads"], given["n_kv_heads"], 128256)
        assert given["rope_theta"] == llama_plan().inputs["model"]["rotary_base"]


def test_flavors_have_the_positions_of_llama_3_1() -> None:
    """Scaled frequencies and the epsilon are defaults of all flavors."""
    require_release()
    path = installed_file("torchtitan", "models", "llama3", "model", "args.py")
    assert path is not None
    defaults = {
        one.target.id: ast.literal_eval(one.value)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef)
        for one in node.body
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(one.value, ast.Constant)
    }
    model = llama_plan().inputs["model"]
    assert (defaults["scaling_factor"], defaults["norm_eps"]) == (model["rope_scaling_factor"], model["norm_epsilon"])
    constants = (defaults["low_freq_factor"], defaults["high_freq_factor"])
    assert (*constants, defaults["original_max_position_embeddings"]) == (1, 4, 8192), "Megatron's, too"
