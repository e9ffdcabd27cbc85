"""Launches in YAML, TOML, JSON and Python: a recipe of Megatron-LM is read, every other file refused by name."""

import os
import re
from pathlib import Path

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.megatron_args import model_of_arguments, read_megatron_args
from pipette_opt.read.model import read_model
from pipette_opt.read.settings_files import settings_file

SHARED = Path(os.environ.get("PIPETTE_OPT_SHARED", Path(__file__).parents[2].parent / "shared"))
RECIPE = SHARED / "cases" / "round4" / "01-megatron-moe-recipe" / "bf16_32GPU_TP1PP1EP8.yaml"


def refusal(folder: Path, name: str, text: str) -> str:
    """Error for a file."""
    path = folder / name
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_megatron_args(str(path), "--launch")
    return str(caught.value).removeprefix(str(path))


@pytest.mark.parametrize("name", ["job.yaml", "job", "job.txt"])
def test_a_recipe_of_megatron(name: str, tmp_path: Path) -> None:
    """Its options are those of the command line, whatever the file's name."""
    path = tmp_path / name
    path.write_text(
        "ENV_VARS:\n  A: '1'\nARGS:\n  tensor_model_parallel_size: 8\n  sequence_parallel: true\n  bf16: true\n"
        "  swiglu: false\n  load: ${LOAD}\n  lr: 1e-4\n  recompute_modules: [mlp, moe_act]\n"
        "  recompute_granularity: selective\n"
    )
    typed = (
        "--tensor-model-parallel-size 8 --sequence-parallel --bf16 --load L --lr 1e-4 --recompute-modules mlp moe_act"
    )
    given = read_megatron_args(str(path), "--launch")
    expected = read_megatron_args(f"{typed} --recompute-granularity selective", "--launch")
    assert {**given.options, "load": "L", "lr": 0} == {**expected.options, "lr": 0}
    assert given.lines == ""


def test_a_recipe_with_dashes(tmp_path: Path) -> None:
    """As the tests of Megatron-LM have it; it describes a model, too."""
    path = tmp_path / "model_config.yaml"
    path.write_text(
        "TEST_TYPE: regular\nMODEL_ARGS:\n  --num-layers: 4\n  --hidden-size: 64\n  --num-attention-heads: 4\n"
        "  --vocab-size: 512\n  --max-position-embeddings: 128\n  --bf16: true\n"
        "  --recompute-granularity: selective\n  --recompute-modules: '[mlp layernorm]'\n"
    )
    assert read_megatron_args(str(path), "--launch").options["recompute_modules"] == ["mlp", "layernorm"]
    assert read_megatron_args(str(path), "--launch").options["hidden_size"] == 64
    assert read_model(path).num_layers == 4


@pytest.mark.skipif(not RECIPE.exists(), reason=f"{RECIPE} is not here")
def test_a_recipe_of_2026() -> None:
    """Degrees tp 1, pp 1, ep 8, micro-batch 1, batch 256; the tokenizer tells the vocabulary."""
    given = read_megatron_args(str(RECIPE), "--launch")
    assert (given.expert_model_parallel_size, given.micro_batch_size, given.global_batch_size) == (8, 1, 256)
    assert given.parallel_config(48, 32).label() == "tp1 pp1 dp32 mbs1 ep8 etp1 dopt overlap+gather"
    assert given.model is not None
    assert read_model(RECIPE).num_layers == 48


@pytest.mark.parametrize(("text", "problem"), table(__file__, "recipes_that_are_wrong"))
def test_recipes_that_are_wrong(text: str, problem: str, tmp_path: Path) -> None:
    """One message with the line; all errors at once."""
    assert re.search(problem, refusal(tmp_path, "m.yaml", text))


@pytest.mark.parametrize(("name", "framework", "text"), table(__file__, "files_of_other_frameworks"))
def test_files_of_other_frameworks(name: str, framework: str, text: str, tmp_path: Path) -> None:
    """They were read as bash, whose errors advised to run them."""
    problem = refusal(tmp_path, name, text)
    kind = "program" if "import " in text else "settings file"
    assert f"is a {kind} of {framework} (" in problem
    assert ", line " in problem
    assert "capture" not in problem
    assert "in the options of Megatron-LM" in problem


def test_the_literals_of_a_program(tmp_path: Path) -> None:
    """Keywords, assignments and dictionaries; the program is not run."""
    text = (
        "from trl import SFTConfig\n"
        "SFTConfig(per_device_train_batch_size=4, packing=PACK)\n"
        "cfg.model.tensor_model_parallel_size = 2\n"
        "more = {'gradient_accumulation_steps': 8}\n"
        "raise SystemExit('was run')\n"
    )
    problem = refusal(tmp_path, "a.py", text)
    assert '--launch "--tensor-model-parallel-size 2 --micro-batch-size 4"' in problem
    assert "Not translated: gradient_accumulation_steps=8." in problem


@pytest.mark.parametrize(("name", "text", "problem"), table(__file__, "other_texts"))
def test_other_texts(name: str, text: str, problem: str, tmp_path: Path) -> None:
    """Each format has one message; only scripts are to be captured."""
    found = refusal(tmp_path, name, text)
    assert re.search(problem, found)
    assert "capture" not in found


@pytest.mark.parametrize(
    "text",
    [
        "TP=8\nA='--x 1'\n",
        'export A="b: c"\n',
        "#!/bin/bash\na: b\n",
        "[ -n a ] && echo b = c\n",
        "{ torchrun a.py; }\n",
        "cat <<'E'\nbase_model: m\nimport torch\nE\n",
        "--num-layers 4\n",
        "",
    ],
)
def test_scripts_and_options_are_no_settings(text: str) -> None:
    """The start of a text decides, before any parser."""
    assert settings_file(text, "a.sh") is None


def test_settings_of_others_are_no_model(tmp_path: Path) -> None:
    """A model is asked for, not a launch; eighty fields of an architecture file were listed."""
    path = tmp_path / "a.yaml"
    path.write_text("base_model: m\nadapter: lora\n")
    with pytest.raises(InputError, match=r"of axolotl .* Give the model's config.json.*models` lists.$"):
        read_model(path)
    with pytest.raises(InputError, match=r"of verl .* Give the model's config.json"):
        model_of_arguments("torchrun -m verl.trainer.main_ppo")
