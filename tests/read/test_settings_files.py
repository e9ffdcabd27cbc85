"""Launches in YAML, TOML, JSON and Python: a recipe of Megatron-LM is read, every other file refused by name."""

import os
import re
from pathlib import Path

import pytest

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
        read_megatron_args(str(path), "--args")
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
    given = read_megatron_args(str(path), "--args")
    expected = read_megatron_args(f"{typed} --recompute-granularity selective", "--args")
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
    assert read_megatron_args(str(path), "--args").options["recompute_modules"] == ["mlp", "layernorm"]
    assert read_megatron_args(str(path), "--args").options["hidden_size"] == 64
    assert read_model(path).num_layers == 4


@pytest.mark.skipif(not RECIPE.exists(), reason=f"{RECIPE} is not here")
def test_a_recipe_of_2026() -> None:
    """Degrees tp 1, pp 1, ep 8, micro-batch 1, batch 256; the tokenizer tells the vocabulary."""
    given = read_megatron_args(str(RECIPE), "--args")
    assert (given.expert_model_parallel_size, given.micro_batch_size, given.global_batch_size) == (8, 1, 256)
    assert given.parallel_config(48, 32).label() == "tp1 pp1 dp32 mbs1 ep8 etp1 dopt overlap+gather"
    assert given.model is not None
    assert read_model(RECIPE).num_layers == 48


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ARGS:\n  tensor_model_parallel_size: 8\n   micro_batch_size: 1\n", ", line 3: is not valid YAML"),
        ("ARGS:\n", ": has no option under ARGS or MODEL_ARGS"),
        (
            "ARGS:\n  micro-batch-size=4: 2\n  3: 4\n",
            "'micro-batch-size=4', which is no .* Also: line 3: ARGS has 3, which is",
        ),
        ("ARGS: 3\n", ", line 1: ARGS must be a map of options"),
        (
            "ARGS:\n  tensor_model_parallel_size: 8\n  tensor-model-parallel-size: 4\n",
            ", line 3: sets --tensor-model-parallel-size again, after tensor_model_parallel_size",
        ),
        (
            "ARGS:\n  micro_batch_size: {a: 1}\n  seq_length: [[1]]\n",
            "ARGS.micro_batch_size must be .* Also: .*seq_len",
        ),
        ("ARGS:\n  micro_batch_size: eight\n  lora_rank: 8\n", "must be a whole number .* Also: sets --lora-rank 8"),
        ("ARGS:\n  bf16: true\n", "has no option that sizes a job"),
        (
            "ARGS:\n  micro_batch_size: 1\nactor_rollout_ref:\n  actor: 1\n",
            r", line 1: is YAML with settings of verl \(actor_rollout_ref\) and of Megatron-LM \(ARGS\)",
        ),
    ],
)
def test_recipes_that_are_wrong(text: str, problem: str, tmp_path: Path) -> None:
    """One message with the line; all errors at once."""
    assert re.search(problem, refusal(tmp_path, "m.yaml", text))


@pytest.mark.parametrize(
    ("name", "framework", "text"),
    [
        ("a.toml", "torchtitan", "[parallelism]\ntensor_parallel_degree = 8\n"),
        ("a", "torchtitan", "# job\n[training]\nlocal_batch_size = 8\n[parallelism]\npipeline_parallel_degree = 1\n"),
        ("a", "torchtitan", "tensor_parallel_degree = 8\n"),
        ("a.yaml", "axolotl", "base_model: m\nadapter: lora\n"),
        ("a.yaml", "LLaMA-Factory", "finetuning_type: full\nper_device_train_batch_size: 1\n"),
        ("a.yaml", "torchtune", "model:\n  _component_: torchtune.models.m\nbatch_size: 2\n"),
        ("a.yaml", "accelerate", "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\n"),
        ("a.json", "DeepSpeed", '{"zero_optimization": {"stage": 3}}'),
        ("a", "DeepSpeed", '{\n "train_micro_batch_size_per_gpu": 4\n}'),
        ("a.yaml", "verl", "actor_rollout_ref:\n  actor:\n    strategy: fsdp\n"),
        ("a.yaml", "NeMo-RL", "grpo:\n  a: 1\npolicy:\n  b: 2\n"),
        ("a.yaml", "Primus", "work_group: ${TEAM:a}\nmodules:\n  pre_trainer:\n    framework: megatron\n"),
        ("a.yaml", "Primus", "modules:\n  pre_trainer:\n    overrides:\n      tensor_parallel_degree: 2\n"),
        ("a.yaml", "nanotron", "parallelism:\n  tp: 2\ntokens:\n  batch_accumulation_per_replica: 4\n"),
        ("a.yml", "GPT-NeoX", '{\n  "pipe-parallel-size": 2,  # stages\n}\n'),
        ("a.yaml", "Megatron-Bridge", "model:\n  num_layers: 3\ntrain:\n  micro_batch_size: 1\n"),
        ("a.yaml", "NeMo", "exp_manager:\n  name: x\ntrainer:\n  devices: 8\n"),
        ("a.yaml", "Levanter", "trainer:\n  per_device_parallelism: 4\nmodel:\n  type: llama\n"),
        ("a.yaml", "ms-swift", "train_type: lora\n"),
        ("a.py", "NeMo-Run", "import nemo_run as run\nfrom nemo.collections import llm\n"),
        ("a", "TRL", "from trl import SFTConfig\nSFTConfig(per_device_train_batch_size=4)\n"),
        ("a", "Unsloth", "#!/usr/bin/env -S python3 -u\nfrom unsloth import FastLanguageModel\n"),
        ("a.py", "Megatron-Bridge", "from megatron.bridge.recipes import r\nr().model.seq_length = 4\n"),
    ],
)
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
    assert '--args "--tensor-model-parallel-size 2 --micro-batch-size 4"' in problem
    assert "Not translated: gradient_accumulation_steps=8." in problem


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.toml", "[parallelism\ntensor_parallel_degree = 8\n", "is not valid TOML"),
        ("a.json", '{"zero_optimization": {', "is not valid JSON"),
        ("a.py", "import torch\ndef f(:\n", ", line 2: is not valid Python"),
        ("a.py", "import torch\n", "is a program in Python, not its launch; give the command"),
        ("a.toml", "[model]\nmicro_batch_size = 2\n", 'is TOML with settings of no framework .*"--micro-batch-size 2"'),
        ("a.yaml", "nodes:\n  - {hosts: a}\n", "is YAML, not a launch. It looks like a cluster file"),
        ("a.yaml", "base_model: m\nfinetuning_type: lora\n", "settings of LLaMA-Factory .* and of axolotl"),
        (
            "a.yaml",
            "pre_trainer:\n  recompute_granularity: full\n  recompute_num_layers: 0\n",
            "Not translated: pre_trainer.recompute_num_layers=0",
        ),
        ("a.yaml", "a: 1\n", "is YAML with settings of no framework that is known here"),
        ("a.log", "step:1 - global_seqlen/mean:3\n", "is no launch. It looks like a log of verl"),
        ("a.md", "Some words, and no more.\n[a](b\n", "is no launch"),
    ],
)
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
