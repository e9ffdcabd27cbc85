"""Launches of other frameworks are refused by name, and no launch is priced as all defaults."""

from pathlib import Path

import pytest
from tables import table

from pipette_opt.base.errors import InputError
from pipette_opt.read.frameworks import frameworks
from pipette_opt.read.launches import Launch, launch_of
from pipette_opt.read.megatron_args import read_megatron_args
from pipette_opt.read.run_launches import read_launch

FOREIGN = table(__file__, "FOREIGN")
"""Frameworks, and launches of theirs that a launch of Megatron-LM may be mistaken for."""


def refusal(text: str) -> str:
    """Error for a launch."""
    with pytest.raises(InputError) as caught:
        read_megatron_args(text, "--launch")
    return str(caught.value)


@pytest.mark.parametrize(("name", "text"), FOREIGN)
def test_launches_of_other_frameworks_are_refused_by_name(name: str, text: str, tmp_path: Path) -> None:
    """Typed or in a script, with the line and the way on; they were priced as all defaults."""
    script = tmp_path / "run.sh"
    script.write_text(f"#!/bin/bash\n{text}\n")
    for source in (str(script), text):
        problem = refusal(source)
        assert f"is a launch of {name} (by " in problem
        assert ", line " in problem
        assert "in the options of Megatron-LM" in problem


def test_every_framework_is_tried() -> None:
    """But those that are read, here or by a module of their own."""
    tried = {name for name, _ in FOREIGN}
    assert {framework.name for framework in frameworks() if not (framework.read or framework.reader)} == tried


def test_the_way_on_is_in_megatrons_options() -> None:
    """What means exactly the same is translated; the rest is named, engines of rollouts are not the trained model's."""
    problem = refusal(
        "python3 -m verl.trainer.main_ppo actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
        "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=4 "
        "actor_rollout_ref.actor.megatron.override_transformer_config.recompute_granularity=full "
        "actor_rollout_ref.actor.use_dynamic_bsz=True algorithm.adv_estimator=grpo"
    )
    assert '--launch "--tensor-model-parallel-size 4 --recompute-granularity full"' in problem
    assert "Not translated: actor_rollout_ref.actor.use_dynamic_bsz=True." in problem
    assert "Not modelled: algorithm.adv_estimator=grpo." in problem


def test_settings_files_of_a_launch_are_named() -> None:
    """Also those that a launcher reads."""
    launch = "accelerate launch --config_file f.yaml -m openrlhf.cli.train_sft --deepspeed z.json --model M"
    assert "Further settings are in f.yaml, z.json." in refusal(launch)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("--lora-r 16 --load_in_4bit", "--lora-r 16, --load_in_4bit, which change"),
        ("--packing true", "--packing true, which changes"),
        ("--gradient-accumulation-steps 8", "--gradient-accumulation-steps 8, which"),
        ("--sequence-parallel-size 2", "--sequence-parallel-size 2, which"),
        ("cfg.pipeline_model_parallel_size=4", 'In the options of Megatron-LM: "--pipeline-model-parallel-size 4"'),
        ("--tp-2d --tp-x 2", "--tp-2d, --tp-x 2, which"),
        ("--swap-attention", "--swap-attention, which"),
        ("--recompute-in-advance", "--recompute-in-advance, which"),
        ("--activation_checkpointing", "--activation_checkpointing, which"),
    ],
)
def test_words_that_size_a_job_and_are_not_read(words: str, named: str) -> None:
    """Each is an error with its name, whatever else the launch says; they were left out."""
    program = "torchrun pretrain_gpt.py --tensor-model-parallel-size 8 --micro-batch-size 1"
    assert named in refusal(f"{program} {words}")


@pytest.mark.parametrize(
    "words",
    ["--packing false", "--load_in_4bit False", "--deepspeed ''", "--lora-r 0", "--our-own 3", "--micro_batch_size=1"],
)
def test_words_that_change_nothing(words: str) -> None:
    """Words that are switched off, or that say what is read, or that size no job."""
    given = read_megatron_args(f"torchrun pretrain_gpt.py --tensor-model-parallel-size 8 {words}", "--launch")
    assert given.tensor_model_parallel_size == 8


def test_options_of_launchers_that_shard() -> None:
    """They stand before the program."""
    problem = refusal("accelerate launch --use_fsdp train.py --tensor-model-parallel-size 8")
    assert "sets --use_fsdp, which changes" in problem


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("--bf16 --seed 3", "Given: '--bf16 --seed 3'"),
        ("torchrun pretrain_gpt.py", "pretrain_gpt.py is given none of Megatron-LM's"),
        ("torchrun train.py conf/c.yaml", "Further settings are in conf/c.yaml"),
        ("torchrun pretrain_gpt.py $MORE", "not set, and taken for empty: MORE"),
    ],
)
def test_a_launch_that_sizes_nothing(text: str, named: str) -> None:
    """It would be priced as all defaults; the error says what is missing."""
    problem = refusal(text)
    assert "has no option that sizes a job" in problem
    assert named in problem


def test_a_row_of_a_table_may_size_its_job_in_columns() -> None:
    """The arguments of a row are only a part of its launch."""
    cells = {"args": "--bf16", "tp": "2", "num_layers": "", "gbs": "8"}
    with pytest.raises(InputError, match="needs a model"):
        read_launch(cells, "runs.csv, line 2", Path(), None)


def test_all_errors_of_a_launch_at_once() -> None:
    """One error a run made six runs of six errors."""
    problem = refusal("--tensor-model-parallel-size x --micro-batch-size 0 --micro-batch 3 --tp 9 --lora-r 8")
    for part in (
        "--tensor-model-parallel-size must be a whole number >= 1, got 'x'",
        "--micro-batch-size must be a whole number >= 1, got '0'",
        "unknown option --micro-batch. Did you mean --micro-batch-size?",
        "Megatron-LM has no option --tp; write --tensor-model-parallel-size",
        "sets --lora-r 8, which changes",
    ):
        assert part in problem
    assert problem.count(" Also: ") == 4


@pytest.mark.parametrize("line", ["swift sft", "llamafactory-cli train x.yaml", "axolotl train c.yml", "nemo llm"])
def test_commands_of_frameworks_start_a_training(line: str) -> None:
    """Installed commands, which no launcher starts."""
    assert isinstance(launch_of(line.split()), Launch)
